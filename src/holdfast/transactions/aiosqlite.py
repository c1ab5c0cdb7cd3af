"""Connections of aiosqlite. Each has a thread of its own, in which the work is done in one go."""

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from aiosqlite import Connection

from holdfast.transactions.connection import Colour, UserConnection
from holdfast.transactions.sqlite import SqliteUser

R = TypeVar("R")


def adapted(given: object) -> UserConnection | None:
    return AiosqliteConnection(given) if isinstance(given, Connection) else None


class AiosqliteConnection(SqliteUser):
    colour = Colour.ASYNC
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
        # There is no public way to its thread; SQLAlchemy goes this one, too.
        in_its_thread: Any = self._connection._execute
        answer: R = await in_its_thread(work, self._connection._conn)
        return answer
