"""Sessions and connections of SQLAlchemy 2, sync and async, on PostgreSQL and SQLite.

An async session wraps a sync one, which `run_sync` reaches, so both share their code. Only SQLite over aiosqlite goes
straight to the driver's own thread.
"""

import sqlite3
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from sqlalchemy import Connection, event, text
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from holdfast.errors import UsageError
from holdfast.transactions.connection import Dialect, Mode, UserConnection
from holdfast.transactions.postgresql import IDENTITY, not_in_transaction
from holdfast.transactions.sqlite import SqliteUser

R = TypeVar("R")

CALLBACKS = "holdfast.after_commit"
"""Where a session keeps the functions to call after its commit, each with its transaction or savepoint."""


def adapter_for(transaction: object) -> UserConnection | None:
    if isinstance(transaction, scoped_session | async_scoped_session):
        transaction = transaction()
    if isinstance(transaction, Session | Connection):
        adapters: dict[str, Any] = {"postgresql": SyncPostgres, "sqlite": SyncSqlite}
    elif isinstance(transaction, AsyncSession | AsyncConnection):
        adapters = {"postgresql": AsyncPostgres, "sqlite": AsyncSqlite}
    else:
        return None
    dialect = _dialect(transaction)
    if dialect not in adapters:
        raise UsageError(
            f"This SQLAlchemy {type(transaction).__name__} is on {dialect}. User transactions work on PostgreSQL and "
            "SQLite."
        )
    adapter: UserConnection = adapters[dialect](transaction)
    return adapter


def _dialect(session: Any) -> str:
    try:
        bound = session.get_bind() if isinstance(session, Session | AsyncSession) else session
    except InvalidRequestError as error:
        raise _unbound(error) from error
    return str(bound.dialect.name)


def _unbound(error: InvalidRequestError) -> UsageError:
    return UsageError(f"This session is not bound to one database: {error} Pass its connection instead.")


def connection_of(session: Session | Connection) -> Connection:
    """The connection that is in the transaction. A session begins its transaction now, if it has not yet."""
    if isinstance(session, Connection):
        return session
    try:
        return session.connection()
    except InvalidRequestError as error:
        raise _unbound(error) from error


class _Sqlalchemy(UserConnection):
    """Sessions report their commits; bare connections do not."""

    _session: Any

    @property
    def is_open(self) -> bool:
        return bool(self._session.in_transaction())

    def after_commit(self, callback: Callable[[], None]) -> bool:
        session = self._session.sync_session if isinstance(self._session, AsyncSession) else self._session
        if not isinstance(session, Session):
            return False
        transaction = session.get_nested_transaction() or session.get_transaction()
        if transaction is None:
            return False
        if CALLBACKS not in session.info:
            session.info[CALLBACKS] = []
            event.listen(session, "after_commit", _committed)
            event.listen(session, "after_transaction_end", _ended)
        session.info[CALLBACKS].append((transaction, callback))
        return True


def _committed(session: Session) -> None:
    """What a released savepoint has registered belongs to the transaction around it. A commit calls everything."""
    savepoint = session.get_nested_transaction()
    registered, session.info[CALLBACKS] = session.info[CALLBACKS], []
    if savepoint is not None:
        session.info[CALLBACKS] = [
            (savepoint.parent if transaction is savepoint else transaction, callback)
            for transaction, callback in registered
        ]
        return
    for _, callback in registered:
        callback()


def _ended(session: Session, ended: SessionTransaction) -> None:
    """What is still registered was rolled back with its transaction or savepoint; `close()` has no other event."""
    session.info[CALLBACKS] = [one for one in session.info[CALLBACKS] if one[0] is not ended]


# --- PostgreSQL ---


def _query(session: Session | Connection, query: str, texts: tuple[str, ...]) -> str:
    return str(
        connection_of(session).execute(text(query), {f"p{n}": value for n, value in enumerate(texts)}).scalar_one()
    )


def _call(session: Session | Connection, name: str, function: str, texts: tuple[str, ...]) -> str:
    if getattr(connection_of(session).connection.dbapi_connection, "autocommit", False):
        raise not_in_transaction(name, "Its isolation level is AUTOCOMMIT; use another.")
    placeholders = ", ".join(f"CAST(:p{n} AS text)" for n in range(len(texts)))
    return _query(session, f"SELECT {function}({placeholders})", texts)


class SyncPostgres(_Sqlalchemy):
    dialect: ClassVar[Dialect] = "postgresql"
    mode = Mode.SYNC

    def __init__(self, session: Session | Connection) -> None:
        self._session = session
        self.name = f"SQLAlchemy {type(session).__name__}"

    def identity(self) -> str:
        return _query(self._session, IDENTITY, ())

    def call(self, function: str, *texts: str) -> str:
        return _call(self._session, self.name, function, texts)


class AsyncPostgres(_Sqlalchemy):
    dialect: ClassVar[Dialect] = "postgresql"
    mode = Mode.ASYNC

    def __init__(self, session: AsyncSession | AsyncConnection) -> None:
        self._session = session
        self.name = f"SQLAlchemy {type(session).__name__}"

    async def aidentity(self) -> str:
        return str(await self._session.run_sync(_query, IDENTITY, ()))

    async def acall(self, function: str, *texts: str) -> str:
        return str(await self._session.run_sync(_call, self.name, function, texts))


# --- SQLite ---


class SyncSqlite(_Sqlalchemy, SqliteUser):
    mode = Mode.SYNC

    def __init__(self, session: Session | Connection) -> None:
        self._session = session
        self.name = f"SQLAlchemy {type(session).__name__}"

    def run(self, work: Callable[[sqlite3.Connection], R]) -> R:
        driver = connection_of(self._session).connection.driver_connection
        if not isinstance(driver, sqlite3.Connection):
            raise UsageError(f"{self.name}: the driver must be pysqlite, not {type(driver).__module__}.")
        return work(driver)


class AsyncSqlite(_Sqlalchemy, SqliteUser):
    mode = Mode.ASYNC

    def __init__(self, session: AsyncSession | AsyncConnection) -> None:
        self._session = session
        self.name = f"SQLAlchemy {type(session).__name__}"

    async def arun(self, work: Callable[[sqlite3.Connection], R]) -> R:
        from holdfast.transactions.aiosqlite import adapter_for

        session = self._session
        connection = await session.connection() if isinstance(session, AsyncSession) else session
        driver = (await connection.get_raw_connection()).driver_connection
        adapter = adapter_for(driver)
        if adapter is None:
            raise UsageError(f"{self.name}: the driver must be aiosqlite, not {type(driver).__module__}.")
        return await adapter.arun(work)
