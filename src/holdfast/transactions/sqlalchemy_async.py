"""Async sessions and connections of SQLAlchemy 2.

An async session wraps a sync one, which `run_sync` reaches, so both share their code. Only SQLite over aiosqlite goes
straight to the driver's own thread.
"""

import sqlite3
from collections.abc import Callable
from typing import ClassVar, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

from holdfast.errors import UsageError
from holdfast.transactions.connection import Dialect, Mode, UserConnection
from holdfast.transactions.postgresql import IDENTITY
from holdfast.transactions.sqlalchemy import SqlalchemyUser, adapter_by_dialect, call_function, query_one
from holdfast.transactions.sqlite import SqliteUser

R = TypeVar("R")


def adapter_for(transaction: object) -> UserConnection | None:
    if isinstance(transaction, async_scoped_session):
        transaction = transaction()
    if not isinstance(transaction, AsyncSession | AsyncConnection):
        return None
    return adapter_by_dialect(transaction, {"postgresql": AsyncPostgres, "sqlite": AsyncSqlite})


class AsyncPostgres(SqlalchemyUser):
    dialect: ClassVar[Dialect] = "postgresql"
    mode = Mode.ASYNC

    def __init__(self, session: AsyncSession | AsyncConnection) -> None:
        self._session = session
        self.name = f"SQLAlchemy {type(session).__name__}"

    async def aidentity(self) -> str:
        return str(await self._session.run_sync(query_one, IDENTITY, ()))

    async def acall(self, function: str, *texts: str) -> str:
        return str(await self._session.run_sync(call_function, self.name, function, texts))


class AsyncSqlite(SqlalchemyUser, SqliteUser):
    mode = Mode.ASYNC

    def __init__(self, session: AsyncSession | AsyncConnection) -> None:
        self._session = session
        self.name = f"SQLAlchemy {type(session).__name__}"

    async def arun(self, work: Callable[[sqlite3.Connection], R]) -> R:
        from holdfast.transactions.aiosqlite import adapter_for as adapter_for_driver

        session = self._session
        connection = await session.connection() if isinstance(session, AsyncSession) else session
        driver = (await connection.get_raw_connection()).driver_connection
        adapter = adapter_for_driver(driver)
        if adapter is None:
            raise UsageError(f"{self.name}: the driver must be aiosqlite, not {type(driver).__module__}.")
        return await adapter.arun(work)
