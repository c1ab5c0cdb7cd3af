"""The only access to time, random numbers, threads, processes and files.

All other modules use a `Runtime` for these; a lint rule checks it. A test can pass another runtime and then controls
the clock, the random numbers and the order of events. Importing this module has no effect.

Instants and durations are int microseconds; an instant counts from 1970 UTC. There are three clocks:

* `wall`       the time that people read. It jumps when it is set.
* `boot`       time since the host started, sleep included. It cannot be set, so leases on one host run on it. Two
               values can be compared only if `boot_id` is the same.
* `monotonic`  measures how long something took inside one process.

`clock_offset` (microseconds) is added to `wall` and `boot`, so that a test can move an engine's time; 0 in production.
"""

import _signal  # type: ignore[import-not-found]  # `signal` makes enums of its answers, ten times as slowly
import asyncio
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import IO, Any, NoReturn, Self, TypeVar, TypeVarTuple

from holdfast.errors import InvalidOption
from holdfast.files import Files
from holdfast.ulid import RANDOM_BYTES, ulid

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ThreadCall = Future  # of a blocking function; any thread and any event loop may wait for it
Stream = int | IO[bytes] | None
DISCARD = subprocess.DEVNULL
PIPE = subprocess.PIPE

_logger = logging.getLogger("holdfast")

IDLE_THREAD_S = 5.0
"""A thread for blocking calls ends after this long without a call."""
TOKENS_PER_READ = 64
"""Random tokens per call of the kernel: each call releases the interpreter's lock and waits to get it back."""


class Runtime(ABC):
    """One instance per process is enough; threads may share it."""

    clock_offset: int = 0
    fs: Files

    @abstractmethod
    def wall(self) -> int:
        """The wall clock, in microseconds since 1970 UTC."""

    @abstractmethod
    def monotonic(self) -> int:
        """A clock for durations, in microseconds."""

    @abstractmethod
    def boot(self) -> int:
        """Microseconds since the host started."""

    @abstractmethod
    def boot_id(self) -> str:
        """Changes when the host restarts. On Linux and macOS it never changes otherwise."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    def random(self) -> float:
        """A number in [0, 1)."""

    @abstractmethod
    def token_bytes(self, count: int) -> bytes:
        """Bytes that cannot be guessed."""

    @abstractmethod
    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run a coroutine as a task. The runtime keeps a reference to the task until it ends.

        An exception that leaves the task is logged, because there may be no code that awaits it. Code that does await
        it gets the exception, too.
        """

    @abstractmethod
    def thread(self, target: Callable[[], object], *, name: str, daemon: bool = True) -> threading.Thread:
        """Start a thread."""

    @abstractmethod
    def start_blocking(self, function: Callable[[*Ts], T], *args: *Ts) -> ThreadCall[T]:
        """Call a blocking function in a thread, with the caller's context variables.

        It waits for no other call, unlike `asyncio.to_thread`, whose threads may all be taken by handlers.
        """

    async def run_blocking(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """The same, and wait for its end. If the waiting task is cancelled, the function goes on in its thread."""
        return await asyncio.wrap_future(self.start_blocking(function, *args))

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
        pass_fds: Collection[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a program without a shell. `env` replaces the environment."""

    def lock(self) -> threading.Lock:
        return threading.Lock()

    def event(self) -> threading.Event:
        return threading.Event()

    def thread_id(self) -> int:
        """The number of the calling thread. It is never 0."""
        return threading.get_ident()

    def new_id(self) -> str:
        """A ULID: 48 bits of wall time in milliseconds, 80 random bits, 26 characters. Do not rely on its order."""
        return ulid(self.wall() // 1000, self.token_bytes(RANDOM_BYTES))

    def new_claim_id(self) -> str:
        """128 random bits as 32 hex digits: the name of one claim request, and a part of its lease tokens."""
        return self.token_bytes(16).hex()


def call_later(seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
    """Call a function on the running event loop after this time. For the limits of network calls, on real time."""
    return asyncio.get_running_loop().call_later(seconds, callback)


def end_process(code: int) -> NoReturn:
    """End this process now: without `finally` blocks, and without a wait for its threads."""
    os._exit(code)


class DaemonThreads(ThreadPoolExecutor):
    """An executor with one thread for each call that runs at the same time. Threads are reused and never waited for.

    The standard executor joins its threads when the loop is closed or the process ends: a call that does not return
    would keep the process alive.
    """

    def __init__(self, name: str) -> None:
        super().__init__(max_workers=1)  # the threads of the base class are not used
        self._name = name
        self._forget_threads()

    def _forget_threads(self) -> None:
        self._pid = os.getpid()
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = 0
        self._guard = threading.Lock()

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        if self._pid != os.getpid():  # a forked child has none of the threads
            self._forget_threads()
        future: Future[T] = Future()
        call = partial(_call, future, function, args, kwargs)
        with self._guard:
            reuse = self._idle > 0
            self._idle -= reuse
        if reuse:
            self._queue.put(call)
        else:
            threading.Thread(target=self._work, args=(call,), name=self._name, daemon=True).start()
        return future

    def _work(self, call: Callable[[], None]) -> None:
        while True:
            call()
            del call  # an idle thread must not keep the arguments alive
            with self._guard:
                self._idle += 1
            while True:
                try:
                    call = self._queue.get(timeout=IDLE_THREAD_S)
                    break
                except Empty:
                    with self._guard:
                        if self._idle:  # else a call for this thread is on its way
                            self._idle -= 1
                            return

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing is waited for. Idle threads end by themselves."""


def _call(future: "Future[T]", function: Callable[..., T], args: Any, kwargs: Any) -> None:
    if future.set_running_or_notify_cancel():
        try:
            answer = function(*args, **kwargs)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(answer)


def thread_frames() -> dict[int, FrameType]:
    """The innermost frame of each thread, by the thread's number.

    Without garbage collection: on Python 3.11 a callback of the collector could let another thread run while this call
    holds a lock of the interpreter. If that thread ended just then, the whole process would hang for ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if was_enabled:
            gc.enable()


_SIGNALS_BESIDE_INTERRUPT = tuple(int(number) for number in signal.valid_signals() if number != signal.SIGINT)


def signal_handlers_may_raise() -> bool:
    """True if a signal handler of the program can run in this thread: it is the main one. Python's own handler of
    Ctrl-C does not count: see `DeferredInterrupt`."""
    if threading.get_ident() != threading.main_thread().ident:
        return False
    on_interrupt = _signal.getsignal(signal.SIGINT)
    return (callable(on_interrupt) and on_interrupt is not signal.default_int_handler) or any(
        map(callable, map(_signal.getsignal, _SIGNALS_BESIDE_INTERRUPT))
    )


class DeferredInterrupt:
    """A block in which Ctrl-C calls a function, and raises KeyboardInterrupt at the end of the block.

    Raised at any line, the error could appear inside a driver that is written in C and does not expect it, or inside an
    event loop, which then cannot be used again. In other threads than the main one, and with another signal handler, it
    has no effect.
    """

    def __init__(self) -> None:
        self._installed = False
        self._interrupted = False
        self._callback: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        if (
            threading.get_ident() == threading.main_thread().ident
            and _signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            with suppress(ValueError):  # a second interpreter in this process has no signals
                _signal.signal(signal.SIGINT, self._handle)
                self._installed = True
        return self

    def call(self, callback: Callable[[], object]) -> None:
        """What Ctrl-C calls, from now on; at once, if it has come already."""
        self._callback = callback
        if self._interrupted:
            callback()

    def if_in_block(self, function: Callable[[], object]) -> None:
        """Call a function, but not after the block."""
        if self._callback is not None:
            function()

    def _handle(self, number: int, frame: object) -> None:
        self._interrupted = True
        if self._callback is not None:
            self._callback()

    def __exit__(self, *_: object) -> None:
        self._callback = None
        if self._installed:
            _signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._interrupted:
            raise KeyboardInterrupt


class SystemRuntime(Runtime):
    """The runtime of production: the clocks, threads and files of the operating system."""

    def __init__(self) -> None:
        self.fs = Files()
        self._random = random.SystemRandom().random  # reads from the kernel, so forked processes get different numbers
        self._tasks: set[asyncio.Task[Any]] = set()
        self._blocking_calls = DaemonThreads("holdfast blocking call")
        self._boot_id = ""
        self._unused_tokens: dict[int, list[bytes]] = {}  # by length
        self._unused_tokens_pid = os.getpid()

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
        if self._unused_tokens_pid != os.getpid():  # after a fork: the parent process will use the tokens that are left
            self._unused_tokens, self._unused_tokens_pid = {}, os.getpid()
        try:
            return self._unused_tokens[count].pop()
        except (KeyError, IndexError):
            fetched = os.urandom(count * TOKENS_PER_READ)
            unused = self._unused_tokens.setdefault(count, [])
            unused += [fetched[start : start + count] for start in range(count, len(fetched), count)]
            return fetched[:count]

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("Task %s ended with an error.", task.get_name(), exc_info=error)

    def thread(self, target: Callable[[], object], *, name: str, daemon: bool = True) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=daemon)
        thread.start()
        return thread

    def start_blocking(self, function: Callable[[*Ts], T], *args: *Ts) -> ThreadCall[T]:
        return self._blocking_calls.submit(copy_context().run, function, *args)

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
        pass_fds: Collection[int] = (),
    ) -> subprocess.Popen[bytes]:
        if isinstance(argv, str) or not argv:
            raise InvalidOption("`argv` must be a list of a program and its arguments, not one string.", option="argv")
        return subprocess.Popen(
            list(argv),
            env=env,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=new_session,
            pass_fds=tuple(pass_fds),
        )


def _boot_ns() -> int:
    if sys.platform == "linux":
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    elif sys.platform == "darwin":
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)  # on macOS, unlike time.monotonic, it counts sleep
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
    # On other systems: the minute in which the host started. If the wall clock is set, it changes, and leases count as
    # expired. That costs a second run of a job, never a second outcome.
    return f"minute-{(time.time_ns() - _boot_ns()) // 60_000_000_000}"
