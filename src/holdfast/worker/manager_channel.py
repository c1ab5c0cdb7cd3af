"""The channel between a worker process and the manager that started it: JSON objects, one per line, over a socket pair.

    worker → manager    {"started": NAME}      after the first heartbeat
                        {"stopping": REASON}   it claims nothing more; the values of `StopReason`
                        {"stopped": true}      it holds no lease any more. Without it the manager disowns the worker.
    manager → worker    {"stop": GRACE_S}      stop within this time; 0: at once

The end of the file means that the manager is gone: the worker stops within its grace, and the process ends at the
latest `MARGIN_S` after that. Unknown keys are ignored on both sides.

A thread reads, so a blocked event loop does not keep the process alive. The channel exists before the App is imported,
because a manager may end at that time, too.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from holdfast import forks
from holdfast.errors import UsageError
from holdfast.files import discard_unread_output
from holdfast.model.instants import Seconds
from holdfast.runtime import Runtime
from holdfast.worker.forced_exit import ForcedExit
from holdfast.worker.stop_request import StopReason, StopRequest

DEFAULT_GRACE_S: Seconds = 30.0
"""Until the worker has read its settings."""
OUTPUT_CHECKS, OUTPUT_CHECK_S = 50, 0.01
"""The kernel closes the manager's end of the channel a moment before or after those of the output."""
MAX_LINE_BYTES = 4096
"""A longer line is no message of a manager."""

_logger = logging.getLogger("holdfast.worker")

OnStop = Callable[[Seconds | None], object]
"""Called in the reader's thread with the grace; None: the worker's own."""


class ManagerChannel:
    """The worker's end of the channel."""

    def __init__(self, runtime: Runtime, descriptor: int) -> None:
        try:
            self._socket = socket.socket(fileno=descriptor)
            self._socket.set_inheritable(False)
        except OSError as error:
            raise UsageError(f"--manager-fd {descriptor} is no socket. Only a manager gives this option.") from error
        self._runtime = runtime
        self._forced_exit = ForcedExit(runtime)
        self._lock = runtime.lock()
        self._on_stop: OnStop | None = None
        self._requests: list[Seconds | None] = []
        """Requests that came while no worker ran."""
        self._grace_s = DEFAULT_GRACE_S
        self._requested_grace_s: Seconds | None = None
        self._closed = False
        self._child_copy = forks.ChildCopy(self._socket.fileno)

    def start(self) -> None:
        self._forced_exit.start()
        self._runtime.thread(self._read, name="holdfast manager channel")

    @contextmanager
    def attach(self, stop_request: StopRequest, grace_s: Seconds, holds_leases: Callable[[], bool]) -> Iterator[None]:
        """While a worker runs on this event loop: pass on requests, also those that came earlier; report its stop."""
        loop = asyncio.get_running_loop()

        def stop(requested_s: Seconds | None) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(stop_request.request, requested_s, StopReason.MANAGER)

        stop_request.on_first = lambda reason: self._send({"stopping": reason.value})
        with self._lock:
            self._on_stop, self._grace_s = stop, grace_s
            requests, self._requests = self._requests, []
        for request in requests:
            stop(request)
        try:
            yield
        finally:
            with self._lock:
                self._on_stop = None
            if not holds_leases():
                self._send({"stopped": True})

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._forced_exit.stop()

    # Messages to the manager

    def send_started(self, worker: str) -> None:
        self._send({"started": worker})

    def _send(self, message: dict[str, Any]) -> None:
        """Never waits: the few messages of a worker fit into the buffer of the socket."""
        line = json.dumps(message).encode() + b"\n"
        try:
            self._socket.send(line, socket.MSG_DONTWAIT)
        except OSError as error:  # it has ended; the reader's thread notices it
            _logger.debug("The manager does not get %s: %s", message, error)

    # Messages from the manager

    def _read(self) -> None:
        rest = b""
        while data := self._receive():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._handle(line)
            rest = rest[:MAX_LINE_BYTES]
        if not self._closed:
            self._manager_ended()

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(MAX_LINE_BYTES)  # it waits until `close`, or until the manager ends
        except OSError:
            return b""

    def _handle(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            grace_s = message.get("stop")
        except (ValueError, AttributeError):
            _logger.warning("The manager has sent a line that is no message: %r", line[:100])
            return
        if isinstance(grace_s, int | float) and not isinstance(grace_s, bool) and grace_s >= 0:
            self._requested_grace_s = float(grace_s)
            self._request(float(grace_s))

    def _manager_ended(self) -> None:
        requested_s = self._requested_grace_s
        self._forced_exit.after(self._grace_s if requested_s is None else min(requested_s, self._grace_s))
        self._request(None)
        pause = self._runtime.event()  # never set
        for _ in range(OUTPUT_CHECKS):
            discard_unread_output()  # the manager has read it
            pause.wait(OUTPUT_CHECK_S)
        _logger.warning("The manager of this worker has ended, so the worker stops.")

    def _request(self, grace_s: Seconds | None) -> None:
        with self._lock:
            on_stop = self._on_stop
            if on_stop is None:
                self._requests.append(grace_s)
        if on_stop is not None:
            on_stop(grace_s)
