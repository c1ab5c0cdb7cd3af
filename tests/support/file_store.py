"""Stores of the file engine without the engine: folder, journal, records."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simulated_disk import SimulatedDisk
from simulated_files import ROOT, SimulatedFiles

from holdfast.engines.file import changes, recovery
from holdfast.engines.file.journal import Journal
from holdfast.engines.file.records import Records
from holdfast.engines.file.store_folder import StoreFolder
from holdfast.engines.ledger.state import Change
from holdfast.model.instants import At
from holdfast.model.job import JobRecord
from holdfast.runtime import Runtime, SystemRuntime

LOCK_TIMEOUT_S = 30.0
BOOT_HASH = 77


def job(number: int, payload: bytes = b"") -> JobRecord:
    return JobRecord(queue="q", id=f"job-{number}", payload=payload, arrival=number)


def added(number: int, payload: bytes = b"") -> bytes:
    """The change that adds a job."""
    return changes.encode(Change(None, job(number, payload)))


class JournalProcess:
    """A process with a store, as far as the journal is concerned."""

    def __init__(self, root: Path, runtime: Runtime | None = None, segment_bytes: int = 1_000_000) -> None:
        self.runtime = runtime or SystemRuntime()
        self.folder = StoreFolder(root, "holdfast", self.runtime)
        self.folder.prepare(LOCK_TIMEOUT_S)
        self.gate = self.folder.open_gate(LOCK_TIMEOUT_S)
        self.journal = Journal(self.folder, self.runtime, segment_bytes=segment_bytes)
        self.records = Records()
        try:
            self.load()
        except BaseException:
            self.close()
            raise

    def load(self) -> None:
        with self.gate:
            self.records = recovery.load(self.journal)

    def read(self, *, under_gate: bool = False) -> None:
        for frame in self.journal.read_new(under_gate=under_gate):
            self.records.apply(frame.changes)

    def write(self, *added_changes: bytes, sync: bool = True) -> None:
        """One frame."""
        with self.gate:
            self.read(under_gate=True)
            self.records.apply(added_changes)
            number = self.journal.position.sequence
            self.journal.append(added_changes, At(number, number), number, BOOT_HASH)
        if sync:
            self.journal.sync()

    def add(self, *numbers: int, sync: bool = True) -> None:
        """One frame that adds these jobs."""
        self.write(*map(added, numbers), sync=sync)

    def rotate(self) -> int:
        with self.gate:
            self.read(under_gate=True)
            return self.journal.rotate()

    def compact(self) -> None:
        segment = self.rotate()
        records = self.records
        encoded, first = map(changes.encode_record, records.in_order()), self.journal.last.sequence
        self.journal.write_snapshot(segment, encoded, records.at, records.arrival, BOOT_HASH, first)
        self.journal.remove_before(segment)

    def numbers(self) -> list[int]:
        """Which jobs are there."""
        return sorted(int(job_id.removeprefix("job-")) for _, job_id in self.records.jobs)

    def close(self) -> None:
        self.journal.close()
        self.gate.close()


@contextmanager
def opened(root: Path, runtime: Runtime | None = None, segment_bytes: int = 1_000_000) -> Iterator[JournalProcess]:
    process = JournalProcess(root, runtime, segment_bytes)
    try:
        yield process
    finally:
        process.close()


def simulated_runtime(disk: SimulatedDisk) -> Runtime:
    """A process whose files are on this disk."""
    runtime = SystemRuntime()
    runtime.fs = SimulatedFiles(disk)
    return runtime


def jobs_in(root: Path, runtime: Runtime | None = None) -> list[int]:
    """Open the store and say which jobs are there."""
    with opened(root, runtime) as process:
        return process.numbers()


SIMULATED = Path(ROOT)
STORE = SIMULATED / "holdfast"


def content(disk: SimulatedDisk, name: str) -> bytearray:
    """A file of the store, to be damaged."""
    return disk.file(str(STORE / name)).live


def damage_synced(disk: SimulatedDisk, name: str, offset: int) -> None:
    """Another value for this byte of a file of the store, on the disk and for programs."""
    file = disk.file(str(STORE / name))
    file.live[offset] ^= 1
    file.durable = bytes(file.live)


def names(disk: SimulatedDisk) -> list[str]:
    """The files of the store."""
    return sorted(disk.folder(str(STORE)).live)
