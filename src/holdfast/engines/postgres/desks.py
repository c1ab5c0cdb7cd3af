"""What an event loop has of its own: its connections. An asyncpg connection belongs to the loop that made it.

A loop that ends takes its connections with it. `asyncio.run` and its like close the asynchronous generators that were
begun on the loop, so one stands here for no other purpose than to be told. Of a loop that was closed without that, the
connections are let go when the next loop comes, or when the engine is closed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass

from holdfast.engines.postgres.connections import Connections
from holdfast.runtime import Runtime


@dataclass(eq=False, slots=True)
class Desk:
    """`own` carries commands; `lent` is for users' transactions, which may last and must not be in a command's way."""

    own: Connections
    lent: Connections
    watch: AsyncGenerator[None, None] | None = None

    def close(self) -> None:
        """From the loop's own thread."""
        self.own.close()
        self.lent.close()


class Desks:
    """One for each event loop that uses the engine."""

    def __init__(self, runtime: Runtime, make: Callable[[], Desk]) -> None:
        self._runtime = runtime
        self._make = make
        self._desks: dict[asyncio.AbstractEventLoop, Desk] = {}

    def here(self) -> Desk:
        loop = asyncio.get_running_loop()
        desk = self._desks.get(loop)
        return self._new(loop) if desk is None else desk

    def _new(self, loop: asyncio.AbstractEventLoop) -> Desk:
        for other in [other for other in tuple(self._desks) if other.is_closed()]:
            self._desks.pop(other, None)
        desk = self._desks[loop] = self._make()
        desk.watch = self._until_the_end(loop, desk)
        with suppress(StopIteration):
            desk.watch.__anext__().send(None)  # begun, on this loop, without waiting
        return desk

    async def _until_the_end(self, loop: asyncio.AbstractEventLoop, desk: Desk) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._desks.pop(loop, None)
            desk.close()
            await self._settle()

    async def close(self) -> None:
        """All of them, from one of the loops or from yet another."""
        loop = asyncio.get_running_loop()
        desk = self._desks.pop(loop, None)
        self.close_now()
        if desk is not None:
            desk.close()
            if desk.watch is not None:
                await desk.watch.aclose()
        await self._settle()

    def close_now(self) -> None:
        """From any thread: every loop closes its own, as soon as it gets to it."""
        while self._desks:
            loop, desk = self._desks.popitem()
            if not loop.is_closed():
                with suppress(RuntimeError):  # it has been, meanwhile
                    loop.call_soon_threadsafe(desk.close)

    async def _settle(self) -> None:
        """The loop closes a socket in its next turns."""
        for _ in range(3):
            await self._runtime.sleep(0)
