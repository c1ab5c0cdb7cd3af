"""Sessions and connections of SQLAlchemy 2, blocking and awaited, on PostgreSQL and SQLite.

An awaited one is a blocking one inside: `run_sync` leads there, so everything is written once. Only SQLite over
aiosqlite goes another way, straight to the driver's own thread.
"""

import sqlite3
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from sqlalchemy import Connection, event, text
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from holdfast.errors import UsageError
from holdfast.transactions.connection import Colour, Dialect, UserConnection
from holdfast.transactions.postgresql import IDENTITY, not_in_transaction
from holdfast.transactions.sqlite import SqliteUser

R = TypeVar("R")

WAITING = "holdfast.after_commit"
"""Where a session keeps what is to be called after its commit."""


def adapted(given: object) -> UserConnection | None:
    if isinstance(given, scoped_session | async_scoped_session):
        given = given()
    if isinstance(given, Session | Connection):
        kinds: dict[str, Any] = {"postgresql": BlockingPostgres, "sqlite": BlockingSqlite}
    elif isinstance(given, AsyncSession | AsyncConnection):
        kinds = {"postgresql": AwaitedPostgres, "sqlite": AwaitedSqlite}
    else:
        return None
    dialect = _dialect(given)
    if dialect not in kinds:
        said = (
            f"This SQLAlchemy {type(given).__name__} is on {dialect}. Jobs join transactions on PostgreSQL and SQLite."
        )
        raise UsageError(said)
    adapter: UserConnection = kinds[dialect](given)
    return adapter


def _dialect(given: Any) -> str:
    try:
        bound = given.get_bind() if isinstance(given, Session | AsyncSession) else given
    except InvalidRequestError as error:
        raise _unbound(error) from error
    return str(bound.dialect.name)


def _unbound(error: InvalidRequestError) -> UsageError:
    return UsageError(f"This session leads to no one database: {error} Give its connection instead.")


def connection_of(given: Session | Connection) -> Connection:
    """The connection that is in the transaction; a session begins it now, if it has not yet."""
    if isinstance(given, Connection):
        return given
    try:
        return given.connection()
    except InvalidRequestError as error:
        raise _unbound(error) from error


class _Sqlalchemy(UserConnection):
    """Sessions tell when they have committed; bare connections do not."""

    _given: Any

    @property
    def is_open(self) -> bool:
        return bool(self._given.in_transaction())

    def after_commit(self, callback: Callable[[], None]) -> bool:
        session = self._given.sync_session if isinstance(self._given, AsyncSession) else self._given
        if not isinstance(session, Session):
            return False
        if WAITING not in session.info:
            session.info[WAITING] = []
            event.listen(session, "after_commit", _committed)
            event.listen(session, "after_rollback", _rolled_back)
        session.info[WAITING].append(callback)
        return True


def _committed(session: Session) -> None:
    if session.in_nested_transaction():
        return  # only a savepoint was released
    callbacks, session.info[WAITING] = session.info[WAITING], []
    for callback in callbacks:
        callback()


def _rolled_back(session: Session) -> None:
    if not session.in_nested_transaction():
        session.info[WAITING] = []


# --- PostgreSQL ---


def _ask(given: Session | Connection, query: str, texts: tuple[str, ...]) -> str:
    return str(
        connection_of(given).execute(text(query), {f"p{n}": value for n, value in enumerate(texts)}).scalar_one()
    )


def _call(given: Session | Connection, name: str, function: str, texts: tuple[str, ...]) -> str:
    if getattr(connection_of(given).connection.dbapi_connection, "autocommit", False):
        raise not_in_transaction(name, "Its isolation level is AUTOCOMMIT; use another.")
    places = ", ".join(f"CAST(:p{n} AS text)" for n in range(len(texts)))
    return _ask(given, f"SELECT {function}({places})", texts)


class BlockingPostgres(_Sqlalchemy):
    dialect: ClassVar[Dialect] = "postgresql"
    colour = Colour.SYNC

    def __init__(self, given: Session | Connection) -> None:
        self._given = given
        self.name = f"SQLAlchemy {type(given).__name__}"

    def identity(self) -> str:
        return _ask(self._given, IDENTITY, ())

    def call(self, function: str, *texts: str) -> str:
        return _call(self._given, self.name, function, texts)


class AwaitedPostgres(_Sqlalchemy):
    dialect: ClassVar[Dialect] = "postgresql"
    colour = Colour.ASYNC

    def __init__(self, given: AsyncSession | AsyncConnection) -> None:
        self._given = given
        self.name = f"SQLAlchemy {type(given).__name__}"

    async def aidentity(self) -> str:
        return str(await self._given.run_sync(_ask, IDENTITY, ()))

    async def acall(self, function: str, *texts: str) -> str:
        return str(await self._given.run_sync(_call, self.name, function, texts))


# --- SQLite ---


class BlockingSqlite(_Sqlalchemy, SqliteUser):
    colour = Colour.SYNC

    def __init__(self, given: Session | Connection) -> None:
        self._given = given
        self.name = f"SQLAlchemy {type(given).__name__}"

    def run(self, work: Callable[[sqlite3.Connection], R]) -> R:
        driver = connection_of(self._given).connection.driver_connection
        if not isinstance(driver, sqlite3.Connection):
            raise UsageError(f"{self.name}: the driver must be pysqlite, not that of {type(driver).__module__}.")
        return work(driver)


class AwaitedSqlite(_Sqlalchemy, SqliteUser):
    colour = Colour.ASYNC

    def __init__(self, given: AsyncSession | AsyncConnection) -> None:
        self._given = given
        self.name = f"SQLAlchemy {type(given).__name__}"

    async def arun(self, work: Callable[[sqlite3.Connection], R]) -> R:
        from holdfast.transactions.aiosqlite import adapted as aiosqlite

        given = self._given
        connection = await given.connection() if isinstance(given, AsyncSession) else given
        driver = (await connection.get_raw_connection()).driver_connection
        found = aiosqlite(driver)
        if found is None:
            raise UsageError(f"{self.name}: the driver must be aiosqlite, not that of {type(driver).__module__}.")
        return await found.arun(work)
