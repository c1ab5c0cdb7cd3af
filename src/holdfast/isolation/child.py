"""The program of a handler's process: `python -m holdfast.isolation.child DESCRIPTOR PARENT`.

The main thread runs plain handlers: some libraries work only there. The loop thread runs the lifespan and async
handlers; it is started when it is needed. The reader thread takes the worker's messages; no handler blocks it, unless
its C code holds the GIL. When the connection ends, the worker has stopped or died, so the reader ends this process: at
once while a handler runs, else after the lifespan has been left.
"""

import asyncio
import logging
import os
import select
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
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
from holdfast.processes import ProcessState, die_with_parent, end_now, limit_memory, reset_signals, restore_stop_signals
from holdfast.runtime import DaemonThreads, SystemRuntime
from holdfast.telemetry.logs import configure, enable_own_loggers

END_TIMEOUT_S: Seconds = 2.0
"""Leaving the lifespan and ending the interpreter may take this long."""
CHECK_INTERVAL_S: Seconds = 1.0
"""How often to check that the descriptor of the connection is still open."""
PROGRESS_INTERVAL_S: Seconds = 0.1
"""Progress is sent at most this often. A handler may report it in each turn of a loop."""
FAILED = 1
"""Exit code of a child that could not start, or whose connection or event loop broke."""

_logger = logging.getLogger("holdfast.isolation")


class WorkerConnection:
    """The socket to the worker. Any thread may send."""

    def __init__(self, descriptor: int, runtime: SystemRuntime) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._copy = forks.ChildCopy(self._socket.fileno)  # a process that a handler forks must not keep it open
        self._identity = self._current_identity()
        self._readable = select.poll()
        self._readable.register(descriptor, select.POLLIN)
        self._lock = runtime.lock()

    def _current_identity(self) -> tuple[int, int]:
        status = os.fstat(self._socket.fileno())
        return status.st_dev, status.st_ino

    def send(self, message: ChildMessage) -> None:
        data = frame_of(message)
        with self._lock:
            self._socket.sendall(data)

    def receive(self) -> WorkerMessage | None:
        """The next message of the worker; None when there will be no more."""
        header = self._read(LENGTH_BYTES)
        data = None if header is None else self._read(length_of(header))
        return None if data is None else read_worker_message(data)

    def _check(self) -> None:
        """A handler may have closed the descriptor. A read that has begun does not notice that.

        The number may belong to another file by now, whose bytes are not to be taken.
        """
        if self._current_identity() != self._identity:
            raise OSError("The connection to the worker was closed by a handler.")

    def _read(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            while not self._readable.poll(CHECK_INTERVAL_S * 1000):
                self._check()
            self._check()
            part = self._socket.recv(count - len(data))
            if not part:
                return None
            data += part
        return bytes(data)


class ProgressSender:
    """Sends the latest progress, from a thread of its own that starts with the first report."""

    def __init__(self, connection: WorkerConnection, runtime: SystemRuntime) -> None:
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


class ChildLoop:
    """The event loop of the child: for the lifespan and for async handlers. It runs in a thread, once it is needed."""

    def __init__(self, runtime: SystemRuntime) -> None:
        self._runtime = runtime
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._life: Any = None
        """The end of the lifespan, as a future of another thread."""
        self.variables: Variables = copy_context()
        """The context variables of handlers: those that the lifespan has set."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.set_default_executor(DaemonThreads("holdfast handler"))
            self._runtime.thread(partial(self._run, self._loop), name="holdfast loop")
        return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Without the event loop no handler could answer. A handler may stop it; `sys.exit` in a task ends it."""
        try:
            loop.run_forever()
            _logger.error("A handler has stopped the event loop of its process, which ends now.")
        except BaseException:
            _logger.exception("The event loop of the handler's process was ended by this error; so is the process.")
        end_now(FAILED)

    def enter(self, lifespan: Callable[[], Any]) -> Any:
        """Enter the lifespan; return its state."""
        entered: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._life = asyncio.run_coroutine_threadsafe(self._live(lifespan, entered), self.loop)
        state, error = entered.get()  # no limit: the worker has one for the start of a child
        if error is not None:
            raise error
        return state

    async def _live(self, lifespan: Callable[[], Any], entered: Any) -> None:
        """Enter and leave it in one task: task groups require that."""
        try:
            async with lifespan() as state:
                self.variables = copy_context()
                self._end = asyncio.Event()
                entered.put((state, None))
                await self._end.wait()  # no limit: `leave` sets it
        except BaseException as error:
            entered.put((None, error))
            raise

    def leave(self) -> None:
        """Leave the lifespan."""
        if self._loop is not None and self._end is not None:
            self._loop.call_soon_threadsafe(self._end.set)
            self._life.result()  # no limit: the reader ends this process after `END_TIMEOUT_S`

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run an async function as a task of its own."""
        self.loop.call_soon_threadsafe(
            self.variables.copy().run, lambda: self._runtime.spawn(work(), name="holdfast attempt")
        )

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the event loop, if there is one."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(function)


class ChildProgram:
    """One process of a handler."""

    def __init__(self, descriptor: int) -> None:
        self._runtime = SystemRuntime()
        self._connection = WorkerConnection(descriptor, self._runtime)
        self._progress = ProgressSender(self._connection, self._runtime)
        self._loop = ChildLoop(self._runtime)
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """Plain handlers to run in the main thread. None: end."""
        self._running: ChildAttempt | None = None
        self._state: Any = None
        forks.call_in_child(self._after_fork)

    def _after_fork(self) -> None:
        """A process that a handler has forked is ended by signals, as `multiprocessing` does it with its pools."""
        restore_stop_signals()

    def run(self) -> None:
        """In the main thread: start, run plain handlers, end."""
        setup = self._connection.receive()
        if not isinstance(setup, ChildSetup):
            end_now(FAILED)
        try:
            sys.path[:] = setup.path
            sys.argv[:] = setup.arguments
            configure(setup.log_level, "json" if setup.log_style == "json" else "text")
            loaded = LoadedApp(setup)
            enable_own_loggers()
            reset_signals()  # a module may have set handlers of its own
            if loaded.app.lifespan is not None:
                self._state = self._loop.enter(loaded.app.lifespan)
        except BaseException as error:  # also SystemExit, which a module may raise when it is imported
            self._connection.send(StartFailure(describe(error)))
            end_now(FAILED)
        limit_memory(setup.memory_limit)
        self._process_state = ProcessState()
        self._runtime.thread(partial(self._read, setup, loaded), name="holdfast reader")
        self._connection.send(ChildReady())
        while (call := self._calls.get()) is not None:  # no limit: the reader puts None when the connection ends
            call()
            del call  # an idle process must not keep the arguments alive
        limit_memory(None)
        self._loop.leave()

    # The reader thread

    def _read(self, setup: ChildSetup, loaded: LoadedApp) -> None:
        try:
            while (message := self._connection.receive()) is not None:
                match message:
                    case HandlerCall():
                        self._start(message, setup, loaded)
                    case AbortRequest():
                        self._abort(message)
                    case ChildSetup():
                        break
        except BaseException:
            end_now(FAILED)
        if self._running is not None:
            end_now(FAILED)
        self._calls.put(None)
        self._runtime.event().wait(END_TIMEOUT_S)
        end_now(FAILED)

    def _start(self, call: HandlerCall, setup: ChildSetup, loaded: LoadedApp) -> None:
        attempt = ChildAttempt(call.number, call.lease, setup.worker, self._state, self._progress.put)
        self._running = attempt
        try:
            task = loaded.task(call.task)
        except BaseException as error:
            return self._answer(not_found(error))
        middleware = (*loaded.app.middlewares, *task.middleware)
        if task.is_async:
            self._loop.begin(partial(self._run_async, task, middleware, attempt))
        else:
            self._calls.put(partial(self._run_sync, task, middleware, attempt))

    def _abort(self, request: AbortRequest) -> None:
        attempt = self._running
        if attempt is not None and attempt.number == request.number:
            if request.reason:
                attempt.abort_reason = AbortReason(request.reason)
            self._loop.call(partial(self._cancel, attempt))

    # The main thread, and the event loop

    def _run_sync(self, task: Any, middleware: tuple[Any, ...], attempt: ChildAttempt) -> None:
        answer = self._loop.variables.copy().run(run_sync, task, middleware, attempt)
        self._process_state.restore_signals()
        self._answer(answer)

    async def _run_async(self, task: Any, middleware: tuple[Any, ...], attempt: ChildAttempt) -> None:
        self._answer(await run_async(task, middleware, attempt))

    def _cancel(self, attempt: ChildAttempt) -> None:
        attempt.is_cancelled = True
        if attempt.loop_task is not None and self._running is attempt:
            attempt.loop_task.cancel()

    def _answer(self, answer: CallAnswer) -> None:
        self._process_state.restore()
        self._running = None
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the handler may have replaced or closed it
                stream.flush()
        try:
            self._connection.send(answer)
        except OSError:  # the handler has closed the connection
            end_now(FAILED)


def main() -> None:
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    reset_signals()
    isolated.enter()
    ChildProgram(descriptor).run()


if __name__ == "__main__":
    main()
