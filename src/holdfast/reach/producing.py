"""From a caller's jobs to the engine's answer: limits, refusals as errors, waiting for room, events."""

from collections.abc import Sequence
from typing import assert_never

from holdfast.blocking import away_from_here
from holdfast.errors import IdConflict, JobNotFound, QueueFull
from holdfast.model import check
from holdfast.model.produce import (
    Accepted,
    DepthLimit,
    EnqueueStatus,
    Group,
    GroupAccepted,
    GroupAnswer,
    GroupConflict,
    GroupFull,
    GroupOrphan,
    NewJob,
)
from holdfast.reach.doors import ThreadDoor
from holdfast.reach.enqueuer import write
from holdfast.reach.link import Link
from holdfast.telemetry.events import Queued, SoftLimit

LOOK_AGAIN = 1.0
"""Seconds after which to try again for room, if no bell tells of it sooner."""


async def enqueue(link: Link, jobs: tuple[NewJob, ...], *, room: int | None = None) -> tuple[Accepted, ...]:
    """Write the jobs, all or none. `room`: microseconds to wait for room in a full queue."""
    group = Group(jobs, _limits(link, jobs))
    check.group(group)
    answer = await _write(link, group)
    if room is not None and isinstance(answer, GroupFull):
        answer = await _write_when_there_is_room(link, group, answer, room)
    accepted = _accepted(answer)
    if link.bus.wants(Queued) or (group.limits and link.bus.wants(SoftLimit)):
        _tell(link, group, accepted)
    return accepted


def limits_of(link: Link, queues: Sequence[str]) -> tuple[DepthLimit, ...]:
    """The limits that the configuration sets for these queues."""
    config = link.config
    if not config.queues:
        return ()
    return tuple(DepthLimit(q, config.queue(q).max_depth) for q in dict.fromkeys(queues) if config.queue(q).max_depth)


def _limits(link: Link, jobs: tuple[NewJob, ...]) -> tuple[DepthLimit, ...]:
    return limits_of(link, [job.queue for job in jobs]) if link.config.queues else ()


async def _write(link: Link, group: Group) -> GroupAnswer:
    engine = await link.engine()
    if isinstance(engine, ThreadDoor):  # engines gather the writes of threads by themselves
        return await write(engine, group)
    return await link.process.desk().enqueuer.enqueue(group)


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
        with engine.subscribe(f"room:{answer.queue}") as ears:
            answer = await _write(link, group)  # room may have come before we listened
            if isinstance(answer, GroupFull):
                await ears.wait(min(left, LOOK_AGAIN))
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
        depths = [said.depth for job, said in created if job.queue == limit.queue and job.lane is None and said.depth]
        soft = link.config.queue(limit.queue).soft_limit * limit.limit
        if any(depth - 1 < soft <= depth for depth in depths):  # once, on the way up
            link.bus.emit(SoftLimit(at=now, queue=limit.queue, depth=max(depths), limit=limit.limit))


def _is_new(accepted: Accepted) -> bool:
    return accepted.status is EnqueueStatus.CREATED
