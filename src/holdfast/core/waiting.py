"""Waiting for jobs to end: one listener for all who wait, however many they are. One per event loop.

Every job somebody waits for carries the address of the waiting process. When one of them ends, the engine rings that
address; the listener then reads all the jobs that are waited for, in one call, and wakes whoever got an answer. Bells
are hints and may be lost, so it also looks without one: every second, or four times as often on engines that cannot
ring.

Who asks must not miss a bell that rang before it was listening: `begin` comes first, then the enqueue, then `ended`.
"""

import asyncio
import logging
from typing import NamedTuple
from weakref import finalize

from holdfast.engine import Engine, Subscription
from holdfast.errors import EngineUnavailable
from holdfast.model.job import JobKey, JobRecord
from holdfast.runtime import Runtime

POLL_WITH_PUSH = 1.0
POLL_WITHOUT = 0.25
MOST = 500
"""Jobs read in one call."""

_logger = logging.getLogger("holdfast")


class Ended(NamedTuple):
    """A job that has ended, as it was read at `now`. No record: it is not there, or no longer."""

    record: JobRecord | None
    now: int


Answer = asyncio.Future[Ended]


class Waiting:
    """`name` is the address of this process."""

    def __init__(self, engine: Engine, runtime: Runtime, name: str) -> None:
        self.name = name
        self._engine = engine
        self._runtime = runtime
        self._poll = POLL_WITH_PUSH if engine.capabilities.push else POLL_WITHOUT
        self._waiters: dict[JobKey, list[Answer]] = {}
        self._subscription: Subscription | None = None
        self._listener: asyncio.Task[None] | None = None
        self._looks = 0
        self._closed = False
        self.told: set[str] = set()
        """Tasks of which it has been said that nobody can take them."""

    def begin(self) -> int:
        """Listen from now on. Give the answer to `ended`."""
        if self._subscription is None:
            self._subscription = self._engine.subscribe(f"reply:{self.name}")
            finalize(asyncio.get_running_loop(), self._subscription.close).atexit = False  # loops come and go
        return self._looks

    async def ended(self, key: JobKey, since: int) -> Ended:
        """The job, once it has ended."""
        if self._closed:
            raise _closed()
        answer: Answer = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(key, []).append(answer)
        try:
            if since != self._looks:  # somebody looked meanwhile, and did not look for us
                await self._look((key,))
            if self._listener is None:
                self._listener = self._runtime.spawn(self._listen(), name="holdfast waiting")
            return await answer
        finally:
            waiters = self._waiters.get(key, [])
            if answer in waiters:
                waiters.remove(answer)
            if not waiters:
                self._waiters.pop(key, None)

    async def join(self, key: JobKey) -> Ended | None:
        """Ask to be told when the job ends. If it has meanwhile: how."""
        await self._engine.amend(key.queue, key.id, reply=self.name)
        got = await self._engine.get(key)
        return Ended(got.jobs[0], got.at.wall) if _is_over(got.jobs[0]) else None

    async def _listen(self) -> None:
        assert self._subscription is not None
        try:
            while self._waiters and not self._closed:
                await self._bell(self._subscription)
                self._looks += 1
                await self._look_for_all()
        finally:
            self._listener = None

    async def _bell(self, subscription: Subscription) -> None:
        began = self._runtime.monotonic()
        rung = await subscription.wait(self._poll)
        if not rung and self._runtime.monotonic() - began < self._poll * 500_000:  # deaf: the engine was closed
            await self._runtime.sleep(self._poll)

    async def _look_for_all(self) -> None:
        keys = tuple(self._waiters)
        try:
            for start in range(0, len(keys), MOST):
                await self._look(keys[start : start + MOST])
        except Exception as error:  # the job goes on without us; so does the wait
            _logger.warning("Waiting for %d jobs, but the store cannot be asked: %s", len(keys), error)
            await self._runtime.sleep(self._poll)

    async def _look(self, keys: tuple[JobKey, ...]) -> None:
        got = await self._engine.get(*keys)
        for key, record in zip(keys, got.jobs, strict=True):
            if _is_over(record):
                for answer in self._waiters.pop(key, ()):
                    if not answer.done():
                        answer.set_result(Ended(record, got.at.wall))

    def close(self) -> None:
        """Tell everybody who waits that there is nothing to wait for any more."""
        self._closed = True
        if self._subscription is not None:
            self._subscription.close()
        for answers in self._waiters.values():
            for answer in answers:
                if not answer.done():
                    answer.set_exception(_closed())


def _is_over(record: JobRecord | None) -> bool:
    return record is None or record.terminal


def _closed() -> EngineUnavailable:
    return EngineUnavailable("The App has been closed while somebody waited for a job. The job goes on.")
