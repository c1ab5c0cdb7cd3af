"""A task: a function with its policy, and what can be done with it.

    @jobs.task(max_attempts=5)
    def resize(image: str, width: int = 800) -> str: ...

    resize("cat.png")                                   the plain function
    resize.enqueue("cat.png", width=320)                a job, on disk before this returns
    resize.using(delay=60).enqueue("cat.png")           options never mix with arguments
    resize.request("cat.png")                           enqueue, and wait for the result
    resize.call("cat.png")                              run it here and now, without a queue

Everything that can be wrong with arguments or options is found before anything is written.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack, cast

from holdfast.blocking import away_from_here, blocking
from holdfast.codec import Codec
from holdfast.context import CURRENT, Context
from holdfast.core.asking import ended
from holdfast.core.link import Link
from holdfast.core.producing import enqueue
from holdfast.declare.envelope import answering_to, call_hash, with_own
from holdfast.declare.policy import (
    JobDefaults,
    TaskPolicy,
    UsingOptions,
    check_factory,
    make_policy,
    read_task_options,
    read_using_options,
)
from holdfast.declare.signature import Arguments, OpenSignature, Signature
from holdfast.draft import Draft
from holdfast.errors import DuplicateTask, InvalidOption, UsageError
from holdfast.handle import Handle
from holdfast.model.job import JobKey
from holdfast.model.produce import Accepted, EnqueueStatus
from holdfast.model.text import check_name

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=Callable[..., object])

_logger = logging.getLogger("holdfast")

_ELSEWHERE = frozenset({"delay", "apply_async", "send", "send_with_options", "kiq", "defer", "defer_async", "s", "si"})
"""How other systems enqueue."""


@dataclass(slots=True)
class Definition:
    """What all copies of a task share. `given` are the options of its decorator, checked."""

    link: Link
    name: str
    signature: Signature
    given: dict[str, Any]
    function: Callable[..., Any] | None = None
    is_async: bool = False
    dead_letter_hooks: list[Callable[..., object]] = field(default_factory=list)
    policy: TaskPolicy | None = None


class Task(Generic[P, R]):
    """A declared function. `SyncTask` and `AsyncTask` differ only in what calling them answers."""

    def __init__(self, definition: Definition) -> None:
        self._link = definition.link
        self._definition = definition
        self._chosen: dict[str, Any] = {}
        self._made: JobDefaults | None = None
        self.name = definition.name
        self.takes_context = definition.signature.takes_context
        self.is_async = definition.is_async
        if definition.function is not None:
            update_wrapper(cast(Any, self), definition.function, updated=())

    # What a worker asks for

    @property
    def policy(self) -> TaskPolicy:
        """The decorator's options, and the configuration for the rest."""
        definition = self._definition
        if definition.policy is None:
            definition.policy = make_policy(definition.name, definition.given, self._link.config.task)
        return definition.policy

    @property
    def function(self) -> Callable[..., Any]:
        if self._definition.function is None:
            raise InvalidOption(f"The code of task {self.name!r} is not in this process.", option="name")
        return self._definition.function

    @property
    def queue(self) -> str:
        """Where its jobs go."""
        chosen: str | None = self._chosen.get("queue")
        return self.policy.queue if chosen is None else chosen

    @property
    def middleware(self) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self._definition.given.get("middleware", ())
        return found

    @property
    def dead_letter_hooks(self) -> list[Callable[..., object]]:
        return self._definition.dead_letter_hooks

    def decode_arguments(self, payload: bytes, codec: str) -> Arguments:
        """A stored call. InvalidArguments: it does not fit the function; CorruptRecord: it is no call at all."""
        return self._definition.signature.decode(self._codec_named(codec), payload)

    def encode_result(self, value: object, codec: str | None = None) -> bytes:
        """What a handler returned, by the codec that wrote the job's payload."""
        by = self._link.result_codec(self._codec if codec is None else self._codec_named(codec))
        data = self._definition.signature.encode_result(by, value)
        return self._link.check_size(data, self._link.config.limits.result)

    def decode_result(self, data: bytes, codec: str) -> R:
        """A stored result, as the declared return type."""
        by = self._link.result_codec(self._codec_named(codec))
        result: R = self._definition.signature.decode_result(by, data)
        return result

    @property
    def _codec(self) -> Codec:
        return cast(Codec, self._definition.given.get("codec") or self._link.codec)

    def _codec_named(self, name: str) -> Codec:
        own: Codec | None = self._definition.given.get("codec")
        return own if own is not None and own.name == name else self._link.codec_named(name)

    # What a user does with it

    def using(self, /, **options: Unpack[UsingOptions]) -> Self:
        """A new task with these options for its jobs; this one stays as it is."""
        given = read_using_options(options)
        other = copy(self)
        kept = dict(self._chosen)
        if "delay" in given or "at" in given:
            kept.pop("delay", None)
            kept.pop("at", None)
        other._chosen = {**kept, **given}
        other._made = None
        return other

    def draft(self, /, *args: P.args, **kwargs: P.kwargs) -> Draft[R]:
        """A job, checked but not enqueued: for `client.enqueue_many`. It has its id already."""
        defaults, signature = self._defaults, self._definition.signature
        payload = signature.encode(defaults.codec, args, kwargs)
        self._link.check_size(payload, defaults.max_payload_bytes)
        own: dict[str, Any] = {"payload": payload}
        if defaults.job.fresh_id:
            own["id"] = self._link.runtime.new_id()
        else:  # what a second job with this id is compared by
            own["payload_hash"] = call_hash(self.name, *signature.normalised(args, kwargs), payload)
        if defaults.expires_after_us is not None:
            own["expires"] = self._link.runtime.wall() + defaults.expires_after_us
        if defaults.templates:
            arguments = signature.decode(defaults.codec, payload)
            own |= {field: template.render(signature, arguments) for field, template in defaults.templates.items()}
        job = with_own(defaults.job, own)
        return Draft(job, self, room=defaults.wait_for_room_us)

    @property
    def _defaults(self) -> JobDefaults:
        """The defaults of its jobs, put together when the first one is made."""
        if self._made is None:
            self._made = JobDefaults.of(self.policy, self._chosen, self._codec, self._link.config.limits.payload)
        return self._made

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Make a job of this call. It is as durable as the store says before this returns."""
        draft = self.draft(*args, **kwargs)
        (accepted,) = await enqueue(self._link, (draft.job,), room=draft.room, transaction=self.joins)
        return self.handle_of(draft.job.queue, accepted, joined=self.joins is not None)

    enqueue = blocking(aenqueue)

    async def arequest(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a job of this call and wait for its result, for as long as `using(wait=...)` or the settings say."""
        if self.joins is not None:
            said = "A request waits for its result, which cannot come before your transaction has been committed."
            raise UsageError(f"{said} Enqueue in it, and ask the handle for the result afterwards.")
        draft = self.draft(*args, **kwargs)
        chosen: int | None = self._chosen.get("wait")
        limit = self._link.config.request_timeout if chosen is None else chosen / 1_000_000
        waiting = (await self._link.desk()).waiting
        since = waiting.begin()  # first listen, then enqueue: no end can be missed
        job = answering_to(draft.job, waiting.name)
        (accepted,) = await enqueue(self._link, (job,), room=draft.room)
        handle = self.handle_of(job.queue, accepted)
        if accepted.status is EnqueueStatus.COMPLETED and accepted.result is not None:
            return self.decode_result(accepted.result, accepted.codec)
        key = JobKey(job.queue, accepted.id)
        over = await ended(self._link, key, limit=limit, origin=self._origin, since=since)
        return handle.result_of(over)

    request = blocking(arequest)

    async def acall(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it here and now, without a queue. Either colour runs from either colour."""
        function = self.function
        context = self._detached()
        given = (context, *args) if self.takes_context else args
        if self.is_async:
            await away_from_here()
        token = CURRENT.set(context._attempt)
        try:
            if self.is_async:
                awaited: R = await function(*given, **kwargs)
                return awaited
            if asyncio._get_running_loop() is None:
                returned: R = function(*given, **kwargs)
                return returned
            return await self._link.runtime.run_blocking(lambda: cast(R, function(*given, **kwargs)))
        finally:
            CURRENT.reset(token)

    call = blocking(acall)

    def handle(self, job_id: str, /, *, queue: str | None = None) -> Handle[R]:
        """A handle on a job that exists already. Does not look whether it does."""
        key = JobKey(self.queue if queue is None else check_name(queue, "queue"), check_name(job_id, "id"))
        return Handle(self._link, key, self.decode_result, origin=self._origin)

    def on_dead_letter(self, hook: H) -> H:
        """Call `hook(job, error)`, sync or async, when a job of this task has failed for good. A decorator."""
        if not callable(hook):
            raise InvalidOption("`on_dead_letter` takes a function of the job and its error.", option="hook")
        self._definition.dead_letter_hooks.append(hook)
        return hook

    # Inside

    @property
    def joins(self) -> Any:
        """The transaction of the user's in which its jobs are enqueued; None: a write of their own."""
        return self._chosen.get("transaction")

    def handle_of(self, queue: str, accepted: Accepted, *, joined: bool = False) -> Handle[R]:
        """The handle for the answer to an enqueue."""
        key = JobKey(queue, accepted.id)
        return Handle(self._link, key, self.decode_result, origin=self._origin, accepted=accepted, joined=joined)

    def _detached(self) -> Context[Any]:
        return Context.detached(id=self._link.runtime.new_id(), task=self.name, queue=self.queue)

    def _called(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._detached(), *args) if self.takes_context else args

    @property
    def _origin(self) -> str:
        function = self._definition.function
        return "" if function is None else getattr(function, "__module__", "")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in _ELSEWHERE:
                raise AttributeError(f"A task has no .{name}(...); use .enqueue(...), with .using(...) for options.")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class SyncTask(Task[P, R]):
    """A task whose function is a plain one; it runs in a thread of the worker."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(*self._called(args), **kwargs)
        return result


class AsyncTask(Task[P, R]):
    """A task whose function is a coroutine function; it runs on the worker's event loop."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self.function(*self._called(args), **kwargs)
        return coroutine


class Registry(Mapping[str, Task[..., Any]]):
    """The tasks of one App, by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}

    def add(self, task: Task[..., Any]) -> None:
        if self._tasks.setdefault(task.name, task) is not task:
            raise DuplicateTask(task=task.name)

    def __getitem__(self, name: str) -> Task[..., Any]:
        return self._tasks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)


def declare(link: Link, function: Callable[..., Any], options: Mapping[str, Any]) -> Task[..., Any]:
    """The task of a function."""
    if not callable(function):
        raise InvalidOption("A task is made of a function: @jobs.task, or @jobs.task(queue=...).", option="function")
    given = read_task_options(options)
    name = given.pop("name", None) or _name_of(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(f"Task {name!r} is a generator; a task returns its result.", option="function")
    signature = Signature(function, name)
    for option in ("lane", "unique_key"):
        if given.get(option) is not None:
            given[option].check(signature.names)
    is_async = _is_async(function)
    check_factory(given.get("transaction"), is_async=is_async)
    if given.get("timeout") is not None and not is_async and not given.get("remote"):
        _logger.warning(
            "Task %s has a timeout and is a plain function: its thread cannot be stopped, only told. "
            "It keeps its slot until it returns.",
            name,
        )
    definition = Definition(link, name, signature, given, function, is_async)
    return AsyncTask(definition) if is_async else SyncTask(definition)


def declare_elsewhere(link: Link, name: str) -> Task[..., Any]:
    """A task of which only the name is known here."""
    return Task(Definition(link, check_name(name, "task"), OpenSignature(name), {}))


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None)
    if name is None or name == "<lambda>":
        raise InvalidOption("A task is a function with a name; give one to anything else with name=.", option="name")
    return check_name(name, "name")


def _is_async(function: Callable[..., Any]) -> bool:
    called = function if inspect.isroutine(function) else type(function).__call__
    return inspect.iscoroutinefunction(called)
