"""File locks: the record of a living process, and the gate that all writers of a SQLite file pass.

They are locks of the kind `flock`: the kernel releases one when its file is closed or its process ends. The lock
belongs to the opening. So two threads of one process exclude each other, too, and closing another opening of the file
releases nothing, unlike with POSIX locks. A forked child shares the opening: see `forks.py`.
"""

import os
import sys
from typing import Self

from holdfast import forks

OPEN_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class Descriptor:
    """An open file that closes at the end of a `with` block."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileLock(Descriptor):
    """A file, created if missing, that can be locked against other openings of it."""

    def __init__(self, path: str | os.PathLike[str], mode: int = 0o600) -> None:
        with forks.no_fork:
            super().__init__(os.open(path, os.O_RDWR | os.O_CREAT | OPEN_FLAGS, mode))
            forks.call_in_child(self._close_in_child)

    def try_lock(self) -> bool:
        """Lock it. False: another opening has locked it."""
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def unlock(self) -> None:
        if sys.platform != "win32" and self.fd >= 0:
            import fcntl

            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        self.unlock()  # closing is not enough: a child that was forked by C code may have a copy of the descriptor
        super().close()

    def _close_in_child(self) -> None:
        """PF2. Without unlocking, which would release the lock of the parent."""
        super().close()


class Gate(FileLock):
    """A file lock that threads and processes take in the order in which they ask for it."""

    def __enter__(self) -> Self:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(self.fd, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        self.unlock()
