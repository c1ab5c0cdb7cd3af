"""The reserve of a SQLite file, `…-reserve`: see `engines/reserve.py`.

It is at least as large as the pages of the log that the database has no room for yet. When the disk is full, the writer
empties the reserve and moves the log into the database. After that the log starts again from its beginning, in the
space that it has already. So settlements go on, as long as the records hardly grow.
"""

import sqlite3

from holdfast.engines.reserve import STEP_BYTES, SpaceReserve
from holdfast.runtime import Runtime


class Reserve(SpaceReserve):
    """Used by one connection that writes, while it holds the gate."""

    def __init__(self, path: str, runtime: Runtime) -> None:
        super().__init__(path + "-reserve", runtime)
        self._database = path

    def keep_up(self, db: sqlite3.Connection, *, log_has_grown: bool) -> bool:
        """After a commit: make it as large as it must be. False: the disk has no space for that."""
        if not (self.is_check_due() or log_has_grown) or self.in_use:
            return True
        (pages,), (page_bytes,) = db.execute("PRAGMA page_count").fetchone(), db.execute("PRAGMA page_size").fetchone()
        missing = max(0, pages * page_bytes - self._runtime.fs.size(self._database))
        return self.grow(missing + STEP_BYTES)  # the step: for what settlements add to the records

    def has_no_space(self) -> bool:
        """True if a file as large as the log or the database cannot grow: the disk is full, or a quota or a limit of
        the size of files is reached. SQLite reports the last two as a failed write, without the reason."""
        sizes = [self._runtime.fs.size(self._database + suffix) for suffix in ("", "-wal", "-reserve")]
        try:
            with self._runtime.fs.open_append(self.path) as file:
                try:
                    file.allocate(max(sizes) + STEP_BYTES)
                finally:
                    file.truncate(sizes[-1])
        except OSError:
            return True
        return False
