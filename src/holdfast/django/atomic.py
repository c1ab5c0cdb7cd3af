"""The transaction of a task with `transaction=True`: an `atomic()` block that the worker commits or rolls back."""

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import connections, transaction
from django.db.transaction import TransactionManagementError

from holdfast.transactions import Mode, UserConnection
from holdfast.transactions.django import adapter_for

R = TypeVar("R")


class AtomicTransaction(UserConnection):
    """Begins with its construction, in the thread of the handler. For the worker it is a session of the user's."""

    mode = Mode.SYNC
    name = "Django transaction"

    def __init__(self, database: str) -> None:
        self._connection: Any = connections[database]
        adapter = adapter_for(self._connection)
        assert adapter is not None
        self._adapter = adapter
        self.dialect = adapter.dialect  # type: ignore[misc]  # each alias may have another
        self._atomic: Any = transaction.atomic(using=database)
        self._begin()

    def _begin(self) -> None:
        """Enter the block. On SQLite with the write lock: the worker itself writes to the file all the time, and a
        transaction that has read before another one wrote could not write any more."""
        connection = self._connection
        mode = getattr(connection, "transaction_mode", None)
        if connection.vendor != "sqlite" or mode is not None:
            self._atomic.__enter__()
            return
        connection.transaction_mode = "IMMEDIATE"
        try:
            self._atomic.__enter__()
        finally:
            connection.transaction_mode = mode

    def commit(self) -> None:
        self._check()
        atomic, self._atomic = self._atomic, None
        atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        atomic, self._atomic = self._atomic, None
        if atomic is not None:
            error = _RollBack()
            atomic.__exit__(type(error), error, None)

    def close(self) -> None:
        """The connection stays open, for the next job of this thread."""

    # As a connection, for the end of the job

    @property
    def is_open(self) -> bool:
        return self._adapter.is_open

    def identity(self) -> str:
        self._check()
        return self._adapter.identity()

    def call(self, function: str, *texts: str) -> str:
        self._check()
        return self._adapter.call(function, *texts)

    def run(self, work: Callable[[sqlite3.Connection], R]) -> R:
        self._check()
        return self._adapter.run(work)

    def _check(self) -> None:
        """Django would roll back without an error, and the job would count as completed."""
        if self._connection.needs_rollback:
            raise TransactionManagementError(
                "The transaction of this task was marked for rollback (set_rollback, or a database error that was "
                "caught inside the block), so its job cannot complete in it."
            )

    def after_commit(self, callback: Callable[[], None]) -> bool:
        return self._adapter.after_commit(callback)


class _RollBack(Exception):
    """Passed to `atomic()`, so that it rolls back."""
