"""What is done to a whole queue or lane: pause, resume, clear, emptied; schedules.

A paused queue is a flag that claims read. A paused lane holds its head back, from when that would be queued.
Neither stops an enqueue or a due time. `clear` ends everything that has arrived, running jobs included: their
tokens are void from then on, and their workers learn it from the next renewal.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.engines.ledger import lanes, parents
from holdfast.engines.ledger.ends import cancel_anyway
from holdfast.engines.ledger.step import Step
from holdfast.model.job import JobRecord
from holdfast.model.operate import (
    Clear,
    DropSchedule,
    Emptied,
    EmptiedAnswer,
    Pause,
    PutSchedule,
    Resume,
    Schedules,
    SchedulesAnswer,
    ScopeAnswer,
)
from holdfast.model.states import Reason


def pause(step: Step, command: Pause) -> ScopeAnswer:
    return _set_paused(step, command, paused=True)


def resume(step: Step, command: Resume) -> ScopeAnswer:
    return _set_paused(step, command, paused=False)


def _set_paused(step: Step, command: Pause | Resume, *, paused: bool) -> ScopeAnswer:
    """Counts the live jobs in the scope."""
    queue = step.queue(command.queue)
    if command.lane is not None:
        changed = lanes.set_paused(step, command.queue, command.lane, paused=paused)
        return ScopeAnswer(at=step.at, count=step.lane(command.queue, command.lane).depth, changed=changed)
    changed = queue.paused is not paused
    if changed:
        step.put(queue, replace(queue, paused=paused))
        if not paused:
            step.topics.add("queue:" + command.queue)
    return ScopeAnswer(at=step.at, count=step.state.depth(command.queue), changed=changed)


def clear(step: Step, command: Clear) -> ScopeAnswer:
    jobs = step.state.to_clear(command.queue, command.lane)
    clear_some(step, jobs)
    return ScopeAnswer(at=step.at, count=len(jobs))


def clear_some(step: Step, jobs: Iterable[JobRecord]) -> None:
    """End these. The latest first, so that lanes promote little of what is about to go."""
    for listed in jobs:
        job = step.state.job(listed.queue, listed.id)  # what a lane has promoted has a new record
        assert job is not None
        cancel_anyway(step, job, Reason.CLEARED)
    parents.resolve(step)


def emptied(step: Step, command: Emptied) -> EmptiedAnswer:
    """Compare the finished count with the one answered last: true for one caller per drain."""
    queue = step.state.queue(command.queue)
    if queue is None or queue.totals.finished <= queue.emptied_at or step.state.depth(command.queue):
        return EmptiedAnswer(at=step.at, emptied=False)
    step.put(queue, replace(queue, emptied_at=queue.totals.finished))
    return EmptiedAnswer(at=step.at, emptied=True)


# Schedules


def put_schedule(step: Step, command: PutSchedule) -> SchedulesAnswer:
    step.put(step.state.schedule(command.schedule.name), command.schedule)
    return schedules(step)


def drop_schedule(step: Step, command: DropSchedule) -> SchedulesAnswer:
    known = step.state.schedule(command.name)
    if known is not None:
        step.put(known, None)
    return schedules(step)


def schedules(step: Step, command: Schedules | None = None) -> SchedulesAnswer:
    return SchedulesAnswer(at=step.at, schedules=tuple(step.state.schedules()))
