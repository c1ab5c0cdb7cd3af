"""Connections for each event loop that uses an engine. A connection of asyncio belongs to the loop that made it.

When a loop ends, its connections are closed. `asyncio.run` and its like close the asynchronous generators that were
started on the loop, so each loop gets a generator here whose only purpose is to run its `finally` then. If a loop is
closed without that step, its connections are dropped when the next loop comes, or when the engine is closed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from holdfast.runtime import Runtime

LOOP_TURNS_TO_CLOSE_A_SOCKET = 3  # asyncio closes a transport in a later turn of its loop


class Closable(Protocol):
    def close(self) -> None:
        """Called in the thread of the loop."""


C = TypeVar("C", bound=Closable)

_KEPT: "WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncGenerator[None, None]]]" = WeakKeyDictionary()
"""Generators of connections that another thread has closed. If a generator were collected before its loop ends, asyncio
would make a task for it, and a loop that runs no more would warn that the task was destroyed."""


class ByLoop(Generic[C]):
    """One object for each event loop, made by `make` when the loop first needs it."""

    def __init__(self, runtime: Runtime, make: Callable[[], C]) -> None:
        self._runtime = runtime
        self._make = make
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[C, AsyncGenerator[None, None]]] = {}

    def of_running_loop(self) -> C:
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        return self._add(loop) if found is None else found[0]

    def all(self) -> list[C]:
        """The objects of every loop. They belong to their loops' threads."""
        return [made for made, _ in tuple(self._by_loop.values())]

    def _add(self, loop: asyncio.AbstractEventLoop) -> C:
        for other in [other for other in tuple(self._by_loop) if other.is_closed()]:
            self._by_loop.pop(other, None)
        added = self._make()
        end_of_loop = self._close_at_end_of(loop, added)
        self._by_loop[loop] = added, end_of_loop
        with suppress(StopIteration):
            end_of_loop.__anext__().send(None)  # starts the generator on this loop without an await
        return added

    async def _close_at_end_of(self, loop: asyncio.AbstractEventLoop, connections: C) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._by_loop.pop(loop, None)
            connections.close()
            await self._wait_for_sockets()

    async def close(self) -> None:
        """Close the connections of every loop, from one of these loops or from another."""
        own = self._by_loop.pop(asyncio.get_running_loop(), None)
        self.close_now()
        if own is not None:
            own[0].close()
            await own[1].aclose()
        await self._wait_for_sockets()

    def close_now(self) -> None:
        """From any thread: each loop closes its own connections in its next turn."""
        while self._by_loop:
            loop, (connections, end_of_loop) = self._by_loop.popitem()
            if not loop.is_closed():
                with suppress(RuntimeError):  # the loop was closed in the meantime
                    loop.call_soon_threadsafe(connections.close)
                    _KEPT.setdefault(loop, []).append(end_of_loop)

    async def _wait_for_sockets(self) -> None:
        for _ in range(LOOP_TURNS_TO_CLOSE_A_SOCKET):
            await self._runtime.sleep(0)
