"""The only door to time, chance, threads, processes and files.

Everything above asks a `Runtime` for these, and a lint rule keeps it so. A test or the simulator puts another runtime
in its place and then owns the clock, the dice and the order of events. Importing this module does nothing else.

Instants and durations are int microseconds, instants counted from 1970 UTC. Three clocks, since no single one will do:

* `wall`       what people mean by time. Can be set, and then jumps.
* `boot`       time since the host started, sleep included. Nobody can set it, so leases on one host run on it. It means
               something only together with `boot_id`.
* `monotonic`  for measuring how long something took inside one process.

`clock_offset` is added to `wall` and `boot`, so that a test can move an engine's time without waiting; 0 in production.
"""

import asyncio
import logging
import os
import random
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self, TypeVar, TypeVarTuple

from holdfast.errors import EngineUnavailable, InvalidOption, Unsupported
from holdfast.ulid import ulid

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Stream = int | IO[bytes] | None

_logger = logging.getLogger("holdfast")

DRAWN = 64  # random numbers fetched from the kernel at a time


class Runtime(ABC):
    """What the outside world decides. One instance per process is enough; it may be shared between threads."""

    clock_offset: int = 0
    fs: "Files"

    @abstractmethod
    def wall(self) -> int:
        """Now, by the wall clock."""

    @abstractmethod
    def monotonic(self) -> int:
        """Now, by a clock that only measures."""

    @abstractmethod
    def boot(self) -> int:
        """Time since the host started."""

    @abstractmethod
    def boot_id(self) -> str:
        """Changes whenever the host restarts; never otherwise on Linux and macOS."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    def random(self) -> float:
        """A number in [0, 1)."""

    @abstractmethod
    def token_bytes(self, count: int) -> bytes:
        """Bytes nobody can guess."""

    @abstractmethod
    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run a coroutine beside this one. The task is held until it ends.

        An exception that leaves it is logged, since perhaps nobody waits for it. Whoever does wait gets it as well.
        """

    @abstractmethod
    def thread(self, target: Callable[[], object], *, name: str, daemon: bool = True) -> threading.Thread:
        """A thread, already started."""

    @abstractmethod
    async def run_blocking(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a blocking function in a thread, with the caller's context variables."""

    @abstractmethod
    def process(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        new_session: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start a program. Never through a shell; `env` replaces the environment."""

    def lock(self) -> threading.Lock:
        return threading.Lock()

    def event(self) -> threading.Event:
        return threading.Event()

    def new_id(self) -> str:
        """A ULID: 48 bits of wall time in milliseconds, 80 random bits, 26 characters. It names; it does not order."""
        return ulid(self.wall() // 1000, self.token_bytes(10))

    def new_claim_id(self) -> str:
        """128 random bits as 32 hex digits: names one claim request, and so the leases it takes."""
        return self.token_bytes(16).hex()


class SystemRuntime(Runtime):
    """The real world."""

    def __init__(self) -> None:
        self.fs = Files()
        self._random = random.SystemRandom().random  # draws from the kernel, so forked processes do not draw alike
        self._tasks: set[asyncio.Task[Any]] = set()
        self._boot_id = ""
        self._drawn: dict[int, list[bytes]] = {}  # random bytes not used yet, by length
        self._drawn_by = os.getpid()

    def wall(self) -> int:
        return time.time_ns() // 1000 + self.clock_offset

    def monotonic(self) -> int:
        return time.monotonic_ns() // 1000

    def boot(self) -> int:
        return _boot_ns() // 1000 + self.clock_offset

    def boot_id(self) -> str:
        if not self._boot_id:
            self._boot_id = _read_boot_id()
        return self._boot_id

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def random(self) -> float:
        return self._random()

    def token_bytes(self, count: int) -> bytes:
        if self._drawn_by != os.getpid():  # forked: the parent will use what is left
            self._drawn, self._drawn_by = {}, os.getpid()
        try:
            return (left := self._drawn.setdefault(count, [])).pop()
        except IndexError:  # many at once: at each visit to the kernel the interpreter's lock is let go, and won back
            drawn = os.urandom(count * DRAWN)
            left += [drawn[at : at + count] for at in range(count, len(drawn), count)]
            return drawn[:count]

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("Task %s ended with an error.", task.get_name(), exc_info=error)

    def thread(self, target: Callable[[], object], *, name: str, daemon: bool = True) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=daemon)
        thread.start()
        return thread

    async def run_blocking(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return await asyncio.to_thread(function, *args)

    def process(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        new_session: bool = False,
    ) -> subprocess.Popen[bytes]:
        if isinstance(argv, str) or not argv:
            raise InvalidOption(
                "`argv` must list a program and its arguments; a line of text is refused.", option="argv"
            )
        return subprocess.Popen(
            list(argv), env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=new_session
        )


def _boot_ns() -> int:
    if sys.platform == "linux":
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    elif sys.platform == "darwin":
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)  # unlike time.monotonic there, it counts sleep
    else:
        return time.monotonic_ns()


def _read_boot_id() -> str:
    if sys.platform == "linux":
        source = Path("/proc/sys/kernel/random/boot_id")
        if source.exists():
            return source.read_text(encoding="ascii").strip()
    if sys.platform == "darwin":
        argv = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        answer = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
        if answer:
            return answer
    # Elsewhere: the minute in which the host started. Setting the wall clock changes it; then leases count as expired,
    # which costs a second run and never a second outcome.
    return f"minute-{(time.time_ns() - _boot_ns()) // 60_000_000_000}"


# Files we make belong to their owner alone (0600, folders 0700), and the last part of a path is never followed when it
# is a link: whoever may write to the folder must not be able to lead us elsewhere.

_CLOSED = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def _sync(fd: int) -> None:
    """On the disk, not just on its way: on macOS plain fsync stops at the drive's cache."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


class _Descriptor:
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


class AppendFile(_Descriptor):
    """A file that only grows."""

    def append(self, data: bytes) -> int:
        """Write at the end; answers the offset at which `data` begins if no one else appends meanwhile."""
        _write_all(self.fd, data)
        return os.lseek(self.fd, 0, os.SEEK_CUR) - len(data)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def sync(self) -> None:
        """Everything appended so far is on the disk once this returns."""
        _sync(self.fd)


class FileLock(_Descriptor):
    """A lock held by this open file. The kernel lets go of it when the file is closed or the process ends."""


class Gate(_Descriptor):
    """A file that openings of it take in turns: first come, first served, across threads and processes."""

    def __enter__(self) -> Self:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(self.fd, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(self.fd, fcntl.LOCK_UN)


class Files:
    """The few things done to files, each once and each with care."""

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return os.path.lexists(path)

    def listdir(self, path: str | os.PathLike[str]) -> list[str]:
        return sorted(os.listdir(path))

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """The folder and its parents; one that is there already is left as it is."""
        os.makedirs(path, mode=0o700, exist_ok=True)

    def remove(self, path: str | os.PathLike[str]) -> None:
        """Afterwards the file is not there. No error if it was not before."""
        Path(path).unlink(missing_ok=True)

    def read_bytes(self, path: str | os.PathLike[str]) -> bytes:
        with open(os.open(path, os.O_RDONLY | _CLOSED), "rb") as file:
            return file.read()

    def write_atomic(self, path: str | os.PathLike[str], data: bytes) -> None:
        """Readers, and a machine that loses its power, see the old content or the new one, never a part."""
        target = Path(path)
        draft = target.with_name(f".{os.urandom(8).hex()}.tmp")
        try:
            with _Descriptor(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOSED, 0o600)) as file:
                _write_all(file.fd, data)
                _sync(file.fd)
            os.replace(draft, target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        self.sync_folder(target.parent)

    def sync_folder(self, path: str | os.PathLike[str]) -> None:
        """Make names durable: a new, renamed or removed file is an entry of its folder."""
        if sys.platform != "win32":
            with _Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | _CLOSED)) as folder:
                _sync(folder.fd)

    def open_append(self, path: str | os.PathLike[str]) -> AppendFile:
        return AppendFile(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _CLOSED, 0o600))

    def gate(self, path: str | os.PathLike[str]) -> Gate:
        """An opening of a gate; `with` it to have one's turn. On Windows it holds nobody back."""
        return Gate(os.open(path, os.O_RDWR | os.O_CREAT | _CLOSED, 0o600))

    def private_folder(self, name: str) -> Path:
        """A folder of this user's for things that live as long as processes do: sockets, records, locks."""
        import tempfile  # slow to import, and only needed here

        base = os.environ.get("XDG_RUNTIME_DIR", "")
        user = os.getuid() if hasattr(os, "getuid") else 0
        root = Path(base) if base and os.access(base, os.W_OK) else Path(tempfile.gettempdir())
        folder = root / f"holdfast-{user}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or (hasattr(os, "getuid") and folder.stat().st_uid != user):
            raise EngineUnavailable(f"{folder} belongs to someone else. Remove it, or set XDG_RUNTIME_DIR.")
        (folder / name).mkdir(mode=0o700, exist_ok=True)
        return folder / name

    def size(self, path: str | os.PathLike[str]) -> int:
        """0 where there is no such file."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return 0

    def kind_of_disk(self, path: str | os.PathLike[str]) -> str:
        """The type of the file system that holds `path`, as the system names it; empty where it does not say."""
        try:
            with open("/proc/self/mounts", encoding="utf-8", errors="replace") as table:
                mounts = [line.split(" ")[1:3] for line in table]
        except OSError:
            return ""
        real = os.path.realpath(path)
        holding = [
            (folder, kind) for folder, kind in mounts if real == folder or real.startswith(folder.rstrip("/") + "/")
        ]
        return max(holding, key=lambda mount: len(mount[0]), default=("", ""))[1]

    def lock(self, path: str | os.PathLike[str], *, wait: bool = True) -> FileLock | None:
        """Lock a file, made if need be, against other openings of it. Without `wait`, None if someone holds it.

        The lock belongs to the opening, not to the process: a forked child holds it too, until it closes its copy.
        """
        if sys.platform == "win32":
            raise Unsupported("Windows has no file locks of this kind. Use SQLite.", capability="flock", engine="file")
        else:
            import fcntl

            lock = FileLock(os.open(path, os.O_RDWR | os.O_CREAT | _CLOSED, 0o600))
            try:
                fcntl.flock(lock.fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BaseException as error:
                lock.close()
                if isinstance(error, BlockingIOError):
                    return None
                raise
            return lock
