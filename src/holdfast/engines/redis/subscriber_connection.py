"""A connection that receives messages of channels, and carries commands as well: RESP3 allows both.

In RESP3 a message is marked as a push, so it cannot be mistaken for a reply. SUBSCRIBE and UNSUBSCRIBE have no reply:
the server confirms each channel by a push, or answers with an error. So the request of such a command gets its result
when all its channels are confirmed.
"""

from collections.abc import Callable
from typing import Any, Self

from redis.asyncio.connection import AbstractConnection

from holdfast.engines.redis.connect import CLIENT_NAME, RedisConnector
from holdfast.engines.redis.connections import Connection
from holdfast.engines.redis.failures import ConnectionLost

RESP3 = 3

_MESSAGES = frozenset({b"message", b"smessage"})
_CONFIRMATIONS = frozenset({b"subscribe", b"unsubscribe", b"ssubscribe", b"sunsubscribe"})

OnMessage = Callable[[bytes, bytes], object]
"""Called with the channel and the payload."""


class SubscriberConnection(Connection):
    """Carries one command at a time."""

    _on_message: OnMessage
    _unconfirmed = 0
    """Channels that the request under way subscribes or unsubscribes, and that are not confirmed yet."""

    @classmethod
    async def open(
        cls, connector: RedisConnector, timeout_s: float, on_message: OnMessage, on_end: Callable[[], object]
    ) -> Self:
        """`timeout_s`: seconds that a reply may take. `on_end` is called when the connection has ended."""
        driver: AbstractConnection = await connector.open_driver(protocol=RESP3)
        connection = cls.take_over(driver, timeout_s)
        connection._on_message, connection._on_push = on_message, connection._receive_push
        connection.closed.add_done_callback(lambda _: on_end())
        connection.request("CLIENT", "SETNAME", CLIENT_NAME)  # a user without this right connects, too
        return connection

    @property
    def error(self) -> ConnectionLost | None:
        """Why the connection has ended."""
        return self._error

    async def change(self, verb: str, channels: list[str]) -> None:
        """SUBSCRIBE or UNSUBSCRIBE, or their forms for a cluster; returns when the server has done it."""
        self._unconfirmed = len(channels)
        try:
            await self.command(verb, *channels)
        finally:
            self._unconfirmed = 0

    def _receive_push(self, push: list[Any]) -> None:
        kind = push[0]
        if kind in _MESSAGES:
            self._on_message(push[1], push[2])
        elif kind in _CONFIRMATIONS:
            if not self._unconfirmed:  # the slot of the channel has moved to another node of the cluster
                raise ConnectionLost("the server ended a subscription")
            self._unconfirmed -= 1
            if not self._unconfirmed:
                self._confirm()

    def _confirm(self) -> None:
        """The request under way has what it wants. It has no reply."""
        self._sent_s.popleft()
        reply = self._replies.popleft()
        if not reply.done():  # else its caller was cancelled
            reply.set_result(None)
