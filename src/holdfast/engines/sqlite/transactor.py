"""One write transaction: through the gate, decide every command, commit once.

All writers of all processes, and whoever checkpoints, queue at one gate before they begin: SQLite's own busy handler
is unfair, and some versions lose data when a writer meets a second checkpoint. Whoever is through has the database
to itself; the busy timeout remains for strangers who write without the gate.

Everything that waits goes into one transaction and costs one sync. A command that fails does not take the others
with it: the transaction is rolled back and each is tried alone.
"""

import logging
import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.engines.ledger import Ledger
from holdfast.engines.sqlite.connection import connect, translate
from holdfast.engines.sqlite.migrations import check, migrate, version_of
from holdfast.engines.sqlite.rescue import rescue
from holdfast.engines.sqlite.rows import DamagedRow
from holdfast.engines.sqlite.state import ALL, SqliteState
from holdfast.engines.sqlite.statements import load
from holdfast.errors import CorruptRecord, EngineError, EngineUnavailable, OutcomeUnknown
from holdfast.model.command import Command
from holdfast.model.instants import At
from holdfast.runtime import Runtime

log = logging.getLogger("holdfast")

CHECKPOINT_BYTES = 16 * 1024 * 1024
"""How long the write-ahead log may grow before its pages go into the database."""


class Clock:
    """The latest time that any connection of this process has answered with. Engine time never goes back."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.last = At(0, 0)

    def now(self) -> At:
        return At(self._runtime.wall(), self._runtime.boot())


class Place(NamedTuple):
    """Which database, and how."""

    path: str
    namespace: str
    durability: str
    busy_timeout: float


class Done(NamedTuple):
    """What became of a command: an answer or an error, and the bells to ring."""

    answer: Any
    error: BaseException | None
    rings: frozenset[str]


class Transactor:
    """A connection that writes. Belongs to one thread."""

    def __init__(self, place: Place, runtime: Runtime, clock: Clock) -> None:
        self._place = place
        self._runtime = runtime
        self._clock = clock
        try:
            self._gate = runtime.fs.gate(place.path + "-gate")
        except OSError as error:
            raise EngineUnavailable(
                f"{place.path} cannot be opened for writing ({error}). Does its folder exist, "
                "and may this process write there?"
            ) from error
        try:
            self.connection = connect(place.path, place.durability, busy_timeout=place.busy_timeout)
        except BaseException:
            self._gate.close()
            raise
        self._sql = load("statements.sql", place.namespace)
        self._state = SqliteState(self.connection, self._sql)
        self._ledger = Ledger(self._state)
        self._checkpoint_at = CHECKPOINT_BYTES

    def close(self) -> None:
        self.connection.close()
        self._gate.close()

    # Opening

    def prepare(self, *, auto_migrate: bool) -> tuple[str, ...]:
        """Migrate if asked to, refuse a schema that does not fit, and let leases of an earlier boot expire."""
        with self._gate:
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                steps = migrate(self.connection, self._place.namespace, self._runtime.boot_id()) if auto_migrate else ()
                check(version_of(self.connection, self._place.namespace), self._place.namespace)
                self._expire_leases_of_earlier_boots()
                self.connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._rollback()
                raise translate(error, self._place.path) from error
            except BaseException:
                self._rollback()
                raise
        return steps

    def _expire_leases_of_earlier_boots(self) -> None:
        boot_id = self._runtime.boot_id()
        row = self.connection.execute(self._sql["begin_meta"]).fetchone()
        if row[0] == boot_id:
            return
        for job in self._state.leases_until(ALL):
            self._state.swap_job(job, msgspec.structs.replace(job, lease_expires=0))
        self._state.finish()
        self._state.forget()
        self.connection.execute(self._sql["new_boot"], (boot_id,))

    # Working

    def run(self, commands: Sequence[Command[Any]]) -> list[Done]:
        """Carry out commands in order, in one transaction; alone, each, if that fails."""
        try:
            return self._transaction(commands)
        except DamagedRow as damaged:
            try:
                self._rescue(damaged.arrival)
            except sqlite3.Error as error:
                return [Done(None, translate(error, self._place.path), frozenset())] * len(commands)
            return self.run(commands)
        except (sqlite3.Error, EngineError) as error:
            failure: BaseException = translate(error, self._place.path) if isinstance(error, sqlite3.Error) else error
            if isinstance(error, EngineError) or not isinstance(error, sqlite3.DataError | sqlite3.IntegrityError):
                # The store itself is in the way: trying them one by one would only fail one by one.
                return [Done(None, failure, frozenset())] * len(commands)
        except Exception as error:
            failure = error
        if len(commands) > 1:
            return [done for command in commands for done in self.run([command])]
        if isinstance(failure, EngineError) and self._state.trusting:
            # An id that was said to be new was not. Look before inserting, this once.
            self._state.trusting = False
            try:
                return self.run(commands)
            finally:
                self._state.trusting = True
        return [Done(None, failure, frozenset())]

    def _transaction(self, commands: Sequence[Command[Any]]) -> list[Done]:
        with self._gate:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                done = self._decide(commands)
                self._commit()
            except BaseException:
                self._rollback()
                raise
            self._checkpoint()
        return done

    def _checkpoint(self) -> None:
        """Move the log's pages into the database once it has grown. What was committed stays so if this fails."""
        size = self._runtime.fs.size(self._place.path + "-wal")
        if size < self._checkpoint_at:
            return
        try:
            _, pages, moved = self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            log.warning("%s: a checkpoint failed (%s); it will be tried again.", self._place.path, error)
            pages, moved = 1, 0
        # A reader may keep it from moving everything: then it is tried again after as much growth.
        self._checkpoint_at = CHECKPOINT_BYTES if moved == pages else size + CHECKPOINT_BYTES

    def _rescue(self, arrival: int) -> None:
        """Set a damaged row aside in a transaction of its own."""
        with self._gate:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                self._state.forget()
                rescue(self.connection, self._sql, self._state, arrival, self._clock.now())
                self._state.finish()
                self._commit()
            except BaseException:
                self._rollback()
                raise

    def _decide(self, commands: Sequence[Command[Any]]) -> list[Done]:
        state, ledger = self._state, self._ledger
        state.begin()
        _, wall, lease, state.arrival = self.connection.execute(self._sql["begin_meta"]).fetchone()
        ledger.clock = At(wall, lease).after(self._clock.last)
        done = []
        for command in commands:
            decision = ledger.decide(command, self._clock.now())
            done.append(Done(decision.answer, None, decision.rings))
        self._clock.last = ledger.clock.after(self._clock.last)
        state.finish()
        if state.db.written:
            self.connection.execute(self._sql["end_meta"], (ledger.clock.wall, ledger.clock.lease, state.arrival))
        return done

    def _commit(self) -> None:
        try:
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self.connection.in_transaction:
                raise  # it is not committed, and will be rolled back
            raise OutcomeUnknown(
                f"SQLite failed while committing ({error}). It may or may not have been written: "
                "look the jobs up by id.",
                verb="commit",
                engine="sqlite",
            ) from error
        self._state.settle_down()

    def _rollback(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        self._state.forget(numbers=True)


class Reader:
    """A connection that only reads: short transactions, no gate."""

    def __init__(self, place: Place, clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self.connection = connect(place.path, place.durability, read_only=True, busy_timeout=place.busy_timeout)
        self._sql = load("statements.sql", place.namespace)
        self._state = SqliteState(self.connection, self._sql)
        self._ledger = Ledger(self._state)

    def close(self) -> None:
        self.connection.close()

    def run(self, commands: Sequence[Command[Any]]) -> list[Done]:
        try:
            return self._read(commands)
        except sqlite3.Error as error:
            return [Done(None, translate(error, self._place.path), frozenset())] * len(commands)
        except Exception as error:
            if len(commands) == 1:
                if isinstance(error, DamagedRow):
                    error = CorruptRecord(where=f"row {error.arrival}", engine="sqlite")
                return [Done(None, error, frozenset())]
        return [done for command in commands for done in self.run([command])]

    def _read(self, commands: Sequence[Command[Any]]) -> list[Done]:
        self.connection.execute("BEGIN")
        try:
            _, wall, lease, _ = self.connection.execute(self._sql["begin_meta"]).fetchone()
            self._ledger.clock = At(wall, lease).after(self._clock.last)
            now = self._clock.now()
            done = [Done(self._ledger.decide(command, now).answer, None, frozenset()) for command in commands]
            self._clock.last = self._ledger.clock.after(self._clock.last)
            return done
        finally:
            self.connection.execute("ROLLBACK")
            self._state.forget()
