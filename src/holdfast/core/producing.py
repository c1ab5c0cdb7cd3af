"""From a caller's jobs to the engine's answer: limits, refusals as errors, waiting for room, events."""

import asyncio
from collections.abc import Sequence
from typing import assert_never

from holdfast.blocking import away_from_here
from holdfast.core.doors import ThreadDoor
from holdfast.core.enqueuer import write
from holdfast.core.joined import join
from holdfast.core.link import Link
from holdfast.errors import IdConflict, JobNotFound, QueueFull, UsageError
from holdfast.model import check
from holdfast.model.produce import (
    Accepted,
    DepthLimit,
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
from holdfast.telemetry.events import Queued, SoftLimit

LOOK_AGAIN = 1.0
"""Seconds after which to try again for room, if no bell tells of it sooner."""


async def enqueue(
    link: Link, jobs: tuple[NewJob, ...], *, room: int | None = None, transaction: object | None = None
) -> tuple[Accepted, ...]:
    """Write the jobs, all or none. `room`: microseconds to wait for room in a full queue.

    `transaction`: the user's own, with which they come or do not come to be.
    """
    group = Group(jobs, limits_of(link, [job.queue for job in jobs]) if link.limited else ())
    check.group(group)
    if transaction is not None:
        return await _join(link, group, transaction, room)
    answer = await _write(link, group)
    if room is not None and isinstance(answer, GroupFull):
        answer = await _write_when_there_is_room(link, group, answer, room)
    accepted = _accepted(answer)
    if link.bus.wants(Queued) or (group.limits and link.bus.wants(SoftLimit)):
        _tell(link, group, accepted)
    return accepted


async def _join(link: Link, group: Group, transaction: object, room: int | None) -> tuple[Accepted, ...]:
    if room is not None:
        said = "`wait_for_room` cannot be had inside a transaction, which nobody should keep open for so long."
        raise UsageError(f"{said} Catch QueueFull, roll back, and try again.")
    answer, user = await join(link, Enqueue(groups=(group,)), transaction)
    accepted = _accepted(answer.groups[0])
    if link.bus.wants(Queued):  # told after the commit; by a connection that cannot say when that is, not at all
        user.after_commit(lambda: _tell(link, group, accepted))
    return accepted


def limits_of(link: Link, queues: Sequence[str]) -> tuple[DepthLimit, ...]:
    """The limits of these queues, as code and configuration set them."""
    limits = []
    for queue in dict.fromkeys(queues):
        room = link.room(queue)
        if room.queue:
            limits.append(DepthLimit(queue, room.queue))
        if room.lane:
            limits.append(DepthLimit(queue, room.lane, each_lane=True))
    return tuple(limits)


async def _write(link: Link, group: Group) -> GroupAnswer:
    process = link.process
    if not process.open or asyncio._get_running_loop() is None:
        engine = await link.engine()
        if isinstance(engine, ThreadDoor):  # engines gather the writes of threads by themselves
            return await write(engine, group)
        process = link.process
    return await process.desk().enqueuer.enqueue(group)


async def _write_when_there_is_room(link: Link, group: Group, full: GroupFull, room: int) -> GroupAnswer:
    await away_from_here()
    engine = await link.engine()
    runtime = link.runtime
    deadline = runtime.monotonic() + room
    answer: GroupAnswer = full
    while isinstance(answer, GroupFull):
        left = (deadline - runtime.monotonic()) / 1_000_000
        if left <= 0:
            break
        with engine.subscribe(f"room:{answer.queue}") as subscription:
            answer = await _write(link, group)  # room may have come before we listened
            if isinstance(answer, GroupFull):
                await subscription.wait(min(left, LOOK_AGAIN))
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


def _tell(link: Link, group: Group, accepted: tuple[Accepted, ...]) -> None:
    now = link.runtime.wall()
    created = [(job, said) for job, said in zip(group.jobs, accepted, strict=True) if _is_new(said)]
    for job, said in created:
        link.bus.emit(Queued(at=now, queue=job.queue, job_id=said.id, task=job.task, lane=job.lane, state=said.state))
    for limit in group.limits:
        depths: dict[str | None, list[int]] = {}
        for job, said in created:
            counted = limit.each_lane if job.lane is not None else not limit.each_lane and job.pool is None
            if job.queue == limit.queue and counted and said.depth:  # of a pool's lanes only the pool can tell
                depths.setdefault(job.lane, []).append(said.depth)
        for lane, grown in depths.items():
            if any(crosses_soft_limit(link, limit.queue, limit.limit, depth) for depth in grown):
                event = SoftLimit(at=now, queue=limit.queue, lane=lane, depth=max(grown), limit=limit.limit)
                link.bus.emit(event)


def crosses_soft_limit(link: Link, queue: str, limit: int, depth: int) -> bool:
    """Whether the job that made it so deep was the one to fill it up so far: once, on the way up."""
    soft = link.config.queue(queue).soft_limit * limit
    return depth - 1 < soft <= depth


def _is_new(accepted: Accepted) -> bool:
    return accepted.status is EnqueueStatus.CREATED
