"""Blocking twins: the async method is written, the blocking one is a line.

    async def aresult(self, /, *, timeout: Duration | None = None) -> R: ...
    result = blocking(aresult)

A blocking call starts its coroutine in the caller's own thread, where most of them end: arguments are checked, and an
engine that has a door for threads is asked directly. Only a coroutine that has to wait for something else moves, as it
is, to the portal: a thread with an event loop, one per App and process, started when it is first needed. It moves at
`away_from_here()`, and must not have touched an event loop before.

On a thread that runs an event loop a blocking call is refused, since it would stop everything else there.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from types import coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.errors import BlockingCall, EngineUnavailable
from holdfast.runtime import Runtime

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

ALLOW = "HOLDFAST_ALLOW_BLOCKING"


def blocking(method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[T, P], R]:
    """The blocking twin of an async method. Its class keeps in `_link` what runs it."""
    twin = method.__name__
    name = twin.removeprefix("a")

    @wraps(method)
    def call(self: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        on_loop = asyncio._get_running_loop() is not None
        if on_loop and os.environ.get(ALLOW) != "1":
            raise BlockingCall(method=name, twin=twin)
        link: Runner = self._link  # type: ignore[attr-defined]  # the condition above
        asked: Coroutine[Any, Any, R] = getattr(self, twin)(*args, **kwargs)
        return link.run(asked, here=not on_loop)

    call.__name__ = name
    call.__qualname__ = method.__qualname__.removesuffix(twin) + name
    call.__twin__ = twin  # type: ignore[attr-defined]  # read by the test that looks for missing twins
    return call


class Runner(Protocol):
    """What a blocking method needs of its owner."""

    def run(self, asked: Coroutine[Any, Any, R], *, here: bool) -> R: ...


# --- From the caller's thread to the portal ---

_MOVE = object()


@coroutine
def _move() -> Generator[object, None, None]:
    yield _MOVE


async def away_from_here() -> None:
    """Go on on an event loop: on the one that runs, or else on the portal's."""
    if asyncio._get_running_loop() is None:
        await _move()


@coroutine
def _rest_of(asked: Coroutine[Any, Any, R]) -> Generator[Any, Any, R]:
    """A coroutine that was begun elsewhere, from where it stands."""
    answer: R = yield from asked
    return answer


def run_here(asked: Coroutine[Any, Any, R], portal: "Callable[[], Portal]") -> R:
    """Run a coroutine in this thread as far as it goes, and the rest of it, if there is one, through the portal."""
    try:
        said = asked.send(None)
    except StopIteration as done:
        answer: R = done.value
        return answer
    if said is not _MOVE:
        asked.close()
        raise RuntimeError("A blocking call waited for something without moving to the portal first.")
    answer = portal().run(_rest_of(asked))
    return answer


# --- The portal ---


class _Call:
    """One blocking call: what to run, and how it came out. Its lock is free once that is known."""

    __slots__ = ("answer", "asked", "error", "lock", "task", "unwanted")

    def __init__(self, asked: Any, lock: Any) -> None:
        self.asked = asked
        self.lock = lock
        self.answer: Any = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.unwanted = False


class Portal:
    """An event loop on a thread of its own, for threads that have none."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._calls: set[_Call] = set()
        self._ending = False
        self._ready = runtime.event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = runtime.thread(self._main, name="holdfast-portal")
        self._ready.wait()

    def run(self, asked: Any) -> Any:
        """Run something awaitable to its end; answer what it answers, raise what it raises."""
        if self._loop is asyncio._get_running_loop():
            asked.close()
            raise BlockingCall("The portal cannot wait for itself. Await the async method here.", method="", twin="")
        lock = self._runtime.lock()
        lock.acquire()
        call = _Call(asked, lock)
        self._calls.add(call)
        if not self._soon(self._begin, call):
            self._end(call, cancelled=True)
        try:
            lock.acquire()
        except BaseException:  # Ctrl-C in the waiting thread: nobody wants the answer any more
            call.unwanted = True
            self._soon(_cancel, call)
            raise
        if call.error is not None:
            try:
                raise call.error
            finally:
                call.error = None  # or its traceback would hold on to it
        return call.answer

    def _soon(self, callback: Callable[..., object], *args: Any) -> bool:
        """Call something on the loop, with the context variables of this thread. False: the loop has ended."""
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
        if self._ending or call.unwanted:
            call.task.cancel()

    def _end(self, call: _Call, *, cancelled: bool) -> None:
        """Let the caller go on, once: its task has ended, or the loop has without it."""
        if call in self._calls:
            self._calls.discard(call)
            call.asked.close()  # where it was never begun
            if cancelled:
                call.error = _closed() if self._ending else asyncio.CancelledError()
            call.lock.release()

    def _main(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._told = asyncio.Event()
            self._loop.call_soon(self._ready.set)
            runner.run(self._until_told())
        for call in tuple(self._calls):
            self._end(call, cancelled=True)

    async def _until_told(self) -> None:
        await self._told.wait()
        self._ending = True
        for call in tuple(self._calls):
            _cancel(call)

    def close(self, *, wait: bool = True) -> None:
        """End the thread; calls under way are told that the store has been closed."""
        self._soon(self._told.set)
        if wait and self._loop is not asyncio._get_running_loop():
            self._thread.join()


async def _carry_out(call: _Call) -> None:
    try:
        call.answer = await call.asked
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        call.error = error


def _cancel(call: _Call) -> None:
    if call.task is not None:
        call.task.cancel()


def _closed() -> EngineUnavailable:
    return EngineUnavailable("The App has been closed while this call was under way. Open it again.")
