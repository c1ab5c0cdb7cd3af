"""A pool of connections of one event loop: a call takes one, uses it and gives it back.

If a call ends early, by a network error or because its caller was cancelled, its connection is closed: the next bytes
on it would be the answer to the old call. A connection that died while idle is replaced before a call uses it, so a
restart of the server between two calls causes no error.

If all connections are in use, a call waits for one, in the order of arrival. It also waits if the server refuses
another connection and the pool has some already.
"""

import asyncio
import select
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType

import asyncpg

from holdfast.engines.postgres import failures
from holdfast.engines.postgres.connect import socket_of
from holdfast.errors import EngineUnavailable

Connect = Callable[[], Awaitable[asyncpg.Connection]]


class Connections:
    """At most `limit` connections, opened on demand. The last one used is the next one used.

    At most `keep` of them stay open while idle (None: all).
    """

    def __init__(self, connect: Connect, limit: int, *, keep: int | None = None) -> None:
        self._connect = connect
        self._limit = limit
        self._keep = limit if keep is None else keep
        self._count = 0
        """Connections that are open or being opened."""
        self._idle: list[asyncpg.Connection] = []
        self._waiters: deque[asyncio.Future[asyncpg.Connection | None]] = deque()
        self._closed = False

    def one(self) -> "BorrowedConnection":
        """A connection for the duration of the block."""
        return BorrowedConnection(self)

    async def take(self) -> asyncpg.Connection:
        connection = await self._take_idle_or_permit()
        while True:
            try:
                if connection is not None:
                    if _is_alive(connection):
                        return connection
                    connection.terminate()
                return await self._connect()
            except BaseException as error:
                if self._count == 1 or not isinstance(error.__cause__, asyncpg.TooManyConnectionsError):
                    self.give_back(None)
                    raise
            self._count -= 1  # the permit is dropped: the server would refuse the next waiter too
            connection = self._idle.pop() if self._idle else await self._wait()

    async def _take_idle_or_permit(self) -> asyncpg.Connection | None:
        """An idle connection, or None: the permit to open one."""
        if self._closed:
            raise EngineUnavailable("The store has been closed. Nothing was written. Open it again.")
        if self._idle:
            return self._idle.pop()
        if self._count < self._limit:
            self._count += 1
            return None
        return await self._wait()

    async def _wait(self) -> asyncpg.Connection | None:
        waiter: asyncio.Future[asyncpg.Connection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():  # it was served and cancelled at once
                self.give_back(waiter.result())
            waiter.cancel()
            raise

    def give_back(self, connection: asyncpg.Connection | None) -> None:
        """Give a connection, or the permit of a closed one (None), to the next waiter."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if connection is not None and not self._closed and len(self._idle) < self._keep:
            self._idle.append(connection)
            return
        self._count -= 1
        if connection is not None:
            connection.terminate()

    def close(self) -> None:
        """Call it in the loop's thread. A connection in use is closed when its call ends."""
        self._closed = True
        idle, self._idle = self._idle, []
        self._count -= len(idle)
        for connection in idle:
            connection.terminate()


class BorrowedConnection:
    """A connection that is taken from the pool at the begin of a block and given back at its end."""

    __slots__ = ("_connection", "_connections")

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def __aenter__(self) -> asyncpg.Connection:
        self._connection = connection = await self._connections.take()
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = self._connection
        usable = error is None or (isinstance(error, asyncpg.PostgresError) and not failures.ends_connection(error))
        if usable and not connection.is_closed():
            self._connections.give_back(connection)
        else:
            connection.terminate()
            self._connections.give_back(None)


def _is_alive(connection: asyncpg.Connection) -> bool:
    """False if the socket of this idle connection has unread bytes: a server sends such bytes only when it closes."""
    found = None if connection.is_closed() else socket_of(connection)
    if found is None:
        return False
    if hasattr(select, "poll"):  # unlike `select`, it accepts file descriptors above 1023
        poller = select.poll()
        poller.register(found.fileno(), select.POLLIN)
        return not poller.poll(0)
    return not select.select([found.fileno()], [], [], 0)[0]
