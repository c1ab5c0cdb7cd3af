"""Concurrent enqueues merge: while one write is under way the next gathers by itself.

Nobody waits for a timer: a lone caller's jobs go out at once, and the busier it gets, the more callers share a write.
Each caller's jobs stay a group of their own, accepted or refused for themselves. One per event loop.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable
from copy import copy

from holdfast.engine import Engine
from holdfast.errors import EngineError, EngineUnavailable, OutcomeUnknown
from holdfast.model.job import JobKey
from holdfast.model.produce import Accepted, Enqueue, EnqueueStatus, Group, GroupAccepted, GroupAnswer
from holdfast.runtime import Runtime

MOST_JOBS = 1_000
MOST_BYTES = 1024 * 1024
MOST_WRITES = 2
"""Under way at a time, where a store takes several: while it is busy with one half, the other half's callers are
answered and come with their next jobs."""
WORTH_PARTING = 32
"""Groups that wait. A write has a price of its own, so few of them stay together."""

_Waiting = tuple[Group, "asyncio.Future[GroupAnswer]"]


class Enqueuer:
    """The groups given to it must have been checked: what the engine refuses of one would else be refused of all."""

    def __init__(self, engine: Engine, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime
        able = engine.capabilities
        self._strangers = able.joins_transactions and able.concurrent_writers
        """An id or a key may be held in somebody's open transaction: who asks for it waits, and shall wait alone."""
        self._most = MOST_WRITES if able.concurrent_writers else 1
        self._writing = 0
        self._waiting: deque[_Waiting] = deque()

    async def enqueue(self, group: Group) -> GroupAnswer:
        """Write one caller's group, alone or together with those of others."""
        if self._strangers and not _meets_nobody(group):
            return await write(self._engine, group)
        if self._writing:
            answer: asyncio.Future[GroupAnswer] = asyncio.get_running_loop().create_future()
            self._waiting.append((group, answer))
            return await answer
        self._writing = 1
        try:
            return await write(self._engine, group)
        finally:
            self._writing = 0
            if self._waiting:
                self._begin()

    def _begin(self) -> None:
        self._writing += 1
        self._runtime.spawn(self._drain(), name="holdfast enqueue")

    async def _drain(self) -> None:
        try:
            while batch := self._next_batch():
                await self._write(batch)
                await self._runtime.sleep(0)  # those who were answered come with their next jobs: all in one write
        except BaseException:  # cancelled, with the loop
            for _, answer in self._waiting:
                answer.cancel()
            self._waiting.clear()
            raise
        finally:
            self._writing -= 1

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        jobs = size = 0
        most = len(self._waiting)
        alone = self._writing == 1
        if most >= WORTH_PARTING and self._writing < self._most and not _in_order(self._waiting[0][0]):
            most //= 2
            alone = False
            self._begin()
        while self._waiting and len(batch) < most:
            group, answer = self._waiting[0]
            if not alone and _in_order(group):
                break  # two writes would take their lanes in any order, and wait for each other
            jobs += len(group.jobs)
            for job in group.jobs:
                size += len(job.payload)
            if batch and (jobs > MOST_JOBS or size > MOST_BYTES):
                break
            self._waiting.popleft()
            if not answer.done():  # its caller may have gone away
                batch.append((group, answer))
        return batch

    async def _write(self, batch: list[_Waiting]) -> None:
        try:
            groups = (await self._engine.perform(Enqueue(groups=tuple(group for group, _ in batch)))).groups
        except EngineUnavailable as error:
            for _, answer in batch:
                _fail(answer, copy(error))
        except OutcomeUnknown as unknown:
            for group, answer in batch:
                await _settle(answer, look_up(self._engine, group, unknown))
        except Exception:  # perhaps because of one of them: then only that one shall fail
            for group, answer in batch:
                await _settle(answer, write(self._engine, group))
        else:
            for (_, answer), said in zip(batch, groups, strict=True):
                if not answer.done():
                    answer.set_result(said)


def _in_order(group: Group) -> bool:
    """Whether its jobs have a place in a lane."""
    return any(job.lane is not None or job.pool is not None for job in group.jobs)


def _meets_nobody(group: Group) -> bool:
    return all(job.fresh_id and job.unique_key is None for job in group.jobs)


async def _settle(answer: "asyncio.Future[GroupAnswer]", asked: Awaitable[GroupAnswer]) -> None:
    try:
        said = await asked
    except Exception as error:
        _fail(answer, error)
    else:
        if not answer.done():
            answer.set_result(said)


def _fail(answer: "asyncio.Future[GroupAnswer]", error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)


async def write(engine: Engine, group: Group) -> GroupAnswer:
    """Write one group."""
    try:
        return (await engine.perform(Enqueue(groups=(group,)))).groups[0]
    except OutcomeUnknown as unknown:
        return await look_up(engine, group, unknown)


async def look_up(engine: Engine, group: Group, unknown: OutcomeUnknown) -> GroupAnswer:
    """The answer to a write whose own answer got lost, from the jobs' ids; `OutcomeUnknown` where one is absent.

    An id that we made up can only be there because it was written. Of a caller's own id nobody can say that.
    """
    ids = [job.id for job in group.jobs]
    try:
        found = (await engine.get(*(JobKey(job.queue, job.id) for job in group.jobs))).jobs
    except EngineError as error:  # still nobody knows, whatever became of the question
        raise OutcomeUnknown(verb="enqueue", job_ids=ids, engine=unknown.engine) from error
    accepted = tuple(
        Accepted(
            status=EnqueueStatus.DUPLICATE if job.payload_hash else EnqueueStatus.CREATED,
            id=record.id,
            state=record.state,
            arrival=record.arrival,
            generation=record.generation,
        )
        for job, record in zip(group.jobs, found, strict=True)
        if record is not None
    )
    if len(accepted) == len(group.jobs):
        return GroupAccepted(accepted)
    raise OutcomeUnknown(verb="enqueue", job_ids=ids, engine=unknown.engine) from unknown
