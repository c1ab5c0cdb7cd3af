"""A task: a function plus the settings of its jobs: queue, retries, timeout.

    @jobs.task(max_attempts=5)
    def resize(image: str, width: int = 800) -> str: ...

    resize("cat.png")                                   the plain function
    resize.enqueue("cat.png", width=320)                a job, on disk before this returns
    resize.using(delay=60).enqueue("cat.png")           options never mix with arguments
    resize.request("cat.png")                           enqueue, and wait for the result
    resize.call("cat.png")                              run it here and now, without a queue

Arguments and options are checked before anything is written.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, Self, TypeVar, Unpack, cast

from holdfast.blocking import blocking, move_to_loop
from holdfast.codec import Codec
from holdfast.context import CURRENT, Context
from holdfast.core.connection import StoreConnection
from holdfast.core.enqueue import enqueue
from holdfast.core.job_end import wait_for_end
from holdfast.declare.envelope import call_hash, with_fields
from holdfast.declare.function import is_coroutine, name_of, refuse_method
from holdfast.declare.isolation import check_isolation, declaring_module
from holdfast.declare.option_readers import check_factory
from holdfast.declare.policy import (
    JobDefaults,
    TaskPolicy,
    UsingOptions,
    make_policy,
    read_task_options,
    read_using_options,
)
from holdfast.declare.signature import Arguments, OpenSignature, Signature
from holdfast.draft import Draft
from holdfast.errors import InvalidOption, PayloadTooLarge, UsageError
from holdfast.handle import Handle
from holdfast.model.job import JobKey
from holdfast.model.produce import Accepted, EnqueueStatus
from holdfast.model.text import check_name

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=Callable[..., object])


_FOREIGN = frozenset({"delay", "apply_async", "send", "send_with_options", "kiq", "defer", "defer_async", "s", "si"})
"""The enqueue methods of other systems."""


@dataclass(slots=True)
class Definition:
    """What all copies of a task share. `options` are the checked options of its decorator."""

    store: StoreConnection
    name: str
    signature: Signature
    options: dict[str, Any]
    function: Callable[..., Any] | None = None
    is_async: bool = False
    module: str = ""
    """Where the function is defined: the argument for `holdfast worker`."""
    declared_in: str = ""
    """The module that declares the task, if it is isolated: its process imports that one, too."""
    dead_letter_hooks: list[Callable[..., object]] = field(default_factory=list)
    policy: TaskPolicy | None = None
    codecs: dict[str, "TaskCodecs"] = field(default_factory=dict)
    """By the name that is stored with the bytes. Each attempt needs them, and to find them takes longer than to decode
    a short call."""


class TaskCodecs(NamedTuple):
    """How the jobs of a task that were written with one codec are read and answered."""

    codec: Codec
    for_results: Codec
    max_result_bytes: int


class Task(Generic[P, R]):
    """A function plus the settings of its jobs. Made by `@jobs.task`. A call of it runs the function here.

    >>> from holdfast import App
    >>> jobs = App("memory://")
    >>> @jobs.task
    ... def double(number: int) -> int:
    ...     return 2 * number
    >>> double(4), double.enqueue(4).receipt.answer
    (8, 'created')
    """

    def __init__(self, definition: Definition) -> None:
        self._store = definition.store
        self._definition = definition
        self._chosen: dict[str, Any] = {}
        self._made: JobDefaults | None = None
        self.name: str = definition.name
        """As it is stored with each job: the function's name, or `name=` of the decorator."""
        self.takes_context = definition.signature.takes_context
        self.is_async = definition.is_async
        if definition.function is not None:
            update_wrapper(cast(Any, self), definition.function, updated=())

    # For workers

    @property
    def policy(self) -> TaskPolicy:
        """The options of the decorator; the configuration for those it leaves out."""
        definition = self._definition
        if definition.policy is None:
            definition.policy = make_policy(definition.name, definition.options, self._store.config.task)
        return definition.policy

    @property
    def function(self) -> Callable[..., Any]:
        if self._definition.function is None:
            raise InvalidOption(f"The code of task {self.name!r} is not in this process.", option="name")
        return self._definition.function

    @property
    def declared_in(self) -> str:
        """The module that declares an isolated task; empty for others, and if no module was being imported."""
        return self._definition.declared_in

    @property
    def aliases(self) -> tuple[str, ...]:
        """Earlier names of the task: jobs that were stored under them are its jobs, too."""
        found: tuple[str, ...] = self._definition.options.get("aliases", ())
        return found

    @property
    def queue(self) -> str:
        """Where its jobs go."""
        chosen: str | None = self._chosen.get("queue")
        return self.policy.queue if chosen is None else chosen

    @property
    def middleware(self) -> tuple[Any, ...]:
        """Around each attempt of this task."""
        found: tuple[Any, ...] = self._definition.options.get("middleware", ())
        return found

    @property
    def dead_letter_hooks(self) -> list[Callable[..., object]]:
        return self._definition.dead_letter_hooks

    def decode_arguments(self, payload: bytes, codec: str) -> Arguments:
        """A stored call. InvalidArguments: it does not fit the function; CorruptRecord: the bytes are not a call."""
        return self._definition.signature.decode(self._codecs_named(codec).codec, payload)

    def fits(self, parameter: int | str, value: object) -> bool:
        """True if a plain value fits the type of the parameter at this position, or of this name."""
        return self._definition.signature.fits(parameter, value)

    def encode_result(self, value: object, codec: str | None = None) -> bytes:
        """Bytes of a handler's return value, by the codec that wrote the job's payload."""
        codecs = self._codecs_named(self._codec.name if codec is None else codec)
        data = self._definition.signature.encode_result(codecs.for_results, value)
        if len(data) > codecs.max_result_bytes:  # a codec of the user's has no limit of its own
            raise PayloadTooLarge(size=len(data), limit=codecs.max_result_bytes)
        return data

    def decode_result(self, data: bytes, codec: str) -> R:
        """A stored result, as the declared return type."""
        result: R = self._definition.signature.decode_result(self._codecs_named(codec).for_results, data)
        return result

    @property
    def _codec(self) -> Codec:
        return cast(Codec, self._definition.options.get("codec") or self._store.codec)

    def _codecs_named(self, name: str) -> TaskCodecs:
        codecs = self._definition.codecs.get(name)
        if codecs is None:
            store = self._store
            own: Codec | None = self._definition.options.get("codec")
            codec = own if own is not None and own.name == name else store.codec_named(name)
            codecs = TaskCodecs(codec, store.result_codec(codec), store.config.limits.result)
            self._definition.codecs[name] = codecs
        return codecs

    # For users

    def using(self, /, **options: Unpack[UsingOptions]) -> Self:
        """A new task with these options for its jobs; this one stays as it is."""
        new = read_using_options(options)
        other = copy(self)
        earlier = dict(self._chosen)
        if "delay" in new or "at" in new:
            earlier.pop("delay", None)
            earlier.pop("at", None)
        other._chosen = {**earlier, **new}
        other._made = None
        return other

    def draft(self, /, *args: P.args, **kwargs: P.kwargs) -> Draft[R]:
        """A job, checked but not enqueued: for `client.enqueue_many`. It has its id already."""
        signature = self._definition.signature
        defaults = self._made
        if defaults is None:  # the first job of this task, or of this copy
            limit = self._store.config.limits.payload
            defaults = self._made = JobDefaults.of(self.policy, self._chosen, self._codec, limit)
        payload = signature.encode(defaults.codec, args, kwargs)
        if len(payload) > defaults.max_payload_bytes:  # a codec of the user's has no limit of its own
            raise PayloadTooLarge(size=len(payload), limit=defaults.max_payload_bytes)
        if defaults.is_complete:
            job = with_fields(defaults.job, id=self._store.runtime.new_id(), payload=payload)
            return Draft(job, self, defaults.wait_for_room_us)
        fields: dict[str, Any] = {"payload": payload}
        if defaults.job.fresh_id:
            fields["id"] = self._store.runtime.new_id()
        else:  # compared with that of a second job with this id
            fields["payload_hash"] = call_hash(self.name, *signature.normalised(args, kwargs), payload)
        if defaults.expires_after_us is not None:
            fields["expires"] = self._store.runtime.wall() + defaults.expires_after_us
        if defaults.templates:
            arguments = signature.decode(defaults.codec, payload)
            fields |= {field: template.render(signature, arguments) for field, template in defaults.templates.items()}
        return Draft(with_fields(defaults.job, **fields), self, defaults.wait_for_room_us)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Make a job of this call. Before this returns, it is as durable as the durability setting says."""
        draft = self.draft(*args, **kwargs)
        transaction = self._chosen.get("transaction")
        (accepted,) = await enqueue(
            self._store, (draft.job,), wait_for_room_us=draft.wait_for_room_us, transaction=transaction
        )
        return self.handle_of(draft.job.queue, accepted, in_transaction=transaction is not None)

    enqueue = blocking(aenqueue)

    async def arequest(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a job of this call and wait for its result, for as long as `using(wait=...)` or the settings say."""
        if self.transaction is not None:
            raise UsageError(
                "A request waits for its result, which cannot come before your transaction has been committed. "
                "Enqueue in it, and ask the handle for the result afterwards."
            )
        draft = self.draft(*args, **kwargs)
        chosen: int | None = self._chosen.get("wait")
        limit_s = self._store.config.request_timeout if chosen is None else chosen / 1_000_000
        listener = (await self._store.per_loop()).end_listener
        started_at_read = listener.start()  # before the enqueue, so that no notification is missed
        job = with_fields(draft.job, reply=listener.name)
        (accepted,) = await enqueue(self._store, (job,), wait_for_room_us=draft.wait_for_room_us)
        handle = self.handle_of(job.queue, accepted)
        if accepted.status is EnqueueStatus.COMPLETED and accepted.result is not None:
            return handle.decoded(accepted.result, accepted.codec)
        key = JobKey(job.queue, accepted.id)
        ended = await wait_for_end(
            self._store, key, limit_s=limit_s, origin=self._definition.module, started_at_read=started_at_read
        )
        return handle.result_of(ended)

    request = blocking(arequest)

    async def acall(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it here and now, without a queue. `call` also runs an async function, `acall` also a sync one."""
        function = self.function
        context = self._detached()
        arguments = (context, *args) if self.takes_context else args
        if self.is_async:
            await move_to_loop()
        token = CURRENT.set(context._attempt)
        try:
            if self.is_async:
                awaited: R = await function(*arguments, **kwargs)
                return awaited
            if asyncio._get_running_loop() is None:
                returned: R = function(*arguments, **kwargs)
                return returned
            return await self._store.runtime.run_blocking(lambda: cast(R, function(*arguments, **kwargs)))
        finally:
            CURRENT.reset(token)

    call = blocking(acall)

    def handle(self, job_id: str, /, *, queue: str | None = None) -> Handle[R]:
        """A handle on a job by its id. Does not check that the job exists."""
        key = JobKey(self.queue if queue is None else check_name(queue, "queue"), check_name(job_id, "id"))
        return Handle(self._store, key, self.decode_result, origin=self._definition.module)

    def on_dead_letter(self, hook: H) -> H:
        """Call `hook(job, error)`, sync or async, when a job of this task has failed for good. A decorator."""
        if not callable(hook):
            raise InvalidOption("`on_dead_letter` takes a function of the job and its error.", option="hook")
        self._definition.dead_letter_hooks.append(hook)
        return hook

    # Internal

    @property
    def transaction(self) -> Any:
        """The user's transaction in which its jobs are enqueued; None: each enqueue is a write of its own."""
        return self._chosen.get("transaction")

    def handle_of(self, queue: str, accepted: Accepted, *, in_transaction: bool = False) -> Handle[R]:
        """The handle for the answer to an enqueue."""
        key = JobKey(queue, accepted.id)
        return Handle(
            self._store,
            key,
            self.decode_result,
            origin=self._definition.module,
            accepted=accepted,
            in_transaction=in_transaction,
        )

    def _detached(self) -> Context[Any]:
        return Context.detached(id=self._store.runtime.new_id(), task=self.name, queue=self.queue)

    def _with_context(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._detached(), *args) if self.takes_context else args

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in _FOREIGN:
                raise AttributeError(f"A task has no .{name}(...); use .enqueue(...), with .using(...) for options.")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class SyncTask(Task[P, R]):
    """A task whose function is a plain one; it runs in a thread of the worker."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(*self._with_context(args), **kwargs)
        return result


class AsyncTask(Task[P, R]):
    """A task whose function is a coroutine function; it runs on the worker's event loop."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self.function(*self._with_context(args), **kwargs)
        return coroutine


def declare(store: StoreConnection, function: Callable[..., Any], options: Mapping[str, Any]) -> Task[..., Any]:
    """The task of a function."""
    refuse_method(function)
    if not callable(function):
        raise InvalidOption("A task is made of a function: @jobs.task, or @jobs.task(queue=...).", option="function")
    checked = read_task_options(options)
    name = checked.pop("name", None) or name_of(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(f"Task {name!r} is a generator; a task returns its result.", option="function")
    signature = Signature(function, name)
    for option in ("lane", "unique_key"):
        if checked.get(option) is not None:
            checked[option].check(signature.names)
    if name in checked.get("aliases", ()):
        raise InvalidOption(f"Task {name!r} has its own name among its `aliases`.", option="aliases")
    is_async = is_coroutine(function)
    check_factory(checked.get("transaction"), is_async=is_async)
    check_isolation(name, function, checked)
    module = getattr(function, "__module__", "")
    declared_in = declaring_module() if checked.get("isolate") else ""
    definition = Definition(store, name, signature, checked, function, is_async, module, declared_in)
    return AsyncTask(definition) if is_async else SyncTask(definition)


def declare_elsewhere(store: StoreConnection, name: str) -> Task[..., Any]:
    """A task whose code is not in this process."""
    return Task(Definition(store, check_name(name, "task"), OpenSignature(name), {}))
