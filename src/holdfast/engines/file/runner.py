"""Carries out commands: the ledger decides over the replica, and the journal keeps the changes.

A batch that writes: take the gate, apply what other processes have appended, decide, append one frame, release the
gate, sync. The answers are given after the sync. So other processes write while one waits for the disk, and what they
answer rests on frames that are synced by then, because a sync covers all earlier bytes of the journal. A batch that
only reads takes no gate; it waits until what it has seen is synced.

A command that raises an error is undone alone. If the append fails, the whole batch is undone, and nothing was written.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from holdfast.engines.command_thread import CommandResult
from holdfast.engines.engine_clock import EngineClock
from holdfast.engines.file.changes import encode
from holdfast.engines.file.compaction import Compaction
from holdfast.engines.file.journal import FellBehind, Journal
from holdfast.engines.file.recovery import load
from holdfast.engines.file.replica import Replica
from holdfast.engines.file.store_folder import StoreFolder, disk_error
from holdfast.engines.file.unlocked_load import load_without_gate
from holdfast.engines.ledger.state import Change
from holdfast.engines.reserve import SpaceReserve
from holdfast.errors import EngineError, EngineUnavailable, OutcomeUnknown, StorageFull
from holdfast.model.command import Command
from holdfast.model.reads import READS
from holdfast.model.work import Heartbeat, Renew
from holdfast.runtime import Runtime

log = logging.getLogger("holdfast")

NEED_NO_SYNC = frozenset({Renew, Heartbeat})
"""TM2: after a restart of the host every lease has expired, so a lost renewal changes nothing."""
LEAST_RESERVE_BYTES = 1024 * 1024
MOST_RESERVE_BYTES = 16 * 1024 * 1024
RESERVE_BYTES_PER_JOB = 700
"""What a claim, an end and a renewal of a small job append."""
CLOSING_GATE_TIMEOUT_S = 2.0
"""How long a writer waits at the gate while its store is being closed: a process that ends must not wait for long."""


@dataclass(frozen=True, slots=True)
class FileOptions:
    """How a store is used."""

    durability: str
    segment_bytes: int
    sync_interval_s: float
    lock_timeout_s: float


class FileRunner:
    """Used by one thread at a time."""

    def __init__(self, folder: StoreFolder, runtime: Runtime, clock: EngineClock, options: FileOptions) -> None:
        self._folder = folder
        self._runtime = runtime
        self._clock = clock
        self._options = options
        self._boot_hash = hash_of_boot(runtime.boot_id())
        self.replica = Replica()
        self._logged = ""
        """The last error of a sync in the background. It is met again after every interval, and logged once."""
        self._must_load = True
        """The replica is not that of a place in the journal: it is being changed, or that was interrupted."""
        self._gate = folder.open_gate(options.lock_timeout_s)
        try:
            self.journal = Journal(folder, runtime, segment_bytes=options.segment_bytes)
            try:
                self._compaction = Compaction(folder, runtime, self.journal, self.replica)
                self._reserve = SpaceReserve(str(folder.reserve_path), runtime, LEAST_RESERVE_BYTES)
                folder.remember()
                self._load_without_gate()
                if self._compaction.is_overdue():
                    with self._gate:
                        self._catch_up(under_gate=True)
                        self._compaction.run_if_due()
            except BaseException:
                self.journal.close()
                raise
        except BaseException:
            self._gate.close()
            raise

    def shorten_waits(self) -> None:
        """The store is being closed. Called by another thread."""
        self._gate.timeout_s = min(self._gate.timeout_s, CLOSING_GATE_TIMEOUT_S)

    def recover(self) -> None:
        """End what an interrupted `run` has left. The next one loads the store, if the replica has a part of it."""
        self._gate.unlock()

    def close(self) -> None:
        self._compaction.close()
        with suppress(EngineError, OSError):  # in every class: below a sync one damaged byte costs one change
            self.journal.sync()
        self.journal.close()
        self._gate.close()

    # Commands

    def run(self, commands: Sequence[Command[Any]]) -> list[CommandResult]:
        """Run the commands in order. While the disk is full no job is accepted."""
        return self._reserve.run(commands, self._run, self._use_reserve, self._storage_full)

    def _run(self, commands: Sequence[Command[Any]]) -> list[CommandResult]:
        try:
            if self._must_load:
                self._load_again()
            if READS.issuperset(map(type, commands)):
                return self._read(commands)
            return self._write(commands)
        except EngineError as error:
            failure: Exception = error
        except OSError as error:
            failure = self._refused_by_disk(error)
        return [CommandResult(None, failure, frozenset())] * len(commands)

    def _refused_by_disk(self, error: OSError) -> EngineError:
        return disk_error(f"{self._folder.path} cannot be used ({error}). Nothing was written. Check the disk.", error)

    def _read(self, commands: Sequence[Command[Any]]) -> list[CommandResult]:
        self._folder.check_identity()
        try:
            self._catch_up(under_gate=False)
        except FellBehind:
            self._load_again()
        results, _ = self._decide(commands)
        self._sync()
        return results

    def _write(self, commands: Sequence[Command[Any]]) -> list[CommandResult]:
        self._catch_up_before_gate()
        with self._gate:
            self._folder.check_identity()
            self._catch_up(under_gate=True)
            self._must_load = True
            results, changes = self._decide(commands)
            if changes:
                self._append(changes)
            self._must_load = False
        if NEED_NO_SYNC.issuperset(map(type, commands)):
            return results
        try:
            self._sync()
        except (EngineError, OSError) as error:
            if not changes:
                raise
            raise OutcomeUnknown(
                f"{error} The jobs may or may not have been written: look them up by id.", verb="sync", engine="file"
            ) from error
        return results

    def _decide(self, commands: Sequence[Command[Any]]) -> tuple[list[CommandResult], list[Change]]:
        replica, clock = self.replica, self._clock
        replica.begin(clock.earliest(replica.at))
        results: list[CommandResult] = []
        changes: list[Change] = []
        for command in commands:
            try:
                decision = replica.decide(command, clock.now())
            except Exception as error:  # it is undone, and the others stand
                results.append(CommandResult(None, error, frozenset()))
            else:
                changes += decision.changes
                results.append(CommandResult(decision.answer, None, decision.topics))
        clock.answered(replica.clock)
        return results, changes

    # The journal

    def _load(self) -> None:
        """Under the gate."""
        self._must_load = True
        self.replica.load(load(self.journal))
        self._expire_leases_of_earlier_boot()
        self._must_load = False

    def _expire_leases_of_earlier_boot(self) -> None:
        """TM2. Only one process does it: its frame has the new boot."""
        if self.replica.boot_hash == self._boot_hash:
            return
        self._must_load = True
        self.replica.begin(self.replica.at)
        try:
            self._append(self.replica.expire_leases())
        except StorageFull:
            self._reserve.release()
            self._append(self.replica.expire_leases())
        self._must_load = False

    def _load_again(self) -> None:
        if self.journal.marks.read().is_suspect:  # to load it would be to trust the disk again
            raise self.journal.suspect_error()
        self._load_without_gate()

    def _load_without_gate(self) -> None:
        """Load the store, without the gate if possible: other processes go on."""
        self._must_load = True
        self._folder.check_identity()
        records = load_without_gate(self.journal)
        if records is None:
            with self._gate:
                self._load()
            return
        self.replica.load(records)
        self._must_load = False
        if records.boot_hash != self._boot_hash:
            with self._gate:
                self._catch_up(under_gate=True)
                self._expire_leases_of_earlier_boot()

    def _catch_up(self, *, under_gate: bool) -> None:
        self._must_load = True
        try:
            frames = self.journal.read_new(under_gate=under_gate)
        except FellBehind as reason:
            if not under_gate:
                raise
            log.info("%s is loaded again: %s", self._folder.path, reason)
            self._load()
        else:
            if frames:
                self.replica.apply(frames)
            self._must_load = False

    def _catch_up_before_gate(self) -> None:
        """Apply what is there already, so that the gate is held only for what comes meanwhile."""
        try:
            self._catch_up(under_gate=False)
        except FellBehind:
            self._load_again()

    def _append(self, changes: Sequence[Change]) -> None:
        """Under the gate. After an error the replica is as before."""
        if not changes:
            return
        replica, journal = self.replica, self.journal
        try:
            data = [encode(change) for change in changes]
            journal.append(data, replica.clock, replica.last_arrival, self._boot_hash)
        except EngineError:
            replica.undo(changes)
            self._must_load = False
            raise
        replica.at, replica.boot_hash = replica.clock, self._boot_hash
        try:
            self._folder.check_identity()
        except EngineUnavailable as error:
            raise OutcomeUnknown(
                f"{self._folder.path} was replaced while jobs were written to it. They may or may not be in the new "
                "folder: look them up by id.",
                verb="append",
                engine="file",
            ) from error
        if self._reserve.is_check_due():
            self._grow_reserve()
        self._compaction.run_if_due()

    def _sync(self) -> None:
        """Class durable: wait until everything that this process has seen is on the disk."""
        if self._options.durability == "durable":
            self.journal.sync()

    def sync_in_background(self) -> None:
        """Class fast. Called by another thread."""
        try:
            self.journal.sync()
        except (EngineError, OSError) as error:  # every later command meets the mark of the failed sync
            if str(error) != self._logged:
                self._logged = str(error)
                log.error("%s", error)

    def compact(self) -> None:
        """Write a snapshot now, and remove the journal before it. Other processes go on meanwhile."""
        self._catch_up_before_gate()
        with self._gate:
            self._folder.check_identity()
            self._catch_up(under_gate=True)
            number = self._compaction.start_now()
        self._compaction.finish()
        if number not in self._folder.numbers()[1]:  # the log says why
            raise EngineUnavailable(f"{self._folder.path}: the snapshot could not be written.", engine="file")

    # A full disk

    def _storage_full(self) -> StorageFull:
        return StorageFull(
            f"The disk of {self._folder.path} is full. Nothing was written. Free some space.", engine="file"
        )

    def _grow_reserve(self) -> None:
        wanted_bytes = LEAST_RESERVE_BYTES + self.replica.live_jobs() * RESERVE_BYTES_PER_JOB
        self._reserve.refill_bytes = min(wanted_bytes, MOST_RESERVE_BYTES)
        with suppress(OSError):  # the changes stand, with a smaller reserve
            self._reserve.grow(self._reserve.refill_bytes)

    def _use_reserve(self) -> None:
        if not self._reserve.in_use:
            log.error("%s: the disk is full. No job is accepted; stored jobs can still be settled.", self._folder.path)
        with suppress(EngineUnavailable), self._gate:
            self._reserve.release()


def hash_of_boot(boot_id: str) -> int:
    return int.from_bytes(blake2b(boot_id.encode(), digest_size=8).digest(), "little")
