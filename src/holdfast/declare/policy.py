"""The options of a task when it is declared, and of a job when it is enqueued.

`TaskOptions` are the options of `@jobs.task(...)`, `UsingOptions` those of `task.using(...)`: one name for one setting.
Options are checked at once; each error names the option. An option that the decorator leaves out is read from the
configuration when the task is first used, not at import, because that would read a file.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from holdfast.codec import Codec
from holdfast.context import Middleware
from holdfast.declare.advice import advice_on_option
from holdfast.declare.isolation import isolate_option, memory_limit_option
from holdfast.declare.template import Source, Template
from holdfast.durations import EXAMPLES, Duration, seconds_of
from holdfast.errors import InvalidOption, duration_us, instant_us
from holdfast.model.check import MAX_PRIORITY
from holdfast.model.instants import SECOND, Instant, Micros
from holdfast.model.job import NOTHING_GIVEN, Given, KeyScope
from holdfast.model.produce import NewJob
from holdfast.model.retry import Backoff, BackoffFunction, RetryPolicy, backoff
from holdfast.model.text import check_metadata, check_name

if TYPE_CHECKING:
    from holdfast.config import TaskSettings

MIN_LEASE_US: Micros = 2 * SECOND
"""Shorter leases could expire between two renewals on a busy machine."""
NAMESPACE = re.compile(r"[a-z_][a-z0-9_]{0,30}")

Scope = Literal["incomplete", "result", "forever"] | Duration


class TaskOptions(TypedDict, total=False):
    """The keywords of `@jobs.task`."""

    name: str
    queue: str
    priority: int
    max_attempts: int | None
    backoff: Backoff | Duration | Sequence[Duration] | BackoffFunction
    retry_on: tuple[type[BaseException], ...]
    give_up_on: tuple[type[BaseException], ...]
    retry_for: Duration | None
    max_losses: int
    timeout: Duration | None
    lease: Duration
    concurrency: int | None
    lane: Source | None
    unique_key: Source | None
    unique_for: Scope
    result_ttl: Duration
    retention: Duration
    failed_retention: Duration
    middleware: Sequence[Middleware]
    codec: Codec
    remote: bool
    transaction: bool | Callable[[], Any]
    isolate: Literal["process"] | None
    memory_limit: int | None


class UsingOptions(TypedDict, total=False):
    """The keywords of `task.using`."""

    id: str
    queue: str
    priority: int
    delay: Duration
    at: datetime
    expires: Duration | datetime
    lane: str
    unique_key: str
    unique_for: Scope
    max_attempts: int | None
    timeout: Duration
    result_ttl: Duration
    retention: Duration
    metadata: Mapping[str, str]
    wait: Duration
    wait_for_room: Duration
    transaction: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPolicy:
    """The complete policy of a task."""

    name: str
    queue: str
    priority: int
    retry: RetryPolicy
    timeout: Micros | None
    lease: Micros
    concurrency: int | None
    result_ttl: Micros
    retention: Micros
    failed_retention: Micros
    lane: Template | None
    unique_key: Template | None
    key_scope: KeyScope | None
    """How long the key, or the id, makes a second job a duplicate. None: the engine's default."""
    key_window: Micros
    remote: bool
    transaction: Any = False
    """True: `ctx.tx` is a transaction of the store. A function: it makes the user's session."""
    isolate: str | None = None
    """`process`: its handlers run in child processes of the worker."""
    memory_limit: int | None = None
    """Bytes that such a process may allocate."""


def read_task_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the given options and convert them to the values of `TaskPolicy`."""
    given = _read(options, _TASK_READERS)
    RetryPolicy(**{name: given[name] for name in _RETRY if name in given})  # its constructor checks them
    return given


def read_app_options(*, url: Any, modules: Any, namespace: Any, durability: Any, codec: Any) -> None:
    """Refuse wrong options of an App when it is created."""
    if url is not None and not callable(url) and (not isinstance(url, str) or ":" not in url):
        raise InvalidOption("`url` must be an address such as sqlite:///jobs.db or memory://.", option="url")
    if isinstance(modules, str) or not all(isinstance(module, str) for module in modules):
        raise InvalidOption("`modules` must list module names.", option="modules")
    if namespace is not None and (not isinstance(namespace, str) or not NAMESPACE.fullmatch(namespace)):
        message = "`namespace` must be a lower-case word of at most 31 letters, digits and underscores."
        raise InvalidOption(message, option="namespace")
    if durability not in (None, "durable", "fast", "none"):
        raise InvalidOption("`durability` must be 'durable', 'fast' or 'none'.", option="durability")
    if codec is not None:
        _codec(codec, "codec")


def make_policy(name: str, given: Mapping[str, Any], defaults: "TaskSettings") -> TaskPolicy:
    """The policy of a task: the given options, and the configuration for the rest."""

    def choose(option: str, otherwise: Any) -> Any:
        return given.get(option, otherwise)

    scope, window = choose("unique_for", (None, 0))
    return TaskPolicy(
        name=name,
        queue=choose("queue", defaults.queue),
        priority=choose("priority", defaults.priority),
        retry=RetryPolicy(
            max_attempts=choose("max_attempts", defaults.max_attempts or None),
            backoff=choose("backoff", defaults.backoff),
            retry_on=choose("retry_on", (Exception,)),
            give_up_on=choose("give_up_on", ()),
            retry_for=choose("retry_for", None),
            max_losses=choose("max_losses", defaults.max_losses),
        ),
        timeout=choose("timeout", duration_us(defaults.timeout, "timeout") or None),
        lease=choose("lease", duration_us(defaults.lease, "lease")),
        concurrency=choose("concurrency", None),
        result_ttl=choose("result_ttl", duration_us(defaults.result_ttl, "result_ttl")),
        retention=choose("retention", duration_us(defaults.retention, "retention")),
        failed_retention=choose("failed_retention", duration_us(defaults.failed_retention, "failed_retention")),
        lane=choose("lane", None),
        unique_key=choose("unique_key", None),
        key_scope=scope,
        key_window=window,
        remote=choose("remote", False),
        transaction=choose("transaction", False),
        isolate=choose("isolate", None),
        memory_limit=choose("memory_limit", None),
    )


def read_using_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the given options. `delay` and `at` exclude each other."""
    given = _read(options, _USING_READERS)
    if "delay" in given and "at" in given:
        raise InvalidOption("Give `delay` or `at`, not both.", option="at")
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDefaults:
    """What all jobs of one task, with the same `using` options, have in common."""

    job: NewJob
    """A job with all fields that do not depend on the arguments; with its id, if `using` gave one."""
    templates: dict[str, Template]
    """The fields that are made from the arguments: `lane`, `unique_key`."""
    expires_after_us: Micros | None
    """Time from the enqueue until the job expires."""
    wait_for_room_us: Micros | None
    """How long to wait for room in a full queue."""
    is_complete: bool
    """A job needs nothing else than a generated id and its payload."""
    codec: Codec
    max_payload_bytes: int
    """The limit for a payload."""

    @classmethod
    def of(cls, policy: TaskPolicy, chosen: Mapping[str, Any], codec: Codec, max_payload_bytes: int) -> "JobDefaults":
        """The task's policy, with the options of `using` in place of its values."""
        expires, expires_after_us = chosen.get("expires", (None, None))
        scope, window = chosen.get("unique_for", (policy.key_scope, policy.key_window))
        named = {
            "lane": chosen.get("lane", policy.lane),
            "unique_key": chosen.get("unique_key", policy.unique_key),
        }
        templates = {field: name for field, name in named.items() if isinstance(name, Template)}
        job = NewJob(
            queue=chosen.get("queue", policy.queue),
            id=chosen.get("id") or "",
            fresh_id=chosen.get("id") is None,
            task=policy.name,
            codec=codec.name,
            metadata=chosen.get("metadata", {}),
            priority=chosen.get("priority", policy.priority),
            delay=chosen.get("delay", 0),
            due=chosen.get("at"),
            expires=expires,
            key_scope=scope,
            key_window=window,
            given=_given(chosen),
            **{field: name for field, name in named.items() if field not in templates},
        )
        return cls(
            job=job,
            templates=templates,
            expires_after_us=expires_after_us,
            wait_for_room_us=chosen.get("wait_for_room"),
            is_complete=job.fresh_id and not templates and expires_after_us is None,
            codec=codec,
            max_payload_bytes=max_payload_bytes,
        )


def _given(chosen: Mapping[str, Any]) -> Given:
    """The part of the policy that is stored with the job, because it was given at enqueue."""
    attempts = chosen.get("max_attempts", _ABSENT)
    given = Given(
        max_attempts=None if attempts is _ABSENT else attempts or 0,
        timeout=chosen.get("timeout"),
        result_ttl=chosen.get("result_ttl"),
        retention=chosen.get("retention"),
    )
    return NOTHING_GIVEN if given == NOTHING_GIVEN else given


# --- One option ---

_ABSENT = object()
_Reader = Callable[[Any, str], Any]


def _read(options: Mapping[str, Any], readers: Mapping[str, _Reader]) -> dict[str, Any]:
    given = {}
    for option, value in options.items():
        reader = readers.get(option)
        if reader is None:
            advice = advice_on_option(option, readers, of_task=_TASK_READERS, of_job=_USING_READERS)
            raise InvalidOption(f"There is no option `{option}` here. {advice}".rstrip(), option=option)
        given[option] = reader(value, option)
    return given


def _or_none(reader: _Reader) -> _Reader:
    return lambda value, option: None if value is None else reader(value, option)


def _whole(low: int, high: int) -> _Reader:
    def read(value: Any, option: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidOption(f"`{option}` must be a whole number from {low} to {high}.", option=option)
        return int(value)

    return read


def _longer_than(low_us: Micros) -> _Reader:
    def read(value: Any, option: str) -> int:
        length_us = duration_us(value, option)
        if length_us < low_us:
            raise InvalidOption(f"`{option}` must be at least {low_us / SECOND:g} seconds.", option=option)
        return length_us

    return read


def _errors(value: Any, option: str) -> tuple[type[BaseException], ...]:
    kinds = (value,) if isinstance(value, type) else value
    if not isinstance(kinds, tuple | list) or not all(
        isinstance(k, type) and issubclass(k, BaseException) for k in kinds
    ):
        raise InvalidOption(f"`{option}` must list exception types.", option=option)
    return tuple(kinds)


def _scope(value: Any, option: str) -> tuple[KeyScope, Micros]:
    if isinstance(value, str) and seconds_of(value) is None:
        if value not in ("incomplete", "result", "forever"):
            message = f"`{option}` must be 'incomplete', 'result', 'forever', seconds, a timedelta or {EXAMPLES}."
            raise InvalidOption(message, option=option)
        return KeyScope(value), 0
    return KeyScope.WINDOW, _longer_than(1)(value, option)


def _middleware(value: Any, option: str) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list) or not all(callable(item) for item in value):
        raise InvalidOption(f"`{option}` must list functions.", option=option)
    return tuple(value)


def _codec(value: Any, option: str) -> Codec:
    if not isinstance(value, Codec):
        raise InvalidOption(f"`{option}` must be a Codec, with name, encode and decode.", option=option)
    return value


def _flag(value: Any, option: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(f"`{option}` must be True or False.", option=option)
    return value


def _transaction(value: Any, option: str) -> Any:
    if not isinstance(value, bool) and not callable(value):
        message = f"`{option}` must be True, or a function that makes a session, such as a sessionmaker."
        raise InvalidOption(message, option=option)
    return value


def check_factory(factory: Any, *, is_async: bool) -> None:
    """Refuse an async sessionmaker for a sync task, and the other way round, when the task is declared."""
    names = {kind.__name__ for kind in type(factory).__mro__ if kind.__module__.startswith("sqlalchemy.")}
    if is_async and "sessionmaker" in names:
        raise InvalidOption("An async task needs an `async_sessionmaker` as `transaction`.", option="transaction")
    if not is_async and "async_sessionmaker" in names:
        raise InvalidOption("A plain function needs a `sessionmaker` as `transaction`.", option="transaction")


def _expires(value: Any, option: str) -> tuple[Instant | None, Micros | None]:
    """An instant, or a duration from now."""
    if isinstance(value, datetime):
        return instant_us(value, option), None
    return None, duration_us(value, option)


_RETRY = ("max_attempts", "backoff", "retry_on", "give_up_on", "retry_for", "max_losses")
_priority = _whole(-MAX_PRIORITY - 1, MAX_PRIORITY)
_attempts = _or_none(_whole(1, 2**31 - 1))

_TASK_READERS: dict[str, _Reader] = {
    "name": check_name,
    "queue": check_name,
    "priority": _priority,
    "max_attempts": _attempts,
    "backoff": lambda value, _: backoff(value),
    "retry_on": _errors,
    "give_up_on": _errors,
    "retry_for": _or_none(duration_us),
    "max_losses": _whole(1, 2**31 - 1),
    "timeout": _or_none(_longer_than(1)),
    "lease": _longer_than(MIN_LEASE_US),
    "concurrency": _or_none(_whole(1, 100_000)),
    "lane": _or_none(Template),
    "unique_key": _or_none(Template),
    "unique_for": _scope,
    "result_ttl": duration_us,
    "retention": duration_us,
    "failed_retention": duration_us,
    "middleware": _middleware,
    "codec": _codec,
    "remote": _flag,
    "transaction": _transaction,
    "isolate": isolate_option,
    "memory_limit": memory_limit_option,
}

_USING_READERS: dict[str, _Reader] = {
    "id": check_name,
    "queue": check_name,
    "priority": _priority,
    "delay": duration_us,
    "at": instant_us,
    "expires": _expires,
    "lane": check_name,
    "unique_key": check_name,
    "unique_for": _scope,
    "max_attempts": _attempts,
    "timeout": _longer_than(1),
    "result_ttl": duration_us,
    "retention": duration_us,
    "metadata": lambda value, _: check_metadata(value),
    "wait": duration_us,
    "wait_for_room": duration_us,
    "transaction": lambda value, _: value,
}
