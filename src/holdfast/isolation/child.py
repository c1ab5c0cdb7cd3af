"""The program of a handler's process: `python -m holdfast.isolation.child DESCRIPTOR PARENT`.

Three threads. The main thread has the event loop: the lifespan and async handlers. The handler thread runs plain
handlers, one after the other. The reader thread takes the worker's messages; no handler blocks it, unless its C code
holds the GIL. When the connection ends, the worker has stopped or died, so the reader ends this process: at once while
a handler runs, else after the lifespan has been left.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any

from holdfast import forks
from holdfast.context import AbortReason
from holdfast.core import isolated
from holdfast.isolation.frames import (
    LENGTH_BYTES,
    AbortRequest,
    CallAnswer,
    ChildMessage,
    ChildReady,
    ChildSetup,
    HandlerCall,
    ProgressReport,
    StartFailure,
    WorkerMessage,
    frame_of,
    length_of,
    read_worker_message,
)
from holdfast.isolation.loading import LoadedApp
from holdfast.isolation.running import ChildAttempt, not_found, run_async, run_sync
from holdfast.model.instants import Seconds
from holdfast.model.text import describe
from holdfast.processes import die_with_parent, end_now, limit_memory, reset_signals
from holdfast.runtime import DaemonThreads, SystemRuntime
from holdfast.telemetry.logs import configure, enable_own_loggers

_logger = logging.getLogger("holdfast.isolation")

END_TIMEOUT_S: Seconds = 2.0
"""Leaving the lifespan and ending the interpreter may take this long."""
PROGRESS_INTERVAL_S: Seconds = 0.1
"""Progress is sent at most this often. A handler may report it in each turn of a loop."""
FAILED = 1
"""Exit code of a child that could not start, or whose connection broke."""


class Connection:
    """The socket to the worker. Any thread may send."""

    def __init__(self, descriptor: int, runtime: SystemRuntime) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._copy = forks.ChildCopy(self._socket.fileno)  # a process that a handler forks must not keep it open
        self._lock = runtime.lock()

    def send(self, message: ChildMessage) -> None:
        data = frame_of(message)
        with self._lock:
            self._socket.sendall(data)

    def receive(self) -> WorkerMessage | None:
        """The next message of the worker; None when there will be no more."""
        header = self._read(LENGTH_BYTES)
        data = None if header is None else self._read(length_of(header))
        return None if data is None else read_worker_message(data)

    def _read(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                return None
            data += part
        return bytes(data)


class ProgressSender:
    """Sends the latest progress, from a thread of its own that starts with the first report."""

    def __init__(self, connection: Connection, runtime: SystemRuntime) -> None:
        self._connection = connection
        self._runtime = runtime
        self._changed = runtime.event()
        self._pause = runtime.event()
        self._latest: ChildAttempt | None = None
        self._started = False

    def put(self, attempt: ChildAttempt) -> None:
        self._latest = attempt
        if not self._started:
            self._started = True
            self._runtime.thread(self._work, name="holdfast progress")
        self._changed.set()

    def _work(self) -> None:
        while True:
            self._changed.wait()  # no limit: the thread ends with the process
            self._changed.clear()
            latest = self._latest
            if latest is not None and latest.progress is not None:
                self._connection.send(ProgressReport(latest.number, latest.progress))
            self._pause.wait(PROGRESS_INTERVAL_S)


class ChildProgram:
    """One process of a handler."""

    def __init__(self, descriptor: int) -> None:
        self._runtime = SystemRuntime()
        self._connection = Connection(descriptor, self._runtime)
        self._progress = ProgressSender(self._connection, self._runtime)
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._running: ChildAttempt | None = None
        self._is_ready = False
        self._state: Any = None
        self._variables: Variables = copy_context()

    def run(self) -> None:
        setup = self._connection.receive()
        if not isinstance(setup, ChildSetup):
            end_now(FAILED)
        try:
            sys.path[:] = setup.path
            sys.argv[:] = setup.arguments
            if setup.log_level:
                configure(setup.log_level, "json" if setup.log_style == "json" else "text")
            loaded = LoadedApp(setup)
            enable_own_loggers()
            with asyncio.Runner() as runner:
                runner.run(self._serve(setup, loaded))
        except BaseException as error:  # also SystemExit, which a module may raise when it is imported
            if self._is_ready:
                _logger.exception("The lifespan could not be left.")
            else:
                self._connection.send(StartFailure(describe(error)))
            end_now(FAILED)

    async def _serve(self, setup: ChildSetup, loaded: LoadedApp) -> None:
        """Enter the lifespan, then run handlers until the connection ends."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(DaemonThreads("holdfast handler"))
        ended = asyncio.Event()
        async with AsyncExitStack() as stack:
            lifespan = loaded.app.lifespan
            if lifespan is not None:
                self._state = await stack.enter_async_context(lifespan())
            self._variables = copy_context()
            limit_memory(setup.memory_limit)
            self._runtime.thread(self._handle_calls, name="holdfast handler")
            self._runtime.thread(partial(self._read, setup, loaded, loop, ended), name="holdfast reader")
            self._is_ready = True
            self._connection.send(ChildReady())
            await ended.wait()  # no limit: the reader sets it when the connection ends

    # The reader thread

    def _read(
        self, setup: ChildSetup, loaded: LoadedApp, loop: asyncio.AbstractEventLoop, ended: asyncio.Event
    ) -> None:
        try:
            while (message := self._connection.receive()) is not None:
                match message:
                    case HandlerCall():
                        self._start(message, setup, loaded, loop)
                    case AbortRequest():
                        self._abort(message, loop)
                    case ChildSetup():
                        break
        except Exception:
            _logger.exception("The connection to the worker has failed.")
            end_now(FAILED)
        if self._running is not None:
            end_now(FAILED)
        loop.call_soon_threadsafe(ended.set)
        self._runtime.event().wait(END_TIMEOUT_S)
        end_now(FAILED)

    def _start(self, call: HandlerCall, setup: ChildSetup, loaded: LoadedApp, loop: asyncio.AbstractEventLoop) -> None:
        attempt = ChildAttempt(call.number, call.lease, setup.worker, self._state, self._progress.put)
        self._running = attempt
        try:
            task = loaded.task(call.task)
        except BaseException as error:
            return self._answer(not_found(error))
        middleware = (*loaded.app.middlewares, *task.middleware)
        if task.is_async:
            loop.call_soon_threadsafe(self._begin_async, task, middleware, attempt)
        else:
            self._calls.put(partial(self._run_sync, task, middleware, attempt))

    def _abort(self, request: AbortRequest, loop: asyncio.AbstractEventLoop) -> None:
        attempt = self._running
        if attempt is not None and attempt.number == request.number:
            if request.reason:
                attempt.abort_reason = AbortReason(request.reason)
            loop.call_soon_threadsafe(self._cancel, attempt)

    # The handler thread, and the event loop

    def _handle_calls(self) -> None:
        while True:
            self._calls.get()()  # no limit: the thread ends with the process

    def _run_sync(self, task: Any, middleware: tuple[Any, ...], attempt: ChildAttempt) -> None:
        self._answer(self._variables.copy().run(run_sync, task, middleware, attempt))

    def _begin_async(self, task: Any, middleware: tuple[Any, ...], attempt: ChildAttempt) -> None:
        work = self._run_async(task, middleware, attempt)
        self._variables.copy().run(partial(self._runtime.spawn, work, name="holdfast attempt"))

    async def _run_async(self, task: Any, middleware: tuple[Any, ...], attempt: ChildAttempt) -> None:
        self._answer(await run_async(task, middleware, attempt))

    def _cancel(self, attempt: ChildAttempt) -> None:
        attempt.is_cancelled = True
        if attempt.loop_task is not None and self._running is attempt:
            attempt.loop_task.cancel()

    def _answer(self, answer: CallAnswer) -> None:
        self._running = None
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the handler may have replaced or closed it
                stream.flush()
        self._connection.send(answer)


def main() -> None:
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    reset_signals()
    isolated.enter()
    ChildProgram(descriptor).run()


if __name__ == "__main__":
    main()
