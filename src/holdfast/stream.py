"""Events as a stream: `async for event in jobs.subscribe(...)`, or `for` in a thread.

A stream has the events of all processes that share the store, from the moment it is opened (which opens the store), or
those of this process alone. A reader that is too slow loses the oldest events; `dropped` says how many.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from holdfast.blocking import run_coroutine
from holdfast.core.connection import StoreConnection
from holdfast.errors import BlockingCall
from holdfast.telemetry.events import Event

E = TypeVar("E", bound=Event)

MAX_EVENTS = 10_000
"""Events kept while the reader is busy; older ones are dropped, to bound the memory."""


class EventStream(Generic[E]):
    """One reader's events. Leave the `with` block, or `close`, to stop listening."""

    def __init__(
        self, store: StoreConnection, kind: type[E], *, job_id: str | None, queue: str | None, everywhere: bool = False
    ) -> None:
        self._store = store
        self._kind = kind
        self._everywhere = everywhere
        self._filter = {"job_id": job_id, "queue": queue}
        self._events: deque[E] = deque(maxlen=MAX_EVENTS)
        self._unsubscribe: Callable[[], None] | None = None
        self._closed = False
        self._arrived = store.runtime.event()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self.dropped: int = 0
        """Events that were lost here, because the reader was too slow."""

    def _open(self) -> Self:
        """Start listening. Events of other processes arrive once the store is open."""
        if self._unsubscribe is None and not self._closed:
            self._unsubscribe = self._store.bus.on(self._kind, self._receive, everywhere=self._everywhere)
        return self

    async def _open_store(self) -> None:
        if self._everywhere and not self._closed and not self._store.process.open:
            await self._store.engine()

    def _receive(self, event: E) -> None:
        """Called on the thread that emits the event."""
        for name, value in self._filter.items():
            if value is not None and getattr(event, name, None) != value:
                return
        self.dropped += len(self._events) == MAX_EVENTS
        self._events.append(event)
        self._wake()

    def _wake(self) -> None:
        self._arrived.set()
        waiter = self._waiter
        if waiter is not None and not waiter[0].is_closed():
            waiter[0].call_soon_threadsafe(_resolve, waiter[1])

    def close(self) -> None:
        """Stop listening. A loop over the stream ends after the events that have arrived."""
        self._closed = True
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._wake()

    def __enter__(self) -> Self:
        if asyncio._get_running_loop() is None:
            run_coroutine(self._open_store(), self._store.loop_thread)
        return self._open()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self._open_store()
        return self._open()

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self.__enter__()

    def __next__(self) -> E:
        if asyncio._get_running_loop() is not None:
            raise BlockingCall(
                "`for` over events would block the running event loop. Use `async for` here.",
                method="next",
                twin="anext",
            )
        while True:
            self._arrived.clear()
            if self._events:
                return self._events.popleft()
            if self._closed:
                raise StopIteration
            self._arrived.wait()  # no limit: the user waits for the next event; `close` sets it

    def __aiter__(self) -> Self:
        return self._open()

    async def __anext__(self) -> E:
        loop = asyncio.get_running_loop()
        await self._open_store()
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            self._waiter = waiter = (loop, loop.create_future())
            if not self._events and not self._closed:  # one may have arrived in between
                await waiter[1]
        return self._events.popleft()


def _resolve(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_result(None)
