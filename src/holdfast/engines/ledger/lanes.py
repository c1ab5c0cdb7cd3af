"""Lanes: ordered streams inside a queue, one job at a time.

A lane has a head, which keeps the lane until it has ended. All other jobs of the lane are blocked with the hold `lane`.
When the head ends, the next head is chosen in the same write. So no rule searches for a lane that may go on, and a
claim needs to know nothing of lanes.
"""

from msgspec.structs import replace

from holdfast.engines.ledger.step import Step, as_waiting
from holdfast.model.job import JobRecord
from holdfast.model.states import Hold, JobState
from holdfast.model.work import LaneName


def admit(step: Step, job: JobRecord) -> tuple[JobRecord, int]:
    """Add a job to its lane; the answer is the job and the number of live jobs before it."""
    assert job.lane is not None
    lane = step.lane(job.queue, job.lane)
    # L1: the first live job is the head.
    if lane.head is None:
        step.put(lane, replace(lane, head=job.id, depth=lane.depth + 1))
        return job, lane.depth
    # L2, L3: the others wait, whatever their priority. L6: requeued and replaced jobs too.
    step.put(lane, replace(lane, depth=lane.depth + 1))
    return replace(job, hold=job.hold | Hold.LANE), lane.depth


def leave_lane(step: Step, job: JobRecord) -> None:
    """The job has ended: count it, and if it was the head, choose the next one."""
    assert job.lane is not None
    lane = step.lane(job.queue, job.lane)
    # L7: the depth shrinks at once. L9: totals count ends.
    record = replace(lane, depth=lane.depth - 1, totals=lane.totals.plus(job.state, 1))
    if record.depth == 0:
        # L8: the command that ends the last job reports the lane as emptied.
        step.emptied.append(LaneName(job.queue, job.lane))
        step.put(lane, replace(record, head=None, emptied=step.now))
    elif record.head == job.id:
        # L3, L4: the lane goes on when its head has ended, in the same write. A head that is due later holds the lane.
        following = next_head(step, job.queue, job.lane)
        step.put(lane, replace(record, head=following.id))
        step.put_job(following, as_waiting(step, replace(following, hold=following.hold & ~Hold.LANE)))
    else:
        step.put(lane, record)


def next_head(step: Step, queue: str, lane: str) -> JobRecord:
    """The best of the jobs that wait, or the earliest."""
    # L4: by priority, then arrival.
    best = step.state.next_in_lane(queue, lane)
    # L5: if something else holds the best one too, the earliest arrival. It can only wait for jobs that came before it,
    # and those have left this lane; the best one may wait for a job behind it, and the lane would stop for ever.
    if best is not None and best.hold != Hold.LANE:
        best = step.state.earliest_in_lane(queue, lane)
    assert best is not None
    return best


def lane_depth(step: Step, queue: str, lane: str) -> int:
    """Live jobs in a lane."""
    record = step.state.lane(queue, lane)
    return 0 if record is None else record.depth


def set_lane_paused(step: Step, queue: str, name: str, *, paused: bool) -> bool:
    """Pause or resume a lane. False: it was paused, or not paused, already."""
    lane = step.lane(queue, name)
    if lane.paused is paused:
        return False
    step.put(lane, replace(lane, paused=paused))
    # U2: a queued head is held at once, and a head that only the pause holds goes on.
    head = None if lane.head is None else step.state.job(queue, lane.head)
    if head is not None and (head.state is JobState.QUEUED or head.hold == Hold.PAUSED):
        step.put_job(head, as_waiting(step, head))
    return True
