"""One worker process that a manager has started, and the channel to it.

The channel is a pair of Unix sockets with one JSON object per line. The child reports its worker name when it works,
why it stops, and that it has released everything. The manager sends the request to stop. It sends no SIGTERM: a child
may get one from elsewhere as well, and would take the second for "at once". When the manager ends, however it ends, the
child reads the end of the channel, and stops by itself.
"""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Sequence
from enum import StrEnum
from typing import IO, Protocol

from holdfast import forks
from holdfast.manager.output import ChildOutput, Tail
from holdfast.model.instants import Micros, Seconds
from holdfast.model.text import ErrorInfo, shown
from holdfast.process_death import late_stop_info, worker_died_info
from holdfast.processes import ProcessEnd, own_peak_bytes, peak_bytes_of, reap, watch_descriptor
from holdfast.runtime import DISCARD, PIPE, Runtime
from holdfast.worker.stop_request import StopReason

MAX_MESSAGE_BYTES = 65_536
"""A longer line on the channel is not from a worker of Holdfast."""
RECYCLED = frozenset({StopReason.MAX_JOBS, StopReason.MAX_MEMORY})
"""Reasons to stop after which the manager starts another child at once."""


class ProcessHandle(Protocol):
    """The part of `subprocess.Popen` that is used."""

    pid: int
    returncode: int | None

    @property
    def stdout(self) -> IO[bytes] | None: ...
    @property
    def stderr(self) -> IO[bytes] | None: ...
    def poll(self) -> int | None: ...
    def kill(self) -> None: ...


class ChildState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class Child:
    """A worker process. Used from the loop's thread only."""

    def __init__(self, number: int, process: ProcessHandle, channel: socket.socket, tail: Tail, now: Micros) -> None:
        self.number = number
        self.process = process
        self.tail = tail
        self.state = ChildState.STARTING
        self.worker = ""
        """The name of its worker; empty until it has started."""
        self.created_at = now
        self.running_since: Micros | None = None
        self.has_stopped = False
        """It has released everything and is about to end."""
        self.stop_reason = ""
        """Why it stops, in its own word."""
        self.is_requested_to_stop = False
        self.is_replaced = False
        """It has a successor already, so it no longer counts against the largest number of children."""
        self.predecessor: Child | None = None
        """The child that stops as soon as this one works (roll over)."""
        self.kill_at: Micros | None = None
        self.was_killed = False
        self.end: ProcessEnd | None = None
        """How its process has ended."""
        self._known_peak_bytes = 0
        """The last measured one. The kernel's own figure is at least the peak memory of the manager."""
        self._manager_peak_bytes = own_peak_bytes()
        self._channel = channel
        self._child_copy = forks.ChildCopy(channel.fileno)  # a copy would hide the manager's end from the child
        self._received = bytearray()
        self.pidfd = watch_descriptor(process.pid)
        """Readable when the process has ended. None: this system has none, and the process is polled."""

    @property
    def channel_fd(self) -> int:
        return self._channel.fileno()

    @property
    def is_active(self) -> bool:
        return self.state is not ChildState.STOPPING

    def __str__(self) -> str:
        return f"{self.number} ({shown(self.worker)})" if self.worker else f"{self.number} (pid {self.process.pid})"

    def receive(self, now: Micros) -> bool:
        """Read what the child has sent. False: the channel has ended."""
        while True:
            try:
                data = self._channel.recv(65_536)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            if not data:
                return False
            self._received += data
            *lines, rest = self._received.split(b"\n")
            for line in lines:
                self._handle(bytes(line), now)
            self._received = bytearray(rest[-MAX_MESSAGE_BYTES:])

    def _handle(self, line: bytes, now: Micros) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return
        if not isinstance(message, dict):
            return
        if isinstance(worker := message.get("started"), str) and not self.worker:
            self.worker = worker
            self.running_since = now
            if self.state is ChildState.STARTING:
                self.state = ChildState.RUNNING
        if isinstance(reason := message.get("stopping"), str):
            self.state = ChildState.STOPPING
            self.stop_reason = self.stop_reason or reason
            self.is_replaced |= reason in RECYCLED
        if message.get("stopped"):
            self.has_stopped = True

    def request_stop(self, grace_s: Seconds, kill_at: Micros) -> None:
        """Let it finish within this time. The manager kills it at `kill_at`. A later request can only be stricter."""
        self.state = ChildState.STOPPING
        self.is_requested_to_stop = True
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)
        # An error: it has ended, or it reads nothing any more. Then it is found ended, or killed.
        with contextlib.suppress(OSError):
            self._channel.send(json.dumps({"stop": round(grace_s, 3)}).encode() + b"\n")

    def kill(self) -> None:
        self.was_killed = True
        self.process.kill()

    def check_end(self) -> bool:
        """True: its process has ended, and `end` says how."""
        if self.end is None and (end := reap(self.process)) is not None:
            is_own = end.peak_bytes > self._manager_peak_bytes
            self.end = end if is_own else end._replace(peak_bytes=self._known_peak_bytes)
        elif self.end is None:
            self._known_peak_bytes = max(self._known_peak_bytes, peak_bytes_of(self.process.pid))
        return self.end is not None

    def death(self) -> ErrorInfo | None:
        """How it has ended, as the error of the jobs that it has left. None: that is not known."""
        if self.end is None:
            return None
        peak_bytes = self.end.peak_bytes or None
        if self.was_killed and self.end.exit_code == -signal.SIGKILL:
            return late_stop_info(peak_bytes)
        return worker_died_info(self.end.exit_code, peak_bytes)

    def close(self) -> None:
        """Release what belongs to the process, which has ended or is abandoned. The child reads the end."""
        self._channel.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class ChildStarter:
    """Starts children: all with the same command line and in the manager's own environment."""

    def __init__(self, runtime: Runtime, arguments: Sequence[str], output: ChildOutput) -> None:
        """`arguments`: the program and its arguments, such as `python -m holdfast worker TARGET`."""
        self._runtime = runtime
        self._arguments = tuple(arguments)
        self._output = output
        self._started = 0

    def start(self) -> Child:
        """Start one more. It gets a session of its own, so that Ctrl-C in a terminal reaches only the manager."""
        own, other = socket.socketpair()
        try:
            own.setblocking(False)
            process = self._runtime.process(
                [*self._arguments, "--manager-fd", str(other.fileno())],
                stdin=DISCARD,
                stdout=PIPE,
                stderr=PIPE,
                new_session=True,
                pass_fds=(other.fileno(),),
            )
        except BaseException:
            own.close()
            raise
        finally:
            other.close()
        self._started += 1
        tail = self._output.add(self._started, process.stdout, process.stderr)
        return Child(self._started, process, own, tail, self._runtime.monotonic())
