"""The replica: a process's own copy of the store, in memory.

It changes in two ways. `decide` carries out a command and records its changes, which the runner appends to the journal;
if that fails, they are undone. `apply` applies the frames that other processes have appended.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from holdfast.engines.file.changes import decode, with_payload
from holdfast.engines.file.frames import Frame
from holdfast.engines.file.records import Records
from holdfast.engines.ledger import Ledger
from holdfast.engines.ledger.ledger import Decision
from holdfast.engines.ledger.state import Change, Record
from holdfast.engines.tables import Tables
from holdfast.model.command import A, Command
from holdfast.model.instants import FOREVER, At
from holdfast.model.job import JobRecord


class Replica:
    """Used by one thread at a time."""

    def __init__(self) -> None:
        self.load(Records())

    def load(self, records: Records) -> None:
        """Begin anew with these records."""
        self.tables = Tables()
        for record in records.in_order():
            if type(record) is JobRecord:
                self.tables.swap_job(None, record)
            else:
                self.tables.swap(record, there=True)
        self.tables.last_arrival = records.arrival
        self._ledger = Ledger(self.tables, record_changes=True)
        self.at = records.at
        """The time of the last frame."""
        self.boot_hash = records.boot_hash
        """The boot of the last frame."""

    def apply(self, frames: Iterable[Frame]) -> None:
        """Apply what other processes have appended."""
        tables = self.tables
        job_of, swap_job, swap = tables.job, tables.swap_job, tables.swap
        for frame in frames:
            for data in frame.changes:
                record, there, needs_payload = decode(data)
                if type(record) is JobRecord:
                    before = job_of(record.queue, record.id)
                    after = with_payload(record, before) if needs_payload else record
                    swap_job(before, after if there else None)
                else:
                    swap(record, there=there)
            header = frame.header
            tables.last_arrival = header.arrival
            self.at = header.at
            self.boot_hash = header.boot_hash

    # Deciding

    @property
    def clock(self) -> At:
        """The time of the last decision."""
        return self._ledger.clock

    def begin(self, earliest: At) -> None:
        """The decisions from now on are not made before this time."""
        self._ledger.clock = earliest

    def decide(self, command: Command[A], now: At) -> Decision[A]:
        return self._ledger.decide(command, now)

    def undo(self, changes: Sequence[Change]) -> None:
        self._ledger.undo(changes)

    def expire_leases(self) -> list[Change]:
        """Let all leases expire: they are of an earlier boot of the host, and the boot clock has begun anew."""
        leased = self.tables.leases_until(FOREVER)
        changes = [Change(job, replace(job, lease_expires=0)) for job in leased]
        self._ledger.apply(changes)
        return changes

    def live_jobs(self) -> int:
        """How many jobs have not ended."""
        return sum(self.tables.depth(queue.queue) for queue in self.tables.queues())

    # Snapshots

    @property
    def last_arrival(self) -> int:
        return self.tables.last_arrival

    def snapshot_records(self) -> list[Record]:
        """All records as they are now. Records do not change, so another thread may write them."""
        return list(self.tables.records())
