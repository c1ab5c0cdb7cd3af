"""A connection that receives messages of channels, and carries commands as well: RESP3 allows both.

In RESP3 a message is marked as a push, so it cannot be mistaken for a reply. SUBSCRIBE and UNSUBSCRIBE have no reply:
the server confirms each channel by a push, or answers with an error. So the request of such a command gets its result
when all its channels are confirmed.
"""

from collections.abc import Callable
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection

from holdfast.engines.redis.connections import NO_REPLY, Connection
from holdfast.engines.redis.failures import ConnectionLost, ReplyError

_MESSAGES = frozenset({b"message", b"smessage"})
_CONFIRMATIONS = frozenset({b"subscribe", b"unsubscribe", b"ssubscribe", b"sunsubscribe"})

OnMessage = Callable[[bytes, bytes], object]
"""Called with the channel and the payload."""


class SubscriberConnection(Connection):
    """Carries one command at a time."""

    on_message: OnMessage
    on_end: Callable[[], object]
    """Called when the connection has ended."""
    _unconfirmed = 0
    """Channels that the request under way subscribes or unsubscribes, and that are not confirmed yet."""

    @classmethod
    def subscriber(
        cls, driver: AbstractConnection, timeout_s: float, on_message: OnMessage, on_end: Callable[[], object]
    ) -> "SubscriberConnection":
        """`driver` speaks RESP3. It must not be used afterwards."""
        connection = cls.take_over(driver, timeout_s)
        assert isinstance(connection, SubscriberConnection)
        connection.on_message, connection.on_end = on_message, on_end
        return connection

    @property
    def error(self) -> ConnectionLost | None:
        """Why the connection has ended."""
        return self._error

    async def command(self, *args: bytes | str | int) -> Any:
        """The reply. Raises ReplyError, ConnectionLost."""
        reply = await self.request(*args)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    async def change(self, verb: str, channels: list[str]) -> None:
        """SUBSCRIBE or UNSUBSCRIBE, or their forms for a cluster; returns when the server has done it."""
        self._unconfirmed = len(channels)
        try:
            await self.command(verb, *channels)
        finally:
            self._unconfirmed = 0

    def _end(self, error: ConnectionLost) -> None:
        is_first = self._error is None
        super()._end(error)
        if is_first:
            self.on_end()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (value := self._reader.gets()) is not NO_REPLY:
                if isinstance(value, hiredis.PushNotification):
                    self._receive_push(value)
                else:
                    self._resolve(value)
        except ConnectionLost as error:  # the bytes are no reply
            self._end(error)

    def _receive_push(self, push: list[Any]) -> None:
        kind = push[0]
        if kind in _MESSAGES:
            self.on_message(push[1], push[2])
        elif kind in _CONFIRMATIONS:
            if not self._unconfirmed:  # the slot of the channel has moved to another node of the cluster
                raise ConnectionLost("the server ended a subscription")
            self._unconfirmed -= 1
            if not self._unconfirmed:
                self._resolve(None)

    def _resolve(self, value: Any) -> None:
        if not self._replies:
            raise ConnectionLost("the server sent what was not requested")
        reply = self._replies.popleft()
        self._sent_s.popleft()
        if not reply.done():  # else its caller was cancelled
            reply.set_result(value)
