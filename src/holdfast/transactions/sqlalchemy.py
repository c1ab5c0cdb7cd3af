"""Sessions and connections of SQLAlchemy 2 on PostgreSQL and SQLite: the sync ones, and what the async ones share.

The async half of SQLAlchemy cannot be imported without greenlet, which a program with sync sessions need not have. So
its adapters are in a module of their own, imported when an async object is given.
"""

import sqlite3
from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from sqlalchemy import Connection, event, text
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from holdfast.errors import UsageError
from holdfast.transactions.connection import Dialect, Mode, UserConnection
from holdfast.transactions.postgresql import IDENTITY, not_in_transaction
from holdfast.transactions.sqlite import SqliteUser

R = TypeVar("R")

CALLBACKS = "holdfast.after_commit"
"""Where a session keeps the functions to call after its commit, each with its transaction or savepoint."""


ASYNC = "sqlalchemy.ext.asyncio"
"""The package of SQLAlchemy's async classes."""


def adapter_for(transaction: object) -> UserConnection | None:
    if isinstance(transaction, scoped_session):
        transaction = transaction()
    if isinstance(transaction, Session | Connection):
        return adapter_by_dialect(transaction, {"postgresql": SyncPostgres, "sqlite": SyncSqlite})
    if any(base.__module__.startswith(ASYNC) for base in type(transaction).__mro__):
        found: UserConnection | None = import_module("holdfast.transactions.sqlalchemy_async").adapter_for(transaction)
        return found
    return None


def adapter_by_dialect(transaction: Any, adapters: dict[str, Any]) -> UserConnection:
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
        bound = session.get_bind() if hasattr(session, "get_bind") else session
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


class SqlalchemyUser(UserConnection):
    """Sessions report their commits; bare connections do not."""

    _session: Any

    @property
    def is_open(self) -> bool:
        return bool(self._session.in_transaction())

    def after_commit(self, callback: Callable[[], None]) -> bool:
        session = getattr(self._session, "sync_session", self._session)
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


def query_one(session: Session | Connection, query: str, texts: tuple[str, ...]) -> str:
    return str(
        connection_of(session).execute(text(query), {f"p{n}": value for n, value in enumerate(texts)}).scalar_one()
    )


def call_function(session: Session | Connection, name: str, function: str, texts: tuple[str, ...]) -> str:
    if getattr(connection_of(session).connection.dbapi_connection, "autocommit", False):
        raise not_in_transaction(name, "Its isolation level is AUTOCOMMIT; use another.")
    placeholders = ", ".join(f"CAST(:p{n} AS text)" for n in range(len(texts)))
    return query_one(session, f"SELECT {function}({placeholders})", texts)


class SyncPostgres(SqlalchemyUser):
    dialect: ClassVar[Dialect] = "postgresql"
    mode = Mode.SYNC

    def __init__(self, session: Session | Connection) -> None:
        self._session = session
        self.name = f"SQLAlchemy {type(session).__name__}"

    def identity(self) -> str:
        return query_one(self._session, IDENTITY, ())

    def call(self, function: str, *texts: str) -> str:
        return call_function(self._session, self.name, function, texts)


# --- SQLite ---


class SyncSqlite(SqlalchemyUser, SqliteUser):
    mode = Mode.SYNC

    def __init__(self, session: Session | Connection) -> None:
        self._session = session
        self.name = f"SQLAlchemy {type(session).__name__}"

    def run(self, work: Callable[[sqlite3.Connection], R]) -> R:
        driver = connection_of(self._session).connection.driver_connection
        if not isinstance(driver, sqlite3.Connection):
            raise UsageError(f"{self.name}: the driver must be pysqlite, not {type(driver).__module__}.")
        return work(driver)
