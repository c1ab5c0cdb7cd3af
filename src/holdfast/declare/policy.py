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
from holdfast.declare.option_readers import (
    Reader,
    longer_than,
    or_none,
    read_aliases,
    read_codec,
    read_errors,
    read_expires,
    read_flag,
    read_middleware,
    read_scope,
    read_transaction,
    whole,
)
from holdfast.declare.template import Source, Template
from holdfast.durations import Duration
from holdfast.errors import InvalidOption, duration_us, instant_us
from holdfast.model.check import MAX_PRIORITY
from holdfast.model.instants import SECOND, Micros
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
    """The keywords of `@jobs.task`. The settings `[task]` change the defaults of some."""

    name: str
    """By default the name of the function. It is stored with each job."""
    aliases: Sequence[str]
    """Earlier names of the task: workers also run jobs that were stored under them."""
    queue: str
    """By default `default`."""
    priority: int
    """By default 0; from -32768 to 32767. Inside a queue a higher one runs first."""
    max_attempts: int | None
    """Runs of a job, by default 20. None: no limit."""
    backoff: Backoff | Duration | Sequence[Duration] | BackoffFunction
    """The delay before the next attempt: a back-off, a duration, a list of durations, or a function of attempt and
    error."""
    retry_on: tuple[type[BaseException], ...]
    """Errors after which a job is retried. By default `(Exception,)`."""
    give_up_on: tuple[type[BaseException], ...]
    """Errors after which a job fails at once. Overrides `retry_on`."""
    retry_for: Duration | None
    """Time from the first attempt. A job fails if its next attempt would start later."""
    max_losses: int
    """The job fails after the loss of this many workers. By default 5."""
    timeout: Duration | None
    """Of each attempt. By default none."""
    lease: Duration
    """By default 30 s, at least 2 s; renewed after a third of it. If its worker dies unnoticed, a job waits this
    long."""
    concurrency: int | None
    """Attempts of this task that run at the same time in one worker. By default as many as the worker has slots."""
    lane: Source | None
    """Jobs of one lane run one after the other. Text such as `"customer:{customer_id}"`, or a function of the
    arguments."""
    unique_key: Source | None
    """A second job with this key is a duplicate. Text such as `"report:{customer}"`, or a function of the arguments."""
    unique_for: Scope
    """How long an id or key is taken: `incomplete`, `result`, `forever`, or a duration from the enqueue on."""
    result_ttl: Duration
    """How long the result is kept after the end. By default 1 h."""
    retention: Duration
    """How long the record of a job that succeeded or was cancelled is kept. By default 1 day."""
    failed_retention: Duration
    """How long the record of a failed job is kept. By default 30 days."""
    middleware: Sequence[Middleware]
    """Around each attempt of this task, inside the middleware of the App."""
    codec: Codec
    """By default that of the App."""
    remote: bool
    """True: only the signature is here. Workers of this App do not run the task."""
    transaction: bool | Callable[[], Any]
    """True, or a function that makes your session: `ctx.tx` is a transaction that commits with the end of the job."""
    isolate: Literal["process"] | None
    """`process`: the handler runs in a child process of the worker."""
    memory_limit: int | None
    """Bytes that such a process may allocate."""


class UsingOptions(TypedDict, total=False):
    """The keywords of `task.using`: for one job, or for all jobs of the copy that `using` returns."""

    id: str
    """Your own id for the job. A second job with it is a duplicate of the first."""
    queue: str
    """Another queue than the task's."""
    priority: int
    """From -32768 to 32767. Inside a queue a higher one runs first."""
    delay: Duration
    """From now until the job is due. Not together with `at`."""
    at: datetime
    """When the job is due: an aware datetime. A time in the past means now."""
    expires: Duration | datetime
    """The latest time to start it, or the time from now until then. After that it ends as cancelled."""
    lane: str
    """Jobs of one lane run one after the other. Taken literally: braces are not a template here."""
    unique_key: str
    """A second job with this key is a duplicate. Taken literally."""
    unique_for: Scope
    """How long an id or key is taken: `incomplete`, `result`, `forever`, or a duration from the enqueue on."""
    max_attempts: int | None
    """Runs of this job. None: no limit."""
    timeout: Duration
    """Of each attempt of this job."""
    result_ttl: Duration
    """How long the result is kept after the end."""
    retention: Duration
    """How long the record is kept after a success or a cancel."""
    metadata: Mapping[str, str]
    """Text by name, to find jobs by. It is not passed to the handler's function; `ctx.job.metadata` has it."""
    wait: Duration
    """How long `request` waits for the result."""
    wait_for_room: Duration
    """How long to wait if the queue is full. Without it `QueueFull` is raised at once."""
    transaction: Any
    """Your own transaction: the job exists if, and only if, it commits."""


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
    aliases: tuple[str, ...] = ()
    """Earlier names of the task: its worker also runs jobs that were stored under them."""
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
        read_codec(codec, "codec")


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
        aliases=choose("aliases", ()),
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


def _read(options: Mapping[str, Any], readers: Mapping[str, Reader]) -> dict[str, Any]:
    given = {}
    for option, value in options.items():
        reader = readers.get(option)
        if reader is None:
            advice = advice_on_option(option, readers, of_task=_TASK_READERS, of_job=_USING_READERS)
            raise InvalidOption(f"There is no option `{option}` here. {advice}".rstrip(), option=option)
        given[option] = reader(value, option)
    return given


_RETRY = ("max_attempts", "backoff", "retry_on", "give_up_on", "retry_for", "max_losses")
_priority = whole(-MAX_PRIORITY - 1, MAX_PRIORITY)
_attempts = or_none(whole(1, 2**31 - 1))

_TASK_READERS: dict[str, Reader] = {
    "name": check_name,
    "aliases": read_aliases,
    "queue": check_name,
    "priority": _priority,
    "max_attempts": _attempts,
    "backoff": lambda value, _: backoff(value),
    "retry_on": read_errors,
    "give_up_on": read_errors,
    "retry_for": or_none(duration_us),
    "max_losses": whole(1, 2**31 - 1),
    "timeout": or_none(longer_than(1)),
    "lease": longer_than(MIN_LEASE_US),
    "concurrency": or_none(whole(1, 100_000)),
    "lane": or_none(Template),
    "unique_key": or_none(Template),
    "unique_for": read_scope,
    "result_ttl": duration_us,
    "retention": duration_us,
    "failed_retention": duration_us,
    "middleware": read_middleware,
    "codec": read_codec,
    "remote": read_flag,
    "transaction": read_transaction,
    "isolate": isolate_option,
    "memory_limit": memory_limit_option,
}

_USING_READERS: dict[str, Reader] = {
    "id": check_name,
    "queue": check_name,
    "priority": _priority,
    "delay": duration_us,
    "at": instant_us,
    "expires": read_expires,
    "lane": check_name,
    "unique_key": check_name,
    "unique_for": read_scope,
    "max_attempts": _attempts,
    "timeout": longer_than(1),
    "result_ttl": duration_us,
    "retention": duration_us,
    "metadata": lambda value, _: check_metadata(value),
    "wait": duration_us,
    "wait_for_room": duration_us,
    "transaction": lambda value, _: value,
}
