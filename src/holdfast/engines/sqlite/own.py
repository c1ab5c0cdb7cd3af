"""A transaction of the engine's own, lent to a handler: its writes and the end of its job, in one commit.

It goes through the gate like every writer of ours and keeps it until the end, so that everybody waits in turn and
nobody polls. That is also why it must be short: renewals of all workers wait behind it. Whoever holds it for too long
is warned, and then loses it (`take_back`): the connection answers every further statement with an error.

A plain write of ours from inside it would wait for itself; `refuse_inside` says so instead.
"""

import logging
import sqlite3
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from types import TracebackType

from holdfast.engines.sqlite.connection import connect, translate
from holdfast.engines.sqlite.transactor import Place
from holdfast.engines.sqlite.turns import Turns
from holdfast.errors import EngineUnavailable, OutcomeUnknown, UsageError
from holdfast.runtime import Gate, Runtime
from holdfast.transactions.sqlite import OwnConnection

BUDGET = 2.0
"""Seconds after which people are warned."""

TAKEN_BACK = (
    "This attempt held SQLite's only write lock for too long, so its transaction was taken back. Nothing of it was "
    "written. Do slow things before `ctx.transaction()` or the first use of `ctx.tx`."
)

log = logging.getLogger("holdfast")

_inside: ContextVar["OwnTransaction | None"] = ContextVar("holdfast_sqlite_transaction", default=None)


def refuse_inside(path: str) -> None:
    """Called before every write: inside a transaction of one's own on the same file it could never get its turn."""
    transaction = _inside.get()
    if transaction is not None and transaction.is_open and transaction.path == path:
        raise UsageError(
            "This runs inside `ctx.transaction()` or `ctx.tx`, which holds SQLite's only write lock, so it would wait "
            "for itself. Enqueue with `using(transaction=...)`, or do it before or after."
        )


class OwnTransaction(AbstractContextManager[OwnConnection], AbstractAsyncContextManager[OwnConnection]):
    """A context manager of either colour: gives the connection; commits at the end, or rolls back on an error."""

    def __init__(self, place: Place, runtime: Runtime, turns: Turns) -> None:
        self._place = place
        self._runtime = runtime
        self._turns = turns
        self._lock = runtime.lock()
        self._gate: Gate | None = None
        self._connection: OwnConnection | None = None
        self._unwanted = False
        self.path = place.path

    @property
    def is_open(self) -> bool:
        return self._gate is not None

    # Beginning

    def __enter__(self) -> OwnConnection:
        connection = self._begin()
        _inside.set(self)
        return connection

    async def __aenter__(self) -> OwnConnection:
        try:
            connection = await self._turns.run(self._begin)
        except BaseException:  # perhaps only the wait was given up, and the thread goes on
            self._unwanted = True
            self._end(commit=False)
            raise
        _inside.set(self)
        return connection

    def _begin(self) -> OwnConnection:
        try:
            gate = self._runtime.fs.gate(self.path + "-gate")
        except OSError as error:
            raise EngineUnavailable(f"{self.path} cannot be opened for writing ({error}).") from error
        try:
            gate.__enter__()
            with self._lock:
                if self._unwanted:
                    raise EngineUnavailable("Nobody waits for this transaction any more.")
                self._connection = self._open()
                self._gate = gate
                return self._connection
        except BaseException:
            gate.close()
            raise

    def _open(self) -> OwnConnection:
        place = self._place
        connection = connect(place.path, place.durability, busy_timeout=place.busy_timeout, kind=OwnConnection)
        assert isinstance(connection, OwnConnection)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            connection.really_close()
            raise translate(error, self.path) from error
        connection.set_authorizer(_without_transactions)
        return connection

    # Ending

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(commit=error is None)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runtime.run_blocking(lambda: self._end(commit=error is None))

    def _end(self, *, commit: bool) -> None:
        with self._lock:
            connection, gate = self._connection, self._gate
            self._connection = self._gate = None
        if connection is None:
            return
        try:
            if gate is None:
                if commit:
                    raise UsageError(TAKEN_BACK)
                return
            connection.set_authorizer(None)
            if commit:
                self._commit(connection)
            elif connection.in_transaction:
                connection.execute("ROLLBACK")
        finally:
            connection.really_close()
            if gate is not None:
                gate.close()
        if commit:
            self._tell(connection)

    def _commit(self, connection: OwnConnection) -> None:
        there = connection.in_transaction
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if not there:  # SQLite had rolled it back, as it does where a disk is full
                said = f"SQLite has rolled this transaction on {self.path} back. Nothing was written."
                raise EngineUnavailable(said) from error
            if connection.in_transaction:
                connection.execute("ROLLBACK")
                raise translate(error, self.path) from error
            said = f"SQLite failed while committing ({error}). It may or may not have been written."
            raise OutcomeUnknown(said, verb="commit", engine="sqlite") from error

    def _tell(self, connection: OwnConnection) -> None:
        for callback in connection.user.callbacks:
            try:
                callback()
            except Exception:  # bells are hints
                log.exception("Ringing after a commit failed.")

    def take_back(self) -> bool:
        """From another thread: roll back and let the others go on. False: it was over already."""
        with self._lock:
            connection, gate = self._connection, self._gate
            if connection is None or gate is None:
                return False
            self._gate = None
            try:
                connection.set_authorizer(None)
                connection.interrupt()
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            finally:
                connection.revoked = TAKEN_BACK
                connection.set_authorizer(_nothing)  # also for cursors that are there already
                gate.close()
        return True


def _without_transactions(action: int, *_: object) -> int:
    """The handler may write what it likes, but begins and ends nothing."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


def _nothing(*_: object) -> int:
    return sqlite3.SQLITE_DENY
