"""One write transaction: through the gate, decide every command, commit once.

All writers of all processes, and whoever checkpoints, queue at one gate before they begin: SQLite's own busy handler
is unfair, and some versions lose data when a writer meets a second checkpoint. Whoever is through has the database
to itself; the busy timeout remains for strangers who write without the gate.

Everything that waits goes into one transaction and costs one sync. A command that fails does not take the others
with it: the transaction is rolled back and each is tried alone.
"""

import logging
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.engines.ledger import Ledger
from holdfast.engines.sqlite.chores import Chore, Piece, do_piece
from holdfast.engines.sqlite.connection import connect, translate
from holdfast.engines.sqlite.migrations import VERSION, check, migrate, version_of
from holdfast.engines.sqlite.rescue import mend_lane, rescue
from holdfast.engines.sqlite.rows import BrokenLane, DamagedRow
from holdfast.engines.sqlite.state import ALL, SqliteState
from holdfast.engines.sqlite.statements import load
from holdfast.errors import CorruptRecord, EngineError, EngineUnavailable, OutcomeUnknown
from holdfast.model.command import Command
from holdfast.model.instants import At
from holdfast.model.observe import Prune
from holdfast.model.operate import ScopeAnswer
from holdfast.runtime import Runtime

log = logging.getLogger("holdfast")

T = TypeVar("T")

CHECKPOINT_BYTES = 16 * 1024 * 1024
"""How long the write-ahead log may grow before its pages go into the database."""
LANES_AT_ONCE = 1_000
"""How many lanes a prune looks at, whether their heads are there."""


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
    topics: frozenset[str]


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
        if self._is_prepared():  # then nobody has to wait for whoever writes
            return ()
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

    def _is_prepared(self) -> bool:
        try:
            if version_of(self.connection, self._place.namespace) != VERSION:
                return False
            row = self.connection.execute(self._sql["begin_meta"]).fetchone()
        except sqlite3.Error:
            return False  # the way with the lock tells why
        return bool(row[0] == self._runtime.boot_id())

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
            done, begun = self._despite_damage(lambda: self._decide(commands))
        except (sqlite3.Error, EngineError) as error:
            failure: BaseException = translate(error, self._place.path) if isinstance(error, sqlite3.Error) else error
            if isinstance(error, EngineError) or not isinstance(error, sqlite3.DataError | sqlite3.IntegrityError):
                # The store itself is in the way: trying them one by one would only fail one by one.
                return [Done(None, failure, frozenset())] * len(commands)
        except Exception as error:
            failure = error
        else:
            for place, chore in begun:
                done[place] = self._go_on(done[place], chore)
            return done
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

    def _despite_damage(self, work: Callable[[], T]) -> T:
        """A transaction of this; rows in its way that are damaged or missing are set aside first."""
        found: DamagedRow | BrokenLane | None = None
        nothing_to_do = ""
        while True:
            try:
                if found is not None and not self._set_aside(found):  # another process was faster; but only once
                    if str(found) == nothing_to_do:
                        raise CorruptRecord(where=str(found), engine="sqlite") from found
                    nothing_to_do = str(found)
                return self._transaction(work)
            except (DamagedRow, BrokenLane) as another:
                found = another

    def _transaction(self, work: Callable[[], T]) -> T:
        with self._gate:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                done = work()
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

    def _decide(self, commands: Sequence[Command[Any]]) -> tuple[list[Done], list[tuple[int, Chore]]]:
        """Answers, and what has been begun for which of them and is not done yet."""
        state, ledger = self._state, self._ledger
        ledger.clock = self._begin().after(self._clock.last)
        done: list[Done] = []
        begun: list[tuple[int, Chore]] = []
        for command in commands:
            now = self._clock.now()
            state.now = now.wall
            if type(command) is Prune:
                state.look_at_lanes(LANES_AT_ONCE)
                state.chores()
            decision = ledger.decide(command, now)
            begun += [(len(done), chore) for chore in state.begun]
            state.begun = []
            done.append(Done(decision.answer, None, decision.topics))
        for chore in state.abandoned(ledger.clock.wall):
            piece = do_piece(state, chore, ledger.clock, ours=False)
            done[-1] = done[-1]._replace(topics=done[-1].topics | piece.topics)
        self._clock.last = ledger.clock.after(self._clock.last)
        state.finish()
        if state.db.written:
            self.connection.execute(self._sql["end_meta"], (ledger.clock.wall, ledger.clock.lease, state.arrival))
        return done, begun

    def _begin(self) -> At:
        """Learn what others have written; answer the latest time in the file."""
        self._state.begin()
        _, wall, lease, self._state.arrival = self.connection.execute(self._sql["begin_meta"]).fetchone()
        return At(wall, lease)

    # What one transaction cannot do

    def _go_on(self, done: Done, chore: Chore) -> Done:
        """Do the rest of what a command has begun, piece by piece; others may write in between."""
        answer, topics = done.answer, done.topics
        left: Chore | None = chore
        try:
            while left is not None:
                piece = self._despite_damage(partial(self._piece, left, answer.at))
                left, topics = piece.left, topics | piece.topics
                if isinstance(answer, ScopeAnswer):
                    answer = msgspec.structs.replace(answer, count=answer.count + piece.count)
        except (sqlite3.Error, EngineError) as error:
            log.warning("%s: a %s of queue %s is half done (%s); it will go on.", self._place.path, *chore.what, error)
            if isinstance(answer, ScopeAnswer):
                said = f"It has begun, and was stopped: {error}. A worker will go on with it."
                return Done(None, OutcomeUnknown(said, verb="clear", engine="sqlite"), topics)
        return Done(answer, None, topics)

    def _piece(self, chore: Chore, at: At) -> Piece:
        now = at.after(self._begin())  # all of it happened when it began, unless others have written since
        piece = do_piece(self._state, chore, now)
        self._state.finish()
        return piece

    def _set_aside(self, found: DamagedRow | BrokenLane) -> bool:
        """Deal with it in a transaction of its own. False: there was nothing to do any more."""

        def work() -> bool:
            now = self._clock.now().after(self._begin())
            if isinstance(found, DamagedRow):
                done = rescue(self.connection, self._sql, state, found.arrival, now)
            else:
                done = mend_lane(state, found.queue, found.lane, now)
            state.finish()
            self.connection.execute(self._sql["end_meta"], (now.wall, now.lease, state.arrival))
            return done

        state = self._state
        state.forget()
        state.watching = False
        try:
            return self._transaction(work)
        finally:
            state.watching = True

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
                if isinstance(error, DamagedRow | BrokenLane):
                    error = CorruptRecord(where=str(error), engine="sqlite")
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
