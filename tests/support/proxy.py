"""A TCP proxy that fails on command, between a client and a PostgreSQL or Redis server.

It runs on a thread of its own, so both async and blocking tests can control it. It reads enough of the protocol to
know where a request begins and where its reply ends (PostgreSQL's `ReadyForQuery`: by then the server has committed; on
Redis the reply to a script). So a test can cut a connection exactly before a request reaches the server, after the
server has carried it out, or in the middle of the reply.
"""

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Protocol, Self, TypeVar

import hiredis
from postgres_cluster import free_port

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
READ_BYTES = 1 << 16
ENCRYPTION_REQUESTS = frozenset({80877103, 80877104})
READY_FOR_QUERY = ord("Z")
END_OF_DESCRIPTION = frozenset(b"TnE")
FLUSH = b"H\x00\x00\x00\x04"
TERMINATE = b"X\x00\x00\x00\x04"


class Direction(Enum):
    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


class Cut(Enum):
    """Where in a request and its reply the connection is cut."""

    BEFORE_REQUEST = "no byte of the request reaches the server"
    BEFORE_REPLY = "the server has carried out the request, no byte of the reply reaches the client"
    IN_REPLY = "the server has carried out the request, half of the reply reaches the client"


class Wire(Protocol):
    """What the bytes of one connection mean."""

    def begins_request(self, data: bytes) -> bool:
        """The client has sent this. True: with it begins a request that may be cut."""

    def mark(self) -> None:
        """The request that has just begun will be cut."""

    def ends_reply(self, data: bytes) -> bool:
        """The server has sent this. True: with it ends the reply to a request, the marked one if there is one."""


class PostgresWire:
    """One request at a time. Login and farewell are no requests."""

    def __init__(self) -> None:
        self._established = self._in_request = False
        self._incomplete = b""
        self._single_bytes = 0
        self._last_messages = frozenset({READY_FOR_QUERY})

    def begins_request(self, data: bytes) -> bool:
        if not self._established:
            if len(data) == 8 and struct.unpack("!i", data[4:])[0] in ENCRYPTION_REQUESTS:
                self._single_bytes += 1  # the next answer is one byte: whether the server encrypts
            return False
        if self._in_request or data == TERMINATE:
            return False
        self._in_request = True
        # A request that ends with a flush prepares a statement: its reply ends with a description.
        described = END_OF_DESCRIPTION if data.endswith(FLUSH) else frozenset()
        self._last_messages = frozenset({READY_FOR_QUERY}) | described
        return True

    def mark(self) -> None: ...

    def ends_reply(self, data: bytes) -> bool:
        data = self._incomplete + data
        position, complete = 0, False
        while self._single_bytes and position < len(data):
            position, self._single_bytes = position + 1, self._single_bytes - 1
        while position + 5 <= len(data):
            length = 1 + int.from_bytes(data[position + 1 : position + 5], "big")
            if position + length > len(data):
                break
            complete = complete or data[position] in self._last_messages
            position += length
        self._incomplete = data[position:]
        if complete:
            self._established, self._in_request = True, False
        return complete


class RedisWire:
    """Many requests at a time, answered in order. Only scripts count: no login, no subscription."""

    def __init__(self) -> None:
        self._requests, self._replies = hiredis.Reader(), hiredis.Reader()
        self._unanswered: deque[bool] = deque()
        """In order; True: a script."""
        self._until_marked: int | None = None
        """How many replies come up to that of the marked request."""

    def begins_request(self, data: bytes) -> bool:
        self._requests.feed(data)
        begins = False
        while (request := self._requests.gets()) is not False:
            name = request[0].upper()
            if name.endswith(b"SUBSCRIBE"):
                continue  # answered by messages
            self._unanswered.append(name.startswith((b"EVAL", b"FCALL")))
            begins = begins or self._unanswered[-1]
        return begins

    def mark(self) -> None:
        self._until_marked = len(self._unanswered)

    def ends_reply(self, data: bytes) -> bool:
        self._replies.feed(data)
        complete = False
        while (reply := self._replies.gets()) is not False:
            if isinstance(reply, hiredis.PushNotification) or not self._unanswered:
                continue
            was_script = self._unanswered.popleft()
            if self._until_marked is None:
                complete = complete or was_script
            else:
                self._until_marked -= 1
                complete = self._until_marked == 0 or complete
        return complete


class ProxiedConnection:
    """One client's connection, and the proxy's connection to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter, wire: Wire) -> None:
        self.client = client
        self.server = server
        self.wire = wire
        self.cut: Cut | None = None
        self.withheld = bytearray()
        self.pumps: list[asyncio.Future[None]] = []

    def abort(self) -> None:
        for writer in (self.client, self.server):
            with suppress(OSError):
                raw = writer.get_extra_info("socket")
                # A reset, not a normal close.
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        for pump in self.pumps:
            pump.cancel()


async def close_listener(listener: asyncio.Server) -> None:
    """Close it so that no connection is lost between its accept and the next turn of the loop: it would stay open."""
    for listening in listener.sockets:
        listener.get_loop().remove_reader(listening.fileno())
    await asyncio.sleep(0)
    listener.close()


class Proxy:
    """Forwards `port` to the server's port. A context manager."""

    def __init__(self, server_port: int, wire: Callable[[], Wire] = PostgresWire) -> None:
        self._target = server_port
        self._wire = wire
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._connections: set[ProxiedConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._plan: tuple[Cut, int] | None = None
        self._delay = 0.0
        self._cut = threading.Event()
        self._thread.start()
        self._open = self._do(self._make_gates)
        self.port = free_port()
        self._listener: asyncio.Server | None = None
        self.accept()

    # Commands

    def cut(self) -> int:
        """Reset every connection; return their number."""

        async def cut() -> int:
            connections = list(self._connections)
            for connection in connections:
                connection.abort()
            return len(connections)

        return self._do(cut)

    def cut_at(self, where: Cut, nth: int = 1) -> None:
        """Cut the connection of the nth request from now, among all connections. See `wait_until_cut`."""

        async def plan() -> None:
            self._plan = (where, nth)
            self._cut.clear()

        self._do(plan)

    def wait_until_cut(self, timeout: float = 30) -> None:
        """Wait for the cut that `cut_at` planned."""
        if not self._cut.wait(timeout):
            raise TimeoutError("No request came, so nothing was cut.")

    def hold(self, *directions: Direction) -> None:
        """Forward nothing in these directions (default: both), and keep the bytes until `release`."""

        async def hold() -> None:
            for direction in directions or Direction:
                self._open[direction].clear()

        self._do(hold)

    def release(self) -> None:
        async def release() -> None:
            for gate in self._open.values():
                gate.set()

        self._do(release)

    def delay(self, seconds: float) -> None:
        """Forward all bytes this much later."""

        async def delay() -> None:
            self._delay = seconds

        self._do(delay)

    def refuse(self) -> None:
        """Refuse new connections, as if the port were closed. Open connections stay."""

        async def refuse() -> None:
            if (listener := self._listener) is not None:
                self._listener = None
                await close_listener(listener)

        self._do(refuse)

    def accept(self) -> None:
        """Listen (again), always on the same port."""

        async def accept() -> None:
            if self._listener is None:
                self._listener = await asyncio.start_server(self._accepted, LOOPBACK, self.port)

        self._do(accept)

    def redirect(self, server_port: int) -> None:
        """Forward new connections to another server, and reset the open ones: a failover."""
        self._target = server_port
        self.cut()

    @property
    def connections(self) -> int:
        return len(self._connections)

    def close(self) -> None:
        async def cancel() -> None:
            while self._tasks:
                for task in self._tasks:
                    task.cancel()
                await asyncio.wait(self._tasks)
            await asyncio.sleep(0)  # aborted transports are closed in the next turn of the loop

        self.refuse()
        self.cut()
        self._do(cancel)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # On the loop

    def _do(self, function: Callable[[], Awaitable[T]]) -> T:
        async def call() -> T:
            return await function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(30)

    async def _make_gates(self) -> dict[Direction, asyncio.Event]:
        gates = {direction: asyncio.Event() for direction in Direction}
        for gate in gates.values():
            gate.set()
        return gates

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)

        def close(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            writer.close()

        # Not in the task: it may be cancelled before its first step.
        task.add_done_callback(close)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection(LOOPBACK, self._target)
        except OSError:
            return
        connection = ProxiedConnection(writer, to_server, self._wire())
        self._connections.add(connection)
        both = (self._to_server(connection, reader), self._to_client(connection, from_server))
        connection.pumps = [asyncio.ensure_future(pump) for pump in both]
        try:
            await asyncio.wait(connection.pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # One side has ended, so the other has no peer.
            for pump in connection.pumps:
                pump.cancel()
            await asyncio.gather(*connection.pumps, return_exceptions=True)
            to_server.close()
            self._connections.discard(connection)

    async def _to_server(self, connection: ProxiedConnection, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(READ_BYTES):
            if connection.wire.begins_request(data) and connection.cut is None:
                connection.cut = self._planned_cut()
                if connection.cut is Cut.BEFORE_REQUEST:
                    self._end(connection)
                    return
                if connection.cut is not None:
                    connection.wire.mark()
            await self._forward(Direction.TO_SERVER, connection.server, data)

    async def _to_client(self, connection: ProxiedConnection, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(READ_BYTES):
            complete = connection.wire.ends_reply(data)
            if connection.cut is None:
                await self._forward(Direction.TO_CLIENT, connection.client, data)
                continue
            connection.withheld += data
            if complete:
                if connection.cut is Cut.IN_REPLY:
                    connection.client.write(connection.withheld[: len(connection.withheld) // 2])
                    await connection.client.drain()
                    connection.client.close()
                self._end(connection)
                return

    async def _forward(self, direction: Direction, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self._delay:
            await asyncio.sleep(self._delay)
        await self._open[direction].wait()
        writer.write(data)
        await writer.drain()

    def _planned_cut(self) -> Cut | None:
        """The cut that is planned for the request that comes now."""
        if self._plan is None:
            return None
        where, nth = self._plan
        self._plan = (where, nth - 1) if nth > 1 else None
        return where if nth == 1 else None

    def _end(self, connection: ProxiedConnection) -> None:
        if connection.cut is Cut.IN_REPLY:
            connection.server.transport.abort()
        else:
            connection.abort()
        self._cut.set()
