"""Files on a simulated disk, for one simulated process. Paths that are not below `ROOT` are real."""

import errno
import os
import time
from pathlib import Path

from simulated_disk import DEVICE, SimulatedDisk, SimulatedFile, SimulatedFolder

from holdfast.file_locks import WAIT_STEP_S, FileLock, Gate, LockHolder, gate_error
from holdfast.files import AppendFile, Files, FileStatus, Identity, ReadFile, WriteFile

ROOT = "/simulated"

StrPath = str | os.PathLike[str]


class SimulatedFiles(Files):
    """All instances of one disk see the same files; each has its own openings and locks, as a process does."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.has_ended = False
        if disk.node(ROOT) is None:
            disk.make_folder(ROOT)
            disk.sync_folder("/")

    def kill(self) -> None:
        """The process ends: its locks become free, and its files are closed."""
        with self.disk.changed:
            self.has_ended = True
            self.disk.changed.notify_all()

    # Names

    def exists(self, path: StrPath) -> bool:
        return self.disk.node(text(path)) is not None if is_simulated(path) else super().exists(path)

    def listdir(self, path: StrPath) -> list[str]:
        if not is_simulated(path):
            return super().listdir(path)
        with self.disk.changed:
            return sorted(self.disk.folder(text(path)).live)

    def mkdir(self, path: StrPath) -> None:
        if not is_simulated(path):
            return super().mkdir(path)
        with self.disk.changed:
            if self.disk.node(text(path)) is None:
                self.mkdir(os.path.dirname(text(path)))
                self.disk.make_folder(text(path))
            self.disk.folder(text(path))

    def remove(self, path: StrPath) -> None:
        if not is_simulated(path):
            return super().remove(path)
        with self.disk.changed:
            if self.disk.node(text(path)) is not None:
                self.disk.remove(text(path))

    def rename(self, path: StrPath, new_path: StrPath) -> None:
        if not is_simulated(path):
            return super().rename(path, new_path)
        self.disk.rename(text(path), text(new_path))

    def sync_folder(self, path: StrPath) -> None:
        if not is_simulated(path):
            return super().sync_folder(path)
        self.disk.sync_folder(text(path))

    def status(self, path: StrPath) -> FileStatus | None:
        if not is_simulated(path):
            return super().status(path)
        with self.disk.changed:
            node = self.disk.node(text(path))
            if node is None:
                return None
            identity = DEVICE, node.number
            if isinstance(node, SimulatedFolder):
                return FileStatus(identity, "folder", 0o700, os.getuid(), 0, node.modified_us)
            return FileStatus(identity, "file", 0o600, os.getuid(), len(node.live), node.modified_us)

    def size(self, path: StrPath) -> int:
        if not is_simulated(path):
            return super().size(path)
        status = self.status(path)
        return 0 if status is None else status.size

    def file_system_type(self, path: StrPath) -> str:
        return "ext4" if is_simulated(path) else super().file_system_type(path)

    def private_folder(self, name: str) -> Path:
        """There is none: then engines work without sockets. Many of them are opened in one test."""
        raise OSError(errno.ENOTSUP, "a simulated process has no sockets")

    # Content

    def read_bytes(self, path: StrPath) -> bytes:
        if not is_simulated(path):
            return super().read_bytes(path)
        with self.disk.changed:
            return bytes(self.disk.file(text(path)).live)

    def open_read(self, path: StrPath) -> ReadFile:
        return self._opened(path) if is_simulated(path) else super().open_read(path)

    def open_write(self, path: StrPath) -> WriteFile:
        return self._opened(path) if is_simulated(path) else super().open_write(path)

    def _opened(self, path: StrPath) -> "OpenFile":
        return OpenFile(self, self.disk.file(text(path)))

    def create(self, path: StrPath) -> WriteFile:
        return OpenFile(self, self.disk.make_file(text(path))) if is_simulated(path) else super().create(path)

    def open_append(self, path: StrPath) -> AppendFile:
        if not is_simulated(path):
            return super().open_append(path)
        return OpenAppendFile(self, self._file_or_new(path))

    def _file_or_new(self, path: StrPath) -> SimulatedFile:
        with self.disk.changed:
            if self.disk.node(text(path)) is None:
                return self.disk.make_file(text(path))
            return self.disk.file(text(path))

    # Locks

    def lock(self, path: StrPath) -> FileLock | None:
        if not is_simulated(path):
            return super().lock(path)
        lock = SimulatedGate(self, self._file_or_new(path), text(path), 0.0)
        if lock.try_lock():
            return lock
        lock.close()
        return None

    def gate(self, path: StrPath, timeout_s: float, *, guarded: StrPath) -> Gate:
        if not is_simulated(path):
            return super().gate(path, timeout_s, guarded=guarded)
        return SimulatedGate(self, self._file_or_new(path), text(path), timeout_s)


class OpenFile(WriteFile):
    """An opening of a simulated file. The real class has a number from the kernel; here it is never used."""

    def __init__(self, files: SimulatedFiles, file: SimulatedFile) -> None:
        self._files = files
        self._file = file
        self.fd = file.number

    def _open_file(self) -> SimulatedFile:
        if self.fd < 0 or self._files.has_ended:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._file

    def read_at(self, offset: int, count: int) -> bytes:
        with self._files.disk.changed:
            return bytes(self._open_file().live[offset : offset + count])

    def size(self) -> int:
        return len(self._open_file().live)

    def identity(self) -> Identity:
        return DEVICE, self._open_file().number

    def write_at(self, offset: int, data: bytes) -> None:
        self._files.disk.write(self._open_file(), offset, data)

    def truncate(self, length: int) -> None:
        self._files.disk.resize(self._open_file(), length)

    def allocate(self, length: int) -> None:
        with self._files.disk.changed:
            self._files.disk.resize(self._open_file(), max(length, self.size()))

    def sync(self) -> None:
        self._files.disk.sync(self._open_file())

    def close(self) -> None:
        self.fd = -1


class OpenAppendFile(AppendFile):
    def __init__(self, files: SimulatedFiles, file: SimulatedFile) -> None:
        self._opening = OpenFile(files, file)
        self._disk = files.disk
        self.fd = file.number

    def append(self, data: bytes) -> int:
        with self._disk.changed:
            offset = self._opening.size()
            self._opening.write_at(offset, data)
            return offset

    def size(self) -> int:
        return self._opening.size()

    def truncate(self, length: int) -> None:
        self._opening.truncate(length)

    def allocate(self, length: int) -> None:
        self._opening.allocate(length)

    def sync(self) -> None:
        self._opening.sync()

    def close(self) -> None:
        self._opening.close()


class SimulatedGate(Gate):
    """A lock of a simulated file, with or without waiting."""

    def __init__(self, files: SimulatedFiles, file: SimulatedFile, path: str, timeout_s: float) -> None:
        self._files = files
        self._file = file
        self._path = path
        self.fd = file.number
        self.timeout_s = timeout_s
        self.make_error = lambda: gate_error(path, self.timeout_s)
        self._waiter = None

    def try_lock(self) -> bool:
        with self._files.disk.changed:
            if self.fd < 0 or self._files.has_ended:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            owner = self._file.lock_owner
            if owner is not self and isinstance(owner, SimulatedGate) and not owner._files.has_ended:
                return False
            self._file.lock_owner = self
            return True

    def _take(self, timeout_s: float) -> bool:
        end_s = time.monotonic() + timeout_s
        while True:
            with self._files.disk.changed:
                if self.try_lock():
                    return True
                wait_s = min(WAIT_STEP_S, end_s - time.monotonic())
                if wait_s <= 0:
                    return False
                self._files.disk.changed.wait(wait_s)

    def unlock(self) -> None:
        with self._files.disk.changed:
            if self._file.lock_owner is self:
                self._file.lock_owner = None
                self._files.disk.changed.notify_all()

    def _holder(self) -> LockHolder:
        return LockHolder(0, "", "")

    def close(self) -> None:
        self.unlock()
        self.fd = -1


def is_simulated(path: StrPath) -> bool:
    return text(path) == ROOT or text(path).startswith(ROOT + "/")


def text(path: StrPath) -> str:
    return os.fspath(path)
