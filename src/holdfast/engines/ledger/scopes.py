"""What is done to a whole queue or lane: pause, resume, clear, emptied, remove.

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
    Emptied,
    EmptiedAnswer,
    Pause,
    RemoveQueue,
    RemoveQueueAnswer,
    RemoveStatus,
    Resume,
    ScopeAnswer,
)
from holdfast.model.states import Reason


def pause(step: Step, command: Pause) -> ScopeAnswer:
    return set_paused(step, command, paused=True)


def resume(step: Step, command: Resume) -> ScopeAnswer:
    return set_paused(step, command, paused=False)


def set_paused(step: Step, command: Pause | Resume, *, paused: bool) -> ScopeAnswer:
    # U3: a pause gives an unknown queue or lane a record; a resume of one changes nothing.
    if not paused and not _is_known(step, command.queue, command.lane):
        return ScopeAnswer(at=step.at, count=0, changed=False)
    # U4: the answer counts the live jobs of the scope.
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


def _is_known(step: Step, queue: str, lane: str | None) -> bool:
    return (step.state.queue(queue) if lane is None else step.state.lane(queue, lane)) is not None


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


def remove_queue(step: Step, command: RemoveQueue) -> RemoveQueueAnswer:
    # RM1: only a queue without jobs, pause and live workers.
    name = command.queue
    queue, lanes_of_queue = step.state.queue(name), step.state.lanes(name)
    if queue is None:
        return RemoveQueueAnswer(at=step.at, status=RemoveStatus.NOT_FOUND)
    if jobs := sum(step.state.counts(name).values()):
        return RemoveQueueAnswer(at=step.at, status=RemoveStatus.HAS_JOBS, jobs=jobs)
    if queue.paused or any(lane.paused for lane in lanes_of_queue):
        return RemoveQueueAnswer(at=step.at, status=RemoveStatus.PAUSED)
    serving = [worker for worker in step.state.workers() if name in worker.queues and worker.is_alive(step.now)]
    if serving:
        names = tuple(worker.worker for worker in serving)
        return RemoveQueueAnswer(at=step.at, status=RemoveStatus.SERVED, workers=names)
    # RM2: its lanes, its pool, its totals and its name.
    for lane in lanes_of_queue:
        step.put(lane, None)
    pool = step.state.pool(name)
    if pool is not None:
        step.put(pool, None)
    step.put(queue, None)
    return RemoveQueueAnswer(at=step.at, status=RemoveStatus.REMOVED)
