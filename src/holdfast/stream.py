"""Events as a stream: `async for event in jobs.subscribe(...)`, or `for` in a thread.

It hears what happens from the moment it is opened, in all processes that share the store, and for that the store is
opened with it; or in this process alone. A reader that is too slow loses the oldest events; `dropped` says how many.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from holdfast.core.link import Link
from holdfast.errors import BlockingCall
from holdfast.telemetry.events import Event

E = TypeVar("E", bound=Event)

MOST = 10_000
"""Events kept for a reader that is busy."""


class EventStream(Generic[E]):
    """One reader's events. Leave the `with` block, or `close`, to stop listening."""

    def __init__(
        self, link: Link, kind: type[E], *, job_id: str | None, queue: str | None, everywhere: bool = False
    ) -> None:
        self._link = link
        self._kind = kind
        self._everywhere = everywhere
        self._wanted = {"job_id": job_id, "queue": queue}
        self._events: deque[E] = deque(maxlen=MOST)
        self._off: Callable[[], None] | None = None
        self._closed = False
        self._arrived = link.runtime.event()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self.dropped = 0

    def _open(self) -> Self:
        """Listen. What happens elsewhere is heard once the store is open."""
        if self._off is None and not self._closed:
            self._off = self._link.bus.on(self._kind, self._hear, everywhere=self._everywhere)
        return self

    async def _reach(self) -> None:
        if self._everywhere and not self._closed and not self._link.process.open:
            await self._link.engine()

    def _hear(self, event: E) -> None:
        """On whatever thread emits."""
        for name, value in self._wanted.items():
            if value is not None and getattr(event, name, None) != value:
                return
        self.dropped += len(self._events) == MOST
        self._events.append(event)
        self._wake()

    def _wake(self) -> None:
        self._arrived.set()
        waiter = self._waiter
        if waiter is not None and not waiter[0].is_closed():
            waiter[0].call_soon_threadsafe(_resolve, waiter[1])

    def close(self) -> None:
        self._closed = True
        if self._off is not None:
            self._off()
        self._wake()

    def __enter__(self) -> Self:
        if asyncio._get_running_loop() is None:
            self._link.run(self._reach(), here=True)
        return self._open()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self._reach()
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
            self._arrived.wait()

    def __aiter__(self) -> Self:
        return self._open()

    async def __anext__(self) -> E:
        loop = asyncio.get_running_loop()
        await self._reach()
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            self._waiter = waiter = (loop, loop.create_future())
            if not self._events and not self._closed:  # it may have come in between
                await waiter[1]
        return self._events.popleft()


def _resolve(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_result(None)
