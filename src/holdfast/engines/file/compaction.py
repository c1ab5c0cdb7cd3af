"""Compaction: the journal begins anew with a snapshot, and the files before it are removed.

The process that goes on in a new segment also writes the snapshot, if one is due. It takes references to all records
while it holds the gate, and a thread writes them afterwards. No process waits for it: the records do not change, and
the journal goes on. One process at a time does it.

The journal grows by the size of the last snapshot, and at least by a segment, before the next snapshot is written. So
the files are at most about three times as large as the records, while a snapshot is written, too.
"""

import logging
from collections.abc import Iterator
from typing import Any

from holdfast.engines.file.changes import encode_record
from holdfast.engines.file.journal import Journal
from holdfast.engines.file.replica import Replica
from holdfast.engines.file.store_folder import StoreFolder
from holdfast.engines.ledger.state import Record
from holdfast.errors import EngineError, EngineUnavailable
from holdfast.file_locks import FileLock
from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime

log = logging.getLogger("holdfast")

CLOSE_TIMEOUT_S = 10.0
"""`close` waits this long for a snapshot. If every process gave up, the journal would grow without limit."""
RECORDS_PER_SLICE = 200
"""Records that are encoded before other threads get a turn: about a millisecond."""


TAKE_OVER_AT = 2
"""A journal that is this many times longer than the limit was left behind by a process that has ended."""


TAKE_OVER_PAUSE_US = 60 * SECOND
"""Between two tries of a process to take over. If snapshots fail, every try costs a segment and all of their writes."""
RETRY_PAUSE_US = 10 * SECOND
"""After a segment that could not be made, as without a free inode. The journal goes on in the old one."""


class CompactionEnded(Exception):
    """The store is being closed."""


class Compaction:
    """Used by the thread that has the gate; the snapshot is written by a thread of its own."""

    def __init__(self, folder: StoreFolder, runtime: Runtime, journal: Journal, replica: Replica) -> None:
        self._folder = folder
        self._runtime = runtime
        self._journal = journal
        self._replica = replica
        self._seen_segment = 0
        """The last segment whose beginning this process has seen."""
        self._next_take_over_us = 0
        """On the monotonic clock."""
        self._next_try_us = 0
        """On the monotonic clock."""
        self._must_end = runtime.event()
        self._thread: Any = None

    def run_if_due(self) -> None:
        """Under the gate: go on in a new segment if this one is long, and write a snapshot if the journal is long."""
        journal = self._journal
        is_long = journal.needs_rotation
        if not is_long and journal.position.segment == self._seen_segment:
            return
        if self._runtime.monotonic() < self._next_try_us:
            return
        lock: FileLock | None = None
        try:
            reserve = self._runtime.fs.status(self._folder.reserve_path)
            if reserve is not None and reserve.size == 0:  # a snapshot would take the space that settlements need
                return
            try:
                lock = self._lock_if_due(is_long=is_long)
                if is_long or lock is not None:
                    self._rotate(lock)
            except BaseException:  # a signal handler may have raised it
                if lock is not None:
                    lock.close()
                raise
        except (EngineError, OSError, RuntimeError) as error:  # RuntimeError: the system starts no more threads
            self._next_try_us = self._runtime.monotonic() + RETRY_PAUSE_US
            log.warning(
                "%s: the journal could not go on in a new file (%s). It is tried again.", self._folder.path, error
            )
        self._seen_segment = journal.position.segment

    def _lock_if_due(self, *, is_long: bool) -> FileLock | None:
        """The lock of the one process that compacts; None if there is nothing to do, or another process does it."""
        if self._thread is not None and self._thread.is_alive():
            return None
        # A process that finds the journal twice as long takes over: the one that had to compact it has ended.
        now_us = self._runtime.monotonic()
        if not is_long and now_us < self._next_take_over_us:
            return None
        if not self._is_due(1 if is_long else TAKE_OVER_AT):
            return None
        self._next_take_over_us = now_us + TAKE_OVER_PAUSE_US
        return self._runtime.fs.lock(self._folder.compaction_path)

    def start_now(self) -> int:
        """Under the gate: write a snapshot, however long the journal is. The answer is its number."""
        lock = self._runtime.fs.lock(self._folder.compaction_path)
        if lock is None:
            raise EngineUnavailable(
                f"{self._folder.path}: another process writes a snapshot just now. Nothing is left to do.",
                engine="file",
            )
        try:
            self._rotate(lock)
        except BaseException:
            lock.close()
            raise
        return self._journal.position.segment

    def finish(self) -> None:
        """Return when the snapshot is written."""
        if self._thread is not None:
            self._thread.join()  # no limit: the disk ends it, and an operator waits for it

    def is_overdue(self) -> bool:
        """True if the process that had to compact the journal has ended. Needs no gate."""
        return self._is_due(TAKE_OVER_AT)

    def _is_due(self, times: int) -> bool:
        segments, snapshots = self._folder.numbers()
        sizes = [self._runtime.fs.size(self._folder.segment_path(segment)) for segment in segments]
        last_bytes = self._runtime.fs.size(self._folder.snapshot_path(snapshots[-1])) if snapshots else 0
        limit = max(self._journal.segment_bytes, last_bytes)
        return sum(sizes) > times * limit

    def _rotate(self, lock: FileLock | None) -> None:
        """With the lock: a thread writes the snapshot, and closes the lock."""
        segment = self._journal.rotate()
        if lock is None:
            return
        replica, last = self._replica, self._journal.last
        records = replica.snapshot_records()
        at, arrival, boot_hash = replica.at, replica.last_arrival, last.boot_hash

        def write() -> None:
            try:
                with lock:
                    changes = self._encode(records)
                    self._journal.write_snapshot(segment, changes, at, arrival, boot_hash, last.sequence)
                    self._journal.remove_before(segment)
            except CompactionEnded:
                pass
            except (EngineError, OSError) as error:
                log.warning("%s: a snapshot could not be written (%s).", self._folder.path, error)

        self._thread = self._runtime.thread(write, name="holdfast-file-compaction")

    def _encode(self, records: list[Record]) -> Iterator[bytes]:
        for begin in range(0, len(records), RECORDS_PER_SLICE):
            if self._must_end.is_set():
                raise CompactionEnded
            yield from map(encode_record, records[begin : begin + RECORDS_PER_SLICE])

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)
            self._must_end.set()
            self._thread.join(CLOSE_TIMEOUT_S)
