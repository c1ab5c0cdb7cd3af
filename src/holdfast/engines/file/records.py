"""All records of a store while it is loaded: plain dictionaries, without indexes.

A change replaces what is there, so a history with a gap can be read, too. Afterwards `repair.py` makes the records
agree with each other, and the indexes are built once, from the last version of each record.
"""

from collections.abc import Iterable, Iterator

from holdfast.engines.file.changes import decode, with_payload
from holdfast.engines.ledger.state import Name, Record
from holdfast.errors import CorruptRecord
from holdfast.model.instants import At
from holdfast.model.job import JobRecord
from holdfast.model.records import Edge, LaneRecord, PoolRecord, QueueRecord, ScheduleRecord, WorkerRecord


class Records:
    """The records, and the values of the last frame."""

    def __init__(self) -> None:
        self.at = At(0, 0)
        self.arrival = 0
        """The last arrival number in use."""
        self.boot_hash = 0
        self.queues: dict[str, QueueRecord] = {}
        self.lanes: dict[Name, LaneRecord] = {}
        self.pools: dict[str, PoolRecord] = {}
        self.schedules: dict[str, ScheduleRecord] = {}
        self.workers: dict[str, WorkerRecord] = {}
        self.jobs: dict[Name, JobRecord] = {}
        self.edges: dict[tuple[Name, Name], Edge] = {}

    def apply(self, changes: Iterable[bytes]) -> list[str]:
        """Apply the changes of a frame; the answer says which ones are of no use because an earlier one is lost."""
        useless: list[str] = []
        for data in changes:
            record, there, needs_payload = decode(data)
            if type(record) is JobRecord:
                name = (record.queue, record.id)
                if needs_payload:
                    try:
                        record = with_payload(record, self.jobs.get(name))
                    except CorruptRecord as error:
                        useless.append(str(error))
                        self.jobs.pop(name, None)
                        continue
                if there:
                    self.jobs[name] = record
                else:
                    self.jobs.pop(name, None)
            else:
                self._swap(record, there=there)
        return useless

    def _swap(self, record: Record, *, there: bool) -> None:
        match record:
            case QueueRecord():
                _keep(self.queues, record.queue, record, there=there)
            case LaneRecord():
                _keep(self.lanes, (record.queue, record.lane), record, there=there)
            case PoolRecord():
                _keep(self.pools, record.name, record, there=there)
            case ScheduleRecord():
                _keep(self.schedules, record.name, record, there=there)
            case WorkerRecord():
                _keep(self.workers, record.worker, record, there=there)
            case Edge(parent=parent, child=child):
                _keep(self.edges, ((parent.queue, parent.id), (child.queue, child.id)), record, there=there)

    def in_order(self) -> Iterator[Record]:
        """All records. A job comes after the records of its queue and lane, an edge after its jobs."""
        yield from self.queues.values()
        yield from self.lanes.values()
        yield from self.pools.values()
        yield from self.schedules.values()
        yield from self.workers.values()
        yield from self.jobs.values()
        yield from self.edges.values()


def _keep[K, R](table: dict[K, R], key: K, record: R, *, there: bool) -> None:
    if there:
        table[key] = record
    else:
        table.pop(key, None)
