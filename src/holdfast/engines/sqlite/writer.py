"""A connection that writes: it passes the gate, decides a batch of commands in one transaction, and commits once.

All writers of all processes pass one gate, a file lock, before they begin a transaction. SQLite's own busy handler is
unfair, and some versions lose data when a writer meets a second checkpoint. The writer that holds the gate is the only
one; the busy timeout is there for other programs, which write without the gate.

A batch costs one sync. A command that fails does not fail the others: the transaction is rolled back, and each command
runs in a transaction of its own.
"""

import logging
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from holdfast.engines.command_thread import CommandResult
from holdfast.engines.engine_clock import EngineClock
from holdfast.engines.ledger import Ledger
from holdfast.engines.sqlite.connection import connect, is_not_committed, roll_back, storage_full, translate, use_wal
from holdfast.engines.sqlite.connections_at_fork import CONNECTIONS
from holdfast.engines.sqlite.fast_fresh_ids import with_look_ups
from holdfast.engines.sqlite.fast_state import FastLedger, FastState
from holdfast.engines.sqlite.migrations import VERSION, check, migrate, version_of
from holdfast.engines.sqlite.ready_index import ReadyIndexCheck
from holdfast.engines.sqlite.repair import repair_index, repair_lane, repair_row
from holdfast.engines.sqlite.reserve import Reserve
from holdfast.engines.sqlite.rows import MAX_INTEGER, BrokenLane, DamagedIndex, DamagedRow
from holdfast.engines.sqlite.state import SqliteState
from holdfast.engines.sqlite.statements import load
from holdfast.engines.sqlite.store import StoreOptions
from holdfast.engines.sqlite.store_file import LogFile
from holdfast.engines.sqlite.unfinished import ChunkResult, UnfinishedWork, do_chunk
from holdfast.errors import CorruptRecord, EngineError, EngineUnavailable, OutcomeUnknown
from holdfast.model.command import Command
from holdfast.model.instants import At
from holdfast.model.observe import Prune
from holdfast.model.operate import ScopeAnswer
from holdfast.model.text import shown
from holdfast.runtime import Runtime

log = logging.getLogger("holdfast")

T = TypeVar("T")

CHECKPOINT_FRAMES = 4_000
"""Growth of the write-ahead log, in frames of one page, after which its pages are moved into the database: 16 MiB with
pages of the usual size. Readers slow down as the log grows."""
WRITE_ERRORS = frozenset({sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_TRUNCATE})
"""What SQLite reports where a quota or a size limit is reached, and also for a broken disk."""
CLOSING_GATE_TIMEOUT_S = 2.0
"""How long a writer waits at the gate while its store is being closed: a process that ends must not wait for long."""
LANES_PER_PRUNE = 1_000
"""Lanes whose heads one prune checks."""
READY_ENTRIES_PER_PRUNE = 5_000
"""Entries of the index of ready jobs whose order one prune checks: some 3 ms."""

Damage = DamagedRow | BrokenLane | DamagedIndex


class Writer:
    """Used by one thread at a time."""

    def __init__(self, store: StoreOptions, runtime: Runtime, clock: EngineClock) -> None:
        self._store = store
        self._runtime = runtime
        self._clock = clock
        self._gate = store.open_gate(runtime)
        try:
            self.connection = connect(store)
            self._in_use = CONNECTIONS.in_use(self.connection)
            try:
                with self._in_use:
                    use_wal(self.connection, store, runtime)
            except BaseException:
                self.connection.close()
                raise
        except BaseException:
            self._gate.close()
            raise
        self._sql = load("statements.sql", store.namespace)
        self._state, self._ledger = self._new_state()
        self._ready_index = ReadyIndexCheck(self._state)
        self._log_file = LogFile(store.path, runtime)
        self._grows_log = store.fast_paths and store.durability == "durable"
        """Other classes of durability do not wait for the disk, so they gain nothing."""
        self._reserve = Reserve(store.real_path, runtime)

    def _new_state(self) -> tuple[SqliteState, Ledger]:
        if self._store.fast_paths:
            fast = FastState(self.connection, self._sql)
            return fast, FastLedger(fast)
        state = SqliteState(self.connection, self._sql)
        return state, Ledger(state)

    def shorten_waits(self) -> None:
        """The store is being closed. Called by another thread."""
        self._gate.timeout_s = min(self._gate.timeout_s, CLOSING_GATE_TIMEOUT_S)

    def recover(self) -> None:
        """End what an interrupted `run` has left open. Harmless if it has left nothing."""
        with self._in_use:
            self._rollback()
        self._gate.unlock()

    def close(self) -> None:
        with self._in_use:
            self.connection.close()
        self._log_file.close()
        self._gate.close()

    # Opening

    def prepare(self, *, auto_migrate: bool) -> tuple[str, ...]:
        """Migrate if `auto_migrate`, refuse a schema that does not fit, expire the leases of an earlier boot."""
        with self._in_use:
            if self._is_prepared():  # then opening does not wait for the gate
                return ()
        with self._gate, self._in_use:
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                namespace = self._store.namespace
                steps = migrate(self.connection, namespace, self._runtime.boot_id()) if auto_migrate else ()
                check(version_of(self.connection, namespace), namespace)
                self._expire_leases_of_earlier_boots()
                self.connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._rollback()
                raise translate(error, self._store.path) from error
            except BaseException:
                self._rollback()
                raise
        return steps

    def _is_prepared(self) -> bool:
        try:
            if version_of(self.connection, self._store.namespace) != VERSION:
                return False
            row = self.connection.execute(self._sql["begin_meta"]).fetchone()
        except sqlite3.Error:
            return False  # `prepare` meets the same error and translates it
        return bool(row[0] == self._runtime.boot_id())

    def _expire_leases_of_earlier_boots(self) -> None:
        boot_id = self._runtime.boot_id()
        row = self.connection.execute(self._sql["begin_meta"]).fetchone()
        if row[0] == boot_id:
            return
        for job in self._state.leases_until(MAX_INTEGER):
            self._state.swap_job(job, msgspec.structs.replace(job, lease_expires=0))
        self._state.finish()
        self._state.clear_cache()
        self.connection.execute(self._sql["new_boot"], (boot_id,))

    # Commands

    def run(self, commands: Sequence[Command[Any]]) -> list[CommandResult]:
        return self._reserve.run(commands, self._run, self._use_reserve, lambda: storage_full(self._store.path))

    def _use_reserve(self) -> None:
        if not self._reserve.in_use:
            log.error("%s: the disk is full. No job is accepted; stored jobs can still be settled.", self._store.path)
        with suppress(EngineUnavailable), self._gate, self._in_use:
            self._reserve.release()
            self._checkpoint()

    def _run(self, commands: Sequence[Command[Any]]) -> list[CommandResult]:
        """Run the commands in order in one transaction; if it fails, each in a transaction of its own."""
        if not commands:
            return []
        try:
            results, begun = self._transaction_after_repairs(lambda: self._decide(commands))
        except (sqlite3.Error, EngineError) as error:
            failure: BaseException = self._translate(error) if isinstance(error, sqlite3.Error) else error
            if isinstance(error, EngineError) or not isinstance(error, sqlite3.DataError | sqlite3.IntegrityError):
                # The store itself fails: every single command would meet the same error.
                return [CommandResult(None, failure, frozenset())] * len(commands)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:  # of a queue, a lane, a pool
            failure = translate(error, self._store.path)
        except Exception as error:
            failure = error
        else:
            for index, work in begun:
                results[index] = self._do_rest(results[index], work)
            return results
        if len(commands) > 1:
            return [result for command in commands for result in self._run([command])]
        if isinstance(failure, EngineError) and self._state.trusts_fresh_ids:
            return with_look_ups(self._state, lambda: self._run(commands))
        return [CommandResult(None, failure, frozenset())]

    def _transaction_after_repairs(self, work: Callable[[], T]) -> T:
        """Run `work` in a transaction. If it meets a damaged row or a broken lane, repair that and run it again."""
        problem: Damage | None = None
        not_repaired = ""
        repaired: set[str] = set()
        while True:
            try:
                if problem is not None and not self._repair(problem):
                    # Another process may have repaired it. If `work` meets the same problem again, none has.
                    if str(problem) == not_repaired:
                        raise CorruptRecord(where=str(problem), engine="sqlite") from problem
                    not_repaired = str(problem)
                return self._transaction(work)
            except (DamagedRow, BrokenLane, DamagedIndex) as error:
                problem = error
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_CORRUPT_INDEX:
                    raise
                problem = DamagedIndex()
            if isinstance(problem, DamagedIndex):
                if str(problem) in repaired:
                    raise CorruptRecord(where=str(problem), engine="sqlite") from problem
                repaired.add(str(problem))

    def _transaction(self, work: Callable[[], T]) -> T:
        with self._gate, self._in_use:
            self._check_files(log=self._log_file.was_lost)
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                if self._grows_log:
                    self._log_file.grow_ahead()
                result = work()
                self._commit()
            except BaseException:
                self._rollback()
                raise
            try:
                self._check_files()
            except EngineUnavailable as error:
                raise self._store.file.unknown_outcome() from error
            # Without enough reserve, the database must not need more space than it has.
            grown = self._log_file.measure()
            too_small = not self._reserve.keep_up(self.connection, log_has_grown=grown) or self._reserve.in_use
            if too_small or self._log_file.frames_to_move >= CHECKPOINT_FRAMES:
                self._checkpoint()
        return result

    def _translate(self, error: sqlite3.Error) -> Exception:
        if getattr(error, "sqlite_errorcode", 0) in WRITE_ERRORS and self._reserve.has_no_space():
            return storage_full(self._store.path)
        return translate(error, self._store.path)

    def _check_files(self, *, log: bool = True) -> None:
        """Refuse files that are not at their paths any more."""
        self._store.file.check()
        if log and not self._log_file.is_in_place():
            raise self._store.file.error("-wal")

    def _checkpoint(self) -> None:
        """Move the log's pages into the database. If this fails, the commit is still valid."""
        try:
            self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            log.warning("%s: a checkpoint failed (%s). It will be tried again.", self._store.path, error)
        # An open reader may keep pages in the log: then the next try comes after the same growth again.
        self._log_file.frames_to_move = 0

    def _decide(self, commands: Sequence[Command[Any]]) -> tuple[list[CommandResult], list[tuple[int, UnfinishedWork]]]:
        """The results, and the work that commands have begun and not finished, each with the index of its command."""
        state, ledger = self._state, self._ledger
        ledger.clock = self._begin()
        results: list[CommandResult] = []
        begun: list[tuple[int, UnfinishedWork]] = []
        for command in commands:
            now = self._clock.now()
            state.now_us = now.wall
            if type(command) is Prune:
                state.check_lanes(LANES_PER_PRUNE)
                self._ready_index.run(READY_ENTRIES_PER_PRUNE)
                state.unfinished()
            decision = ledger.decide(command, now)
            begun += [(len(results), work) for work in state.begun]
            state.begun = []
            results.append(CommandResult(decision.answer, None, decision.topics))
        for work in state.abandoned(ledger.clock.wall):
            chunk = do_chunk(state, work, ledger.clock, keep_time=True)
            results[-1] = results[-1]._replace(topics=results[-1].topics | chunk.topics)
        self._clock.answered(ledger.clock)
        state.finish()
        if state.db.written:
            self.connection.execute(self._sql["end_meta"], (ledger.clock.wall, ledger.clock.lease, state.arrival))
        return results, begun

    def _begin(self) -> At:
        """Read what other connections have written; answer the earliest time that this transaction may have."""
        self._state.begin()
        _, wall, lease, self._state.arrival = self.connection.execute(self._sql["begin_meta"]).fetchone()
        return self._clock.earliest(At(wall, lease))

    # Work of several transactions

    def _do_rest(self, result: CommandResult, begun: UnfinishedWork) -> CommandResult:
        """Finish, chunk by chunk, the work that a command has begun; other writers run in between."""
        answer, topics = result.answer, result.topics
        left: UnfinishedWork | None = begun
        try:
            while left is not None:
                chunk = self._transaction_after_repairs(partial(self._do_chunk, left, answer.at))
                left, topics = chunk.left, topics | chunk.topics
                if isinstance(answer, ScopeAnswer):
                    answer = msgspec.structs.replace(answer, count=answer.count + chunk.count)
        except (sqlite3.Error, EngineError) as error:
            log.warning(
                "%s: a %s of queue %s stopped before its end (%s). The next claim or prune will continue it.",
                self._store.path,
                begun.kind,
                shown(begun.queue),
                error,
            )
            if isinstance(answer, ScopeAnswer):
                message = f"The clear has begun and stopped before its end: {error}. A worker will continue it."
                return CommandResult(None, OutcomeUnknown(message, verb="clear", engine="sqlite"), topics)
        return CommandResult(answer, None, topics)

    def _do_chunk(self, work: UnfinishedWork, at: At) -> ChunkResult:
        now = at.after(self._begin())  # every chunk has the time of the command, or of a later write in the file
        chunk = do_chunk(self._state, work, now)
        self._state.finish()
        return chunk

    def _repair(self, problem: Damage) -> bool:
        """Repair it in a transaction of its own. False: there was nothing to repair."""

        def work() -> bool:
            now = self._clock.now().after(self._begin())
            if isinstance(problem, DamagedRow):
                repaired = repair_row(self.connection, self._sql, state, problem.arrival, now)
            elif isinstance(problem, DamagedIndex):
                repaired = repair_index(state, problem.queue)
            else:
                repaired = repair_lane(state, problem.queue, problem.lane, now)
            state.finish()
            self.connection.execute(self._sql["end_meta"], (now.wall, now.lease, state.arrival))
            return repaired

        state = self._state
        state.clear_cache()
        state.checks_lanes = False
        try:
            return self._transaction(work)
        finally:
            state.checks_lanes = True

    # Ending a transaction

    def _commit(self) -> None:
        try:
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self.connection.in_transaction or is_not_committed(error):
                raise  # the caller rolls back
            raise OutcomeUnknown(
                f"SQLite failed while committing ({error}). The jobs may or may not have been written: "
                "look them up by id.",
                verb="commit",
                engine="sqlite",
            ) from error
        self._state.after_commit()

    def _rollback(self) -> None:
        roll_back(self.connection)
        self._state.clear_cache()
