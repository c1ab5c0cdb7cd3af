"""What the rules ask of a store, and how they change it.

A **change** replaces one record with another: `before` with `after`, None for "no record". It needs no clock, no random
number and no search, so a list of changes can be written to a journal and applied later, or by another process, with
the same result. A change with `before` and `after` exchanged undoes it.

`State` lists the questions of the rules. A store that answers them, in the order promised, can run the rules: the
memory engine answers from dictionaries and heaps (`engines/tables/`), the SQLite engine from tables and indexes. A
question sees every change made before it, also in the same command.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias
from zlib import crc32

from msgspec import Struct

from holdfast.model.job import JobRecord
from holdfast.model.records import Edge, LaneRecord, PoolRecord, QueueRecord, WorkerRecord
from holdfast.model.states import JobState

Record = JobRecord | QueueRecord | LaneRecord | PoolRecord | WorkerRecord | Edge
Name: TypeAlias = tuple[str, str]
"""A job's (queue, id), as dictionary key."""


class Change(Struct, frozen=True, gc=False):
    """One record was `before` and is `after`."""

    before: Record | None
    after: Record | None


class State(ABC):
    """A store, as the rules see it."""

    # Changing

    def apply(self, change: Change) -> None:
        """Replace one record with another, in every index too."""
        before, after = change.before, change.after
        match after if after is not None else before:
            case JobRecord():
                self.swap_job(before, after)  # type: ignore[arg-type]
            case record if record is not None:
                self.swap(record, there=after is not None)

    @abstractmethod
    def swap_job(self, before: JobRecord | None, after: JobRecord | None) -> None:
        """Remove the job from the indexes of `before` and add it to those of `after`."""

    @abstractmethod
    def swap(self, record: Record, *, there: bool) -> None:
        """Write a record that is no job; remove it if not `there`."""

    @abstractmethod
    def new_arrival(self, queue: str) -> int:
        """A number above every arrival of this queue so far. Gaps are allowed."""

    # Jobs

    @abstractmethod
    def job(self, queue: str, job_id: str) -> JobRecord | None: ...

    def job_of_fresh_id(self, queue: str, job_id: str) -> JobRecord | None:
        """The same for an id made at random. A store that enforces unique names need not look it up."""
        return self.job(queue, job_id)

    @abstractmethod
    def key_taker(self, queue: str, task: str, unique_key: str) -> JobRecord | None:
        """The job that took the key last, if it still has a record."""

    @abstractmethod
    def ready(self, queue: str, task: str, about: int) -> Iterator[JobRecord]:
        """Queued jobs of one task: priority (higher first), due, arrival. The caller will read about `about` of them.

        Each job has left `queued` before the caller reads the next one.
        """

    @abstractmethod
    def due(self, queue: str, now: int, limit: int) -> Iterator[JobRecord]:
        """Scheduled and retrying jobs that have fallen due, in (due, arrival) order; read like `ready`."""

    @abstractmethod
    def next_due(self, queue: str) -> int | None:
        """The earliest due time of a scheduled or retrying job."""

    @abstractmethod
    def live_jobs(self, queue: str, lane: str | None) -> list[JobRecord]:
        """Every live job of a queue or lane, latest arrival first."""

    def to_clear(self, queue: str, lane: str | None) -> list[JobRecord]:
        """The same, to be ended. A store may answer a first chunk, if it ends the rest before the command ends."""
        return self.live_jobs(queue, lane)

    @abstractmethod
    def held_by_epoch(self, queue: str) -> list[JobRecord]:
        """Jobs that wait for an older size of their pool, in arrival order. Read once per resize.

        A store may answer a first chunk, as for `to_clear`.
        """

    @abstractmethod
    def newest(self, queue: str, state: JobState, below: int | None, limit: int) -> list[JobRecord]:
        """Jobs in one state whose arrival is below `below`, latest arrival first."""

    @abstractmethod
    def expiring(self, now: int, limit: int) -> list[JobRecord]:
        """Waiting jobs at or past their `expires`, of all queues."""

    @abstractmethod
    def ended(self, now: int, limit: int) -> list[JobRecord]:
        """Ended jobs whose three lifetimes have passed and that no edge keeps, of all queues."""

    # Leases

    @abstractmethod
    def held_by(self, claim_id: str) -> list[JobRecord]:
        """The jobs that a claim still holds."""

    def first_rank(self) -> int:
        """The rank of the next lease of a claim. Above 0 in a store that splits a claim into one call per queue."""
        return 0

    @abstractmethod
    def leases_until(self, instant: int) -> list[JobRecord]:
        """Leased jobs whose lease expires then or before, on the lease clock."""

    def reap_start(self, worker: str, count: int) -> int:
        """Where in a list of `count` expired leases this worker begins; other workers begin at other places."""
        return crc32(worker.encode()) % count

    @abstractmethod
    def leases_of(self, workers: Iterable[str]) -> list[JobRecord]: ...

    # Queues and lanes

    @abstractmethod
    def queue(self, name: str) -> QueueRecord | None: ...

    @abstractmethod
    def queues(self) -> list[QueueRecord]:
        """By name."""

    @abstractmethod
    def depth(self, queue: str) -> int:
        """The number of live jobs. From a stored counter, without counting jobs."""

    @abstractmethod
    def counts(self, queue: str) -> Mapping[JobState, int]:
        """How many jobs per state, without zeros. From stored counters, without counting jobs."""

    @abstractmethod
    def first_ready(self, queue: str) -> Mapping[str, int]:
        """The tasks that have ready jobs, each with the due time of its first one."""

    def is_clearing(self, queue: str) -> bool:
        """True if a clear of the queue has ended some jobs and not all. For stores that clear in chunks."""
        return False

    @abstractmethod
    def count_due(self, queue: str, now: int) -> tuple[int, int | None]:
        """How many scheduled and retrying jobs have fallen due, and since when the first of them."""

    def count_pooled(self, queue: str) -> int:
        """How many live jobs of the queue a pool has placed. Asked once per resize."""
        return sum(1 for job in self.live_jobs(queue, None) if job.epoch)

    @abstractmethod
    def lane(self, queue: str, lane: str) -> LaneRecord | None: ...

    @abstractmethod
    def lanes(self, queue: str) -> list[LaneRecord]:
        """By name."""

    @abstractmethod
    def next_in_lane(self, queue: str, lane: str) -> JobRecord | None:
        """The best of those held by the lane: priority (higher first), arrival."""

    @abstractmethod
    def earliest_in_lane(self, queue: str, lane: str) -> JobRecord | None:
        """The one of those held by the lane that arrived first."""

    @abstractmethod
    def idle_lanes(self, emptied_before: int) -> list[LaneRecord]:
        """Lanes that are empty, not paused, and have been so since that instant or longer."""

    # Edges

    @abstractmethod
    def children(self, queue: str, job_id: str, limit: int | None = None) -> list[Edge]:
        """Edges from this parent that are not resolved yet."""

    def edge(self, like: Edge) -> Edge | None:
        """The stored edge between the same two jobs. Asked only where changes are recorded."""
        return next((e for e in self.children(like.parent.queue, like.parent.id) if e.child == like.child), None)

    @abstractmethod
    def ended_parents(self) -> Name | None:
        """A parent that has ended and has edges left, if there is one."""

    # Everything else

    @abstractmethod
    def pool(self, name: str) -> PoolRecord | None: ...

    @abstractmethod
    def pools(self) -> list[PoolRecord]: ...

    @abstractmethod
    def worker(self, name: str) -> WorkerRecord | None: ...

    @abstractmethod
    def workers(self) -> list[WorkerRecord]: ...

    @abstractmethod
    def problems(self, now: int) -> Iterator[str]:
        """The audit: compute indexes and counters from the records again, and compare."""


def claim_of(token: str) -> str:
    """The claim that a token came from."""
    return token.rpartition(".")[0]


def rank_of(token: str) -> int:
    return int(token.rpartition(".")[2])
