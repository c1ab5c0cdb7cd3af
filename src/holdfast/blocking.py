"""Blocking methods, each made from the async method in one line.

    async def aresult(self, /, *, timeout: Duration | None = None) -> R: ...
    result = blocking(aresult)

A blocking call starts its coroutine in the caller's own thread. Most coroutines end there: they check arguments, and an
engine with the capability `blocking_calls` carries out its command while the thread blocks. A coroutine that needs an
event loop calls `move_to_loop()`; the rest of it then runs on the loop thread: one thread with an event loop per App
and process, started when it is first needed. A coroutine must not use an event loop before it has moved. Instead of
moving, a short call may be run on the `CallerLoop`, without a change of threads.

A blocking call on a thread that runs an event loop is refused: it would stop everything else on that loop.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Generator, Mapping
from functools import partial, wraps
from inspect import isroutine
from types import coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from holdfast import forks
from holdfast.errors import BlockingCall, EngineUnavailable
from holdfast.runtime import DeferredInterrupt, Runtime, signal_handlers_may_raise

_logger = logging.getLogger("holdfast")

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

ALLOW = "HOLDFAST_ALLOW_BLOCKING"
IN_A_THREAD = "FastAPI runs a route in a thread if it is declared with `def`; elsewhere use `asyncio.to_thread`."
START_TIMEOUT_S = 30.0
"""For the start of the loop thread, which takes milliseconds."""
CLOSE_TIMEOUT_S = 10.0
"""For the end of the loop thread. A coroutine may ignore its cancellation."""


def blocking(method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[T, P], R]:
    """The blocking form of an async method. Objects of its class have the App's store connection in `_store`."""
    async_name = method.__name__
    name = async_name.removeprefix("a")

    @wraps(method)
    def call(self: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if asyncio._get_running_loop() is not None and os.environ.get(ALLOW) != "1":
            raise BlockingCall(_message(self, name, async_name, kwargs), method=name, twin=async_name)
        store = self._store  # type: ignore[attr-defined]  # see the docstring
        coroutine: Coroutine[Any, Any, R] = getattr(self, async_name)(*args, **kwargs)
        return run_coroutine(coroutine, store.loop_thread)

    call.__name__ = name
    call.__qualname__ = method.__qualname__.removesuffix(async_name) + name
    call.__twin__ = async_name  # type: ignore[attr-defined]  # read by the test that looks for missing blocking methods
    return call


def _message(owner: object, name: str, async_name: str, kwargs: Mapping[str, object]) -> str:
    """The message for a call in a transaction: the async method takes no sync one. Empty: the usual message."""
    transaction = kwargs.get("transaction") or getattr(owner, "transaction", None)
    if transaction is None or isroutine(transaction):
        return ""
    return (
        f"{name}() would block the running event loop. With an async session or connection, use `await {async_name}()` "
        f"here. With a sync one, call {name}() in a thread. {IN_A_THREAD}"
    )


_MOVE = object()


@coroutine
def _move() -> Generator[object, None, None]:
    yield _MOVE


async def move_to_loop() -> None:
    """Continue on an event loop: on the running one, or else on that of the loop thread."""
    if asyncio._get_running_loop() is None:
        await _move()


@coroutine
def _rest_of(started: Coroutine[Any, Any, R]) -> Generator[Any, Any, R]:
    """The part of a started coroutine that has not run yet."""
    answer: R = yield from started
    return answer


def run_coroutine(started: Coroutine[Any, Any, R], loop_thread: "Callable[[], LoopThread]") -> R:
    """Run a coroutine in this thread until it ends or moves; the rest runs on the loop thread while this one blocks."""
    rest: Any = started
    if asyncio._get_running_loop() is None:
        try:
            signal = started.send(None)
        except StopIteration as end:
            answer: R = end.value
            return answer
        if signal is not _MOVE:
            started.close()
            raise RuntimeError("A blocking call waited for something without moving to the loop thread first.")
        rest = _rest_of(started)
    answer = loop_thread().run(rest)
    return answer


class _Call:
    """One blocking call: its coroutine, then its answer or error. The lock is released when either is there."""

    __slots__ = ("answer", "coroutine", "dropped", "error", "lock", "task")

    def __init__(self, coroutine: Any, lock: Any) -> None:
        self.coroutine = coroutine
        self.lock = lock
        self.answer: Any = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.dropped = False
        """The calling thread was interrupted and takes no answer."""


class LoopThread:
    """An event loop on a thread of its own, for threads that have none."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._calls: set[_Call] = set()
        self._ending = False
        self._ready = runtime.event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failures: list[OSError] = []
        """Why the thread could not start."""
        self._thread = runtime.thread(self._main, name="holdfast-loop")
        # PF1
        if not self._ready.wait(START_TIMEOUT_S) or self._failures:
            why = self._failures[0] if self._failures else f"it waited for {START_TIMEOUT_S:.0f} s"
            raise EngineUnavailable(
                f"The thread for blocking calls could not start: {why}. Nothing was written. Try again."
            ) from next(iter(self._failures), None)

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine to its end, blocking the calling thread; return its answer or raise its error."""
        if self._loop is asyncio._get_running_loop():
            coroutine.close()
            raise BlockingCall(
                "The loop thread cannot wait for itself. Await the async method here.", method="", twin=""
            )
        lock = self._runtime.lock()
        lock.acquire()  # no limit: the lock is new
        call = _Call(coroutine, lock)
        self._calls.add(call)
        if not self._soon(self._begin, call):
            self._end(call, cancelled=True)
        try:
            lock.acquire()  # no limit: what the call waits for has limits, and `_end` releases it when the loop ends
        except BaseException:  # Ctrl-C in the waiting thread: it takes no answer any more
            call.dropped = True
            self._soon(_cancel, call)
            raise
        if call.error is not None:
            try:
                raise call.error
            finally:
                call.error = None  # its traceback refers to this frame: break the cycle
        return call.answer

    def _soon(self, callback: Callable[..., object], *args: Any) -> bool:
        """Call a function on the loop, with the context variables of this thread. False: the loop has ended."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(callback, *args)
                return True
        except RuntimeError:
            pass  # closed
        return False

    def _begin(self, call: _Call) -> None:
        call.task = self._runtime.spawn(_carry_out(call), name="holdfast blocking call")
        call.task.add_done_callback(lambda task: self._end(call, cancelled=task.cancelled()))
        if self._ending or call.dropped:
            call.task.cancel()

    def _end(self, call: _Call, *, cancelled: bool) -> None:
        """Unblock the caller, once: its task has ended, or the loop has ended without it."""
        if call in self._calls:
            self._calls.discard(call)
            call.coroutine.close()  # it may never have started
            if cancelled:
                call.error = _closed() if self._ending else asyncio.CancelledError()
            call.lock.release()

    def _main(self) -> None:
        try:
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                self._stop = asyncio.Event()
                self._loop.call_soon(self._ready.set)
                runner.run(self._until_stopped())
        except RuntimeError as error:
            # Python 3.12 on, if the interpreter ends: asyncio cannot start the thread that joins the loop's executor.
            if "interpreter shutdown" not in str(error):
                raise
        except OSError as error:  # no file descriptor is left for the event loop
            self._failures.append(error)
        finally:
            self._ready.set()
        for call in tuple(self._calls):
            self._end(call, cancelled=True)

    async def _until_stopped(self) -> None:
        await self._stop.wait()  # no limit: `close` sets it
        self._ending = True
        for call in tuple(self._calls):
            _cancel(call)

    def close(self, *, wait: bool = True) -> None:
        """End the thread. Calls under way raise EngineUnavailable."""
        self._soon(self._stop.set)
        if wait and self._loop is not asyncio._get_running_loop():
            self._thread.join(CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                calls = ", ".join(sorted(getattr(call.coroutine, "__name__", "?") for call in tuple(self._calls)))
                _logger.warning(
                    "The thread for blocking calls has not ended within %.0f s: it waits for %s.",
                    CLOSE_TIMEOUT_S,
                    calls or "its event loop",
                )


class CallerLoop:
    """An event loop that a blocking caller runs in its own thread, for one call, while no other thread runs it.

    To hand a call over to the loop thread and back takes time. Tasks that outlive the
    call that started them do not belong here: between two calls nothing runs the loop.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        """Held while a thread runs the loop."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        forks.call_in_child(self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """PF2. Parent and child share the selector of the loop. If the child closed the loop, as the collector does,
        no other thread could wake the loop of the parent any more."""
        loop, self._loop = self._loop, None
        if loop is not None:
            forks.keep_for_ever(loop)

    def reserve(self) -> bool:
        """True: the caller has to call `run`. False: another thread runs the loop, or there is none; or an error of a
        signal handler could appear inside a driver that is written in C, and crash the process."""
        if self._closed or signal_handlers_may_raise() or not self._lock.acquire(blocking=False):
            return False
        try:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
        except OSError:  # no file descriptor is left for it; the loop thread reports that
            self._lock.release()
            return False
        return True

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end in this thread. Ctrl-C cancels it, as on the loop thread."""
        loop = self._loop
        assert loop is not None
        try:
            with DeferredInterrupt() as interrupt:
                interrupt.call(lambda: loop.call_soon_threadsafe(interrupt.if_in_block, partial(_cancel_all, loop)))
                try:
                    return loop.run_until_complete(coroutine)
                except BaseException:
                    begun = _cancel_all(loop)  # what the call has begun, as the loop thread does
                    if begun:
                        loop.run_until_complete(asyncio.wait(begun))
                    raise
        finally:
            self._lock.release()
            if self._closed:
                self.close()

    def close(self) -> None:
        """Close the loop and what belongs to it. If a thread runs it, that thread closes it when its call ends."""
        self._closed = True
        if self._loop is not None and asyncio._get_running_loop() is not None:  # a thread runs one loop at a time
            self._runtime.thread(self.close, name="holdfast-caller-loop").join(CLOSE_TIMEOUT_S)
        elif self._lock.acquire(blocking=False):
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.close()
            self._lock.release()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> "set[asyncio.Task[Any]]":
    """Cancel the tasks of a loop; they have not ended yet."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    return tasks


async def _carry_out(call: _Call) -> None:
    try:
        call.answer = await call.coroutine
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        call.error = error


def _cancel(call: _Call) -> None:
    if call.task is not None:
        call.task.cancel()


def _closed() -> EngineUnavailable:
    return EngineUnavailable("The App has been closed while this call was under way. Open it again.")
