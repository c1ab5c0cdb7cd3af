"""The app of the isolation tests: handlers that end their process, or do it harm, in every way that a test needs.

`ISOLATED_URL` is the store, as most users name it: `App(os.environ["..."])` at the top of their module.
"""

import asyncio
import ctypes
import multiprocessing
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from holdfast import App, Context

jobs: App[Any] = App(os.environ["ISOLATED_URL"])
FOLDER = Path(os.environ["ISOLATED_FOLDER"])
LEASE_S = 3
MIB = 1 << 20
GARBAGE = (b"\xff" * 64, b"\0" * 64, b"\0\0\0\x10" + b"x" * 16, b"\x00\x00\x03\xe8half a frame")


def note(name: str, *words: object) -> None:
    """One line in a file of this name, written at once."""
    log = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, (" ".join(map(str, words)) + "\n").encode())
    os.close(log)


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def wait_for_ever() -> None:
    while True:
        pause(60)


def sockets() -> list[int]:
    """The descriptors of this process that are sockets."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.append(int(name))
        except OSError:  # the listing itself
            continue
    return found


# --- The process dies ---


@jobs.task(isolate="process", max_losses=1, lease=LEASE_S)
def segfaults() -> None:
    ctypes.string_at(0)


@jobs.task(isolate="process", max_losses=1, lease=LEASE_S)
def exits(code: int) -> None:
    os._exit(code)


@jobs.task(isolate="process", max_losses=1, lease=LEASE_S)
def aborts() -> None:
    os.abort()


@jobs.task(isolate="process", max_losses=1, lease=LEASE_S)
def is_killed(number: int) -> None:
    """As by the kernel when memory is short, or by an operator."""
    os.kill(os.getpid(), number)


@jobs.task(isolate="process", max_losses=1, lease=LEASE_S)
def waits_for_a_kill() -> None:
    note("victim", os.getpid())
    wait_for_ever()


@jobs.task(isolate="process", max_losses=1, lease=LEASE_S)
def overflows_the_stack() -> str:
    """The stack of C: each level of a nested list is a call in C, and the limit of levels is off."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(1 << 30)
    nested: list[Any] = []
    for _ in range(1_000_000):
        nested = [nested]
    return repr(nested)


@jobs.task(isolate="process", max_losses=1, lease=LEASE_S, memory_limit=512 * MIB)
def writes_where_malloc_found_nothing() -> None:
    malloc = ctypes.CDLL(None).malloc
    malloc.restype = ctypes.c_void_p
    ctypes.memset(malloc(ctypes.c_size_t(4096 * MIB)) or 0, 1, 1)


@jobs.task(isolate="process", max_losses=1, lease=LEASE_S)
def forks_and_exits(code: int) -> None:
    """The grandchild has a copy of the socket, so the worker sees no end of the stream."""
    pid = os.fork()
    if pid == 0:
        pause(120)  # longer than the test waits; a planted bug must not leave it for ever
        os._exit(0)
    note("grandchildren", pid)  # here: it may be killed before it gets a processor
    os._exit(code)


@jobs.task(isolate="process", max_losses=1, lease=LEASE_S)
async def exits_in_a_task() -> None:
    """SystemExit ends the event loop on which the handler waits."""
    async with asyncio.TaskGroup() as group:
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        group.create_task(asyncio.Event().wait())


@jobs.task(isolate="process", max_losses=1, lease=LEASE_S)
async def stops_its_event_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.Event().wait()


# --- The process lives, and its connection does not ---


@jobs.task(isolate="process", max_losses=1, lease=LEASE_S)
def closes_its_sockets() -> int:
    for descriptor in sockets():
        os.close(descriptor)
    return 1


@jobs.task(isolate="process", max_losses=1, lease=LEASE_S)
def closes_its_sockets_and_stays() -> None:
    for descriptor in sockets():
        os.close(descriptor)
    wait_for_ever()


@jobs.task(isolate="process", max_losses=1, lease=LEASE_S)
def writes_garbage(kind: int) -> int:
    """Garbage into every socket, and then an answer."""
    for descriptor in sockets():
        os.write(descriptor, GARBAGE[kind])
    return kind


@jobs.task(isolate="process", max_losses=1, lease=LEASE_S)
def shuts_its_sockets_down() -> int:
    for descriptor in sockets():
        socket.socket(fileno=os.dup(descriptor)).shutdown(socket.SHUT_RDWR)
    return 1


# --- The process is killed by its worker ---


@jobs.task(isolate="process", timeout=1, max_attempts=1, lease=LEASE_S)
def blocks_all_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    note("blocked", os.getpid())
    wait_for_ever()


@jobs.task(isolate="process", timeout=1, max_attempts=1, lease=LEASE_S)
def stops_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@jobs.task(isolate="process", timeout=1, max_attempts=1, lease=LEASE_S)
def ignores_its_abort() -> None:
    while True:
        try:
            wait_for_ever()
        except BaseException:
            note("interrupted", os.getpid())


@jobs.task(isolate="process", timeout=1, max_attempts=1, lease=LEASE_S)
async def blocks_its_event_loop() -> None:
    wait_for_ever()


@jobs.task(isolate="process", max_attempts=1, lease=LEASE_S)
def waits_for_ever(name: str) -> None:
    note(name, os.getpid())
    wait_for_ever()


@jobs.task(isolate="process", max_attempts=1, lease=LEASE_S)
def waits_with_blocked_signals(name: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    note(name, os.getpid())
    wait_for_ever()


# --- The process harms itself, and the job ends well ---


@jobs.task(isolate="process", lease=LEASE_S)
def prints_much(mebibytes: int) -> int:
    line = "x" * 1023
    for _ in range(mebibytes * 1024):
        print(line)
    return mebibytes


@jobs.task(isolate="process", lease=LEASE_S)
def exits_soon_after(code: int) -> int:
    """It returns, and its process ends while it waits for the next job."""
    threading.Timer(0.3, os._exit, (code,)).start()
    return os.getpid()


@jobs.task(isolate="process", lease=LEASE_S, max_attempts=1)
def holds_the_gil(seconds: float) -> int:
    """In a call of C that does not release it, so no thread of its process runs meanwhile."""
    began_at = time.monotonic()
    while (left_s := seconds - (time.monotonic() - began_at)) > 0:  # a signal may end it early
        ctypes.PyDLL(None).usleep(int(left_s * 1_000_000))
    return os.getpid()


@jobs.task(isolate="process", lease=LEASE_S, timeout=30, max_attempts=1)
def uses_a_pool() -> list[int]:
    """Of forked processes, which the pool ends by SIGTERM."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.map(abs, [-1, -2])


@jobs.task(isolate="process", lease=LEASE_S)
def leaves_a_thread() -> int:
    threading.Thread(target=wait_for_ever, daemon=False).start()
    return os.getpid()


@jobs.task(isolate="process", lease=LEASE_S, max_attempts=1)
def changes_its_surroundings() -> int:
    os.chdir("/")
    os.umask(0)
    os.environ["CHANGED"] = "yes"
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    return os.getpid()


@jobs.task(isolate="process", lease=LEASE_S, max_attempts=1)
def surroundings() -> list[Any]:
    umask = os.umask(0o22)
    os.umask(umask)
    return [os.getcwd(), umask, os.environ.get("CHANGED"), signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL]


# --- What a process is and has ---


@jobs.task(isolate="process", lease=LEASE_S)
def pid_of(number: int) -> int:
    return os.getpid()


@jobs.task(isolate="process", lease=LEASE_S)
def waits_for_file(name: str) -> int:
    note(f"{name}.started", os.getpid())
    while not (FOLDER / name).exists():
        pause(0.01)
    return os.getpid()


@jobs.task(isolate="process", lease=LEASE_S, max_attempts=1)
def what_it_sees() -> dict[str, Any]:
    """Its environment, arguments and descriptors, also as the system shows them, and those of a program it starts."""
    program = [sys.executable, "-c", "import os; print(os.listdir('/proc/self/fd'), dict(os.environ))"]
    return {
        "environ": dict(os.environ),
        "proc_environ": Path("/proc/self/environ").read_bytes().decode(errors="replace"),
        "argv": Path("/proc/self/cmdline").read_bytes().decode(errors="replace"),
        "sys_argv": sys.argv,
        "descriptors": {name: _target(name) for name in os.listdir("/proc/self/fd")},
        "session": [os.getsid(0), os.getpid(), os.getppid()],
        "program": subprocess.run(program, capture_output=True, text=True, check=True, close_fds=False).stdout,
        "modules": sorted(name for name in sys.modules if name.startswith("holdfast.engines.")),
    }


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


async def _enqueue() -> None:
    await pid_of.aenqueue(1)


@jobs.task(isolate="process", lease=LEASE_S, max_attempts=1)
def uses_the_store(how: str, url: str) -> str:
    """Each way to the store. The answer is the error."""
    other: App[Any] = App(url) if how.startswith("other") else jobs
    try:
        match how.removeprefix("other-"):
            case "enqueue":
                pid_of.enqueue(1)
            case "aenqueue":
                asyncio.run(_enqueue())
            case "many":
                other.client.enqueue_many([pid_of.draft(1)])
            case "queue":
                other.queue("other", dict[str, int]).enqueue({"a": 1})
            case "control":
                other.control.queues()
            case "open":
                other.open()
            case "migrate":
                other.migrate()
            case "worker":
                other.worker(until_empty=True).run()
            case "default":
                App().control.queues()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


# --- Neighbours ---


@jobs.task(lease=LEASE_S, max_attempts=1)
async def async_neighbour(ctx: Context, seconds: float) -> int:
    for _ in range(round(seconds / 0.01)):  # so that it needs the event loop all the time
        await asyncio.sleep(0.01)
    return os.getpid()


@jobs.task(lease=LEASE_S, max_attempts=1)
def thread_neighbour(ctx: Context, seconds: float) -> int:
    pause(seconds)
    return os.getpid()


@jobs.task(isolate="process", lease=LEASE_S, max_attempts=1)
def isolated_neighbour(ctx: Context, seconds: float) -> int:
    pause(seconds)
    return os.getpid()


# --- Under a storm of kills ---


@jobs.task(isolate="process", lease=LEASE_S, max_attempts=50, max_losses=40, backoff=0)
def short(ctx: Context, number: int) -> int:
    note("runs", os.getpid(), "start", ctx.job.id, ctx.attempt)
    pause(0.02)
    return number * 2


@jobs.task(isolate="process", lease=LEASE_S, max_attempts=6, max_losses=3, backoff=0)
def poison() -> None:
    ctypes.string_at(0)
