"""One command being carried out.

A step holds the state, the time, and what the rules have done so far: the topics to notify afterwards, the totals to
count at the end, and for an engine that asks for them the changes. A change is applied as it is made: a settlement
frees a lane, the next job of the lane becomes ready, and the claim in the same command takes it.
"""

from typing import TypeVar

from msgspec.structs import replace

from holdfast.engines.ledger.state import Change, Record, State
from holdfast.model.instants import At
from holdfast.model.job import JobRecord
from holdfast.model.records import Edge, LaneRecord, PoolRecord, QueueRecord, WorkerRecord
from holdfast.model.states import TRANSITIONS, Hold, JobState, legal
from holdfast.model.work import LaneName

QUEUED = JobState.QUEUED
FREE = Hold.NONE

R = TypeVar("R", QueueRecord, LaneRecord, PoolRecord, WorkerRecord, Edge)


class Step:
    """Rules read from it and write through it."""

    __slots__ = ("_ended", "at", "changes", "emptied", "now", "state", "topics")

    def __init__(self, state: State, at: At, *, record_changes: bool = False) -> None:
        self.state = state
        self.at = at
        self.now = at.wall
        self.changes: list[Change] | None = [] if record_changes else None
        self.topics: set[str] = set()
        self.emptied: list[LaneName] = []
        self._ended: dict[tuple[str, JobState], int] = {}

    # Reading

    def queue(self, name: str) -> QueueRecord:
        """The queue's record, written if it is new."""
        record = self.state.queue(name)
        if record is None:
            record = QueueRecord(queue=name)
            self.put(None, record)
        return record

    def lane(self, queue: str, lane: str) -> LaneRecord:
        """The lane's record, written if it is new."""
        record = self.state.lane(queue, lane)
        if record is None:
            self.queue(queue)
            record = LaneRecord(queue=queue, lane=lane, emptied=self.now)
            self.put(None, record)
        return record

    # Writing

    def put(self, before: R | None, after: R | None) -> None:
        """Write a record that is no job; None as `after` removes it."""
        record = before if after is None else after
        assert record is not None
        old: Record | None = before
        if self.changes is not None and isinstance(after, Edge):
            old = self.state.edge(after)  # a rule does not look for an older edge between the two jobs
        self.state.swap(record, there=after is not None)
        if self.changes is not None:
            self.changes.append(Change(old, after))

    def put_job(self, before: JobRecord | None, after: JobRecord) -> None:
        """Write a job. The change of state must be in the table; anything else is a defect in a rule."""
        old, new = None if before is None else before.state, after.state
        if old is not new and new not in TRANSITIONS[old]:
            self._check_generation(before, after)
        self.state.swap_job(before, after)
        if self.changes is not None:
            self.changes.append(Change(before, after))
        if new is QUEUED and old is not QUEUED:
            self.topics.add("queue:" + after.queue)  # N1

    def _check_generation(self, before: JobRecord | None, after: JobRecord) -> None:
        old = None if before is None else before.state
        same = before is None or before.generation == after.generation
        if not legal(old, after.state, same_generation=same):
            raise AssertionError(f"job {after.id!r} of queue {after.queue!r}: {old} → {after.state} is no transition")

    def drop_job(self, job: JobRecord) -> None:
        """Delete a record."""
        self.state.swap_job(job, None)
        if self.changes is not None:
            self.changes.append(Change(job, None))

    def count_end(self, queue: str, target: JobState, count: int = 1) -> None:
        """Count ends in the totals; written once per queue, when the step closes."""
        key = (queue, target)
        self._ended[key] = self._ended.get(key, 0) + count

    def close(self) -> None:
        """Write the totals."""
        for (name, target), count in self._ended.items():
            record = self.queue(name)
            self.put(record, replace(record, totals=record.totals.plus(target, count)))
        self._ended.clear()


def as_waiting(step: Step, job: JobRecord) -> JobRecord:
    """The job with the state and hold in which it waits from now on."""
    # E4: blocked if something holds it, else scheduled until it is due, else queued.
    if job.hold is FREE and job.lane is None:
        state = QUEUED if job.due <= step.now else JobState.SCHEDULED
        return job if job.state is state else replace(job, state=state)
    hold = job.hold & ~Hold.PAUSED
    if hold:
        return replace(job, hold=hold, state=JobState.BLOCKED)
    if job.due > step.now:
        return replace(job, hold=hold, state=JobState.SCHEDULED)
    # U2: the head of a paused lane is held from the time it would be queued.
    if job.lane is not None and step.lane(job.queue, job.lane).paused:
        return replace(job, hold=Hold.PAUSED, state=JobState.BLOCKED)
    return replace(job, hold=hold, state=JobState.QUEUED)
