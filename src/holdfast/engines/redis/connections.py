"""A pipelined connection: requests are written at once, and replies resolve the requests in their order.

A caller that is cancelled leaves its request behind. Its reply is read and dropped in its turn, so no other caller ever
gets it. If a reply does not come in time, or the bytes are no reply, the connection is closed: nothing that comes
later on it can be assigned to a request. Every request without a reply then fails with `ConnectionLost`.

A connection belongs to the event loop that made it. A forked child drops its copy of the socket (PF2).
"""

import asyncio
import select
from collections import deque
from collections.abc import Callable
from typing import Any, Self

import hiredis
from redis.asyncio.connection import AbstractConnection

from holdfast import forks
from holdfast.engines.redis.failures import CallTimeout, ConnectionLost, ReplyError
from holdfast.runtime import call_later

pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command
"""The bytes of a request. Takes a tuple of bytes, text and numbers."""

NO_CONNECTION = ("max number of clients", "protected mode", "Authentication required")
RUN_CHARACTERS = 16  # of 40

_NO_REPLY = object()


OnPush = Callable[[list[Any]], None]


class Connection(asyncio.Protocol):
    """Made by `take_over`. `timeout_s`: seconds that a reply may take.

    `on_push` gets every message that is no reply. The server sends such messages only to a connection that subscribes,
    with version 3 of the protocol.
    """

    def __init__(self, transport: asyncio.Transport, timeout_s: float, on_push: OnPush | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._timeout_s = timeout_s
        self._on_push = on_push
        self.closed: asyncio.Future[None] = self._loop.create_future()
        """Resolved when the connection has ended."""
        self.server: dict[str, str] = {}
        """What the server says about itself (INFO server). Empty: the user may not ask."""
        self.run = ""
        """The first characters of the server's `run_id`, which tell one run of the server from another."""
        self._reader = hiredis.Reader(protocolError=ConnectionLost, replyError=ReplyError, notEnoughData=_NO_REPLY)
        self._replies: deque[asyncio.Future[Any]] = deque()
        """Of requests without a reply, in order."""
        self._sent_s: deque[float] = deque()
        """When each of them was sent, on the clock of the loop."""
        self._timer: asyncio.TimerHandle | None = None
        self._error: ConnectionLost | None = None
        """Why the connection has ended."""
        self._streams: Any = None
        self._socket = transport.get_extra_info("socket")
        self._poll = None
        if hasattr(select, "poll"):  # unlike `select`, it accepts file descriptors above 1023
            poller = select.poll()
            poller.register(self._socket.fileno(), select.POLLIN)
            self._poll = poller.poll
        self._child_copy = forks.ChildCopy(self._socket.fileno)

    @classmethod
    def take_over(cls, driver: AbstractConnection, timeout_s: float, on_push: OnPush | None = None) -> Self:
        """Use the socket of a connection that redis-py has made. `driver` must not be used afterwards."""
        reader, writer = driver._reader, driver._writer  # redis-py has no public names for them
        driver._reader = driver._writer = None
        assert writer is not None
        transport: Any = writer.transport
        connection = cls(transport, timeout_s, on_push)
        connection._streams = reader, writer  # asyncio closes the socket when they are collected
        transport.set_protocol(connection)
        return connection

    @property
    def is_usable(self) -> bool:
        """False if the connection has ended, also if the event loop has not noticed it yet."""
        if self._error is not None or self._transport.is_closing():
            return False
        if self._replies or self._on_push is not None:
            return True
        # Nothing is expected, so bytes that wait to be read are the end of the connection.
        if self._poll is not None:
            return not self._poll(0)
        return not select.select([self._socket.fileno()], [], [], 0)[0]

    async def read_server(self) -> None:
        """Ask the server what it is. Raises `ReplyError` if it accepts no connection.

        It says that in its first reply and ends the connection. A second request could fail before that is read.
        """
        reply = await self.request("INFO", "server")
        if isinstance(reply, ReplyError) and any(words in reply.text for words in NO_CONNECTION):
            raise reply
        if isinstance(reply, bytes):  # else the user may not ask
            lines = reply.decode(errors="replace").splitlines()
            self.server = dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
            self.run = self.server.get("run_id", "")[:RUN_CHARACTERS]

    async def command(self, *args: bytes | str | float) -> Any:
        """Send a command and return its reply. Raises `ReplyError`, or `ConnectionLost`."""
        reply = await self.request(*args)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def request(self, *args: bytes | str | float) -> "asyncio.Future[Any]":
        """Send a command. The future gets the reply; an error reply is a `ReplyError` as its value."""
        return self.send(pack(args))

    def send(self, packed: bytes) -> "asyncio.Future[Any]":
        """Send a packed command. See `request`."""
        reply = self._loop.create_future()
        if self._error is not None:
            reply.set_exception(self._error)
            reply.exception()  # see `_end`
            return reply
        self._replies.append(reply)
        self._sent_s.append(self._loop.time())
        if self._timer is None:
            self._timer = call_later(self._timeout_s, self._check_time)
        self._transport.write(packed)
        return reply

    def _check_time(self) -> None:
        """Close the connection if the oldest request waits for too long. Else look again when it might."""
        self._timer = None
        if self._sent_s:
            left_s = self._sent_s[0] + self._timeout_s - self._loop.time()
            if left_s > 0:
                self._timer = call_later(left_s, self._check_time)
            else:
                self._end(CallTimeout(f"no reply within {self._timeout_s:g} s"))

    def close(self) -> None:
        """Call it in the thread of the event loop."""
        self._end(ConnectionLost("the store was closed"))

    def _end(self, error: ConnectionLost) -> None:
        if self._error is None:
            self._error = error
            self._transport.abort()
        if not self.closed.done():
            self.closed.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sent_s.clear()
        while self._replies:
            reply = self._replies.popleft()
            if not reply.done():
                reply.set_exception(self._error)
                reply.exception()  # it counts as seen: its caller may be cancelled before it reads it

    # Called by the event loop

    def data_received(self, data: bytes) -> None:
        reader, replies, sent_s = self._reader, self._replies, self._sent_s
        reader.feed(data)
        try:
            while (value := reader.gets()) is not _NO_REPLY:
                if type(value) is hiredis.PushNotification:
                    if self._on_push is not None:
                        self._on_push(value)
                    continue
                if not replies:
                    self._end(ConnectionLost("the server sent what was not asked for"))
                    return
                reply = replies.popleft()
                sent_s.popleft()
                if not reply.done():  # else its caller was cancelled
                    reply.set_result(value)
        except ConnectionLost as error:  # the bytes are no reply
            self._end(error)

    def eof_received(self) -> None:
        self._end(ConnectionLost("the server closed the connection"))

    def connection_lost(self, error: Exception | None) -> None:
        self._end(ConnectionLost(str(error) or type(error).__name__ if error else "the connection was closed"))
        self._streams = None
