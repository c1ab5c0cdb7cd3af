"""The subscriptions of this process at one server: a connection that is made again whenever it ends.

A connection that was cut is made again after a pause of 50 to 250 ms, because other processes take a worker that has no
subscription for dead (`presence.py`). After ten seconds without success the pauses grow.

A connection can stop receiving without an error, if the server or the network has gone. So it sends a PING every few
seconds. If the reply does not come in time, it connects again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from holdfast.engines.redis.connect import RedisConnector
from holdfast.engines.redis.failures import ReplyError
from holdfast.engines.redis.subscriber_connection import SubscriberConnection
from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime

PROBE_INTERVAL_S = 5.0  # a connection that stopped receiving is noticed after this time and the timeout
REPLY_TIMEOUT_S = 5.0  # for a reply; a server that is busy for less keeps its subscribers
MIN_RECONNECT_PAUSE_S = 0.05  # doubled after each failure
SHORT_RECONNECT_PAUSE_S = 0.25  # the longest one in the first seconds of an outage
LONG_RECONNECT_PAUSE_S = 1.0  # the longest one afterwards
SHORT_PAUSES_FOR_S = 10.0
NO_PERMISSION_PAUSE_S = 60.0  # until the next try, if the user must not subscribe
CHANNELS_PER_CALL = 500

log = logging.getLogger("holdfast")


class Verbs(NamedTuple):
    """The commands of publish and subscribe. In a cluster that has them, those that stay in the channel's slot."""

    subscribe: str = "SUBSCRIBE"
    unsubscribe: str = "UNSUBSCRIBE"
    publish: str = "PUBLISH"
    numsub: str = "NUMSUB"


SHARDED = Verbs("SSUBSCRIBE", "SUNSUBSCRIBE", "SPUBLISH", "SHARDNUMSUB")

Channels = Mapping[str, Callable[[bytes], None]]
"""The channels to subscribe to, each with the function that takes its payloads."""


class Subscriber:
    """All work is done on the notifier's loop.

    `confirmed` has the channels that a server has confirmed, each with its subscriber. `on_change` is called when it
    has changed, `on_connect` with every new connection, `after_wake` after every wake, `after_try` after every try to
    connect.
    """

    def __init__(
        self,
        connector: RedisConnector,
        runtime: Runtime,
        verbs: Verbs,
        confirmed: dict[str, "Subscriber"],
        *,
        on_change: Callable[[], None],
        on_connect: Callable[["Subscriber"], Awaitable[None]],
        after_wake: Callable[["Subscriber"], Awaitable[None]],
        after_try: Callable[["Subscriber"], None],
    ) -> None:
        self._connector = connector
        self._runtime = runtime
        self._verbs = verbs
        self._confirmed = confirmed
        self._on_change = on_change
        self._on_connect = on_connect
        self._after_wake = after_wake
        self._after_try = after_try
        self.channels: Channels = {}
        self._subscribed: set[str] = set()
        self._receivers: dict[bytes, Callable[[bytes], None]] = {}
        self._connection: SubscriberConnection | None = None
        self.connects = 0
        """How often it has connected and subscribed."""
        self.since_s: float | None = None
        """Since then it has been subscribed without a break. None: it is not."""
        self.is_down = False
        """True if its last try to connect failed, or its connection has ended."""
        self._has_logged = False
        self._warned = False
        self._closing = False
        self._wake = asyncio.Event()
        self.task = runtime.spawn(self._run(), name=f"holdfast subscriber {connector.place}")

    def set_channels(self, channels: Channels) -> None:
        self.channels = channels
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def close(self) -> None:
        """End after the next `after_wake`."""
        self._closing = True
        self._wake.set()

    async def publish(self, channel: str, payload: bytes) -> None:
        assert self._connection is not None
        await self._connection.command(self._verbs.publish, channel, payload)

    async def count_subscribers(self, channel: str) -> int:
        assert self._connection is not None
        reply = await self._connection.command("PUBSUB", self._verbs.numsub, channel)
        return int(reply[1])

    # Connecting

    async def _run(self) -> None:
        pause_s, down_since_s = MIN_RECONNECT_PAUSE_S, self._now_s()
        while not self._closing:
            longest_s = SHORT_RECONNECT_PAUSE_S
            try:
                await self._connect_and_serve()
            except Exception as error:
                self.is_down = True
                if self.since_s is not None or not self._has_logged:
                    self._has_logged = True
                    log.info("Notifications do not arrive for now (%s). Workers poll until they do again.", error)
                if isinstance(error, ReplyError) and error.code == "NOPERM":
                    self._warn_about_permission(error)
                    pause_s = longest_s = NO_PERMISSION_PAUSE_S
            if self.since_s is not None:
                if self._now_s() - self.since_s > PROBE_INTERVAL_S:
                    pause_s = MIN_RECONNECT_PAUSE_S
                down_since_s = self._now_s()
                self.since_s = None
            elif self._now_s() - down_since_s > SHORT_PAUSES_FOR_S:
                longest_s = max(longest_s, LONG_RECONNECT_PAUSE_S)
            self._forget(tuple(self._subscribed))
            self._after_try(self)
            pause_s = min(pause_s, longest_s)
            await self._pause(pause_s * (0.5 + 0.5 * self._runtime.random()))  # processes do not all come at once
            pause_s *= 2

    def _warn_about_permission(self, error: ReplyError) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "The user that Holdfast has at Redis may not subscribe to its channels (%s). Workers poll instead, "
                'four times a second. The guide "Redis and Valkey in production" lists the rights that it needs.',
                error.text,
            )

    def _forget(self, channels: Iterable[str]) -> None:
        for channel in channels:
            self._subscribed.discard(channel)
            self._receivers.pop(channel.encode(), None)
            if self._confirmed.get(channel) is self:  # else another server has it now
                self._confirmed.pop(channel, None)

    async def _pause(self, seconds: float) -> None:
        until_s = self._now_s() + seconds
        while not self._closing and (left_s := until_s - self._now_s()) > 0:
            await self._wait_for_wake(left_s)

    async def _wait_for_wake(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    # Serving one connection

    async def _connect_and_serve(self) -> None:
        self._connection = connection = await SubscriberConnection.open(
            self._connector, REPLY_TIMEOUT_S, self._receive, self._wake.set
        )
        try:
            await self._change_subscriptions(connection)
            self.since_s = self._now_s()
            self.is_down = False
            self.connects += 1
            await self._on_connect(self)
            self._after_try(self)
            await self._serve(connection)
        finally:
            self._connection = None
            connection.close()

    async def _serve(self, connection: SubscriberConnection) -> None:
        """Subscribe, send and receive until the connection fails, or until it is closed."""
        probe_at_s = self._now_s() + PROBE_INTERVAL_S
        while connection.error is None:
            await self._change_subscriptions(connection)
            await self._after_wake(self)
            if self._closing:
                return
            left_s = probe_at_s - self._now_s()
            if left_s <= 0:
                await connection.command("PING")
                probe_at_s = self._now_s() + PROBE_INTERVAL_S
                continue
            await self._wait_for_wake(left_s)
        raise connection.error

    async def _change_subscriptions(self, connection: SubscriberConnection) -> None:
        while (wanted := self.channels).keys() != self._subscribed:
            removed = [channel for channel in self._subscribed if channel not in wanted][:CHANNELS_PER_CALL]
            added = [channel for channel in wanted if channel not in self._subscribed][:CHANNELS_PER_CALL]
            if removed:
                await connection.change(self._verbs.unsubscribe, removed)
                self._forget(removed)
            if added:
                self._receivers |= {channel.encode(): wanted[channel] for channel in added}
                await connection.change(self._verbs.subscribe, added)
                self._subscribed.update(added)
                self._confirmed |= dict.fromkeys(added, self)
            self._on_change()
        # The notifier has dropped these, and wanted them again before this task looked.
        again = [channel for channel in self._subscribed if channel not in self._confirmed]
        if again:
            self._confirmed |= dict.fromkeys(again, self)
            self._on_change()

    def _receive(self, channel: bytes, payload: bytes) -> None:
        receive = self._receivers.get(channel)
        if receive is not None:
            receive(payload)

    def _now_s(self) -> float:
        return self._runtime.monotonic() / SECOND
