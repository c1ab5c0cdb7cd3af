"""Entries and heaps of the in-memory tables: the orders in which the rules read jobs."""

from typing import NamedTuple

from holdfast.engines.tables.heap import LazyHeap
from holdfast.model.job import JobRecord
from holdfast.model.records import LaneRecord, QueueRecord
from holdfast.model.states import BY_DUE, WAITING, Hold, JobState

QUEUED = JobState.QUEUED
LAST = chr(0x10FFFF)
"""Sorts after every name."""
ABOVE_ALL = 2**63
"""Sorts after every arrival."""


class Ready(NamedTuple):
    """The claim order."""

    minus_priority: int
    due: int
    arrival: int
    id: str


class ByTime(NamedTuple):
    """An order by an instant, then arrival."""

    instant: int
    arrival: int
    id: str


class InLane(NamedTuple):
    """The order inside a lane. Due times do not count."""

    minus_priority: int
    arrival: int
    id: str


class Ended(NamedTuple):
    """Ended jobs of all queues, by the end of their last lifetime."""

    kept_until: int
    queue: str
    id: str


class LaneTables:
    """A lane's record, and the jobs that wait behind its head."""

    def __init__(self, record: LaneRecord, jobs: dict[str, JobRecord]) -> None:
        self.record = record

        def is_current(entry: InLane) -> bool:
            job = jobs.get(entry.id)
            return (
                job is not None
                and job.arrival == entry.arrival
                and job.priority == -entry.minus_priority
                and bool(job.hold & Hold.LANE)
            )

        self.waiting: LazyHeap[InLane] = LazyHeap(is_current)


class QueueTables:
    """A queue: its jobs by id, and the orders in which the rules read them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.record: QueueRecord | None = None
        self.jobs: dict[str, JobRecord] = {}
        self.by_state: dict[JobState, dict[int, str]] = {state: {} for state in JobState}
        """Arrival → id, per state."""
        self.live = 0
        # R2: in claim order per task.
        self.ready: dict[str, LazyHeap[Ready]] = {}
        """One heap per task, so that a claim never visits jobs of tasks it does not name."""
        self.due: LazyHeap[ByTime] = LazyHeap(self._is_due)
        self.expiring: LazyHeap[ByTime] = LazyHeap(self._is_expiring)
        self.keys: dict[tuple[str, str], str] = {}
        """(task, unique_key) → the id of the job that took it last."""
        self.lanes: dict[str, LaneTables] = {}

    def ready_of(self, task: str) -> LazyHeap[Ready]:
        heap = self.ready.get(task)
        if heap is None:
            heap = self.ready[task] = LazyHeap(self._is_ready)
        return heap

    def _is_ready(self, entry: Ready) -> bool:
        job = self.jobs.get(entry[3])
        return (
            job is not None
            and job.state is QUEUED
            and job.arrival == entry[2]
            and job.due == entry[1]
            and job.priority == -entry[0]
        )

    def _is_due(self, entry: ByTime) -> bool:
        job = self.jobs.get(entry.id)
        return job is not None and job.state in BY_DUE and job.due == entry.instant and job.arrival == entry.arrival

    def _is_expiring(self, entry: ByTime) -> bool:
        job = self.jobs.get(entry.id)
        return (
            job is not None and job.state in WAITING and job.expires == entry.instant and job.arrival == entry.arrival
        )
