"""Commands inside transactions that are not ours: the same rules, over the connection of a user.

Whoever writes to SQLite holds the only write lock until the commit, so nothing can come between what the rules read and
what they write; a lane admits a joined job at once, like any other. The lock has to be taken before the first look. A
transaction that has not begun is begun here with the lock, in turn at the gate; one that has begun without it tries to
get it, and cannot if it has read and somebody has written since.

What is written lies inside a savepoint: a command that fails leaves the user's transaction as it was. The commit is the
user's. Where the driver tells of it, the bells ring then; else a sign in the database does (`lookout.py`).

The engine need not be open for this, and often could not be: the first call of a process may come while its user holds
the lock. Tables that are not there yet are made in the same transaction.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from holdfast.engines.ledger import Ledger
from holdfast.engines.sqlite.connection import translate
from holdfast.engines.sqlite.migrations import VERSION, check, migrate, version_of
from holdfast.engines.sqlite.rows import BrokenLane, DamagedRow
from holdfast.engines.sqlite.state import SqliteState
from holdfast.engines.sqlite.statements import load
from holdfast.engines.sqlite.transactor import Clock, Place
from holdfast.engines.sqlite.turns import Turns
from holdfast.errors import Busy, CorruptRecord, UsageError, WrongDatabase
from holdfast.model.command import A, Command
from holdfast.model.instants import SECOND, At
from holdfast.model.produce import Enqueue, EnqueueAnswer, GroupAccepted
from holdfast.model.work import Exchange, Settlement, SettleStatus
from holdfast.runtime import Runtime
from holdfast.transactions import UserConnection
from holdfast.transactions.sqlite import file_identity, has_to_begin, main_file

ROOM = "holdfast_join"
"""The savepoint."""

Ring = Callable[[frozenset[str]], bool]
"""Rings bells; answers whether other processes can hear them. With none, it only answers."""


class _Joined(NamedTuple):
    answer: Any
    topics: frozenset[str]
    written: bool


class Joiner:
    """Joins commands to transactions of users. May be used from any thread."""

    def __init__(
        self, place: Place, runtime: Runtime, clock: Clock, ring: Ring, turns: Turns, *, auto_migrate: bool
    ) -> None:
        self._place = place
        self._auto_migrate = auto_migrate
        self._fits = False
        """The schema has been looked at, and is committed."""
        self._runtime = runtime
        self._clock = clock
        self._ring = ring
        self._turns = turns
        self._sql = load("statements.sql", place.namespace)

    def perform_in(self, command: Command[A], user: UserConnection) -> A:
        self._check_dialect(user)
        with self._errors(command):
            begins = user.run(self._look_at)
            if begins:
                with closing(self._runtime.fs.gate(self._place.path + "-gate")) as gate, gate:
                    user.run(_begin)
            done = user.run(lambda db: self._decide(command, db, begins))
            if not self._will_ring(done, user):
                user.run(self._leave_sign)
        answer: A = done.answer
        return answer

    async def aperform_in(self, command: Command[A], user: UserConnection) -> A:
        """The same; the loop does not wait at the gate."""
        self._check_dialect(user)
        with self._errors(command):
            begins = await user.arun(self._look_at)
            if begins:
                with closing(self._runtime.fs.gate(self._place.path + "-gate")) as gate:  # closing it opens the gate
                    await self._turns.run(gate.__enter__)
                    await user.arun(_begin)
            done = await user.arun(lambda db: self._decide(command, db, begins))
            if not self._will_ring(done, user):
                await user.arun(self._leave_sign)
        answer: A = done.answer
        return answer

    # Before

    def _check_dialect(self, user: UserConnection) -> None:
        if user.dialect != "sqlite":
            raise WrongDatabase(expected=self._place.path, found=user.dialect)

    def _look_at(self, db: sqlite3.Connection) -> bool:
        """Whether a transaction is to be begun. Refuses a connection that leads elsewhere or commits by itself."""
        file = main_file(db)
        if not file or file_identity(file) != file_identity(self._place.path):
            raise WrongDatabase(expected=self._place.path, found=file or "a SQLite database in memory")
        begins = has_to_begin(db)
        # Checkpoints happen behind the gate: some versions of SQLite lose data when a writer meets a second one.
        sqlite3.Cursor(db).execute("PRAGMA wal_autocheckpoint = 0")
        return begins

    # The command

    def _decide(self, command: Command[Any], db: sqlite3.Connection, begun: bool) -> _Joined:
        text_factory, db.text_factory = db.text_factory, str
        plain = _Plain(db)
        try:
            plain.execute(f"SAVEPOINT {ROOM}")
            try:
                done = self._carry_out(command, plain)
            except BaseException:
                if db.in_transaction:  # SQLite rolls back by itself where the disk is full
                    plain.execute(f"ROLLBACK TO {ROOM}")
                raise
            finally:
                if db.in_transaction:
                    plain.execute(f"RELEASE {ROOM}")
        except BaseException:
            _give_back(plain, begun)
            raise
        finally:
            db.text_factory = text_factory
        if not done.written:  # a refusal: the lock is not needed any more
            _give_back(plain, begun)
        return done

    def _carry_out(self, command: Command[Any], plain: "_Plain") -> _Joined:
        if not self._fits:
            self._check_schema(plain)
        plain.execute(self._sql["lock"])
        state = SqliteState(plain.connection, self._sql)
        state.trusting = False  # an id that was said to be new and is not must not cost the user's transaction
        ledger = Ledger(state)
        _, wall, lease, state.arrival = plain.execute(self._sql["begin_meta"]).fetchone()
        ledger.clock = At(wall, lease).after(self._clock.last)
        current, now = _without_late_ones(command, state), self._clock.now()
        state.now = now.wall
        decision = ledger.decide(current, now)
        self._clock.last = ledger.clock.after(self._clock.last)
        state.finish()
        written = state.db.written
        if written:
            plain.execute(self._sql["end_meta"], (ledger.clock.wall, ledger.clock.lease, state.arrival))
        return _Joined(_as_joined(command, current, decision.answer), decision.topics, written)

    def _check_schema(self, plain: "_Plain") -> None:
        db, namespace = plain.connection, self._place.namespace
        self._fits = version_of(db, namespace) == VERSION
        if not self._fits and self._auto_migrate:
            migrate(db, namespace, self._runtime.boot_id())
        check(version_of(db, namespace), namespace)

    # After

    def _will_ring(self, done: _Joined, user: UserConnection) -> bool:
        if not done.topics:
            return True
        return self._ring(frozenset()) and user.after_commit(lambda: self._tell(done.topics))

    def _tell(self, topics: frozenset[str]) -> None:
        self._ring(topics)

    def _leave_sign(self, db: sqlite3.Connection) -> None:
        _Plain(db).execute(self._sql["note_join"])

    # Errors

    @contextmanager
    def _errors(self, command: Command[Any]) -> Iterator[None]:
        began = self._runtime.monotonic()
        try:
            yield
        except (DamagedRow, BrokenLane) as error:
            raise CorruptRecord(where=str(error), engine="sqlite") from error
        except sqlite3.ProgrammingError as error:
            raise UsageError(f"The connection given as `transaction` cannot be used: {error}") from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0)
            if code & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise translate(error, self._place.path) from error
            waited = (self._runtime.monotonic() - began) / SECOND
            raise Busy(self._why_busy(code, waited), queue=_queue_of(command), waited=waited) from error

    def _why_busy(self, code: int, waited: float) -> str:
        advice = "Begin such transactions with BEGIN IMMEDIATE."
        if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
            return (
                "Your transaction has read from the database, and somebody has written since: SQLite cannot let it "
                f"write any more. Nothing was written here. Roll it back and try again. {advice}"
            )
        return (
            f"{self._place.path} was locked by someone else, for {waited:.1f} s. Nothing was written here. Roll your "
            f"transaction back and try again. {advice}"
        )


class _Plain:
    """A connection whose rows are tuples, whatever its owner has told it to make of them."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    @property
    def connection(self) -> sqlite3.Connection:
        """For code that only executes."""
        return cast(sqlite3.Connection, self)

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
        return sqlite3.Cursor(self._db).execute(sql, values)

    def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:
        return sqlite3.Cursor(self._db).executemany(sql, rows)


def _begin(db: sqlite3.Connection) -> None:
    sqlite3.Cursor(db).execute("BEGIN IMMEDIATE")


def _give_back(plain: _Plain, begun: bool) -> None:
    """Nothing came of it: end a transaction that was begun for it alone."""
    if begun and plain._db.in_transaction:
        plain.execute("ROLLBACK")


def _without_late_ones(command: Command[Any], state: SqliteState) -> Command[Any]:
    """A settlement applies here and now, or not at all: one that was applied before must not be answered `applied`
    again, or the effects of this transaction would be committed beside those of the one that ended the job."""
    if not isinstance(command, Exchange):
        return command
    return replace(command, settlements=tuple(each for each in command.settlements if _is_current(each, state)))


def _is_current(settlement: Settlement, state: SqliteState) -> bool:
    job = state.job(settlement.queue, settlement.id)
    return job is None or job.token == settlement.token


def _as_joined(command: Command[Any], current: Command[Any], answer: Any) -> Any:
    """The answer as a transaction that is still open may be told it."""
    if isinstance(command, Exchange) and isinstance(current, Exchange):
        said = dict(zip(current.settlements, answer.settled, strict=True))
        return replace(answer, settled=tuple(said.get(each, SettleStatus.LOST) for each in command.settlements))
    return _without_places(answer) if isinstance(answer, EnqueueAnswer) else answer


def _without_places(answer: EnqueueAnswer) -> EnqueueAnswer:
    """Where a job stands in its lane is known for sure only after the commit."""
    groups = tuple(
        GroupAccepted(tuple(replace(job, position=None, depth=None) for job in group.jobs))
        if isinstance(group, GroupAccepted)
        else group
        for group in answer.groups
    )
    return replace(answer, groups=groups)


def _queue_of(command: Command[Any]) -> str:
    if isinstance(command, Enqueue):
        return next((job.queue for group in command.groups for job in group.jobs), "")
    if isinstance(command, Exchange):
        return next((settlement.queue for settlement in command.settlements), "")
    return ""
