"""Space that is kept free for a full disk: then no job is accepted, but those that are stored can still be settled.

The reserve is a file beside the database, `…-reserve`. It is at least as large as the pages of the log that the
database has no room for yet. When the disk is full, the writer empties the file and moves the log into the database.
After that the log starts again from its beginning, in the space that it has already. So settlements go on, as long as
the records hardly grow.

An empty file says that the reserve is in use. While it is, every process refuses to enqueue and tries to fill the file
again. A reserve holds no data: it may be removed at any time.
"""

import os
import sqlite3
from contextlib import suppress

from holdfast.runtime import Runtime

SLACK_BYTES = 256 * 1024
"""Beside the pages of the log: for what settlements add to the records."""
TRANSACTIONS_PER_CHECK = 100
"""Transactions after which the size of the reserve is checked, if the log did not grow."""
REFILL_INTERVAL_US = 1_000_000
"""Pause between two tries to fill it again."""


class Reserve:
    """Used by one connection that writes, while it holds the gate."""

    def __init__(self, path: str, runtime: Runtime) -> None:
        self._database = path
        self._path = path + "-reserve"
        self._runtime = runtime
        self._transactions = TRANSACTIONS_PER_CHECK
        self._refill_at_us = 0
        self.in_use = False
        """This connection has emptied it, and no connection of this process has filled it since."""

    def keep_up(self, db: sqlite3.Connection, *, log_has_grown: bool) -> bool:
        """After a commit: make it as large as it must be. False: the disk has no space for that."""
        self._transactions += 1
        if (self._transactions < TRANSACTIONS_PER_CHECK and not log_has_grown) or self.in_use:
            return True
        self._transactions = 0
        (pages,), (page_bytes,) = db.execute("PRAGMA page_count").fetchone(), db.execute("PRAGMA page_size").fetchone()
        missing = max(0, pages * page_bytes - os.stat(self._database).st_size)
        return self._grow(missing + SLACK_BYTES)

    def _grow(self, wanted_bytes: int) -> bool:
        if wanted_bytes <= self._runtime.fs.size(self._path):  # another process may have emptied it
            return True
        wanted_bytes = -(-wanted_bytes // SLACK_BYTES) * SLACK_BYTES
        try:
            with self._runtime.fs.open_append(self._path) as file:
                file.allocate(wanted_bytes)
        except OSError:
            return False
        return True

    def release(self) -> None:
        """The disk is full: give its space to the database."""
        self.in_use = True
        with suppress(OSError), self._runtime.fs.open_append(self._path) as file:
            file.truncate(0)

    def is_released(self) -> bool:
        """True while the disk is full: the file is empty and cannot be filled again."""
        if not self.in_use and not _is_empty(self._path):
            return False
        now_us = self._runtime.monotonic()
        if now_us < self._refill_at_us:
            return True
        self._refill_at_us = now_us + REFILL_INTERVAL_US
        self.in_use = not self._grow(SLACK_BYTES)
        return self.in_use

    def has_no_space(self) -> bool:
        """True if a file as large as the log or the database cannot grow: the disk is full, or a quota or a limit of
        the size of files is reached. SQLite reports the last two as a failed write, without the reason."""
        sizes = [self._runtime.fs.size(self._database + suffix) for suffix in ("", "-wal", "-reserve")]
        try:
            with self._runtime.fs.open_append(self._path) as file:
                try:
                    file.allocate(max(sizes) + SLACK_BYTES)
                finally:
                    file.truncate(sizes[-1])
        except OSError:
            return True
        return False


def _is_empty(path: str) -> bool:
    try:
        return os.stat(path).st_size == 0
    except OSError:
        return False
