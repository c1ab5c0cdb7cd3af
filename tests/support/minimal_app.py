"""The smallest App that a worker can run: tasks that are plain functions, a memory engine, and helpers for tests."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from due_worker import DueWorker
from eventually import eventually

from holdfast.codec import JsonCodec
from holdfast.config import Config, WorkerSettings
from holdfast.context import Middleware
from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.model.instants import DAY, HOUR, SECOND
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.produce import Group, GroupAccepted, NewJob
from holdfast.model.retry import RetryPolicy, fixed
from holdfast.model.states import JobState
from holdfast.runtime import Runtime, SystemRuntime
from holdfast.telemetry.bus import Bus
from holdfast.telemetry.events import Event
from holdfast.testing import Probe
from holdfast.worker import Worker
from holdfast.worker.keeper import NOT_CONNECTED

QUEUE = "default"
PATIENCE = 60.0
CODEC = JsonCodec()

QUICK = RetryPolicy(max_attempts=3, backoff=fixed(0))
"""Three attempts, one right after the other."""


class ShortSleepRuntime(SystemRuntime):
    """Sleeps at most a millisecond, for tests of code that sleeps longer in real time."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.001))


@dataclass(frozen=True, kw_only=True)
class MinimalPolicy:
    name: str
    queue: str = QUEUE
    aliases: tuple[str, ...] = ()
    transaction: bool = False
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: int | None = None
    lease: int = 30 * SECOND
    concurrency: int | None = None
    result_ttl: int = HOUR
    retention: int = DAY
    failed_retention: int = 30 * DAY
    remote: bool = False
    isolate: str | None = None
    memory_limit: int | None = None


class MinimalTask:
    """A function and its policy."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        takes_context: bool = False,
        middleware: Sequence[Middleware] = (),
        **policy: Any,
    ) -> None:
        self.function = function
        self.is_async = asyncio.iscoroutinefunction(function)
        self.takes_context = takes_context
        self.middleware = tuple(middleware)
        self.dead_letter_hooks: list[Callable[[Any, Any], object]] = []
        self.policy = MinimalPolicy(**{"name": function.__name__, **policy})

    def decode_arguments(self, payload: bytes, codec: str) -> tuple[Sequence[Any], Mapping[str, Any]]:
        args, kwargs = CODEC.decode(payload, tuple[list[Any], dict[str, Any]])
        return args, kwargs

    def encode_result(self, value: Any, codec: str) -> bytes:
        return CODEC.encode(value)


class MinimalApp:
    """What `holdfast.worker.protocols.WorkerApp` asks for."""

    def __init__(
        self,
        *tasks: MinimalTask,
        runtime: Runtime | None = None,
        engine: Engine | None = None,
        middlewares: Sequence[Middleware] = (),
        lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        **settings: Any,
    ) -> None:
        self.runtime = SystemRuntime() if runtime is None else runtime
        self.engine = open_engine("memory://", runtime=self.runtime) if engine is None else engine
        self.registry = {task.policy.name: task for task in tasks}
        self.middlewares = list(middlewares)
        self.lifespan = lifespan
        self.address = "memory://"
        self.bus = Bus(self.runtime)
        self.config = Config(worker=WorkerSettings(**settings))

    @property
    def store_secrets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (), ()

    async def aopen(self) -> None:
        await self.engine.open()

    def import_modules(self) -> None: ...

    # Producing

    def job(self, task: str, *args: Any, id: str | None = None, **fields: Any) -> NewJob:
        named = id or self.runtime.new_id()
        return NewJob(**{"queue": QUEUE, "id": named, "task": task, "payload": CODEC.encode([args, {}]), **fields})

    async def put(self, *jobs: NewJob) -> list[str]:
        answer = await self.engine.enqueue(Group(jobs))
        assert all(isinstance(group, GroupAccepted) for group in answer.groups), answer
        return [job.id for job in jobs]

    async def enqueue(self, task: str, *args: Any, id: str | None = None, **fields: Any) -> str:
        (named,) = await self.put(self.job(task, *args, id=id, **fields))
        return named

    # Looking

    async def look(self, id: str, queue: str = QUEUE) -> JobRecord:
        (record,) = (await self.engine.get(JobKey(queue, id))).jobs
        assert record is not None, f"There is no job {id!r}."
        return record

    async def result(self, id: str) -> Any:
        record = await self.look(id)
        assert record.result is not None, record
        return CODEC.decode(record.result)

    def record_events(self, kind: type[Event] = Event) -> "Probe[Event]":
        """A probe that is called with every event."""
        probe = Probe[Event]("the listener")
        self.bus.on(kind, probe)
        return probe

    async def counts(self) -> dict[JobState, int]:
        """Jobs of the usual queue, by state."""
        return (await self.engine.stats(QUEUE)).queues[0].counts

    # Working

    def worker(self, **options: Any) -> Worker:
        return ConnectedWorker(self, **options)

    async def drain(self, **options: Any) -> None:
        """Run what is due, until nothing is."""
        async with asyncio.timeout(PATIENCE):
            await DueWorker(self, **options).arun()


class ConnectedWorker(Worker):
    """Its keeper has connected when its block begins: a worker claims nothing before, and `idle` ignores threads."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        services = self._services
        if services is not None:
            with suppress(AssertionError):  # the test lets the keeper fail
                await eventually(lambda: services.keeper._problem is not NOT_CONNECTED)
            services.exchanger.wake()
        return self


class GatedHandler:
    """A handler that reports its start, and then waits until the test opens the gate."""

    def __init__(self) -> None:
        self.started = Probe[str]("the handler")
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.gate = asyncio.Event()

    async def __call__(self, name: str = "") -> None:
        self.running[name] += 1
        self.most[name] = max(self.most[name], self.running[name])
        self.started(name)
        try:
            await self.gate.wait()
        finally:
            self.running[name] -= 1

    def task(self, name: str = "gated", **policy: Any) -> MinimalTask:
        async def function(label: str = "") -> None:
            await self(label)

        return MinimalTask(function, name=name, **policy)


class ThreadGate:
    """A gate where a thread waits until the test opens it. `arrived` is called on the test's loop."""

    def __init__(self) -> None:
        self.arrived = Probe[Any]("the thread")
        self._open = threading.Event()
        self._loop = asyncio.get_running_loop()

    def wait(self, value: Any = None) -> None:
        self._loop.call_soon_threadsafe(self.arrived, value)
        assert self._open.wait(60)

    def tell(self, value: Any) -> None:
        self._loop.call_soon_threadsafe(self.arrived, value)

    def open(self) -> None:
        self._open.set()


def names(events: Sequence[Event]) -> list[str]:
    return [type(event).__name__ for event in events]
