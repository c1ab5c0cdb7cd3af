"""Ways in which users reach the database of their jobs, and a table of theirs beside these.

A `Way` opens a transaction as a user of some driver would: leaving commits, leaving by an error rolls back. It gives
what `transaction=` takes, and a function that writes a row in the same transaction.
"""

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiosqlite
import asyncpg
import psycopg
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from holdfast import App

STORES = ("sqlite", "postgres")


@dataclass
class Store:
    """Where the jobs are, and a table `effects` of the user's."""

    kind: str
    url: str
    """As the App has it."""
    place: str
    """The file, or the server's address."""
    namespace: str = "holdfast"
    table: str = ""
    make: bool = True
    """Whether to make the table."""

    def app(self, **options: Any) -> "App[Any]":
        if self.kind == "sqlite":
            options.setdefault("durability", "none")
        return App(self.url, namespace=self.namespace, **options)

    def __post_init__(self) -> None:
        self.table = "effects" if self.kind == "sqlite" else f"effects_{self.namespace}"
        if self.make:
            self.execute(f"CREATE TABLE {self.table} (name text NOT NULL)")

    def close(self) -> None:
        if self.kind == "postgres":
            self.execute(f"DROP TABLE {self.table}")

    def execute(self, statement: str) -> list[Any]:
        """Beside everything, committed at once."""
        if self.kind == "sqlite":
            db = sqlite3.connect(self.place, isolation_level=None)
            try:
                db.execute("PRAGMA wal_autocheckpoint = 0")
                return db.execute(statement).fetchall()
            finally:
                db.close()
        with psycopg.connect(self.place, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def effects(self) -> dict[str, int]:
        """The rows of the user's table, by name."""
        return dict(Counter(name for (name,) in self.execute(f"SELECT name FROM {self.table}")))

    # SQLAlchemy

    def engine(self, **options: Any) -> Engine:
        prefix = "sqlite:///" if self.kind == "sqlite" else "postgresql+psycopg://"
        return create_engine(prefix + self.place.removeprefix("postgresql://"), poolclass=NullPool, **options)

    def async_engine(self, driver: str = "", **options: Any) -> AsyncEngine:
        default = "aiosqlite" if self.kind == "sqlite" else "asyncpg"
        scheme = "sqlite" if self.kind == "sqlite" else "postgresql"
        prefix = f"{scheme}+{driver or default}:///" if self.kind == "sqlite" else f"{scheme}+{driver or default}://"
        return create_async_engine(prefix + self.place.removeprefix("postgresql://"), poolclass=NullPool, **options)

    def sessions(self) -> "sessionmaker[Session]":
        return sessionmaker(self.engine())

    def async_sessions(self, driver: str = "") -> "async_sessionmaker[AsyncSession]":
        return async_sessionmaker(self.async_engine(driver))


class Given(NamedTuple):
    transaction: Any
    write: Callable[[str], Any]


class AsyncGiven(NamedTuple):
    transaction: Any
    write: Callable[[str], Awaitable[Any]]


Way = Callable[[Store], AbstractContextManager[Given]]
AsyncWay = Callable[[Store], AbstractAsyncContextManager[AsyncGiven]]


def _insert(store: Store, mark: str) -> str:
    return f"INSERT INTO {store.table} VALUES ({mark})"


# --- Blocking ---


@contextmanager
def by_sqlite3(store: Store) -> Iterator[Given]:
    db = sqlite3.connect(store.place)
    try:
        with db:
            yield Given(db, lambda name: db.execute(_insert(store, "?"), (name,)))
    finally:
        db.close()


@contextmanager
def by_psycopg(store: Store) -> Iterator[Given]:
    with psycopg.connect(store.place) as connection:
        insert = _insert(store, "%s").encode()
        yield Given(connection, lambda name: connection.execute(insert, (name,)))


@contextmanager
def by_session(store: Store) -> Iterator[Given]:
    with store.sessions().begin() as session:
        yield Given(session, lambda name: session.execute(text(_insert(store, ":name")), {"name": name}))


@contextmanager
def by_connection(store: Store) -> Iterator[Given]:
    with store.engine().begin() as connection:
        yield Given(connection, lambda name: connection.execute(text(_insert(store, ":name")), {"name": name}))


WAYS: dict[str, dict[str, Way]] = {
    "sqlite": {"sqlite3": by_sqlite3, "session": by_session, "connection": by_connection},
    "postgres": {"psycopg": by_psycopg, "session": by_session, "connection": by_connection},
}


# --- Awaited ---


@asynccontextmanager
async def by_aiosqlite(store: Store) -> AsyncIterator[AsyncGiven]:
    async with aiosqlite.connect(store.place) as db:
        try:
            yield AsyncGiven(db, lambda name: db.execute(_insert(store, "?"), (name,)))
        except BaseException:
            await db.rollback()
            raise
        await db.commit()


@asynccontextmanager
async def by_asyncpg(store: Store) -> AsyncIterator[AsyncGiven]:
    connection = await asyncpg.connect(store.place)
    try:
        async with connection.transaction():
            yield AsyncGiven(connection, lambda name: connection.execute(_insert(store, "$1"), name))
    finally:
        await connection.close()


@asynccontextmanager
async def by_asyncpg_pool(store: Store) -> AsyncIterator[AsyncGiven]:
    async with (
        asyncpg.create_pool(store.place, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield AsyncGiven(connection, lambda name: connection.execute(_insert(store, "$1"), name))


@asynccontextmanager
async def by_async_psycopg(store: Store) -> AsyncIterator[AsyncGiven]:
    async with await psycopg.AsyncConnection.connect(store.place) as connection:
        insert = _insert(store, "%s").encode()
        yield AsyncGiven(connection, lambda name: connection.execute(insert, (name,)))


def by_async_session(driver: str = "") -> AsyncWay:
    @asynccontextmanager
    async def way(store: Store) -> AsyncIterator[AsyncGiven]:
        async with store.async_sessions(driver).begin() as session:
            yield AsyncGiven(session, lambda name: session.execute(text(_insert(store, ":name")), {"name": name}))

    return way


def by_async_connection(driver: str = "") -> AsyncWay:
    @asynccontextmanager
    async def way(store: Store) -> AsyncIterator[AsyncGiven]:
        async with store.async_engine(driver).begin() as connection:
            yield AsyncGiven(connection, lambda name: connection.execute(text(_insert(store, ":name")), {"name": name}))

    return way


ASYNC_WAYS: dict[str, dict[str, AsyncWay]] = {
    "sqlite": {
        "aiosqlite": by_aiosqlite,
        "session": by_async_session(),
        "connection": by_async_connection(),
    },
    "postgres": {
        "asyncpg": by_asyncpg,
        "asyncpg-pool": by_asyncpg_pool,
        "psycopg": by_async_psycopg,
        "session-asyncpg": by_async_session("asyncpg"),
        "session-psycopg": by_async_session("psycopg"),
        "connection": by_async_connection("asyncpg"),
    },
}
