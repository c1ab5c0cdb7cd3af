"""File locks: the record of a living process, and the gate that all writers of a SQLite file pass.

They are locks of the kind `flock`: the kernel releases one when its file is closed or its process ends. The lock
belongs to the opening. So two threads of one process exclude each other, too, and closing another opening of the file
releases nothing, unlike with POSIX locks. A forked child shares the opening: see `forks.py`.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple, Self

from holdfast import forks
from holdfast.errors import EngineUnavailable

OPEN_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


WAIT_STEP_S = 0.5
"""A waiting caller reads the limit of its wait again after this time."""


def let_owner_write(fd: int) -> None:
    """A file was opened that may be new: undo what an unusual umask took from its owner."""
    if sys.platform != "win32":
        status = os.fstat(fd)
        if status.st_mode & 0o600 != 0o600 and status.st_uid == os.geteuid():
            os.fchmod(fd, status.st_mode & 0o777 | 0o600)


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
        let_owner_write(self.fd)

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
    """A file lock that threads and processes wait for, in about the order of their requests, for a limited time.

    A free gate costs one system call. If another opening has it, a thread of the gate waits for it in the kernel, since
    that wait has no limit, and the caller waits for the thread. Used by one thread at a time; another one may close it,
    which ends the wait.
    """

    def __init__(self, path: str | os.PathLike[str], timeout_s: float, guarded: str | os.PathLike[str]) -> None:
        """`guarded` is the file behind the gate: a user who may write to it may pass the gate."""
        super().__init__(path)
        self.path = os.fspath(path)
        self.timeout_s = timeout_s
        """May be lowered by another thread during a wait."""
        self.make_error: Callable[[], EngineUnavailable] = lambda: gate_error(self.path, self.timeout_s)
        """The error after a whole wait."""
        self._waiter: _KernelWaiter | None = None
        if sys.platform != "win32":
            self._allow_writers_of(guarded)

    def _allow_writers_of(self, guarded: str | os.PathLike[str]) -> None:
        """Give each class of users read and write rights if it has write rights for `guarded`, and else none.

        Users who may only read get none: a process that can open the gate can lock it.
        """
        try:
            file = os.stat(guarded)
        except FileNotFoundError:
            return  # not created yet: only we may pass until the next opening
        writers = file.st_mode & 0o222
        mode, gate = writers | writers << 1, os.fstat(self.fd)
        if os.geteuid() == 0 and (gate.st_uid, gate.st_gid) != (file.st_uid, file.st_gid):
            os.fchown(self.fd, file.st_uid, file.st_gid)  # as SQLite does with its own files
        if os.geteuid() in (0, gate.st_uid) and gate.st_mode & 0o777 != mode:
            os.fchmod(self.fd, mode)

    # PF1
    def __enter__(self) -> Self:
        """`EngineUnavailable` if it is not free within the limit. The text names the holder."""
        try:
            if not self._take(self.timeout_s):
                raise self.make_error()
        except BaseException:  # a signal handler may have raised it after the lock was taken
            self.unlock()
            raise
        return self

    def _take(self, timeout_s: float) -> bool:
        waiter = self._waiter
        if (waiter is None or not waiter.is_waiting) and self.try_lock():
            return True
        if waiter is None:
            waiter = self._waiter = _KernelWaiter(self.fd)
        began_s = time.monotonic()
        while not waiter.wait(min(WAIT_STEP_S, timeout_s)):
            if waiter.has_ended or time.monotonic() - began_s >= min(timeout_s, self.timeout_s):
                return False
        return True

    def __exit__(self, *_: object) -> None:
        self.unlock()

    def blocked_by(self, patience_s: float) -> str:
        """Which process keeps it, in words: one that is stopped, or one that keeps it for `patience_s`. Else empty."""
        if not self.try_lock():
            holder = self._holder()
            if holder.is_stopped or not self._take(patience_s):
                return str(holder)
        self.unlock()
        return ""

    def _holder(self) -> "LockHolder":
        return LockHolder.of(self.path)

    def close(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.end():
            super().close()
        else:
            self.fd = -1  # the waiter closes it

    def _close_in_child(self) -> None:
        self._waiter = None  # its thread does not exist in the child
        super()._close_in_child()


class _KernelWaiter:
    """A thread that waits in the kernel for a lock, and hands it to the thread that waits here.

    If that one stops waiting, the thread stays in the kernel's queue. When it gets the lock, it gives it to the next
    caller of `wait`, or back.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._changes = threading.Lock()
        self._handed_over = threading.Semaphore(0)
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self.is_waiting = False
        """The thread is in the kernel's queue."""
        self._wanted = False
        self.has_ended = False
        """`end` was called."""
        self._error: OSError | None = None
        """Of the latest wait in the kernel."""
        threading.Thread(target=self._main, name="holdfast-gate", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """True: the caller has the lock."""
        with self._changes:
            if self.has_ended:
                return False
            self._wanted = True
            if not self.is_waiting:
                self.is_waiting = True
                self._requests.put(True)
        try:
            received = self._handed_over.acquire(timeout=timeout_s) or self._stop_waiting()
        except BaseException:  # a signal handler has raised it
            if self._stop_waiting():
                _flock(self._fd, unlock=True)
            raise
        if received and self._error is not None:
            raise self._error
        return received

    def _stop_waiting(self) -> bool:
        """True: the lock was handed over in the meantime."""
        with self._changes:
            self._wanted = False
            return self._handed_over.acquire(blocking=False)

    def end(self) -> bool:
        """End the thread. True: the caller closes the file. False: the thread closes it, after its wait."""
        with self._changes:
            self._wanted = False
            self.has_ended = True
            self._requests.put(False)
            return not self.is_waiting

    def _main(self) -> None:
        while self._requests.get():  # no limit: `end` puts False
            error: OSError | None = None
            try:
                _flock(self._fd)
            except OSError as caught:
                error = caught
            with self._changes:
                wanted, self._wanted = self._wanted, False
                self._error = error
                if not wanted and error is None:
                    _flock(self._fd, unlock=True)  # also before closing: a forked child may have a copy of the file
                self.is_waiting = False  # after unlocking: from now on the caller may lock the file itself
                if wanted:
                    self._handed_over.release()
                elif self.has_ended:
                    os.close(self._fd)


def _flock(fd: int, *, unlock: bool = False) -> None:
    if sys.platform != "win32":
        import fcntl

        # no limit: this thread is here to wait; the caller waits for it with a limit
        fcntl.flock(fd, fcntl.LOCK_UN if unlock else fcntl.LOCK_EX)


def gate_error(path: str, waited_s: float, reason: str = "") -> EngineUnavailable:
    """The error after a wait for a gate: it names the holder."""
    words = (f"{path} was locked for {waited_s:g} s, so nothing was written.", reason, str(LockHolder.of(path)))
    return EngineUnavailable(" ".join(filter(None, words)))


class LockHolder(NamedTuple):
    """The process that holds a lock. `pid` is 0 if the system does not say."""

    pid: int
    program: str
    state: str
    """The letter of `/proc/PID/stat`: T is stopped, D waits for a device. Empty if the process has ended."""

    @classmethod
    def of(cls, path: str) -> "LockHolder":
        """The holder of a lock of the kind `flock`."""
        return cls._found(path, "FLOCK", 0)

    @classmethod
    def of_byte(cls, path: str, byte: int) -> "LockHolder":
        """The holder of a POSIX lock for writing on this byte.

        The file must not be opened to find out: when a process closes a file, it loses all its POSIX locks on it.
        """
        return cls._found(path, "POSIX", byte)

    @classmethod
    def _found(cls, path: str, kind: str, byte: int) -> "LockHolder":
        try:
            status = os.stat(path)
            device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
            with open("/proc/locks", encoding="ascii", errors="replace") as table:
                lines = [line.split() for line in table]
        except OSError:  # no such file on macOS
            return cls(0, "", "")
        # 3: FLOCK  ADVISORY  WRITE 13862 fe:00:2146570 0 EOF; a line of a waiting process has an arrow after the number
        for line in lines:
            if line[1] == kind and line[3] == "WRITE" and line[5] == f"{device}:{status.st_ino}":
                first, last = int(line[6]), line[7]
                if first <= byte and (last == "EOF" or byte <= int(last)):
                    pid = int(line[4])
                    return cls.of_process(pid) if pid > 0 else cls(0, "", "")
        return cls(0, "", "")

    @classmethod
    def of_process(cls, pid: int) -> "LockHolder":
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                before, _, after = file.read().rpartition(")")
        except OSError:
            return cls(pid, "", "")
        return cls(pid, before.partition("(")[2], after.split()[0])

    @property
    def is_this_process(self) -> bool:
        return self.pid == os.getpid()

    @property
    def is_stopped(self) -> bool:
        return self.state in ("T", "t")

    def __str__(self) -> str:
        process = f"Process {self.pid} ({self.program})"
        if self.pid == 0:
            return "Another process holds it. Find the process that is stopped or has a long transaction."
        if self.is_this_process:
            return "A transaction of this process holds it. Do slow things before `ctx.transaction()` or `ctx.tx`."
        if self.is_stopped:
            return f"{process} holds it and is stopped. Continue it with `kill -CONT {self.pid}`, or end it."
        if self.state in ("", "Z", "X"):
            return f"Process {self.pid} took it and has ended; a child of it that still runs holds it. End the child."
        return f"{process} holds it and runs: its transaction is long, or its disk or another program makes it wait."
