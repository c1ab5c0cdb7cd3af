"""Commands inside a user's transaction: the same rules, over the user's connection.

SQLite has one write lock, and a writer holds it until the commit. So no other writer comes between what the rules read
and what they write, and a lane admits such a job at once, like any other. The lock must be taken before the rules read.
If the user's transaction has not begun, it is begun here with the lock, after passing the gate. If it has begun without
the lock, it tries to take it; SQLite refuses that if the transaction has read and another one has written since.

The writes are inside a savepoint: a command that fails leaves the user's transaction as it was. The user commits. If
the driver has a commit callback, notifications are sent then; else a counter in the database is incremented, which the
pollers of all processes read (`poller.py`).

The engine need not be open. Often it could not be opened: the first call of a process may come while its user holds the
lock. Missing tables are created in the same transaction.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from holdfast.engines.engine_clock import EngineClock
from holdfast.engines.ledger import Ledger
from holdfast.engines.sqlite.connection import translate
from holdfast.engines.sqlite.gate_queue import GateQueue
from holdfast.engines.sqlite.lock_holder import holder_of
from holdfast.engines.sqlite.migrations import VERSION, check, migrate, version_of
from holdfast.engines.sqlite.rows import BrokenLane, DamagedIndex, DamagedRow
from holdfast.engines.sqlite.state import SqliteState
from holdfast.engines.sqlite.statements import load
from holdfast.engines.sqlite.store import StoreOptions
from holdfast.errors import Busy, CorruptRecord, UsageError, WrongDatabase
from holdfast.model.command import A, Command
from holdfast.model.instants import SECOND, At
from holdfast.model.produce import Enqueue, EnqueueAnswer, GroupAccepted
from holdfast.model.work import Exchange, Settlement, SettleStatus
from holdfast.runtime import Runtime
from holdfast.transactions import UserConnection
from holdfast.transactions.sqlite import file_identity, has_to_begin, main_file

log = logging.getLogger("holdfast")

SAVEPOINT = "holdfast_command"

NotifyProcesses = Callable[[frozenset[str]], bool]
"""Notifies the topics. True: other processes can be notified. With no topics it only answers."""


class _Result(NamedTuple):
    answer: Any
    topics: frozenset[str]
    written: bool


class SqliteUserTransactions:
    """Performs commands inside transactions of users. May be used from any thread."""

    def __init__(
        self,
        store: StoreOptions,
        runtime: Runtime,
        clock: EngineClock,
        notify: NotifyProcesses,
        gate_queue: GateQueue,
        *,
        auto_migrate: bool,
    ) -> None:
        self._store = store
        self.auto_migrate = auto_migrate
        self._schema_fits = False
        """The schema was checked, and it is committed."""
        self._runtime = runtime
        self._clock = clock
        self._notify = notify
        self._gate_queue = gate_queue
        self._sql = load("statements.sql", store.namespace)

    def perform_in(self, command: Command[A], connection: UserConnection) -> A:
        self._check_dialect(connection)
        with self._translated_errors(command):
            begins = connection.run(self._has_to_begin)
            if begins:
                with closing(self._store.open_gate(self._runtime)) as gate, gate:
                    connection.run(_begin)
            result = connection.run(lambda db: self._decide(command, db, begins))
            if not self._notifies_after_commit(result, connection):
                connection.run(self._count_commit)
        answer: A = result.answer
        return answer

    async def aperform_in(self, command: Command[A], connection: UserConnection) -> A:
        """The same. The event loop does not wait for the gate."""
        self._check_dialect(connection)
        with self._translated_errors(command):
            begins = await connection.arun(self._has_to_begin)
            try:
                if begins:
                    with closing(self._store.open_gate(self._runtime)) as gate:  # closing it releases the gate
                        await self._gate_queue.run(gate.__enter__)
                        await connection.arun(_begin)
                result = await connection.arun(lambda db: self._decide(command, db, begins))
                if not self._notifies_after_commit(result, connection):
                    await connection.arun(self._count_commit)
            except asyncio.CancelledError:  # the driver's thread goes on; this waits in its queue
                await connection.arun(lambda db: _end_unused(_TupleRows(db), begins))
                raise
        answer: A = result.answer
        return answer

    # Before

    def _check_dialect(self, connection: UserConnection) -> None:
        if connection.dialect != "sqlite":
            raise WrongDatabase(expected=self._store.path, found=connection.dialect)

    def _has_to_begin(self, db: sqlite3.Connection) -> bool:
        """True if a transaction must be begun. Refuses a connection to another file, or one that autocommits."""
        self._store.file.check()
        file = main_file(db)
        if not file or file_identity(file) != file_identity(self._store.path):
            raise WrongDatabase(expected=self._store.path, found=file or "a SQLite database in memory")
        begins = has_to_begin(db)
        # Only our writer checkpoints, behind the gate: some versions of SQLite lose data when two meet.
        sqlite3.Cursor(db).execute("PRAGMA wal_autocheckpoint = 0")
        return begins

    # The command

    def _decide(self, command: Command[Any], db: sqlite3.Connection, begun: bool) -> _Result:
        text_factory, db.text_factory = db.text_factory, str
        rows = _TupleRows(db)
        try:
            rows.execute(f"SAVEPOINT {SAVEPOINT}")
            try:
                result = self._decide_in_savepoint(command, rows)
            except BaseException:
                if db.in_transaction:  # SQLite rolls back the whole transaction if the disk is full
                    rows.execute(f"ROLLBACK TO {SAVEPOINT}")
                raise
            finally:
                if db.in_transaction:
                    rows.execute(f"RELEASE {SAVEPOINT}")
        except BaseException:
            _end_unused(rows, begun)
            raise
        finally:
            db.text_factory = text_factory
        if not result.written:  # the command was refused, so the lock is not needed
            _end_unused(rows, begun)
        return result

    def _decide_in_savepoint(self, command: Command[Any], rows: "_TupleRows") -> _Result:
        if not self._schema_fits:
            self._check_schema(rows)
        rows.execute(self._sql["lock"])
        state = SqliteState(rows.connection, self._sql)  # without fast paths: a refused insert cannot be tried again
        ledger = Ledger(state)
        _, wall, lease, state.arrival = rows.execute(self._sql["begin_meta"]).fetchone()
        ledger.clock = self._clock.earliest(At(wall, lease))
        current, now = _without_late_settlements(command, state), self._clock.now()
        state.now_us = now.wall
        decision = ledger.decide(current, now)
        self._clock.answered(ledger.clock)
        state.finish()
        written = state.db.written
        if written:
            rows.execute(self._sql["end_meta"], (ledger.clock.wall, ledger.clock.lease, state.arrival))
        return _Result(_answer_before_commit(command, current, decision.answer), decision.topics, written)

    def _check_schema(self, rows: "_TupleRows") -> None:
        db, namespace = rows.connection, self._store.namespace
        self._schema_fits = version_of(db, namespace) == VERSION
        if not self._schema_fits and self.auto_migrate:
            migrate(db, namespace, self._runtime.boot_id())
        check(version_of(db, namespace), namespace)

    # After

    def _notifies_after_commit(self, result: _Result, connection: UserConnection) -> bool:
        """Arrange the notifications. False: the driver has no commit callback, or processes have no sockets."""
        if not result.topics:
            return True
        return self._notify(frozenset()) and connection.after_commit(lambda: self._notify_topics(result.topics))

    def _notify_topics(self, topics: frozenset[str]) -> None:
        try:
            self._notify(topics)
        except Exception:  # it is called by the commit of the user, who must not see the error of a hint
            log.exception("A notification after a commit failed.")

    def _count_commit(self, db: sqlite3.Connection) -> None:
        _TupleRows(db).execute(self._sql["count_user_commit"])

    # Errors

    @contextmanager
    def _translated_errors(self, command: Command[Any]) -> Iterator[None]:
        began_us = self._runtime.monotonic()
        try:
            yield
        except (DamagedRow, BrokenLane, DamagedIndex) as error:
            raise CorruptRecord(where=str(error), engine="sqlite") from error
        except sqlite3.ProgrammingError as error:
            raise UsageError(f"The connection given as `transaction` cannot be used: {error}") from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0)
            if code & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise translate(error, self._store.path) from error
            waited_s = (self._runtime.monotonic() - began_us) / SECOND
            raise Busy(self._why_busy(code, waited_s), queue=_queue_of(command), waited=waited_s) from error

    def _why_busy(self, code: int, waited_s: float) -> str:
        advice = "Begin such transactions with BEGIN IMMEDIATE."
        if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
            return (
                "Your transaction has read from the database, and another one has written since: SQLite does not let "
                f"it write any more. Nothing was written here. Roll it back and try again. {advice}"
            )
        holder = holder_of(self._store.path)
        owner = " of this process" if holder.is_this_process else f" of process {holder.pid}" if holder.pid else ""
        return (
            f"{self._store.path} was locked by another transaction{owner} for {waited_s:.1f} s. Nothing was written "
            f"here. Roll your transaction back and try again. {advice}"
        )


class _TupleRows:
    """A user's connection, with rows as tuples: its own `row_factory` may be set to anything."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    @property
    def connection(self) -> sqlite3.Connection:
        """For code that only calls `execute` and `executemany`."""
        return cast(sqlite3.Connection, self)

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
        return sqlite3.Cursor(self._db).execute(sql, values)

    def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:
        return sqlite3.Cursor(self._db).executemany(sql, rows)


def _begin(db: sqlite3.Connection) -> None:
    sqlite3.Cursor(db).execute("BEGIN IMMEDIATE")


def _end_unused(rows: _TupleRows, begun: bool) -> None:
    """The command was refused or cancelled: roll back the transaction if it was begun for this command alone."""
    if begun and rows._db.in_transaction:
        rows.execute("ROLLBACK")


def _without_late_settlements(command: Command[Any], state: SqliteState) -> Command[Any]:
    """Leave out settlements that were applied before. Answered `applied` again, the user would commit the effects of
    this transaction, although another transaction has ended the job."""
    if not isinstance(command, Exchange):
        return command
    current = tuple(settlement for settlement in command.settlements if _is_current(settlement, state))
    return replace(command, settlements=current)


def _is_current(settlement: Settlement, state: SqliteState) -> bool:
    job = state.job(settlement.queue, settlement.id)
    return job is None or job.token == settlement.token


def _answer_before_commit(command: Command[Any], current: Command[Any], answer: Any) -> Any:
    """The answer to a command whose transaction is still open."""
    if isinstance(command, Exchange) and isinstance(current, Exchange):
        statuses = dict(zip(current.settlements, answer.settled, strict=True))
        settled = tuple(statuses.get(settlement, SettleStatus.LOST) for settlement in command.settlements)
        return replace(answer, settled=settled)
    return _without_positions(answer) if isinstance(answer, EnqueueAnswer) else answer


def _without_positions(answer: EnqueueAnswer) -> EnqueueAnswer:
    """The position of a job in its lane is certain only after the commit."""
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
