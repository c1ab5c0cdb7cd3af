"""Connections of Django: `django.db.connection` and those of `django.db.connections`, on PostgreSQL and SQLite.

On PostgreSQL the calls go through Django's own cursor, so the driver does not matter: psycopg (3) or psycopg2. On
SQLite the rules run over the `sqlite3` connection that Django has opened. Django reports commits itself (`on_commit`),
also with savepoints.
"""

import sqlite3
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy

from holdfast.errors import UsageError
from holdfast.transactions.connection import Dialect, Mode, UserConnection
from holdfast.transactions.postgresql import IDENTITY, not_in_transaction
from holdfast.transactions.sqlite import SqliteUser

R = TypeVar("R")

HOW = "Use it inside `with transaction.atomic():`."


def adapter_for(transaction: Any) -> UserConnection | None:
    if isinstance(transaction, ConnectionProxy):
        transaction = transaction._connections[transaction._alias]
    if not isinstance(transaction, BaseDatabaseWrapper):
        return None
    connection: Any = transaction
    if connection.vendor == "postgresql":
        return DjangoPostgres(connection)
    if connection.vendor == "sqlite":
        return DjangoSqlite(connection)
    raise UsageError(
        f"The Django connection {connection.alias!r} is on {connection.vendor}. User transactions work on PostgreSQL "
        "and SQLite."
    )


def in_transaction(connection: Any) -> bool:
    """True in an `atomic()` block, and where Django does not commit each statement by itself."""
    return bool(connection.in_atomic_block) or not connection.get_autocommit()


class _Django(UserConnection):
    mode = Mode.SYNC
    name = "Django connection"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def is_open(self) -> bool:
        return self._connection.connection is not None and in_transaction(self._connection)

    def _check(self) -> None:
        if not in_transaction(self._connection):
            raise not_in_transaction(self.name, HOW)

    def after_commit(self, callback: Callable[[], None]) -> bool:
        if not self._connection.in_atomic_block:
            return False  # Django does not see commits that the user makes by hand
        self._connection.on_commit(callback, robust=True)
        return True


class DjangoPostgres(_Django):
    dialect: ClassVar[Dialect] = "postgresql"

    def identity(self) -> str:
        return self._query(IDENTITY, ())

    def call(self, function: str, *texts: str) -> str:
        self._check()
        return self._query(f"SELECT {function}({', '.join(['%s::text'] * len(texts))})", texts)

    def _query(self, query: str, texts: tuple[str, ...]) -> str:
        with self._connection.cursor() as cursor:
            cursor.execute(query, texts or None)
            return str(cursor.fetchone()[0])


class DjangoSqlite(_Django, SqliteUser):
    def run(self, work: Callable[[sqlite3.Connection], R]) -> R:
        self._check()
        self._connection.ensure_connection()
        raw = self._connection.connection
        if not isinstance(raw, sqlite3.Connection):
            raise UsageError(f"{self.name}: the driver must be sqlite3, not {type(raw).__module__}.")
        return work(raw)
