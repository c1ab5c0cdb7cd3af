"""All records of a store while it is loaded: plain dictionaries, without indexes.

A change replaces what is there, so a history with a gap can be read, too. Afterwards `repair.py` makes the records
agree with each other, and the indexes are built once, from the last version of each record.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from holdfast.engines.file.changes import decode, encode, with_payload
from holdfast.engines.ledger.state import Change, Name, Record, State
from holdfast.errors import CorruptRecord
from holdfast.model.instants import At
from holdfast.model.job import JobRecord
from holdfast.model.records import Edge, LaneRecord, PoolRecord, QueueRecord, WorkerRecord

K = TypeVar("K")
R = TypeVar("R")


class Records:
    """The records, and the values of the last frame."""

    def __init__(self) -> None:
        self.at = At(0, 0)
        self.arrival = 0
        """The last arrival number in use."""
        self.boot_hash = 0
        self.lost_changes = 0
        """Changes that could not be read; a number of frames that cannot be read counts as one."""
        self.queues: dict[str, QueueRecord] = {}
        self.lanes: dict[Name, LaneRecord] = {}
        self.pools: dict[str, PoolRecord] = {}
        self.workers: dict[str, WorkerRecord] = {}
        self.jobs: dict[Name, JobRecord] = {}
        self.edges: dict[tuple[Name, Name], Edge] = {}
        self.without_payload: set[Name] = set()
        """Jobs whose payload is lost: the change that wrote it was damaged, and a later one was not."""

    def apply(self, changes: Iterable[bytes]) -> None:
        """Apply the changes of a frame."""
        for data in changes:
            record, there, needs_payload = decode(data)
            if type(record) is JobRecord:
                self._swap_job(record, there=there, needs_payload=needs_payload)
            else:
                self._swap(record, there=there)

    def swap(self, change: Change) -> None:
        """Apply a change that was not read from a file."""
        self.apply((encode(change),))

    def _swap_job(self, job: JobRecord, *, there: bool, needs_payload: bool) -> None:
        name = (job.queue, job.id)
        if not there:
            self.jobs.pop(name, None)
            self.without_payload.discard(name)
            return
        if not needs_payload:
            self.without_payload.discard(name)
        else:
            try:
                job = with_payload(job, self.jobs.get(name))
            except CorruptRecord:
                self.without_payload.add(name)
        self.jobs[name] = job

    def _swap(self, record: Record, *, there: bool) -> None:
        match record:
            case QueueRecord():
                _keep(self.queues, record.queue, record, there=there)
            case LaneRecord():
                _keep(self.lanes, (record.queue, record.lane), record, there=there)
            case PoolRecord():
                _keep(self.pools, record.name, record, there=there)
            case WorkerRecord():
                _keep(self.workers, record.worker, record, there=there)
            case Edge(parent=parent, child=child):
                _keep(self.edges, ((parent.queue, parent.id), (child.queue, child.id)), record, there=there)

    def drop_ended(self) -> None:
        """Remove the jobs that have ended, except parents whose children have not been given the end yet."""
        parents = {parent for parent, _ in self.edges}
        self.jobs = {name: job for name, job in self.jobs.items() if job.live or name in parents}

    def fill(self, state: State) -> None:
        """Write all records to an empty state."""
        for record in self.in_order():
            if type(record) is JobRecord:
                state.swap_job(None, record)
            else:
                state.swap(record, there=True)

    def in_order(self) -> Iterator[Record]:
        """All records. A job comes after the records of its queue and lane, an edge after its jobs."""
        yield from self.queues.values()
        yield from self.lanes.values()
        yield from self.pools.values()
        yield from self.workers.values()
        yield from self.jobs.values()
        yield from self.edges.values()


def _keep(table: dict[K, R], key: K, record: R, *, there: bool) -> None:
    if there:
        table[key] = record
    else:
        table.pop(key, None)
