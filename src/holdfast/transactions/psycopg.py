"""Connections of psycopg (3), sync and async.

The cursors are made here, so the user's row and cursor factories do not matter.
"""

from typing import Any, ClassVar

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from holdfast.transactions.connection import Dialect, Mode, UserConnection
from holdfast.transactions.postgresql import IDENTITY, not_in_transaction


def adapter_for(transaction: object) -> UserConnection | None:
    if isinstance(transaction, Connection):
        return PsycopgConnection(transaction)
    return AsyncPsycopgConnection(transaction) if isinstance(transaction, AsyncConnection) else None


def _check(connection: Any, name: str, block: str) -> None:
    """A connection without autocommit begins a transaction with its first statement; one with it needs a block."""
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise not_in_transaction(name, f"Use it inside `{block}`.")


def _is_open(connection: Any) -> bool:
    status: TransactionStatus = connection.info.transaction_status
    return status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)


def _statement(function: str, count: int) -> Any:
    return f"SELECT {function}({', '.join(['%s::text'] * count)})"


class PsycopgConnection(UserConnection):
    dialect: ClassVar[Dialect] = "postgresql"
    mode = Mode.SYNC
    name = "psycopg connection"

    def __init__(self, connection: "Connection[Any]") -> None:
        self._connection = connection

    @property
    def is_open(self) -> bool:
        return _is_open(self._connection)

    def identity(self) -> str:
        return self._query(IDENTITY, ())

    def call(self, function: str, *texts: str) -> str:
        _check(self._connection, self.name, "with connection.transaction():")
        return self._query(_statement(function, len(texts)), texts)

    def _query(self, query: Any, texts: tuple[str, ...]) -> str:
        with Cursor(self._connection, row_factory=tuple_row) as cursor:
            row = cursor.execute(query, texts or None).fetchone()
        assert row is not None
        return str(row[0])


class AsyncPsycopgConnection(UserConnection):
    dialect: ClassVar[Dialect] = "postgresql"
    mode = Mode.ASYNC
    name = "psycopg AsyncConnection"

    def __init__(self, connection: "AsyncConnection[Any]") -> None:
        self._connection = connection

    @property
    def is_open(self) -> bool:
        return _is_open(self._connection)

    async def aidentity(self) -> str:
        return await self._query(IDENTITY, ())

    async def acall(self, function: str, *texts: str) -> str:
        _check(self._connection, self.name, "async with connection.transaction():")
        return await self._query(_statement(function, len(texts)), texts)

    async def _query(self, query: Any, texts: tuple[str, ...]) -> str:
        async with AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(query, texts or None)
            row = await cursor.fetchone()
        assert row is not None
        return str(row[0])
