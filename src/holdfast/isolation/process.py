"""In the worker: one child process, from its start to its end. Used on the worker's event loop only.

A child runs one call at a time. `begin` sends it and returns a future, which gets the answer, or `ProcessGone` when the
process ends first. The end is seen by a descriptor of the process, not by the end of the connection: a process that a
handler has forked may keep the connection open.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping

from holdfast import forks
from holdfast.isolation.frames import (
    AbortRequest,
    BrokenFrame,
    CallAnswer,
    CallRaised,
    ChildMessage,
    ChildReady,
    ChildSetup,
    HandlerCall,
    ProgressReport,
    ReportReader,
    StartFailure,
    TaskPlace,
    frame_of,
    without_token,
)
from holdfast.model.instants import Seconds
from holdfast.model.job import ProgressRecord
from holdfast.model.text import ErrorInfo
from holdfast.model.work import Lease
from holdfast.processes import (
    ProcessEnd,
    interpreter_options,
    kill_session,
    own_peak_bytes,
    peak_bytes_of,
    reap,
    start_program,
    watch_descriptor,
)
from holdfast.runtime import Runtime, call_later

LAST_FRAMES_S: Seconds = 0.2
"""After its end, this long for frames that the process has sent before. They are here already, or never come."""

FIRST_MEASURE_S: Seconds = 0.05
MEASURE_INTERVAL_S: Seconds = 1.0
"""How often the peak memory of a running call is measured: at first soon, then less and less often, up to this."""

END_AFTER_CONNECTION_S: Seconds = 0.5
"""A process that dies closes its connection first. If it has not ended this long afterwards, its handler did that."""

_logger = logging.getLogger("holdfast.isolation")


class ProcessGone(Exception):
    """The process has ended without an answer. `failure` is set if it could not start.

    `is_broken`: the worker killed it, because its connection could not be used any more.
    """

    def __init__(self, end: ProcessEnd, failure: ErrorInfo | None = None, *, is_broken: bool = False) -> None:
        self.end = end
        self.failure = failure
        self.is_broken = is_broken
        super().__init__(f"The process has ended: {end.exit_code}.")


class HandlerProcess(asyncio.Protocol):
    """One child process."""

    def __init__(
        self,
        runtime: Runtime,
        setup: ChildSetup,
        environment: Mapping[str, str],
        on_end: "Callable[[HandlerProcess], None]",
    ) -> None:
        """Start the program. Call this in the thread of the event loop: see `holdfast.processes`."""
        self._runtime = runtime
        self._when_ended = on_end
        self._is_broken = False
        self._loop = asyncio.get_running_loop()
        self._reader = ReportReader()
        self._transport: asyncio.Transport | None = None
        self._pending: asyncio.Future[CallAnswer | ChildReady] | None = None
        self._on_progress: Callable[[ProgressRecord], None] | None = None
        self._number = 0
        self._has_answered = False
        self._failure: ErrorInfo | None = None
        self._setup = setup
        self.end: ProcessEnd | None = None
        self.ended = asyncio.Event()
        self.memory_limit = setup.memory_limit
        self._known_peak_bytes = 0
        """The last measured one. The kernel's own figure is at least the peak memory of this worker."""
        self._worker_peak_bytes = own_peak_bytes()
        self._socket, other = socket.socketpair()
        self._copy = forks.ChildCopy(self._socket.fileno)  # a forked process must not keep the connection open
        with other:
            argv = [sys.executable, *interpreter_options(), "-P", "-m", "holdfast.isolation.child"]
            try:
                self._process = start_program(
                    [*argv, str(other.fileno()), str(os.getpid())], env=environment, descriptor=other.fileno()
                )
            except BaseException:
                self._socket.close()
                raise
        self._watched = watch_descriptor(self._process.pid)
        if self._watched is None:
            self._runtime.thread(self._wait_in_thread, name="holdfast handler process")
        else:
            self._loop.add_reader(self._watched, self._on_end)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_connected(self) -> bool:
        return self.end is None and self._transport is not None and not self._transport.is_closing()

    @property
    def is_usable(self) -> bool:
        """True if it can take the next call: it has answered the last one, and is not used up."""
        return self.is_connected and self._has_answered

    # Calls

    async def connect(self) -> None:
        """Send the first frame and wait until the child is ready. Raises `ProcessGone`."""
        self._pending = self._loop.create_future()
        await self._loop.create_unix_connection(lambda: self, sock=self._socket)
        self._send(frame_of(self._setup))
        await self._pending
        self._known_peak_bytes = peak_bytes_of(self.pid)

    def begin(
        self, task: TaskPlace, lease: Lease, on_progress: Callable[[ProgressRecord], None]
    ) -> "asyncio.Future[CallAnswer | ChildReady]":
        """Send a call. The future gets its answer, or `ProcessGone`."""
        self._number += 1
        self._on_progress = on_progress
        self._has_answered = False
        self._pending = self._loop.create_future()
        if self.end is not None:
            self._conclude()
        else:
            self._send(frame_of(HandlerCall(self._number, task, without_token(lease))))
        return self._pending

    async def wait(self, pending: "asyncio.Future[CallAnswer | ChildReady]") -> None:
        """Wait for the answer. Meanwhile measure the memory now and then: once the process is dead, it is too late."""
        interval_s = FIRST_MEASURE_S
        while not (await asyncio.wait({pending}, timeout=interval_s))[0]:
            self._measure()
            interval_s = min(MEASURE_INTERVAL_S, 2 * interval_s)

    def _measure(self) -> None:
        if self.end is None:
            self._known_peak_bytes = max(self._known_peak_bytes, peak_bytes_of(self.pid))

    def abort(self, reason: str) -> None:
        """Request that the running call stops."""
        if self.is_connected:
            self._send(frame_of(AbortRequest(self._number, reason)))

    def close(self) -> None:
        """End the connection: an idle child ends by itself."""
        if self._transport is not None:
            self._transport.close()

    def kill(self) -> None:
        """Kill the process, and those that it has started in its session."""
        if self.end is None:
            self._measure()
            kill_session(self._process)

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._is_broken:  # it has sent what it must not: nothing after that counts
            return
        try:
            for message in self._reader.feed(data):
                self._receive(message)
        except BrokenFrame as error:
            _logger.error("The process %d of a handler sent what it must not: %s. It is killed.", self.pid, error)
            self._break()

    def connection_lost(self, error: Exception | None) -> None:
        if self.end is not None:
            self._conclude()
        elif self._is_waiting:  # it ends just now, or its handler has closed the connection
            call_later(END_AFTER_CONNECTION_S, self._break)

    def _break(self) -> None:
        """Its connection cannot be used any more."""
        if self.end is None:
            self._is_broken = True
            self.kill()

    def _receive(self, message: ChildMessage) -> None:
        match message:
            case ProgressReport(number=number, progress=progress):
                if number == self._number and self._on_progress is not None and self._is_waiting:
                    self._on_progress(progress)
            case StartFailure(info=info):
                self._failure = info
            case _:
                self._has_answered = not isinstance(message, CallRaised) or not message.last
                if self._pending is not None and not self._pending.done():
                    self._pending.set_result(message)

    @property
    def _is_waiting(self) -> bool:
        return self._pending is not None and not self._pending.done()

    # The end of the process

    def _on_end(self) -> None:
        kill_session(self._process)  # what it has started and left behind; its number is not in use by another yet
        end = reap(self._process)
        if end is not None:
            self._note_end(end)

    def _wait_in_thread(self) -> None:
        end = reap(self._process, block=True)
        if end is not None:
            self._loop.call_soon_threadsafe(self._note_end, end)

    def _note_end(self, end: ProcessEnd) -> None:
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
            os.close(self._watched)
            self._watched = None
        peak_bytes = end.peak_bytes if end.peak_bytes > self._worker_peak_bytes else self._known_peak_bytes
        self.end = end._replace(peak_bytes=peak_bytes)
        self.ended.set()
        self._when_ended(self)
        if self._transport is None:
            self._socket.close()
            self._conclude()
        elif self._transport.is_closing():
            self._conclude()
        else:
            call_later(LAST_FRAMES_S, self._conclude)

    def _conclude(self) -> None:
        """The process has ended, and all that it has sent is read."""
        if self._transport is not None:
            self._transport.abort()
        if self._pending is not None and not self._pending.done() and self.end is not None:
            self._pending.set_exception(ProcessGone(self.end, self._failure, is_broken=self._is_broken))
