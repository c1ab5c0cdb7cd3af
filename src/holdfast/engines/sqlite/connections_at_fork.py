"""What a fork means for the connections of this process.

SQLite counts its locks per process, and in memory. A forked child has copies of the counts and none of the locks. If it
opened the file beside its parent's connections, it would believe that it holds locks which only its parent has. When
the last other process closes the file, SQLite removes the log, and what the child writes after that is lost.

So the child must close its parent's connections, all of them, before it opens the file. That is safe only for a
connection that no thread uses: closing one that is in a transaction can damage the shared index of the log. Each user
of a connection therefore holds its lock, `in_use`, and a fork first takes all these locks.

A connection that is in use for longer, such as the transaction of a handler that forks, stays open in the child and is
never closed. The child cannot open that file then: `check` raises an error. The same is true if the program itself has
a connection to the file, which we can neither wait for nor close.
"""

import os
import sqlite3
from weakref import WeakKeyDictionary

from holdfast import forks
from holdfast.engines.sqlite.store_file import identity_of
from holdfast.errors import EngineUnavailable

FORK_PATIENCE_S = 2.0
"""A fork waits this long for connections in use. A batch of commands takes tens of milliseconds."""


class EngineConnection(sqlite3.Connection):
    """A connection of the engine. Statements run only while `in_use` is held."""


class ConnectionsAtFork(forks.AtFork):
    """All connections of the engines of this process."""

    def __init__(self) -> None:
        self._open: WeakKeyDictionary[sqlite3.Connection, tuple[forks.Lock, str]] = WeakKeyDictionary()
        self._idle: dict[sqlite3.Connection, forks.Lock] = {}
        """Between the beginning and the end of a fork: the connections that are not in use, with their locks."""
        self._waited_for: list[sqlite3.Connection] = []
        """Between the beginning and the end of a fork: these, and those that were in use for too long."""
        self._unusable: set[object] = set()
        """In a forked child: files with a connection of the parent that could not be closed."""

    def add(self, db: sqlite3.Connection, path: str) -> None:
        """The lock of the connection is held: its caller uses it."""
        lock = forks.Lock()
        lock.acquire()  # no limit: the lock is new
        self._open[db] = (lock, path)

    def remove(self, db: sqlite3.Connection) -> None:
        """It is closed."""
        self._open.pop(db, None)

    def in_use(self, db: sqlite3.Connection) -> forks.Lock:
        """The lock that is held while the connection is used."""
        return self._open[db][0]

    def check(self, path: str) -> None:
        """Refuse a file that cannot be used in this forked child."""
        if self._unusable and identity_of(path) in self._unusable:
            raise EngineUnavailable(
                f"This process was forked while its parent had a transaction or a connection of its own on {path}. "
                "SQLite cannot be used safely here. Nothing was written. Fork before that, or start the child process "
                "as a new program (the spawn method of multiprocessing)."
            )

    # PF1, PF2
    def before_fork(self) -> None:
        deadline_s = forks.now_s() + FORK_PATIENCE_S
        for db, lock in self._new():
            lent = not isinstance(db, EngineConnection)  # a handler has it, maybe the one that forks
            if lock.acquire(timeout=0 if lent else max(0.0, deadline_s - forks.now_s())):
                self._idle[db] = lock
            self._waited_for.append(db)

    def is_ready(self) -> bool:
        return not self._new()

    def _new(self) -> list[tuple[sqlite3.Connection, forks.Lock]]:
        """The connections that were opened since the beginning of the fork, with their locks."""
        known = set(self._waited_for)
        opened = [db for reference in self._open.keyrefs() if (db := reference()) is not None and db not in known]
        return [(db, entry[0]) for db in opened if (entry := self._open.get(db)) is not None]

    def after_fork_in_parent(self) -> None:
        idle, self._idle, self._waited_for = self._idle, {}, []
        for lock in idle.values():
            lock.release()

    def after_fork_in_child(self) -> None:
        files = {identity_of(path) for _, path in self._open.values()}
        for db in self._open:
            if db in self._idle:
                sqlite3.Connection.close(db)
            else:
                forks.keep_for_ever(db)
        busy_files = {identity_of(path) for db, (_, path) in self._open.items() if db not in self._idle}
        self._idle, self._waited_for, self._open = {}, [], WeakKeyDictionary()
        self._unusable = (self._unusable | busy_files | (files & _open_files())) - {None}


def _open_files() -> set[object]:
    """The identities of all files that this process has open; empty where the system does not say."""
    try:
        return {identity_of(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
    except OSError:
        return set()


CONNECTIONS = ConnectionsAtFork()
forks.call_around(CONNECTIONS)
