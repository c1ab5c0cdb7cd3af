"""The database file of an engine: is it still the file at its path?

A process keeps a database file open. If an operator moves the file away, or puts another one at its path, SQLite goes
on writing into the file that no other process will open again. So every transaction compares the file at the path with
the file that the engine has opened: before it writes, and again before its writes are acknowledged. The log (`…-wal`)
is compared before the acknowledgement, too, because the latest commits are only there.

An engine never changes to the other file by itself: the log may belong to the old one, and SQLite would mix the two.
"""

import os

from holdfast.errors import EngineUnavailable, OutcomeUnknown

Identity = tuple[int, int]
"""Device and inode."""

ADVICE = (
    "This process still has the old file open and cannot use the new one. Stop all processes that use the file, put "
    "the right one there together with its -wal file, and start them again."
)


def identity_of(path: str) -> Identity | None:
    """None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class StoreFile:
    """One per engine, shared by all its connections."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._identity: Identity | None = None
        """None: no connection has been opened."""

    def forget(self) -> None:
        """The engine has been closed. The next connection opens whatever file is there."""
        self._identity = None

    def remember(self, before: Identity | None) -> None:
        """A connection has been opened; `before` is the file at the path before that."""
        found = identity_of(self.path)
        if self._identity is None and before in (None, found):
            self._identity = found
        self.check()

    def check(self) -> None:
        if self._identity is not None and identity_of(self.path) != self._identity:
            raise self.error("")

    def check_after_commit(self) -> None:
        """A write is acknowledged only if other processes can find it."""
        try:
            self.check()
        except EngineUnavailable as error:
            raise self.unknown_outcome() from error

    def unknown_outcome(self) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{self.path} or its log was moved or replaced while this was written. The write is in the old file.",
            verb="commit",
            engine="sqlite",
        )

    def error(self, suffix: str) -> EngineUnavailable:
        file = self.path + suffix
        what = "replaced" if os.path.exists(file) else "moved or removed"
        return EngineUnavailable(f"{file} was {what} while it was in use. Nothing was written. {ADVICE}")


class LogFile:
    """The log of one connection that writes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity: Identity | None = None
        self.was_lost = False
        """The last call of `size` found another file, or none."""

    def size(self) -> int | None:
        """Bytes. None: it is not the file that was here at the first call."""
        size = 0
        found: Identity | None = None
        try:
            status = os.stat(self._path)
            size, found = status.st_size, (status.st_dev, status.st_ino)
        except FileNotFoundError:
            pass
        if self._identity is None:
            self._identity = found
        self.was_lost = found != self._identity
        return None if self.was_lost else size
