"""What an App has opened in one process: the engine, its feed, the loop thread, and the objects of each event loop.

A forked child starts with nothing: it neither uses nor closes the connections, threads and locks of its parent. One
engine serves all threads and event loops of a process. Each event loop has an enqueue merger and an end listener of its
own, which are dropped with the loop.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary, ref

from holdfast.blocking import CallerLoop, LoopThread
from holdfast.core.enqueue import EnqueueMerger
from holdfast.core.waiting import EndListener
from holdfast.engine import Engine
from holdfast.runtime import Runtime
from holdfast.telemetry.bus import Bus
from holdfast.telemetry.events import StoreEvent
from holdfast.telemetry.feed import Feed


@dataclass(frozen=True, slots=True)
class PerLoop:
    """The objects of one event loop."""

    merger: EnqueueMerger
    end_listener: EndListener


class Process:
    """The open engine of an App in this process, and what belongs to it."""

    def __init__(self, engine: Engine, runtime: Runtime, bus: Bus) -> None:
        self.pid = os.getpid()
        self.engine = engine
        self.open = False
        self._must_close = False
        """True from the first attempt to open on: a caller that was cancelled may have left an open engine."""
        self._needs_close_now = type(engine).close_now is not Engine.close_now
        self._feed = Feed(engine, runtime, bus)
        engine.report_to(_emit_to(bus))
        self._runtime = runtime
        self._name = runtime.new_id()
        self._lock = runtime.lock()
        self._opening: _Opening | None = None
        self._loop_thread: LoopThread | None = None
        self.caller_loop = CallerLoop(runtime)
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, PerLoop] = WeakKeyDictionary()

    async def open_engine(self) -> None:
        """Open the engine once, for all callers on all event loops."""
        while not self.open:
            with self._lock:
                other = self._opening
                if other is None:
                    self._opening = _Opening()
            if other is not None:
                await other.wait()  # no limit: the other caller opens the store, which has limits
                continue
            try:
                self._must_close = True
                await self.engine.open()
                self.open = True
                self._feed.open()
            finally:
                with self._lock:
                    mine, self._opening = self._opening, None
                if mine is not None:
                    mine.finish()

    def per_loop(self) -> PerLoop:
        """The objects of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None:
            merger = EnqueueMerger(self.engine, self._runtime)
            found = self._loops[loop] = PerLoop(merger, EndListener(self.engine, self._runtime, self._name))
        return found

    def loop_thread(self) -> LoopThread:
        with self._lock:
            if self._loop_thread is None:
                self._loop_thread = LoopThread(self._runtime)
            return self._loop_thread

    async def close(self) -> None:
        """Wake all waiting callers, then close the engine."""
        for loop, per_loop in list(self._loops.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(per_loop.end_listener.close)
        if self._must_close:
            self.open = False
            if self._feed.has_sent:
                await self._runtime.run_blocking(self._feed.close)
            self._feed.close()
            await self.engine.close()
        self.caller_loop.close()

    def close_loop_thread(self, *, wait: bool) -> None:
        with self._lock:
            loop_thread, self._loop_thread = self._loop_thread, None
        if loop_thread is not None:
            loop_thread.close(wait=wait)

    @property
    def has_threads(self) -> bool:
        return self._loop_thread is not None or (self.open and self._needs_close_now)

    def abandon(self) -> None:
        """Close without an event loop: the App was collected, or the interpreter exits."""
        if self.pid == os.getpid():
            if self.open and self._needs_close_now:
                self._feed.close()
                self.engine.close_now()
            self.caller_loop.close()
            self.close_loop_thread(wait=True)


def _emit_to(bus: Bus) -> Callable[[StoreEvent], None]:
    """Emits on the bus of an App. The threads of an engine must not keep that App alive."""
    weak_bus = ref(bus)

    def emit(event: StoreEvent) -> None:
        target = weak_bus()
        if target is not None and target.wants(type(event)):
            target.emit(event)

    return emit


class _Opening:
    """The engine is being opened. Waited for on any event loop, finished from any other."""

    def __init__(self) -> None:
        self._finished = False
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        waiter = (loop, loop.create_future())
        self._waiters.append(waiter)
        if not self._finished:
            await waiter[1]

    def finish(self) -> None:
        self._finished = True
        for loop, future in tuple(self._waiters):
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
