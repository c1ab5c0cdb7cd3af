"""Child processes that run a program of ours: start, wait, kill; and what such a child does to itself.

The wait disturbs no other code of the process: it asks for one child by its number, with no handler of SIGCHLD.

On Linux the kernel kills the child when its parent dies, even while code of the child holds the GIL
(`die_with_parent`). It does so when the *thread* ends that started the child. So a child is started by a thread that
lives as long as the child is needed. Other systems lack this; there a thread of the child notices the end of its
connection. This file is a part of `runtime`.
"""

import _signal  # type: ignore[import-not-found]  # `signal` makes enums of its answers, ten times as slowly
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

PR_SET_PDEATHSIG = 1
_KIBIBYTE = 1024
_STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else _KIBIBYTE


class ChildHandle(Protocol):
    """The part of `subprocess.Popen` that waiting needs."""

    pid: int
    returncode: int | None


class ProcessEnd(NamedTuple):
    """How a process ended. `exit_code` is negative for a signal; None: other code has taken the status.

    `peak_bytes` is the most memory that it had. The kernel counts the memory of the parent at the start, too.
    """

    exit_code: int | None
    peak_bytes: int


def start_program(argv: Sequence[str], *, env: Mapping[str, str], descriptor: int) -> "subprocess.Popen[bytes]":
    """Start a program in a session of its own. It inherits this descriptor, standard output and standard error."""
    return subprocess.Popen(
        list(argv), env=dict(env), stdin=subprocess.DEVNULL, pass_fds=(descriptor,), start_new_session=True
    )


def interpreter_options() -> list[str]:
    """The options of this interpreter, such as -O and -X, for a second one."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return options


def watch_descriptor(pid: int) -> int | None:
    """A descriptor that becomes readable when this child has ended. None: the system has no such thing."""
    if sys.platform == "linux":
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None


def reap(process: ChildHandle, *, block: bool = False) -> ProcessEnd | None:
    """Take the status of a child that has ended. None: it still runs. `block`: wait for its end."""
    if process.returncode is not None:  # `Popen.kill` has found it ended
        return ProcessEnd(process.returncode, 0)
    try:
        pid, status, usage = os.wait4(process.pid, 0 if block else os.WNOHANG)
    except ChildProcessError:  # the program ignores SIGCHLD, or waits for all its children
        process.returncode = 0
        return ProcessEnd(None, 0)
    if not pid:
        return None
    process.returncode = os.waitstatus_to_exitcode(status)  # else `subprocess` would wait for it, too
    return ProcessEnd(process.returncode, usage.ru_maxrss * _RSS_UNIT_BYTES)


def kill_session(process: "subprocess.Popen[bytes]") -> None:
    """Kill a child and the processes that it has started in its session. Its status must not have been taken."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def own_peak_bytes() -> int:
    """The most memory that this process has had."""
    import resource  # here and below: Windows has no such module, and starts no child

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT_BYTES


def peak_bytes_of(pid: int) -> int:
    """The most memory that a running process has had since it started its program; 0 if the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * _KIBIBYTE
    return 0


# In the child


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies. The parent may have died already: then end here."""
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        end_now(1)


def reset_signals() -> None:
    """Block no signal, and ignore what stops a worker: its worker ends this process.

    A whole group or control group often gets the signal. A function in place of SIG_IGN, because programs that this
    process starts inherit SIG_IGN.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in _STOP_SIGNALS:
        signal.signal(number, _ignore)


def restore_stop_signals() -> None:
    """In a process that a handler has forked: the signals that `reset_signals` ignores end it again."""
    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is _ignore:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _ignore(number: int, frame: object) -> None:
    """Nothing to do."""


class ProcessState:
    """What a handler can change of its process and the next one must not meet. Made before the first handler."""

    SIGNALS = ("SIGHUP", "SIGINT", "SIGTERM", "SIGALRM", "SIGCHLD", "SIGPIPE", "SIGUSR1", "SIGUSR2")

    def __init__(self) -> None:
        self._folder = os.getcwd()
        self._umask = os.umask(0o77)
        os.umask(self._umask)
        self._environ = dict(os.environ)
        numbers = [int(getattr(signal, name)) for name in self.SIGNALS]
        self._handlers = {number: _signal.getsignal(number) for number in numbers}

    def restore(self) -> None:
        """The current folder, the umask and the environment."""
        os.umask(self._umask)
        with suppress(OSError):  # it was removed
            if _folder() != self._folder:
                os.chdir(self._folder)
        if os.environ != self._environ:
            os.environ.clear()
            os.environ.update(self._environ)

    def restore_signals(self) -> None:
        """The handlers of signals. Call from the main thread: the others cannot set them."""
        _signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._handlers.items():
            if handler is not None and _signal.getsignal(number) is not handler:
                _signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def limit_memory(limit_bytes: int | None) -> None:
    """The most private memory this process may allocate. None: as much as the system allows."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    soft = most if limit_bytes is None else limit_bytes
    if most != resource.RLIM_INFINITY:
        soft = min(soft, most)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, most))


def end_now(code: int) -> NoReturn:
    """End this process without any cleaning up."""
    os._exit(code)
