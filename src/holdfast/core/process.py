"""What an App has opened in one process: the engine, its feed, the portal, and a desk on each event loop.

A forked child starts with nothing: connections, threads and locks of its parent are left alone, not even closed. One
engine serves all threads and loops of a process. What belongs to a loop (the merging of enqueues, the listener for
ended jobs) sits at that loop's desk and goes with it.
"""

import asyncio
import os
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from holdfast.blocking import Portal
from holdfast.core.doors import ThreadDoor, thread_door
from holdfast.core.enqueuer import Enqueuer
from holdfast.core.waiting import Waiting
from holdfast.engine import Engine
from holdfast.runtime import Runtime
from holdfast.telemetry.bus import Bus
from holdfast.telemetry.feed import Feed


@dataclass(frozen=True, slots=True)
class Desk:
    """What one event loop needs."""

    enqueuer: Enqueuer
    waiting: Waiting


class Process:
    """The open side of an App in this process."""

    def __init__(self, engine: Engine, runtime: Runtime, bus: Bus) -> None:
        self.pid = os.getpid()
        self.engine = engine
        self.door: ThreadDoor | None = thread_door(engine)
        self.open = False
        self._feed = Feed(engine, runtime, bus)
        self._runtime = runtime
        self._name = runtime.new_id()
        self._lock = runtime.lock()
        self._opening: _Opening | None = None
        self._portal: Portal | None = None
        self._desks: WeakKeyDictionary[asyncio.AbstractEventLoop, Desk] = WeakKeyDictionary()

    async def opened(self) -> None:
        """Open the engine, once, however many ask for it on however many loops."""
        while not self.open:
            with self._lock:
                others = self._opening
                if others is None:
                    self._opening = _Opening()
            if others is not None:
                await others.wait()
                continue
            try:
                await self.engine.open()
                self.open = True
                self._feed.open()
            finally:
                with self._lock:
                    over, self._opening = self._opening, None
                if over is not None:
                    over.tell()

    def desk(self) -> Desk:
        """The desk on the running loop."""
        loop = asyncio.get_running_loop()
        desk = self._desks.get(loop)
        if desk is None:
            waiting = Waiting(self.engine, self._runtime, self._name)
            desk = self._desks[loop] = Desk(Enqueuer(self.engine, self._runtime), waiting)
        return desk

    def portal(self) -> Portal:
        with self._lock:
            if self._portal is None:
                self._portal = Portal(self._runtime)
            return self._portal

    async def close(self) -> None:
        """Wake whoever waits, then let go of the engine."""
        for loop, desk in list(self._desks.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(desk.waiting.close)
        if self.open:
            self.open = False
            if self._feed.has_sent:
                await self._runtime.run_blocking(self._feed.close)
            self._feed.close()
            await self.engine.close()

    def close_portal(self, *, wait: bool) -> None:
        with self._lock:
            portal, self._portal = self._portal, None
        if portal is not None:
            portal.close(wait=wait)

    @property
    def has_threads(self) -> bool:
        return self._portal is not None or (self.open and hasattr(self.engine, "close_now"))

    def abandon(self) -> None:
        """The App is gone, or the interpreter goes: close what can be closed without an event loop."""
        if self.pid == os.getpid():
            close_now = getattr(self.engine, "close_now", None)
            if self.open and close_now is not None:
                self._feed.close()
                close_now()
            self.close_portal(wait=True)


class _Opening:
    """An opening under way. Waited for on any loop, told from any other."""

    def __init__(self) -> None:
        self._over = False
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        waiter = (loop, loop.create_future())
        self._waiters.append(waiter)
        if not self._over:
            await waiter[1]

    def tell(self) -> None:
        self._over = True
        for loop, future in tuple(self._waiters):
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
