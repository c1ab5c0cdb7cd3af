"""Connections of psycopg (3), blocking and awaited.

The cursors are made here, so that row and cursor factories of the user's do not matter.
"""

from typing import Any, ClassVar

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from holdfast.transactions.connection import Colour, Dialect, UserConnection
from holdfast.transactions.postgresql import IDENTITY, not_in_transaction


def adapted(given: object) -> UserConnection | None:
    if isinstance(given, Connection):
        return PsycopgConnection(given)
    return AsyncPsycopgConnection(given) if isinstance(given, AsyncConnection) else None


def _check(connection: Any, name: str, block: str) -> None:
    """A connection that does not commit by itself begins a transaction with its first statement."""
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise not_in_transaction(name, f"Use it inside `{block}`.")


def _is_open(connection: Any) -> bool:
    status: TransactionStatus = connection.info.transaction_status
    return status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)


def _query(function: str, count: int) -> Any:
    return f"SELECT {function}({', '.join(['%s::text'] * count)})"


class PsycopgConnection(UserConnection):
    dialect: ClassVar[Dialect] = "postgresql"
    colour = Colour.SYNC
    name = "psycopg connection"

    def __init__(self, connection: "Connection[Any]") -> None:
        self._connection = connection

    @property
    def is_open(self) -> bool:
        return _is_open(self._connection)

    def identity(self) -> str:
        return self._ask(IDENTITY, ())

    def call(self, function: str, *texts: str) -> str:
        _check(self._connection, self.name, "with connection.transaction():")
        return self._ask(_query(function, len(texts)), texts)

    def _ask(self, query: Any, texts: tuple[str, ...]) -> str:
        with Cursor(self._connection, row_factory=tuple_row) as cursor:
            row = cursor.execute(query, texts or None).fetchone()
        assert row is not None
        return str(row[0])


class AsyncPsycopgConnection(UserConnection):
    dialect: ClassVar[Dialect] = "postgresql"
    colour = Colour.ASYNC
    name = "psycopg AsyncConnection"

    def __init__(self, connection: "AsyncConnection[Any]") -> None:
        self._connection = connection

    @property
    def is_open(self) -> bool:
        return _is_open(self._connection)

    async def aidentity(self) -> str:
        return await self._ask(IDENTITY, ())

    async def acall(self, function: str, *texts: str) -> str:
        _check(self._connection, self.name, "async with connection.transaction():")
        return await self._ask(_query(function, len(texts)), texts)

    async def _ask(self, query: Any, texts: tuple[str, ...]) -> str:
        async with AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(query, texts or None)
            row = await cursor.fetchone()
        assert row is not None
        return str(row[0])
