"""A connection that runs statements by name, and the numbers that stand for queue and task names."""

import sqlite3
from collections.abc import Mapping
from typing import Any

NO_NUMBER = 0
"""Instead of the number of a name that is not stored. SQLite numbers rows from 1."""


class Database:
    """Runs statements by name. Caches the numbers of names, also that a name has none."""

    def __init__(self, connection: sqlite3.Connection, sql: Mapping[str, str]) -> None:
        self.connection = connection
        self.sql = sql
        self.written = False
        """True if the transaction has written something."""
        self._queue_numbers: dict[str, int] = {}
        self._task_numbers: dict[str, int] = {}

    def many(self, statement: str, rows: list[Any]) -> None:
        if rows:
            self.written = True
            self.connection.executemany(self.sql[statement], rows)

    def write(self, statement: str, *values: object) -> None:
        self.written = True
        self.connection.execute(self.sql[statement], values)

    def rows(self, statement: str, *values: object) -> list[Any]:
        return self.connection.execute(self.sql[statement], values).fetchall()

    def one(self, statement: str, *values: object) -> Any | None:
        return self.connection.execute(self.sql[statement], values).fetchone()

    def data_version(self) -> int:
        """A number that changes when another connection commits a write."""
        return int(self.connection.execute("PRAGMA data_version").fetchone()[0])

    # Numbers of names

    def forget_numbers(self) -> None:
        self._queue_numbers.clear()
        self._task_numbers.clear()

    def queue_number(self, name: str) -> int:
        """The number of a queue; `NO_NUMBER` if the queue does not exist."""
        number = self._queue_numbers.get(name)
        return self._look_up(self._queue_numbers, "queue_number", name) if number is None else number

    def task_number(self, name: str) -> int:
        """The number of a task; `NO_NUMBER` if no job of it was ever stored."""
        number = self._task_numbers.get(name)
        return self._look_up(self._task_numbers, "task_number", name) if number is None else number

    def _look_up(self, numbers: dict[str, int], statement: str, name: str) -> int:
        row = self.one(statement, name)
        numbers[name] = number = NO_NUMBER if row is None else int(row[0])
        return number

    def add_queue_number(self, name: str) -> int:
        """The number of a queue. If it has none, it gets one."""
        number = self.queue_number(name)
        if number == NO_NUMBER:
            self.write("add_queue", name)
            number = self._look_up(self._queue_numbers, "queue_number", name)
        return number

    def drop_queue_number(self, name: str) -> None:
        """Remove a queue that has no jobs. RM3: its number is not used again."""
        number = self.queue_number(name)
        self.write("drop_counts", number)
        self.write("drop_queue_record", number)
        self.write("drop_queue", number, number)
        self._queue_numbers.pop(name, None)

    def add_task_number(self, name: str) -> int:
        """The number of a task. If it has none, it gets one."""
        number = self.task_number(name)
        if number == NO_NUMBER:
            self.write("add_task", name)
            number = self._look_up(self._task_numbers, "task_number", name)
        return number
