"""What is done to a whole queue or lane: pause, resume, clear, emptied; schedules.

A paused queue is a flag that claims read. A paused lane holds its head. Neither stops an enqueue or a due time. `clear`
ends every live job, running ones included: their tokens are void, and their workers get `lost` at the next renewal.
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
    return set_paused(step, command, paused=True)


def resume(step: Step, command: Resume) -> ScopeAnswer:
    return set_paused(step, command, paused=False)


def set_paused(step: Step, command: Pause | Resume, *, paused: bool) -> ScopeAnswer:
    # U3: an unknown queue or lane gets a record. U4: the answer counts the live jobs of the scope.
    queue = step.queue(command.queue)
    if command.lane is not None:
        changed = lanes.set_lane_paused(step, command.queue, command.lane, paused=paused)
        return ScopeAnswer(at=step.at, count=step.lane(command.queue, command.lane).depth, changed=changed)
    # U1: claims read the flag.
    changed = queue.paused is not paused
    if changed:
        step.put(queue, replace(queue, paused=paused))
        if not paused:
            step.topics.add("queue:" + command.queue)  # N1
    return ScopeAnswer(at=step.at, count=step.state.depth(command.queue), changed=changed)


def clear(step: Step, command: Clear) -> ScopeAnswer:
    # CL1: every live job. CL2: the latest arrival first, so that lanes promote few of the jobs that end next.
    jobs = step.state.to_clear(command.queue, command.lane)
    clear_some(step, jobs)
    return ScopeAnswer(at=step.at, count=len(jobs))


def clear_some(step: Step, jobs: Iterable[JobRecord]) -> None:
    """End these jobs."""
    for listed in jobs:
        job = step.state.job(listed.queue, listed.id)  # its lane may have promoted it: then it has a new record
        assert job is not None
        cancel_anyway(step, job, Reason.CLEARED)
    parents.resolve(step)


def emptied(step: Step, command: Emptied) -> EmptiedAnswer:
    # EM1: true for one caller each time the queue runs empty.
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
    schedule = step.state.schedule(command.name)
    if schedule is not None:
        step.put(schedule, None)
    return schedules(step)


def schedules(step: Step, command: Schedules | None = None) -> SchedulesAnswer:
    return SchedulesAnswer(at=step.at, schedules=tuple(step.state.schedules()))
