"""Waiting for jobs to end: one listener for all waiting callers of one event loop.

A job that a caller waits for carries the reply topic of the caller's process. When the job ends, the engine notifies
that topic; the listener then reads all jobs that have waiting callers, in one call, and wakes the callers whose job has
ended. A notification may be lost, so the listener also polls: every second, or four times as often on an engine without
push.

A notification that comes before the subscription is lost. So the order is: `start`, which subscribes, then the enqueue,
then `wait`.
"""

import asyncio
import logging
from typing import NamedTuple
from weakref import finalize

from holdfast.engine import Engine, Subscription
from holdfast.errors import EngineError, EngineUnavailable
from holdfast.model.job import JobKey, JobRecord
from holdfast.runtime import Runtime
from holdfast.service import StoreOutage

POLL_WITH_PUSH_S = 1.0
POLL_WITHOUT_PUSH_S = 0.25
MAX_JOBS_PER_READ = 500
"""A longer read would delay the others on a store with one reader."""

_logger = logging.getLogger("holdfast")


class EndedJob(NamedTuple):
    """A job that has ended, as it was read at `now`. No record: nothing says how it ended, or that it ran."""

    record: JobRecord | None
    now: int


class EndListener:
    """`name` is the reply topic of this process."""

    def __init__(self, engine: Engine, runtime: Runtime, name: str) -> None:
        self.name = name
        self._engine = engine
        self._runtime = runtime
        self._waiters: dict[JobKey, list[asyncio.Future[EndedJob]]] = {}
        self._subscription: Subscription | None = None
        self._listener: asyncio.Task[None] | None = None
        self._reads = 0
        """How often the listener has read the jobs of all waiting callers."""
        self._closed = False
        self._outage = StoreOutage(runtime)
        self.warned_tasks: set[str] = set()
        """Tasks for which a log line was written: no worker can take their jobs."""

    @property
    def _poll_s(self) -> float:
        """It depends on whether the engine can notify now."""
        return POLL_WITH_PUSH_S if self._engine.capabilities.push else POLL_WITHOUT_PUSH_S

    def start(self) -> int:
        """Subscribe, if not done yet. Pass the answer to `wait`."""
        if self._subscription is None:
            self._subscription = self._engine.subscribe(f"reply:{self.name}")
            finalize(asyncio.get_running_loop(), self._subscription.close).atexit = False  # ends with the loop
        return self._reads

    async def wait(self, key: JobKey, started_at_read: int) -> EndedJob:
        """The job, once it has ended."""
        if self._closed:
            raise _closed()
        answer: asyncio.Future[EndedJob] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(key, []).append(answer)
        try:
            if started_at_read != self._reads:  # the listener has read since, without this job
                await self._read((key,))
            if self._listener is None:
                self._start_listener()
            return await answer
        finally:
            waiters = self._waiters.get(key, [])
            if answer in waiters:
                waiters.remove(answer)
            if not waiters:
                self._waiters.pop(key, None)

    async def request_notification(self, key: JobKey) -> EndedJob | None:
        """Put the reply topic on a job that exists already. Returns the job if it has ended by now."""
        await self._engine.amend(key.queue, key.id, reply=self.name)
        answer = await self._engine.get(key)
        return EndedJob(answer.jobs[0], answer.at.wall) if _has_ended(answer.jobs[0]) else None

    def _start_listener(self) -> None:
        self._listener = self._runtime.spawn(self._listen(), name="holdfast waiting")
        self._listener.add_done_callback(self._on_listener_end)

    def _on_listener_end(self, listener: "asyncio.Task[None]") -> None:
        """PF3: other code may have cancelled it, also before it began. Nothing else would wake the callers."""
        self._listener = None
        if not self._closed and any(not answer.done() for answers in self._waiters.values() for answer in answers):
            self._start_listener()

    async def _listen(self) -> None:
        assert self._subscription is not None
        while self._waiters and not self._closed:
            await self._wait_for_notification(self._subscription)
            self._reads += 1
            await self._read_all()

    async def _wait_for_notification(self, subscription: Subscription) -> None:
        began = self._runtime.monotonic()
        topics = await subscription.wait(self._poll_s)
        if not topics and self._runtime.monotonic() - began < self._poll_s * 500_000:  # the engine was closed
            await self._runtime.sleep(self._poll_s)

    async def _read_all(self) -> None:
        keys = tuple(self._waiters)
        try:
            for start in range(0, len(keys), MAX_JOBS_PER_READ):
                await self._read(keys[start : start + MAX_JOBS_PER_READ])
            self._outage.end()
        except EngineError as error:  # neither the jobs nor the waiting callers depend on this read
            self._outage.note(error)
            await self._runtime.sleep(self._poll_s)
        except Exception as error:
            _logger.warning("Waiting for %d jobs, but the store cannot be read: %s", len(keys), error)
            await self._runtime.sleep(self._poll_s)

    async def _read(self, keys: tuple[JobKey, ...]) -> None:
        answer = await self._engine.get(*keys)
        for key, record in zip(keys, answer.jobs, strict=True):
            if _has_ended(record):
                for waiter in self._waiters.pop(key, ()):
                    if not waiter.done():
                        waiter.set_result(EndedJob(record, answer.at.wall))

    def close(self) -> None:
        """Wake all waiting callers with an error."""
        self._closed = True
        if self._subscription is not None:
            self._subscription.close()
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(_closed())


def _has_ended(record: JobRecord | None) -> bool:
    return record is None or record.terminal


def _closed() -> EngineUnavailable:
    return EngineUnavailable("The App has been closed while a call waited for a job. The job goes on.")
