"""Connections of one event loop: taken, used for one call, given back.

A connection whose call was cut short, by an error of the wire or because nobody waits for it any more, is closed: what
it would say next belongs to a question that nobody asked. One that has died while it was idle is replaced before
anything is sent over it, so a server that has been restarted meanwhile costs nobody an error.

Whoever finds all of them in use waits for a turn, first come first served. The same when the server takes no more
connections but has given us some already.
"""

import asyncio
import select
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg

from holdfast.engines.postgres import failures
from holdfast.engines.postgres.dialling import wire_of
from holdfast.errors import EngineUnavailable

Connect = Callable[[], Awaitable[asyncpg.Connection]]


class Connections:
    """At most so many, made when they are needed; the one used last is used next, and so many are kept idle."""

    def __init__(self, connect: Connect, most: int, *, keep: int | None = None) -> None:
        self._connect = connect
        self._most = most
        self._keep = most if keep is None else keep
        self._open = 0
        """Places taken: by connections, and by those under way."""
        self._idle: list[asyncpg.Connection] = []
        self._waiting: deque[asyncio.Future[asyncpg.Connection | None]] = deque()
        self._closed = False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection, as long as the block lasts."""
        connection = await self._take()
        sound = False
        try:
            yield connection
            sound = True
        except asyncpg.PostgresError as error:
            sound = not failures.ends_connection(error)
            raise
        finally:
            if sound and not connection.is_closed():
                self._pass_on(connection)
            else:
                connection.terminate()
                self._pass_on(None)

    async def _take(self) -> asyncpg.Connection:
        connection = await self._place()
        while True:
            try:
                if connection is not None:
                    if _lives(connection):
                        return connection
                    connection.terminate()
                return await self._connect()
            except BaseException as error:
                if self._open == 1 or not isinstance(error.__cause__, asyncpg.TooManyConnectionsError):
                    self._pass_on(None)
                    raise
            self._open -= 1  # not passed on: the next one would only be refused as well
            connection = self._idle.pop() if self._idle else await self._turn()

    async def _place(self) -> asyncpg.Connection | None:
        """A connection that is idle; None: room to make one."""
        if self._closed:
            raise EngineUnavailable("The store has been closed. Nothing was written. Open it again.")
        if self._idle:
            return self._idle.pop()
        if self._open < self._most:
            self._open += 1
            return None
        return await self._turn()

    async def _turn(self) -> asyncpg.Connection | None:
        turn: asyncio.Future[asyncpg.Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # it came, and nobody takes it
                self._pass_on(turn.result())
            turn.cancel()
            raise

    def _pass_on(self, connection: asyncpg.Connection | None) -> None:
        """A connection, or the place of one that is no more, for whoever is next."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(connection)
                return
        if connection is not None and not self._closed and len(self._idle) < self._keep:
            self._idle.append(connection)
            return
        self._open -= 1
        if connection is not None:
            connection.terminate()

    def close(self) -> None:
        """From the loop's own thread. What is in use is closed when its call has ended."""
        self._closed = True
        idle, self._idle = self._idle, []
        self._open -= len(idle)
        for connection in idle:
            connection.terminate()


def _lives(connection: asyncpg.Connection) -> bool:
    """Nobody says anything to an idle connection but good-bye: whatever lies unread on its wire, it is not used."""
    wire = None if connection.is_closed() else wire_of(connection)
    if wire is None:
        return False
    if hasattr(select, "poll"):  # unlike `select` it does not mind high numbers
        looker = select.poll()
        looker.register(wire.fileno(), select.POLLIN)
        return not looker.poll(0)
    return not select.select([wire.fileno()], [], [], 0)[0]
