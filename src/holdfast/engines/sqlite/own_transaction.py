"""A transaction of the engine, lent to a handler: the handler's writes and the end of its job, in one commit.

It passes the gate like every writer of ours and holds it until the end, so all other writers wait in order. It must be
short, because the renewals of all workers wait for it. A worker logs a warning when a handler holds it longer than the
budget, and then takes it back (`take_back`): it is rolled back, and every further statement raises an error.

An ordinary write from inside it would wait for its own gate; `refuse_inside` raises an error instead.
"""

import logging
import sqlite3
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from types import TracebackType

from holdfast import forks
from holdfast.engines.sqlite.connection import connect, is_not_committed, roll_back, translate
from holdfast.engines.sqlite.connections_at_fork import CONNECTIONS
from holdfast.engines.sqlite.gate_queue import GateQueue
from holdfast.engines.sqlite.store import StoreOptions
from holdfast.errors import EngineUnavailable, OutcomeUnknown, UsageError
from holdfast.file_locks import Gate
from holdfast.runtime import Runtime
from holdfast.transactions.sqlite import OwnConnection

BUDGET_S = 2.0
"""How long a handler may hold it before a warning. Renewals wait for it, and a lease lasts 30 seconds by default."""

TAKEN_BACK = (
    "This attempt held SQLite's only write lock for too long, so its transaction was taken back. Nothing of it was "
    "written. Do slow things before `ctx.transaction()` or the first use of `ctx.tx`."
)

FORKED = (
    "This transaction belongs to the parent process, which forked inside it. A child process can neither use it nor "
    "end it. Fork before or after the transaction."
)

log = logging.getLogger("holdfast")

_current: ContextVar["SqliteOwnTransaction | None"] = ContextVar("holdfast_sqlite_transaction", default=None)


def refuse_inside(real_path: str) -> None:
    """Called before every write: inside such a transaction on the same file, the write would never pass the gate."""
    transaction = _current.get()
    if transaction is not None and transaction.is_open and transaction.real_path == real_path:
        raise UsageError(
            "This runs inside `ctx.transaction()` or `ctx.tx`, which holds SQLite's only write lock, so it would wait "
            "for itself. Enqueue with `using(transaction=...)`, or call it before or after the transaction."
        )


class SqliteOwnTransaction(AbstractContextManager[OwnConnection], AbstractAsyncContextManager[OwnConnection]):
    """A sync and async context manager: gives the connection; commits at the end, or rolls back on an error."""

    def __init__(self, store: StoreOptions, runtime: Runtime, gate_queue: GateQueue) -> None:
        self._store = store
        self._runtime = runtime
        self._gate_queue = gate_queue
        self._lock = runtime.lock()
        self._gate: Gate | None = None
        self._connection: OwnConnection | None = None
        self._abandoned = False
        self._forked = False
        self.path = store.path
        self.real_path = store.real_path
        forks.call_in_child(self._forget_in_child)

    @property
    def is_open(self) -> bool:
        return self._gate is not None

    def _forget_in_child(self) -> None:
        """PF2. The parent's connection is left as it is: even closing it here could damage the file."""
        connection = self._connection
        self._lock = self._runtime.lock()  # another thread of the parent may have held it
        self._connection = self._gate = None
        self._forked = True
        if connection is not None:
            connection.revoked = FORKED

    # Beginning

    def __enter__(self) -> OwnConnection:
        connection = self._begin()
        _current.set(self)
        return connection

    async def __aenter__(self) -> OwnConnection:
        try:
            connection = await self._gate_queue.run(self._begin)
        except BaseException:  # the wait may have been cancelled while its thread still waits for the gate
            self._abandoned = True
            self._end(commit=False)
            raise
        _current.set(self)
        return connection

    def _begin(self) -> OwnConnection:
        gate = self._store.open_gate(self._runtime)
        try:
            gate.__enter__()
            with self._lock:
                if self._abandoned:
                    raise EngineUnavailable("The caller of this transaction was cancelled. Nothing was written.")
                self._connection = self._open()
                self._gate = gate
                return self._connection
        except BaseException:
            gate.close()
            raise

    def _open(self) -> OwnConnection:
        connection = connect(self._store, factory=OwnConnection)
        assert isinstance(connection, OwnConnection)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            _close(connection)
            raise translate(error, self.path) from error
        connection.set_authorizer(_deny_transaction_statements)
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
        if self._forked and commit:
            raise UsageError(FORKED)
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
            else:
                roll_back(connection)
        finally:
            _close(connection)
            if gate is not None:
                gate.close()
        if commit:
            self._notify(connection)

    def _commit(self, connection: OwnConnection) -> None:
        was_open = connection.in_transaction
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if not was_open:  # SQLite has rolled it back, which it does if the disk is full
                message = f"SQLite has rolled this transaction on {self.path} back. Nothing was written."
                raise EngineUnavailable(message) from error
            if connection.in_transaction or is_not_committed(error):
                roll_back(connection)
                raise translate(error, self.path) from error
            message = f"SQLite failed while committing ({error}). The transaction may or may not have been written."
            raise OutcomeUnknown(message, verb="commit", engine="sqlite") from error
        self._store.file.check_after_commit()

    def _notify(self, connection: OwnConnection) -> None:
        for callback in connection.user.callbacks:
            try:
                callback()
            except Exception:  # notifications are hints
                log.exception("A notification after a commit failed.")

    def take_back(self) -> bool:
        """From another thread: roll back and release the gate. False: it had ended already."""
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
                connection.set_authorizer(_deny_all)  # cursors that exist already are refused by this
                gate.close()
        return True


def _close(connection: OwnConnection) -> None:
    connection.really_close()
    CONNECTIONS.remove(connection)


def _deny_transaction_statements(action: int, *_: object) -> int:
    """The handler may write anything, but it neither begins nor ends a transaction."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


def _deny_all(*_: object) -> int:
    return sqlite3.SQLITE_DENY
