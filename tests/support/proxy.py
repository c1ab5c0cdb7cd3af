"""A TCP proxy that fails on command, between a client and a PostgreSQL server.

It runs on a thread of its own, so both async and blocking tests can command it. It reads just enough of the protocol
to know where a request begins and where its reply ends (`ReadyForQuery`: by then the server has committed). So a cut
can be placed exactly: before a request reached the server, after the server has done it, or in the middle of the reply.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Self, TypeVar

from postgres_cluster import free_port

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
PIECE = 1 << 16
ASKS_FOR_ENCRYPTION = frozenset({80877103, 80877104})
READY = ord("Z")
DESCRIBED = frozenset(b"TnE")
FLUSH = b"H\x00\x00\x00\x04"
GOODBYE = b"X\x00\x00\x00\x04"


class Way(Enum):
    """A direction of the bytes."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


class Cut(Enum):
    """Where in a request and its reply the connection is cut."""

    BEFORE_REQUEST = "nothing of the request reaches the server"
    BEFORE_REPLY = "the server has done it, nothing of the reply reaches the client"
    IN_REPLY = "the server has done it, half of the reply reaches the client"


class Replies:
    """Counts the whole replies in what the server sends."""

    def __init__(self) -> None:
        self._rest = b""
        self._plain = 0
        self._ends = frozenset({READY})

    def one_byte(self) -> None:
        """The next answer is a single byte, to the question whether to encrypt."""
        self._plain += 1

    def asked(self, request: bytes) -> None:
        """What ends with a flush is not followed by READY: it prepares a statement, and is told how that looks."""
        self._ends = frozenset({READY}) | DESCRIBED if request.endswith(FLUSH) else frozenset({READY})

    def count(self, data: bytes) -> int:
        data = self._rest + data
        at = ended = 0
        while self._plain and at < len(data):
            at, self._plain = at + 1, self._plain - 1
        while at + 5 <= len(data):
            length = 1 + int.from_bytes(data[at + 1 : at + 5], "big")
            if at + length > len(data):
                break
            ended += data[at] in self._ends
            at += length
        self._rest = data[at:]
        return ended


class Link:
    """One client's connection, and the proxy's own to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.replies = Replies()
        self.established = False
        self.asking = False
        self.cut: Cut | None = None
        self.withheld = bytearray()
        self.pumps: list[asyncio.Future[None]] = []

    def opening(self, data: bytes) -> None:
        """What a client sends before it is let in."""
        if len(data) == 8 and struct.unpack("!i", data[4:])[0] in ASKS_FOR_ENCRYPTION:
            self.replies.one_byte()

    def abort(self) -> None:
        for writer in (self.client, self.server):
            with suppress(OSError):
                raw = writer.get_extra_info("socket")
                # A reset, not a polite end.
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        for pump in self.pumps:
            pump.cancel()


class Proxy:
    """Forwards `port` to the server's port, until it is told otherwise. A context manager."""

    def __init__(self, server_port: int) -> None:
        self._target = server_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._links: set[Link] = set()
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
        """Reset every connection; how many there were."""

        async def cut() -> int:
            links = list(self._links)
            for link in links:
                link.abort()
            return len(links)

        return self._do(cut)

    def cut_at(self, where: Cut, nth: int = 1) -> None:
        """Cut at the nth request from now, on whichever established connection it comes. See `wait_until_cut`."""

        async def plan() -> None:
            self._plan = (where, nth)
            self._cut.clear()

        self._do(plan)

    def wait_until_cut(self, timeout: float = 30) -> None:
        """Wait for the cut that `cut_at` planned."""
        if not self._cut.wait(timeout):
            raise TimeoutError("No request came to be cut.")

    def hold(self, *ways: Way) -> None:
        """Forward nothing in these directions (none named: in both), and keep it until `release`."""

        async def hold() -> None:
            for way in ways or Way:
                self._open[way].clear()

        self._do(hold)

    def release(self) -> None:
        async def release() -> None:
            for gate in self._open.values():
                gate.set()

        self._do(release)

    def delay(self, seconds: float) -> None:
        """Forward everything so much later."""

        async def delay() -> None:
            self._delay = seconds

        self._do(delay)

    def refuse(self) -> None:
        """Refuse new connections, as if nobody listened. Those that are there stay."""

        async def refuse() -> None:
            if self._listener is not None:
                self._listener.close()
                self._listener = None

        self._do(refuse)

    def accept(self) -> None:
        """Listen (again), always on the same port."""

        async def accept() -> None:
            if self._listener is None:
                self._listener = await asyncio.start_server(self._serve, LOOPBACK, self.port)

        self._do(accept)

    @property
    def connections(self) -> int:
        return len(self._links)

    def close(self) -> None:
        async def end() -> None:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self.refuse()
        self.cut()
        self._do(end)
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

    def _do(self, what: Callable[[], Awaitable[T]]) -> T:
        async def call() -> T:
            return await what()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(30)

    async def _make_gates(self) -> dict[Way, asyncio.Event]:
        gates = {way: asyncio.Event() for way in Way}
        for gate in gates.values():
            gate.set()
        return gates

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = None
        try:
            from_server, to_server = await asyncio.open_connection(LOOPBACK, self._target)
            link = Link(writer, to_server)
            self._links.add(link)
            ways = (self._to_server(link, reader), self._to_client(link, from_server))
            link.pumps = [asyncio.ensure_future(way) for way in ways]
            _, left = await asyncio.wait(link.pumps, return_when=asyncio.FIRST_COMPLETED)
            # One side has ended, so the other has nobody to talk to.
            for pump in left:
                pump.cancel()
            await asyncio.gather(*link.pumps, return_exceptions=True)
            to_server.close()
        except OSError:
            pass
        finally:
            writer.close()
            self._tasks.discard(task)
            if link is not None:
                self._links.discard(link)

    async def _to_server(self, link: Link, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(PIECE):
            if not link.established:
                link.opening(data)
            elif not link.asking and data != GOODBYE:
                link.asking = True
                link.replies.asked(data)
                link.cut = self._planned()
                if link.cut is Cut.BEFORE_REQUEST:
                    self._end(link)
                    return
            await self._forward(Way.TO_SERVER, link.server, data)

    async def _to_client(self, link: Link, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(PIECE):
            ended = link.replies.count(data) > 0
            if ended:
                link.established, link.asking = True, False
            if link.cut is None:
                await self._forward(Way.TO_CLIENT, link.client, data)
                continue
            link.withheld += data
            if ended:
                if link.cut is Cut.IN_REPLY:
                    link.client.write(link.withheld[: len(link.withheld) // 2])
                    await link.client.drain()
                    link.client.close()
                self._end(link)
                return

    async def _forward(self, way: Way, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self._delay:
            await asyncio.sleep(self._delay)
        await self._open[way].wait()
        writer.write(data)
        await writer.drain()

    def _planned(self) -> Cut | None:
        """What is planned for the request that comes now."""
        if self._plan is None:
            return None
        where, nth = self._plan
        self._plan = (where, nth - 1) if nth > 1 else None
        return where if nth == 1 else None

    def _end(self, link: Link) -> None:
        if link.cut is Cut.IN_REPLY:
            link.server.transport.abort()
        else:
            link.abort()
        self._cut.set()
