"""Enqueue: from checked jobs to the engine's answer.

`enqueue` adds the depth limits of the queues, writes the jobs as one group, and turns a refusal into an error. In a
thread without an event loop the group goes straight to an engine with the capability `blocking_calls`. With another
engine the thread itself runs an event loop for the write (`CallerLoop`), unless another thread does so at the time.
On an event loop the group goes through an `EnqueueMerger`, one per loop: while one write is under way, the groups of
other callers collect, and the next write takes all of them. There is no timer: a single caller's group is written at
once. Each group is accepted or refused by itself.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable
from copy import copy
from operator import attrgetter
from typing import TYPE_CHECKING, assert_never

from holdfast.blocking import move_to_loop
from holdfast.core.transaction import perform_in_transaction
from holdfast.engine import Engine
from holdfast.errors import (
    EngineError,
    EngineUnavailable,
    HistoryLost,
    IdConflict,
    JobNotFound,
    OutcomeUnknown,
    QueueFull,
    UsageError,
)
from holdfast.model import check
from holdfast.model.job import JobKey
from holdfast.model.produce import (
    Accepted,
    Enqueue,
    EnqueueStatus,
    Group,
    GroupAccepted,
    GroupAnswer,
    GroupConflict,
    GroupFull,
    GroupOrphan,
    NewJob,
)
from holdfast.runtime import Runtime
from holdfast.telemetry.events import Queued, SoftLimit

if TYPE_CHECKING:
    from holdfast.core.connection import StoreConnection

RETRY_FULL_QUEUE_AFTER_S = 1.0
"""Seconds after which a full queue is tried again if no notification comes. A notification may be lost."""
MAX_JOBS = 1_000
"""Jobs in one merged write; a longer write would delay its callers."""
MAX_BYTES = 1024 * 1024
"""Payload bytes in one merged write, for the same reason."""
MAX_WRITES = 2
"""Writes under way at a time on an engine with concurrent writers. While the store works on one half of the groups, the
callers of the other half get their answers and send their next jobs."""
SPLIT_FROM = 32
"""Waiting groups from which they are split over two writes. A write has a fixed cost, so fewer groups stay together."""

_QUEUE_OF = attrgetter("queue")
_WaitingGroup = tuple[Group, "asyncio.Future[GroupAnswer]"]


# --- One caller ---


async def enqueue(
    store: "StoreConnection",
    jobs: tuple[NewJob, ...],
    *,
    wait_for_room_us: int | None = None,
    transaction: object | None = None,
) -> tuple[Accepted, ...]:
    """Write the jobs, all or none.

    `wait_for_room_us`: how long to wait while a queue is full. `transaction`: the user's own; the jobs exist if, and
    only if, it commits.
    """
    group = Group(jobs, store.depth_limits(map(_QUEUE_OF, jobs)))
    if transaction is not None:
        return await _enqueue_in_transaction(store, group, transaction, wait_for_room_us)
    answer = await _write(store, group)
    if wait_for_room_us is not None and isinstance(answer, GroupFull):
        answer = await _write_when_there_is_room(store, group, answer, wait_for_room_us)
    accepted = _accepted(answer)
    if store.bus.wants(Queued) or (group.limits and store.bus.wants(SoftLimit)):
        _emit_events(store, group, accepted)
    return accepted


async def _enqueue_in_transaction(
    store: "StoreConnection", group: Group, transaction: object, wait_for_room_us: int | None
) -> tuple[Accepted, ...]:
    if wait_for_room_us is not None:
        raise UsageError(
            "`wait_for_room` does not work inside a transaction: it would keep the transaction open while it waits. "
            "Catch QueueFull, roll back, and try again."
        )
    check.group(group)
    answer, connection = await perform_in_transaction(store, Enqueue(groups=(group,)), transaction)
    accepted = _accepted(answer.groups[0])
    if store.bus.wants(Queued):  # after the commit; never, if the driver does not report commits
        connection.after_commit(lambda: _emit_events(store, group, accepted))
    return accepted


async def _write(store: "StoreConnection", group: Group) -> GroupAnswer:
    process = store.process
    if not process.open:
        await store.engine()  # opens it, on an event loop
        process = store.process
    if asyncio._get_running_loop() is None:
        if process.engine.capabilities.blocking_calls:
            return await write(process.engine, group)  # the engine merges the writes of threads by itself
        if process.caller_loop.reserve():
            return process.caller_loop.run(write(process.engine, group))
        await move_to_loop()
    return await process.per_loop().merger.enqueue(group)


async def _write_when_there_is_room(
    store: "StoreConnection", group: Group, full: GroupFull, wait_for_room_us: int
) -> GroupAnswer:
    await move_to_loop()
    engine = await store.engine()
    runtime = store.runtime
    deadline = runtime.monotonic() + wait_for_room_us
    answer: GroupAnswer = full
    while isinstance(answer, GroupFull):
        left_s = (deadline - runtime.monotonic()) / 1_000_000
        if left_s <= 0:
            break
        with engine.subscribe(f"room:{answer.queue}") as subscription:
            answer = await _write(store, group)  # there may be room since before the subscription
            if isinstance(answer, GroupFull):
                await subscription.wait(min(left_s, RETRY_FULL_QUEUE_AFTER_S))
    return answer


def _accepted(answer: GroupAnswer) -> tuple[Accepted, ...]:
    match answer:
        case GroupAccepted(jobs):
            return jobs
        case GroupFull(queue, lane, depth, limit):
            raise QueueFull(queue=queue, lane=lane, depth=depth, limit=limit)
        case GroupConflict(job):
            raise IdConflict(job_id=job.id, queue=job.queue)
        case GroupOrphan(parent):
            raise JobNotFound(job_id=parent.id, queue=parent.queue)
    assert_never(answer)


def _emit_events(store: "StoreConnection", group: Group, accepted: tuple[Accepted, ...]) -> None:
    now = store.runtime.wall()
    created = [pair for pair in zip(group.jobs, accepted, strict=True) if pair[1].status is EnqueueStatus.CREATED]
    for job, answer in created:
        store.bus.emit(
            Queued(at=now, queue=job.queue, job_id=answer.id, task=job.task, lane=answer.lane, state=answer.state)
        )
    for limit in group.limits:
        depths: dict[str | None, list[int]] = {}
        for job, answer in created:
            counts = limit.each_lane == (answer.lane is not None)  # the depth is that of the lane, if it has one
            if job.queue == limit.queue and counts and answer.depth:
                depths.setdefault(answer.lane, []).append(answer.depth)
        for lane, lane_depths in depths.items():
            if any(_crosses_soft_limit(store, limit.queue, limit.limit, depth) for depth in lane_depths):
                store.bus.emit(
                    SoftLimit(at=now, queue=limit.queue, lane=lane, depth=max(lane_depths), limit=limit.limit)
                )


def _crosses_soft_limit(store: "StoreConnection", queue: str, limit: int, depth: int) -> bool:
    """True if the job that made the queue or lane this deep crossed the soft limit: once, while the depth grows."""
    soft = store.config.queue(queue).soft_limit * limit
    return depth - 1 < soft <= depth


# --- All callers of one event loop ---


class EnqueueMerger:
    """Writes the groups of all callers of one event loop."""

    def __init__(self, engine: Engine, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime
        capabilities = engine.capabilities
        self._may_wait_for_users = capabilities.user_transactions and capabilities.concurrent_writers
        """A user's open transaction may hold an id or a key. A group that needs it waits, so it is written alone."""
        self._max_writes = MAX_WRITES if capabilities.concurrent_writers else 1
        self._divides_by_queue = not capabilities.cross_queue_atomic
        """S4: each queue is written in a step of its own. So is each queue's part of a batch: it may fail alone."""
        self._writes = 0
        """Under way."""
        self._waiting: deque[_WaitingGroup] = deque()

    async def enqueue(self, group: Group) -> GroupAnswer:
        """Write one caller's group, alone or together with those of other callers."""
        if self._may_wait_for_users and not _conflicts_with_none(group):
            return await write(self._engine, group)
        if self._writes:
            check.group(group)  # the engine would refuse all groups of a write because of this one
            answer: asyncio.Future[GroupAnswer] = asyncio.get_running_loop().create_future()
            self._waiting.append((group, answer))
            return await answer
        self._writes = 1
        try:
            return await write(self._engine, group)
        finally:
            self._writes = 0
            if self._waiting:
                self._start_writing()

    def _start_writing(self) -> None:
        self._writes += 1
        self._runtime.spawn(self._write_all(), name="holdfast enqueue").add_done_callback(self._on_end)

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        """PF3: other code may have cancelled the task, also before its first step. If the event loop ends, all callers
        have been cancelled before."""
        self._writes -= 1
        if not self._writes and not all(answer.done() for _, answer in self._waiting):
            self._start_writing()

    async def _write_all(self) -> None:
        while batch := self._next_batch():
            try:
                if self._divides_by_queue:
                    await asyncio.gather(*map(self._write_batch, _by_queue(batch)))
                else:
                    await self._write_batch(batch)
            except BaseException:  # cancelled
                for group, answer in batch:
                    ids = [job.id for job in group.jobs]
                    _fail(answer, OutcomeUnknown(verb="enqueue", job_ids=ids, engine=self._engine.scheme))
                raise
            await self._runtime.sleep(0)  # callers with an answer enqueue their next jobs: all in one write

    def _next_batch(self) -> list[_WaitingGroup]:
        batch: list[_WaitingGroup] = []
        jobs = size = 0
        max_groups = len(self._waiting)
        only_write = self._writes == 1
        if max_groups >= SPLIT_FROM and self._writes < self._max_writes and not _has_lane(self._waiting[0][0]):
            max_groups //= 2
            only_write = False
            self._start_writing()
        while self._waiting and len(batch) < max_groups:
            group, answer = self._waiting[0]
            if not only_write and _has_lane(group):
                break  # two writes would lock the same lanes in different orders, and block each other
            jobs += len(group.jobs)
            for job in group.jobs:
                size += len(job.payload)
            if batch and (jobs > MAX_JOBS or size > MAX_BYTES):
                break
            self._waiting.popleft()
            if not answer.done():  # its caller may have been cancelled
                batch.append((group, answer))
        return batch

    async def _write_batch(self, batch: list[_WaitingGroup]) -> None:
        try:
            answers = (await self._engine.perform(Enqueue(groups=tuple(group for group, _ in batch)))).groups
        except (EngineUnavailable, HistoryLost) as error:  # nothing was written, whatever is in the batch
            for _, answer in batch:
                _fail(answer, copy(error))
        except OutcomeUnknown as unknown:
            for group, answer in batch:
                await _resolve_with(answer, look_up(self._engine, group, unknown))
        except Exception:  # one group may be the cause: write each alone, so that only that one fails
            for group, answer in batch:
                await _resolve_with(answer, write(self._engine, group))
        else:
            for (_, answer), group_answer in zip(batch, answers, strict=True):
                _resolve(answer, group_answer)


def _by_queue(batch: list[_WaitingGroup]) -> list[list[_WaitingGroup]]:
    parts: dict[str, list[_WaitingGroup]] = {}
    for waiting in batch:
        queue = next((job.queue for job in waiting[0].jobs), "")
        parts.setdefault(queue, []).append(waiting)
    return list(parts.values())


def _has_lane(group: Group) -> bool:
    return any(job.lane is not None or job.pool is not None for job in group.jobs)


def _conflicts_with_none(group: Group) -> bool:
    """True if no stored id or key can conflict: generated ids, no keys."""
    return all(job.fresh_id and job.unique_key is None for job in group.jobs)


async def _resolve_with(answer: "asyncio.Future[GroupAnswer]", call: Awaitable[GroupAnswer]) -> None:
    try:
        _resolve(answer, await call)
    except Exception as error:
        _fail(answer, error)


def _resolve(answer: "asyncio.Future[GroupAnswer]", value: GroupAnswer) -> None:
    if not answer.done():
        answer.set_result(value)


def _fail(answer: "asyncio.Future[GroupAnswer]", error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)


# --- One write ---


async def write(engine: Engine, group: Group) -> GroupAnswer:
    """Write one group."""
    try:
        return (await engine.enqueue(group)).groups[0]
    except OutcomeUnknown as unknown:
        return await look_up(engine, group, unknown)


async def look_up(engine: Engine, group: Group, unknown: OutcomeUnknown) -> GroupAnswer:
    """The answer to a write whose own answer was lost, found by the ids of the jobs; `OutcomeUnknown` if one is absent.

    `HistoryLost` if the store has lost acknowledged writes since, and has none of the jobs. A generated
    id is in the store only if this write wrote it. An id given by the caller may have been there before.
    """
    if not unknown.found_by_reading:
        raise unknown
    ids = [job.id for job in group.jobs]
    keys = [JobKey(job.queue, job.id) for job in group.jobs]
    lost: HistoryLost | None = None
    try:
        try:
            records = (await engine.get(*keys)).jobs
        except HistoryLost as error:
            lost = error  # the next call reads what the store has now
            records = (await engine.get(*keys)).jobs
    except EngineError as error:  # the outcome of the write is still unknown
        raise OutcomeUnknown(verb="enqueue", job_ids=ids, engine=unknown.engine) from error
    accepted = tuple(
        Accepted(
            status=EnqueueStatus.DUPLICATE if job.payload_hash else EnqueueStatus.CREATED,
            id=record.id,
            state=record.state,
            arrival=record.arrival,
            generation=record.generation,
            lane=record.lane,
        )
        for job, record in zip(group.jobs, records, strict=True)
        if record is not None
    )
    if len(accepted) == len(group.jobs):
        return GroupAccepted(accepted)
    if lost is not None and not accepted:
        raise lost  # a write that comes later, with what this process had seen, is refused
    raise OutcomeUnknown(verb="enqueue", job_ids=ids, engine=unknown.engine) from unknown
