"""Connections of the standard library's `sqlite3`, and what all drivers of SQLite share."""

import os
import re
import sqlite3
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, Self, TypeVar

from holdfast.errors import UsageError
from holdfast.transactions.connection import Dialect, Mode, UserConnection

R = TypeVar("R")

LEGACY = -1
"""Value of `Connection.autocommit` if the driver itself begins a transaction before the first statement that writes."""


def adapter_for(transaction: object) -> UserConnection | None:
    if isinstance(transaction, OwnConnection):
        return transaction.user
    return Sqlite3Connection(transaction) if isinstance(transaction, sqlite3.Connection) else None


def main_file(db: sqlite3.Connection) -> str:
    """The file of the connection's main database; empty if it is in memory."""
    for _, name, file in sqlite3.Cursor(db).execute("PRAGMA database_list").fetchall():
        if name in ("main", b"main"):
            return os.fsdecode(file) if file else ""
    return ""


def file_identity(file: str) -> str:
    """The same text for every path to the file; empty if there is no file."""
    try:
        status = os.stat(file)
    except OSError:
        return ""
    return f"{status.st_dev}:{status.st_ino}"


def has_to_begin(db: sqlite3.Connection) -> bool:
    """True if the driver would begin a transaction with the next statement that writes. False: it is in one.

    `UsageError` if neither: nothing would be atomic.
    """
    if db.in_transaction:
        return False
    if getattr(db, "autocommit", LEGACY) == LEGACY and db.isolation_level is not None:
        return True
    raise UsageError(
        "This SQLite connection is in no transaction: each statement would commit by itself, and nothing would be "
        'atomic. Begin one first: connection.execute("BEGIN IMMEDIATE").'
    )


class SqliteUser(UserConnection):
    """Shared by all adapters around a `sqlite3` connection."""

    dialect: ClassVar[Dialect] = "sqlite"

    def identity(self) -> str:
        return file_identity(self.run(main_file))

    async def aidentity(self) -> str:
        return file_identity(await self.arun(main_file))


class Sqlite3Connection(SqliteUser):
    mode = Mode.SYNC
    name = "sqlite3 connection"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @property
    def is_open(self) -> bool:
        try:
            return self._connection.in_transaction
        except sqlite3.ProgrammingError:  # it is closed
            return False

    def run(self, work: Callable[[sqlite3.Connection], R]) -> R:
        return work(self._connection)


class OwnConnection(sqlite3.Connection):
    """A connection of the engine for a handler's use. It is in a transaction, which only the engine ends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = OwnUser(self)
        self.revoked: str = ""
        """Not empty: the connection must not be used any more, for this reason."""

    def cursor(self, factory: Any = None) -> Any:
        self._check()
        return super().cursor(factory or _OwnCursor)

    def execute(self, *args: Any, **kwargs: Any) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor()
        return cursor.execute(*args, **kwargs)

    def executemany(self, *args: Any, **kwargs: Any) -> sqlite3.Cursor:
        self._check()
        return super().executemany(*args, **kwargs)

    def _check(self) -> None:
        if self.revoked:
            raise UsageError(self.revoked)

    def commit(self) -> NoReturn:
        self._refuse()

    def rollback(self) -> NoReturn:
        self._refuse()

    def close(self) -> NoReturn:
        self._refuse()

    def __enter__(self) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UsageError(
            "This transaction ends with its job: it commits when the handler returns and rolls back when it raises. "
            "Leave out commit(), rollback() and close()."
        )

    def really_close(self) -> None:
        """For the engine."""
        super().close()


class _OwnCursor(sqlite3.Cursor):
    """Reports savepoints, because a callback is dropped with the savepoint in which it was registered."""

    def execute(self, sql: str, *args: Any) -> Self:
        found = _SAVEPOINT_STATEMENT.match(sql)
        super().execute(sql, *args)
        if found and isinstance(self.connection, OwnConnection):
            verb, name = found[1].upper(), found[2].strip("\"`[]'").lower()
            self.connection.user.note_savepoint(verb, name)
        return self


_SAVEPOINT_STATEMENT = re.compile(
    r"\s*(SAVEPOINT|RELEASE|ROLLBACK)\s+(?:TRANSACTION\s+)?(?:TO\s+)?(?:SAVEPOINT\s+)?([^\s;]+)", re.IGNORECASE
)


class OwnUser(SqliteUser):
    """It holds the write lock already, so its statements do not wait: it may be used on an event loop, too."""

    mode = Mode.BOTH
    name = "transaction of the store"

    def __init__(self, connection: OwnConnection) -> None:
        self._connection = connection
        self.callbacks: list[Callable[[], None]] = []
        self._savepoints: list[tuple[str, int]] = []
        """The open savepoints, each with the number of callbacks at its beginning."""

    @property
    def is_open(self) -> bool:
        return Sqlite3Connection(self._connection).is_open

    def note_savepoint(self, verb: str, name: str) -> None:
        """A savepoint was begun, released or rolled back to."""
        if verb == "SAVEPOINT":
            self._savepoints.append((name, len(self.callbacks)))
            return
        while self._savepoints:  # the latest of that name; those inside it end with it
            latest, count = self._savepoints.pop()
            if latest == name:
                if verb == "ROLLBACK":
                    del self.callbacks[count:]
                    self._savepoints.append((latest, count))
                return

    def run(self, work: Callable[[sqlite3.Connection], R]) -> R:
        return work(self._connection)

    async def arun(self, work: Callable[[sqlite3.Connection], R]) -> R:
        return work(self._connection)

    def after_commit(self, callback: Callable[[], None]) -> bool:
        self.callbacks.append(callback)
        return True
