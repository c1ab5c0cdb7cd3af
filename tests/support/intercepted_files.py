"""Files whose changes a test sees one by one: it may let one fail, or end the process before, inside or after it.

Works over the real file system and over a simulated one.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.file_locks import FileLock, Gate
from holdfast.files import AppendFile, Files, FileStatus, Identity, ReadFile, WriteFile

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Call:
    """A change of a file, a folder, or what is durable of them."""

    number: int
    """Counted from 1 over all calls."""
    verb: str
    """create, write, truncate, allocate, sync, rename, remove, mkdir or sync_folder"""
    path: str
    data: bytes
    """What is written; empty for other verbs."""
    write_part: Callable[[int], None]
    """Write this many of the bytes now: for a write that is cut short."""


class InterceptedFiles(Files):
    """Delegates to `inner`. `before` and `after` are called around every change below `root`; `before` may raise."""

    def __init__(self, inner: Files, root: StrPath) -> None:
        self._inner = inner
        self._root = os.fspath(root)
        self.calls = 0
        self.before: Callable[[Call], object] = lambda call: None
        self.after: Callable[[Call], object] = lambda call: None
        self.before_open: Callable[[str], object] = lambda path: None
        """Called with the path before a file is opened, created, listed or locked; may raise."""
        self.before_read: Callable[[str], object] = lambda path: None
        """Called with the path before bytes of a file that was opened with `open_write` are read; may raise."""

    def change(
        self,
        verb: str,
        path: StrPath,
        carry_out: Callable[[], object],
        data: bytes = b"",
        write_part: Callable[[int], None] = lambda count: None,
    ) -> None:
        if not os.fspath(path).startswith(self._root):
            carry_out()
            return
        self.calls += 1
        call = Call(self.calls, verb, os.fspath(path), data, write_part)
        self.before(call)
        carry_out()
        self.after(call)

    # Changes

    def mkdir(self, path: StrPath) -> None:
        if not self._inner.exists(path):
            self.change("mkdir", path, lambda: self._inner.mkdir(path))

    def remove(self, path: StrPath) -> None:
        if self._inner.exists(path):
            self.change("remove", path, lambda: self._inner.remove(path))

    def rename(self, path: StrPath, new_path: StrPath) -> None:
        self.change("rename", new_path, lambda: self._inner.rename(path, new_path))

    def sync_folder(self, path: StrPath) -> None:
        self.before_open(os.fspath(path))
        self.change("sync_folder", path, lambda: self._inner.sync_folder(path))

    def create(self, path: StrPath) -> WriteFile:
        self.before_open(os.fspath(path))
        files: list[WriteFile] = []
        self.change("create", path, lambda: files.append(self._inner.create(path)))
        return InterceptedFile(self, os.fspath(path), files[0])

    def open_write(self, path: StrPath) -> WriteFile:
        self.before_open(os.fspath(path))
        return InterceptedFile(self, os.fspath(path), self._inner.open_write(path))

    def open_append(self, path: StrPath) -> AppendFile:
        self.before_open(os.fspath(path))
        files: list[AppendFile] = []
        if self._inner.exists(path):
            files.append(self._inner.open_append(path))
        else:
            self.change("create", path, lambda: files.append(self._inner.open_append(path)))
        return InterceptedAppendFile(self, os.fspath(path), files[0])

    # The rest changes nothing that a crash can divide

    def exists(self, path: StrPath) -> bool:
        return self._inner.exists(path)

    def listdir(self, path: StrPath) -> list[str]:
        self.before_open(os.fspath(path))
        return self._inner.listdir(path)

    def status(self, path: StrPath) -> FileStatus | None:
        return self._inner.status(path)

    def read_bytes(self, path: StrPath) -> bytes:
        self.before_open(os.fspath(path))
        return self._inner.read_bytes(path)

    def open_read(self, path: StrPath) -> ReadFile:
        self.before_open(os.fspath(path))
        return self._inner.open_read(path)

    def gate(self, path: StrPath, timeout_s: float, *, guarded: StrPath) -> Gate:
        self.before_open(os.fspath(path))
        return self._inner.gate(path, timeout_s, guarded=guarded)

    def lock(self, path: StrPath) -> FileLock | None:
        self.before_open(os.fspath(path))
        return self._inner.lock(path)

    def size(self, path: StrPath) -> int:
        return self._inner.size(path)

    def private_folder(self, name: str) -> Path:
        return self._inner.private_folder(name)

    def free_space(self, path: StrPath) -> int:
        return self._inner.free_space(path)

    def file_system_type(self, path: StrPath) -> str:
        return self._inner.file_system_type(path)


class InterceptedFile(WriteFile):
    def __init__(self, files: InterceptedFiles, path: str, inner: WriteFile) -> None:
        self._files = files
        self._path = path
        self._inner = inner
        self.fd = inner.fd

    def write_at(self, offset: int, data: bytes) -> None:
        self._files.change(
            "write",
            self._path,
            lambda: self._inner.write_at(offset, data),
            bytes(data),
            lambda count: self._inner.write_at(offset, data[:count]),
        )

    def truncate(self, length: int) -> None:
        self._files.change("truncate", self._path, lambda: self._inner.truncate(length))

    def allocate(self, length: int) -> None:
        self._files.change("allocate", self._path, lambda: self._inner.allocate(length))

    def sync(self) -> None:
        self._files.change("sync", self._path, self._inner.sync)

    def read_at(self, offset: int, count: int) -> bytes:
        self._files.before_read(self._path)
        return self._inner.read_at(offset, count)

    def size(self) -> int:
        return self._inner.size()

    def identity(self) -> Identity:
        return self._inner.identity()

    def close(self) -> None:
        self.fd = -1
        self._inner.close()


class InterceptedAppendFile(AppendFile):
    def __init__(self, files: InterceptedFiles, path: str, inner: AppendFile) -> None:
        self._files = files
        self._path = path
        self._inner = inner
        self.fd = inner.fd

    def append(self, data: bytes) -> int:
        offsets: list[int] = []
        self._files.change(
            "write",
            self._path,
            lambda: offsets.append(self._inner.append(data)),
            data,
            lambda count: offsets.append(self._inner.append(data[:count])),
        )
        return offsets[0]

    def truncate(self, length: int) -> None:
        self._files.change("truncate", self._path, lambda: self._inner.truncate(length))

    def allocate(self, length: int) -> None:
        self._files.change("allocate", self._path, lambda: self._inner.allocate(length))

    def sync(self) -> None:
        self._files.change("sync", self._path, self._inner.sync)

    def size(self) -> int:
        return self._inner.size()

    def close(self) -> None:
        self.fd = -1
        self._inner.close()
