"""Connections of asyncpg, also those acquired from a pool."""

from typing import Any, ClassVar

from asyncpg import Connection, InterfaceError
from asyncpg.pool import Pool, PoolConnectionProxy

from holdfast.errors import UsageError
from holdfast.transactions.connection import Dialect, Mode, UserConnection
from holdfast.transactions.postgresql import IDENTITY, not_in_transaction


def adapter_for(transaction: object) -> UserConnection | None:
    if isinstance(transaction, Pool):
        raise UsageError("An asyncpg pool is not a transaction. Pass a connection: `async with pool.acquire()`.")
    return AsyncpgConnection(transaction) if isinstance(transaction, Connection | PoolConnectionProxy) else None


class AsyncpgConnection(UserConnection):
    dialect: ClassVar[Dialect] = "postgresql"
    mode = Mode.ASYNC
    name = "asyncpg connection"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def is_open(self) -> bool:
        try:
            return not self._connection.is_closed() and bool(self._connection.is_in_transaction())
        except InterfaceError:  # it was released to its pool
            return False

    async def aidentity(self) -> str:
        return str(await self._connection.fetchval(IDENTITY))

    async def acall(self, function: str, *texts: str) -> str:
        if not self._connection.is_in_transaction():
            raise not_in_transaction(self.name, "Use it inside `async with connection.transaction():`.")
        placeholders = ", ".join(f"${number}::text" for number in range(1, len(texts) + 1))
        return str(await self._connection.fetchval(f"SELECT {function}({placeholders})", *texts))
