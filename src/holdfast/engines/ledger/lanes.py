"""Lanes: ordered streams inside a queue, one job at a time.

A lane has a head. The head keeps the lane until it has ended: while it is queued, runs, waits for a retry, is
snoozed, delayed, released or paused, nobody overtakes it, whatever their priority. Everybody else in the lane
is blocked with the hold `lane`. When the head ends, the best of those (priority first, then arrival) becomes the
head in the same write; or the earliest, if something else holds the best one back. So a lane never needs to be
searched for, and a claim knows nothing of lanes.
"""

from msgspec.structs import replace

from holdfast.engines.ledger.step import Step, rest
from holdfast.model.job import JobRecord
from holdfast.model.states import Hold, JobState
from holdfast.model.work import LaneName


def admit(step: Step, job: JobRecord) -> tuple[JobRecord, int]:
    """Take a job into its lane, at the tail; answer it and the number of live jobs before it."""
    assert job.lane is not None
    lane = step.lane(job.queue, job.lane)
    if lane.head is None:
        step.put(lane, replace(lane, head=job.id, depth=lane.depth + 1))
        return job, lane.depth
    step.put(lane, replace(lane, depth=lane.depth + 1))
    return replace(job, hold=job.hold | Hold.LANE), lane.depth


def leave(step: Step, job: JobRecord) -> None:
    """The job has ended: count it, and if it was the head let the next one be it."""
    assert job.lane is not None
    lane = step.lane(job.queue, job.lane)
    record = replace(lane, depth=lane.depth - 1, totals=lane.totals.plus(job.state, 1))
    if record.depth == 0:
        step.emptied.append(LaneName(job.queue, job.lane))
        step.put(lane, replace(record, head=None, emptied=step.now))
    elif record.head == job.id:
        following = _following(step, job.queue, job.lane)
        step.put(lane, replace(record, head=following.id))
        step.put_job(following, rest(step, replace(following, hold=following.hold & ~Hold.LANE)))
    else:
        step.put(lane, record)


def _following(step: Step, queue: str, lane: str) -> JobRecord:
    """Who is the head next: the best, unless something else holds it back.

    Priority must not put a job in front of one that it waits for itself, or the lane would stand still for ever. The
    one that has waited longest can only wait for what came before it, and that is not in this lane any more.
    """
    best = step.state.next_in_lane(queue, lane)
    if best is not None and best.hold != Hold.LANE:
        best = step.state.earliest_in_lane(queue, lane)
    assert best is not None
    return best


def set_paused(step: Step, queue: str, name: str, *, paused: bool) -> bool:
    """Throw the switch; a head that waits to run moves with it. False: it was there already."""
    lane = step.lane(queue, name)
    if lane.paused is paused:
        return False
    step.put(lane, replace(lane, paused=paused))
    head = None if lane.head is None else step.state.job(queue, lane.head)
    if head is not None and (head.state is JobState.QUEUED or head.hold == Hold.PAUSED):
        step.put_job(head, rest(step, head))
    return True
