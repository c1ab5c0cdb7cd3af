"""Connections of aiosqlite. Each has a thread of its own; a whole command runs in that thread."""

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from aiosqlite import Connection

from holdfast.transactions.connection import Mode, UserConnection
from holdfast.transactions.sqlite import SqliteUser

R = TypeVar("R")


def adapter_for(transaction: object) -> UserConnection | None:
    return AiosqliteConnection(transaction) if isinstance(transaction, Connection) else None


class AiosqliteConnection(SqliteUser):
    mode = Mode.ASYNC
    name = "aiosqlite connection"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def is_open(self) -> bool:
        try:
            return self._connection.in_transaction
        except (sqlite3.ProgrammingError, ValueError):  # it is closed
            return False

    async def arun(self, work: Callable[[sqlite3.Connection], R]) -> R:
        # aiosqlite has no public method for this; SQLAlchemy uses the same private one.
        run_in_thread: Any = self._connection._execute
        answer: R = await run_in_thread(work, self._connection._conn)
        return answer
