"""Transactions of users, by every driver that Holdfast knows, and a table of the user beside the jobs.

An `OpenBlocking` opens a transaction as a user of one driver does: leaving the block commits, leaving it by an error
rolls back. It yields what `transaction=` takes, and a function that writes a row in the same transaction.
`OpenAsync` does the same on an event loop.
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
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from holdfast import App

STORES = ("sqlite", "postgres")


@dataclass
class Store:
    """Where the jobs are, and a table `effects` of the user."""

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
        """On a connection of its own, committed at once."""
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
        """How many rows of each name the user's table has."""
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


class BlockingTransaction(NamedTuple):
    transaction: Any
    write: Callable[[str], Any]


class AsyncTransaction(NamedTuple):
    transaction: Any
    write: Callable[[str], Awaitable[Any]]


OpenBlocking = Callable[[Store], AbstractContextManager[BlockingTransaction]]
OpenAsync = Callable[[Store], AbstractAsyncContextManager[AsyncTransaction]]


def _insert(store: Store, mark: str) -> str:
    return f"INSERT INTO {store.table} VALUES ({mark})"


# --- Blocking ---


@contextmanager
def by_sqlite3(store: Store) -> Iterator[BlockingTransaction]:
    db = sqlite3.connect(store.place)
    try:
        with db:
            yield BlockingTransaction(db, lambda name: db.execute(_insert(store, "?"), (name,)))
    finally:
        db.close()


@contextmanager
def by_psycopg(store: Store) -> Iterator[BlockingTransaction]:
    with psycopg.connect(store.place) as connection:
        insert = _insert(store, "%s").encode()
        yield BlockingTransaction(connection, lambda name: connection.execute(insert, (name,)))


@contextmanager
def by_session(store: Store) -> Iterator[BlockingTransaction]:
    with store.sessions().begin() as session:
        yield BlockingTransaction(session, lambda name: session.execute(text(_insert(store, ":name")), {"name": name}))


@contextmanager
def by_connection(store: Store) -> Iterator[BlockingTransaction]:
    with store.engine().begin() as connection:
        yield BlockingTransaction(
            connection, lambda name: connection.execute(text(_insert(store, ":name")), {"name": name})
        )


DRIVERS: dict[str, dict[str, OpenBlocking]] = {
    "sqlite": {"sqlite3": by_sqlite3, "session": by_session, "connection": by_connection},
    "postgres": {"psycopg": by_psycopg, "session": by_session, "connection": by_connection},
}


# --- Awaited ---


@asynccontextmanager
async def by_aiosqlite(store: Store) -> AsyncIterator[AsyncTransaction]:
    async with aiosqlite.connect(store.place) as db:
        try:
            yield AsyncTransaction(db, lambda name: db.execute(_insert(store, "?"), (name,)))
        except BaseException:
            await db.rollback()
            raise
        await db.commit()


@asynccontextmanager
async def by_asyncpg(store: Store) -> AsyncIterator[AsyncTransaction]:
    connection = await asyncpg.connect(store.place)
    try:
        async with connection.transaction():
            yield AsyncTransaction(connection, lambda name: connection.execute(_insert(store, "$1"), name))
    finally:
        await connection.close()


@asynccontextmanager
async def by_asyncpg_pool(store: Store) -> AsyncIterator[AsyncTransaction]:
    async with (
        asyncpg.create_pool(store.place, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield AsyncTransaction(connection, lambda name: connection.execute(_insert(store, "$1"), name))


@asynccontextmanager
async def by_async_psycopg(store: Store) -> AsyncIterator[AsyncTransaction]:
    async with await psycopg.AsyncConnection.connect(store.place) as connection:
        insert = _insert(store, "%s").encode()
        yield AsyncTransaction(connection, lambda name: connection.execute(insert, (name,)))


def by_async_session(driver: str = "") -> OpenAsync:
    @asynccontextmanager
    async def open_transaction(store: Store) -> AsyncIterator[AsyncTransaction]:
        async with store.async_sessions(driver).begin() as session:
            yield AsyncTransaction(session, lambda name: session.execute(text(_insert(store, ":name")), {"name": name}))

    return open_transaction


def by_async_connection(driver: str = "") -> OpenAsync:
    @asynccontextmanager
    async def open_transaction(store: Store) -> AsyncIterator[AsyncTransaction]:
        async with store.async_engine(driver).begin() as connection:
            yield AsyncTransaction(
                connection, lambda name: connection.execute(text(_insert(store, ":name")), {"name": name})
            )

    return open_transaction


ASYNC_DRIVERS: dict[str, dict[str, OpenAsync]] = {
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


# --- Tests of every driver ---


def _each(drivers: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("store", "open_transaction"),
        [(kind, opener) for kind in STORES for opener in drivers[kind].values()],
        ids=[f"{kind}-{name}" for kind in STORES for name in drivers[kind]],
        indirect=["store"],
    )


each_store = pytest.mark.parametrize("store", STORES, indirect=True)
each_driver = _each(DRIVERS)
each_async_driver = _each(ASYNC_DRIVERS)


class RolledBack(Exception):
    """Raised in a test so that its transaction is rolled back."""
