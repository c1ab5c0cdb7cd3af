"""A disk with a limited size under a store: writes beyond it fail as on a full disk."""

import errno
import os
from pathlib import Path

from intercepted_files import Call, InterceptedFiles

from holdfast.files import Files
from holdfast.runtime import SystemRuntime


class SmallDisk(InterceptedFiles):
    """The real file system, of which a folder may use so many bytes. Free bytes that others use with `occupy`."""

    def __init__(self, folder: Path, size: int) -> None:
        super().__init__(Files(), folder)
        self._folder = folder
        self._size = size
        self.occupied = 0
        self.before = self._check
        self.after = self._check_allocated

    def free(self) -> int:
        used = sum(os.stat(path).st_size for path in self._folder.rglob("*") if path.is_file())
        return self._size - used - self.occupied

    def free_space(self, path: str | os.PathLike[str]) -> int:
        return max(0, self.free())

    def fill(self, left: int = 0) -> None:
        """Another program takes the free space, but for `left` bytes."""
        self.occupied += self.free() - left

    def clear(self) -> None:
        """That program removes its files."""
        self.occupied = 0

    def _check(self, call: Call) -> None:
        if call.verb == "write" and len(call.data) > self.free():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size_before = self._inner.size(call.path)

    def _check_allocated(self, call: Call) -> None:
        if call.verb == "allocate" and self.free() < 0:
            os.truncate(call.path, self._size_before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def runtime_on(disk: Files) -> SystemRuntime:
    runtime = SystemRuntime()
    runtime.fs = disk
    return runtime
