"""The connections of each event loop. An asyncpg connection belongs to the loop that made it.

When a loop ends, its connections are closed. `asyncio.run` and its like close the asynchronous generators that were
started on the loop, so each loop gets a generator here whose only purpose is to run its `finally` then. If a loop is
closed without that step, its connections are dropped when the next loop comes, or when the engine is closed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass

from holdfast.engines.postgres.connections import Connections
from holdfast.runtime import Runtime

LOOP_TURNS_TO_CLOSE_A_SOCKET = 3  # asyncio closes a transport in a later turn of its loop


@dataclass(eq=False, slots=True)
class LoopConnections:
    """The connections of one event loop.

    `commands` carries commands. `transactions` is for users' transactions: they may last long, and must not take a
    connection away from commands.
    """

    commands: Connections
    transactions: Connections
    end_of_loop: AsyncGenerator[None, None] | None = None
    """Closed by the loop when it ends."""

    def close(self) -> None:
        """Call it in the thread of the loop."""
        self.commands.close()
        self.transactions.close()


class ConnectionsByLoop:
    """`LoopConnections` for each event loop that uses the engine."""

    def __init__(self, runtime: Runtime, make: Callable[[], LoopConnections]) -> None:
        self._runtime = runtime
        self._make = make
        self._by_loop: dict[asyncio.AbstractEventLoop, LoopConnections] = {}

    def of_running_loop(self) -> LoopConnections:
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        return self._add(loop) if found is None else found

    def _add(self, loop: asyncio.AbstractEventLoop) -> LoopConnections:
        for other in [other for other in tuple(self._by_loop) if other.is_closed()]:
            self._by_loop.pop(other, None)
        added = self._by_loop[loop] = self._make()
        added.end_of_loop = self._close_at_end_of(loop, added)
        with suppress(StopIteration):
            added.end_of_loop.__anext__().send(None)  # starts the generator on this loop without an await
        return added

    async def _close_at_end_of(
        self, loop: asyncio.AbstractEventLoop, connections: LoopConnections
    ) -> AsyncGenerator[None, None]:
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
            own.close()
            if own.end_of_loop is not None:
                await own.end_of_loop.aclose()
        await self._wait_for_sockets()

    def close_now(self) -> None:
        """From any thread: each loop closes its own connections in its next turn."""
        while self._by_loop:
            loop, connections = self._by_loop.popitem()
            if not loop.is_closed():
                with suppress(RuntimeError):  # the loop was closed in the meantime
                    loop.call_soon_threadsafe(connections.close)

    async def _wait_for_sockets(self) -> None:
        for _ in range(LOOP_TURNS_TO_CLOSE_A_SOCKET):
            await self._runtime.sleep(0)
