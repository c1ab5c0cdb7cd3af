"""A connection with the named statements, and the numbers of queue and task names."""

import sqlite3
from collections.abc import Mapping
from typing import Any


class Database:
    """Runs statements by name. Numbers of names never change once committed, so they are remembered."""

    def __init__(self, connection: sqlite3.Connection, sql: Mapping[str, str]) -> None:
        self.connection = connection
        self.sql = sql
        self.written = False
        self._queues: dict[str, int] = {}
        self._tasks: dict[str, int] = {}

    def many(self, name: str, rows: list[Any]) -> None:
        if rows:
            self.written = True
            self.connection.executemany(self.sql[name], rows)

    def write(self, name: str, *values: object) -> None:
        self.written = True
        self.connection.execute(self.sql[name], values)

    def rows(self, name: str, *values: object) -> list[Any]:
        return self.connection.execute(self.sql[name], values).fetchall()

    def one(self, name: str, *values: object) -> Any | None:
        return self.connection.execute(self.sql[name], values).fetchone()

    def version(self) -> int:
        """Another number than last time if another connection has written in between."""
        return int(self.connection.execute("PRAGMA data_version").fetchone()[0])

    # Numbers of names

    def forget_numbers(self) -> None:
        """After a rollback: some may never have been written."""
        self._queues.clear()
        self._tasks.clear()

    def known_queue(self, name: str) -> int:
        """The number of a queue; 0 for one that does not exist."""
        return self._queues.get(name) or self._look_up(self._queues, "queue_number", name)

    def known_task(self, name: str) -> int:
        """The number of a task; 0 for one that does not exist."""
        return self._tasks.get(name) or self._look_up(self._tasks, "task_number", name)

    def _look_up(self, numbers: dict[str, int], statement: str, name: str) -> int:
        row = self.one(statement, name)
        if row is None:
            return 0
        numbers[name] = int(row[0])
        return numbers[name]

    def queue_number(self, name: str) -> int:
        """The number of a queue, which is given one if it has none."""
        number = self.known_queue(name)
        if not number:
            self.write("add_queue", name)
            number = self.known_queue(name)
        return number

    def task_number(self, name: str) -> int:
        """The number of a task, which is given one if it has none."""
        number = self.known_task(name)
        if not number:
            self.write("add_task", name)
            number = self.known_task(name)
        return number
