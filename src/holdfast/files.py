"""Files, folders and file locks. Use them through `holdfast.runtime`: `runtime.fs` is the only instance in use."""

import errno
import os
import select
import stat
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, NamedTuple

from holdfast import forks
from holdfast.errors import EngineUnavailable, Unsupported
from holdfast.file_locks import OPEN_FLAGS, Descriptor, FileLock, Gate, let_owner_write

# Files are created with mode 0600, folders with 0700. A path whose last part is a symbolic link is not followed:
# another user with write access to the folder could redirect it.

Identity = tuple[int, int]
"""Device and inode."""


def _sync(fd: int) -> None:
    """Write the file to the disk. On macOS a plain fsync leaves the data in the drive's cache."""
    if fd < 0:  # closed, perhaps by another thread; the standard library would raise ValueError
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def _sync_data(fd: int) -> None:
    """The same, without what only describes the file, such as its time. Its length is written, too."""
    if sys.platform == "linux" and fd >= 0:
        os.fdatasync(fd)
    else:
        _sync(fd)


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _allocate(fd: int, length: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, length)
    elif (missing := length - os.fstat(fd).st_size) > 0:
        os.lseek(fd, 0, os.SEEK_END)
        _write_all(fd, bytes(missing))


def discard_unread_output() -> None:
    """If standard output or error is a pipe whose reader has ended, let it go nowhere: each `print` would fail."""
    for fd in (1, 2):
        output = select.poll()
        output.register(fd, 0)
        if any(event & select.POLLERR for _, event in output.poll(0)):
            discard_output(fd)


def discard_output(fd: int) -> None:
    """Let what is written to this descriptor go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, fd)
    os.close(nowhere)


def open_closed_streams() -> None:
    """Replace standard streams that are closed (`>&-`). Else a file of the store could get the number of one, and what
    a library prints would be written into it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the end


class FileStatus(NamedTuple):
    """What the file system says about a path. A symbolic link is not followed."""

    identity: Identity
    kind: Literal["file", "folder", "link", "other"]
    permissions: int
    """Such as 0o600."""
    user: int
    size: int
    modified_us: int
    """On the wall clock."""


class AppendFile(Descriptor):
    """A file that data is only appended to."""

    def append(self, data: bytes) -> int:
        """Append `data`. Answers the offset of its first byte, if no other opening appends at the same time."""
        _write_all(self.fd, data)
        return os.lseek(self.fd, 0, os.SEEK_CUR) - len(data)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def truncate(self, length: int) -> None:
        os.ftruncate(self.fd, length)

    def allocate(self, length: int) -> None:
        """Let the file have at least this many bytes, and occupy them on the disk. New bytes are 0."""
        _allocate(self.fd, length)

    def sync(self) -> None:
        """When this returns, everything that was appended is on the disk."""
        _sync(self.fd)


class ReadFile(Descriptor):
    """A file that is only read. A forked child closes its copy."""

    def __init__(self, path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> None:
        with forks.no_fork:
            super().__init__(os.open(path, flags | OPEN_FLAGS, 0o600))
            forks.call_in_child(self.close)
        if flags & os.O_CREAT:
            let_owner_write(self.fd)

    def read_at(self, offset: int, count: int) -> bytes:
        """These bytes, or fewer where the file ends. Used by one thread at a time."""
        if sys.platform == "win32":
            os.lseek(self.fd, offset, os.SEEK_SET)
            return os.read(self.fd, count)
        return os.pread(self.fd, count, offset)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def identity(self) -> Identity:
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino


class WriteFile(ReadFile):
    """A file that is read, and written at any offset. A forked child closes its copy."""

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all of `data`. After an error any part of it may have been written."""
        rest = memoryview(data)
        while rest:
            if sys.platform == "win32":
                os.lseek(self.fd, offset, os.SEEK_SET)
                written = os.write(self.fd, rest)
            else:
                written = os.pwrite(self.fd, rest, offset)
            offset += written
            rest = rest[written:]

    def truncate(self, length: int) -> None:
        os.ftruncate(self.fd, length)

    def allocate(self, length: int) -> None:
        """Let the file have at least this many bytes, and occupy them on the disk. New bytes are 0."""
        _allocate(self.fd, length)

    def sync(self) -> None:
        """When this returns, everything that was written to the file is on the disk, by other openings, too."""
        _sync_data(self.fd)


class Files:
    """File operations."""

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return os.path.lexists(path)

    def listdir(self, path: str | os.PathLike[str]) -> list[str]:
        return sorted(os.listdir(path))

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Make the folder and its parents. A folder that exists is left as it is."""
        folder = Path(path)
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            self.make_private(folder)

    def make_private(self, folder: str | os.PathLike[str]) -> None:
        """Give all rights on the folder to its owner, and none to others. A new folder may lack some by the umask."""
        if stat.S_IMODE(os.stat(folder, follow_symlinks=False).st_mode) != 0o700:
            os.chmod(folder, 0o700)

    def remove(self, path: str | os.PathLike[str]) -> None:
        """Remove the file. No error if it does not exist."""
        Path(path).unlink(missing_ok=True)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Rename the file. A file at the new path is replaced. Durable only after `sync_folder`."""
        os.replace(path, new_path)

    def status(self, path: str | os.PathLike[str]) -> FileStatus | None:
        """None if nothing is at the path."""
        try:
            found = os.stat(path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        kind: Literal["file", "folder", "link", "other"] = "other"
        if stat.S_ISREG(found.st_mode):
            kind = "file"
        elif stat.S_ISDIR(found.st_mode):
            kind = "folder"
        elif stat.S_ISLNK(found.st_mode):
            kind = "link"
        identity = found.st_dev, found.st_ino
        return FileStatus(
            identity, kind, stat.S_IMODE(found.st_mode), found.st_uid, found.st_size, found.st_mtime_ns // 1000
        )

    def read_bytes(self, path: str | os.PathLike[str]) -> bytes:
        with open(os.open(path, os.O_RDONLY | OPEN_FLAGS), "rb") as file:
            return file.read()

    def write_atomic(self, path: str | os.PathLike[str], data: bytes) -> None:
        """Replace the content. Readers see the old content or the new one, never a part; also after a power failure."""
        target = Path(path)
        temporary = target.with_name(f".{os.urandom(8).hex()}.tmp")
        try:
            with self.create(temporary) as file:
                file.write_at(0, data)
                file.sync()
            self.rename(temporary, target)
        except BaseException:
            self.remove(temporary)
            raise
        self.sync_folder(target.parent)

    def sync_folder(self, path: str | os.PathLike[str]) -> None:
        """Write the folder to the disk. New, renamed and removed files are durable only after this."""
        if sys.platform != "win32":
            with Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | OPEN_FLAGS)) as folder:
                _sync(folder.fd)

    def open_read(self, path: str | os.PathLike[str]) -> ReadFile:
        return ReadFile(path)

    def open_append(self, path: str | os.PathLike[str]) -> AppendFile:
        file = AppendFile(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | OPEN_FLAGS, 0o600))
        let_owner_write(file.fd)
        return file

    def create(self, path: str | os.PathLike[str]) -> WriteFile:
        """Make a new file and open it. `FileExistsError` if something is at the path. Durable only after
        `sync_folder`."""
        return WriteFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def open_write(self, path: str | os.PathLike[str]) -> WriteFile:
        """Open a file that exists."""
        return WriteFile(path, os.O_RDWR)

    def gate(self, path: str | os.PathLike[str], timeout_s: float, *, guarded: str | os.PathLike[str]) -> Gate:
        """Open a gate: all writers of the file `guarded` pass it. A `with` block waits for it, at most `timeout_s`, and
        holds it. On Windows it does not lock."""
        return Gate(path, timeout_s, guarded)

    def private_folder(self, name: str) -> Path:
        """A folder of this user for files that belong to running processes: sockets, records, locks."""
        import tempfile  # slow to import, and rarely used

        base = os.environ.get("XDG_RUNTIME_DIR", "")
        user = os.getuid() if hasattr(os, "getuid") else 0
        root = Path(base) if base and os.access(base, os.W_OK) else Path(tempfile.gettempdir())
        folder = root / f"holdfast-{user}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or (hasattr(os, "getuid") and folder.stat().st_uid != user):
            raise EngineUnavailable(f"{folder} belongs to another user. Remove it, or set XDG_RUNTIME_DIR.")
        (folder / name).mkdir(mode=0o700, exist_ok=True)
        return folder / name

    def temporary_folder(self) -> AbstractContextManager[str]:
        """A new folder, removed at the end of the block."""
        import tempfile

        return tempfile.TemporaryDirectory(prefix="holdfast-", ignore_cleanup_errors=True)

    def size(self, path: str | os.PathLike[str]) -> int:
        """Bytes; 0 if the file does not exist."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return 0

    def free_space(self, path: str | os.PathLike[str]) -> int:
        """Bytes that this user may still write on the file system of `path`."""
        import shutil

        return shutil.disk_usage(path).free

    def file_system_type(self, path: str | os.PathLike[str]) -> str:
        """The type of the file system of `path`, such as `ext4` or `nfs`; empty if the system does not say."""
        try:
            with open("/proc/self/mounts", encoding="utf-8", errors="replace") as table:
                mounts = [line.split(" ")[1:3] for line in table]
        except OSError:
            return ""
        real = os.path.realpath(path)
        containing = [
            (folder, kind) for folder, kind in mounts if real == folder or real.startswith(folder.rstrip("/") + "/")
        ]
        return max(containing, key=lambda mount: len(mount[0]), default=("", ""))[1]

    def lock(self, path: str | os.PathLike[str]) -> FileLock | None:
        """Lock a file, created if missing, against other openings of it. None: it is locked. A forked child has no part
        in the lock."""
        if sys.platform == "win32":
            raise Unsupported("Windows has no file locks of this kind. Use SQLite.", capability="flock", engine="file")
        lock = FileLock(path)
        try:
            if lock.try_lock():
                return lock
        except BaseException:  # a signal handler may have raised it after the file was locked
            lock.close()
            raise
        lock.close()
        return None
