"""Notifications between processes, by publish and subscribe: on a thread and an event loop of their own.

The script that carries out a command publishes its topics itself, in the same step: the server sends the messages with
the replies, after the write is as durable as the server makes it (N5). A message has no content: each topic has a
channel of its own, so that the server sends it only to processes that subscribe to this topic.

This process subscribes to the topics of its local subscriptions, to the announcements of the feed, and to the channel
of each of its workers. The last one carries no messages: other processes count its subscribers (`presence.py`).

On one primary there is one connection. In a cluster the channels of a queue belong to the primary of the queue, so
there is one connection for each primary in use.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from holdfast.engines.notifier_thread import SUBSCRIBE_TIMEOUT_S, NotifierThread
from holdfast.engines.redis.connect import RedisConnector
from holdfast.engines.redis.feed import PubSubFeed
from holdfast.engines.redis.routes import Routes
from holdfast.engines.redis.subscriber import (
    PROBE_INTERVAL_S,
    REPLY_TIMEOUT_S,
    SHARDED,
    Subscriber,
    Verbs,
)
from holdfast.engines.topics import EVERY_TOPIC, Topics
from holdfast.errors import EngineUnavailable
from holdfast.runtime import Runtime

log = logging.getLogger("holdfast")


class Watch(NamedTuple):
    """A time in which the subscriptions of this process were in force without a break."""

    since_s: float
    is_first: bool
    """False: there were others before it, and a break."""


class ChannelNotifier(NotifierThread):
    feed: PubSubFeed

    def __init__(self, routes: Routes, topics: Topics, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._routes = routes
        self._topics = topics
        self._verbs = SHARDED if routes.sharded else Verbs()
        self._confirmed: dict[str, Subscriber] = {}
        """The channels that a server has confirmed."""
        self.sharded = routes.sharded
        self.worker_prefix = f"{routes.home}alive:"
        self.own_channel = f"{self.worker_prefix}{runtime.new_id()}"
        """A channel to which this process alone is subscribed."""
        self._workers: dict[str, int] = {}
        """The workers of this process, each with the number of its renewal connections."""
        self._lock = runtime.lock()
        """For the steps "drop a channel that no subscription needs" and "look whether a channel is confirmed"."""
        self._waiters: list[Callable[[], None]] = []
        """Called when a channel was confirmed."""
        self._subscribers: dict[str, Subscriber] = {}
        """By the place of their server."""
        self._has_unrouted = False
        """There is a channel whose server is not known."""
        self.feed = PubSubFeed(routes.home, runtime, self.wake)
        self._start("holdfast-redis-notifier")

    # From any thread

    @property
    def receives(self) -> bool:
        """False: notifications do not arrive, so callers must poll."""
        subscribers = tuple(self._subscribers.values())
        is_complete = bool(subscribers) and not self._has_unrouted
        return is_complete and all(subscriber.since_s is not None for subscriber in subscribers)

    @property
    def watch(self) -> Watch | None:
        """Since when this process has been subscribed where the channels of workers are. None: it is not now."""
        home = self._home
        since_s = None if home is None else home.since_s
        return None if home is None or since_s is None else Watch(since_s, home.connects == 1)

    def wait_ready(self) -> None:
        """Wait until notifications arrive, or until the first try to connect has failed."""
        self._first_try_done.wait(2 * REPLY_TIMEOUT_S)

    def subscribe(self, topics: Iterable[str]) -> None:
        """There is a new local subscription to these topics: receive them from other processes."""
        names = frozenset(topics)
        if not self._wait_confirmed(self._channels_of(names)) and not self._is_down:  # a reconnect notifies every topic
            self._notify_when_confirmed(names)

    def join_worker(self, worker: str) -> None:
        """Subscribe to the channel of a worker of this process, by which others see that it lives."""
        self._workers[worker] = self._workers.get(worker, 0) + 1
        self._wait_confirmed([self._channel_of(worker)])

    def leave_worker(self, worker: str) -> None:
        count = self._workers.pop(worker, 0)
        if count > 1:
            self._workers[worker] = count - 1
        self.wake()

    def has_session(self, worker: str) -> bool:
        """True if the server knows that this worker of this process lives."""
        return self._channel_of(worker) in self._confirmed

    def subscribe_again(self) -> None:
        """The routes have changed: wait until the local subscriptions are in force on the new ones."""
        self.subscribe(self._topics.topics)

    @property
    def _is_down(self) -> bool:
        """A server of a cluster gets its first connection when it gets its first channel: until then it is not down."""
        return any(subscriber.is_down for subscriber in tuple(self._subscribers.values()))

    def _channels_of(self, topics: frozenset[str]) -> list[str]:
        return [f"{prefix}{topic}" for topic in topics for prefix in self._routes.prefixes(topic)]

    def _channel_of(self, worker: str) -> str:
        return f"{self.worker_prefix}{worker}"

    def _wait_confirmed(self, channels: list[str]) -> bool:
        """True: the server has these subscriptions. False: it was not waited for any longer."""
        confirmed = self._runtime.event()

        def look() -> None:
            if all(channel in self._confirmed for channel in channels):
                confirmed.set()

        self._waiters.append(look)
        with self._lock:
            look()
        if not confirmed.is_set():
            self.wake()
            if not self._is_down:
                confirmed.wait(SUBSCRIBE_TIMEOUT_S)
        self._waiters.remove(look)
        return confirmed.is_set()

    def _notify_when_confirmed(self, topics: frozenset[str]) -> None:
        """What was sent before a late subscription was not received: let the callers look."""

        def look() -> None:
            left = topics & self._topics.topics  # a topic that was dropped meanwhile is never confirmed
            if all(channel in self._confirmed for channel in self._channels_of(left)):
                with suppress(ValueError):  # another thread was faster
                    self._waiters.remove(look)
                self._topics.notify(left)

        self._waiters.append(look)
        look()

    # On the notifier's loop

    async def _run(self) -> None:
        try:
            announce_at_s = self._now_s() + PROBE_INTERVAL_S
            while not self._closing:
                if self._now_s() >= announce_at_s:
                    self.feed.announce()
                    announce_at_s = self._now_s() + PROBE_INTERVAL_S
                try:
                    self._route()
                except Exception:  # PF3: without this thread all callers would poll for ever
                    log.exception("The channels of notifications could not be assigned to servers. It is tried again.")
                await self._wait_for_wake(max(0.0, announce_at_s - self._now_s()))
            for subscriber in self._subscribers.values():
                subscriber.close()
            await asyncio.gather(*(subscriber.task for subscriber in self._subscribers.values()))
        finally:
            self._subscribers = {}

    def _route(self) -> None:
        """Give each channel to the subscriber of its server. A subscriber without channels ends."""
        self._has_unrouted = False
        channels: dict[str, dict[str, Callable[[bytes], None]]] = {}
        connectors: dict[str, RedisConnector] = {}
        with self._lock:
            wanted = self._wanted()
            for channel in [channel for channel in self._confirmed if channel not in wanted]:
                del self._confirmed[channel]
        for channel, receive in wanted.items():
            try:
                connector = self._routes.connector_of(channel)
            except EngineUnavailable as error:  # the next look may know it
                log.debug("A channel has no server: %s", error)
                self._has_unrouted = True
                continue
            connectors[connector.place] = connector
            channels.setdefault(connector.place, {})[channel] = receive
        for place in [place for place in self._subscribers if place not in connectors]:
            self._subscribers.pop(place).close()
        for place, connector in connectors.items():
            if place not in self._subscribers:
                self._subscribers = {**self._subscribers, place: self._new_subscriber(connector)}
            self._subscribers[place].set_channels(channels[place])

    def _wanted(self) -> dict[str, Callable[[bytes], None]]:
        wanted = {**self.feed.channels, self.own_channel: _ignore}
        for worker in tuple(self._workers):
            wanted[self._channel_of(worker)] = _ignore
        for topic in self._topics.topics:
            for prefix in self._routes.prefixes(topic):
                wanted[f"{prefix}{topic}"] = partial(self._notify, topic)
        return wanted

    def _notify(self, topic: str, payload: bytes) -> None:
        self._topics.notify(frozenset({topic}))

    def _new_subscriber(self, connector: RedisConnector) -> Subscriber:
        return Subscriber(
            connector,
            self._runtime,
            self._verbs,
            self._confirmed,
            on_change=self._on_confirmed,
            on_connect=self._on_connect,
            after_wake=self._send_pending,
            after_try=lambda subscriber: self._first_try_done.set() if subscriber is self._home else None,
        )

    @property
    def _home(self) -> Subscriber | None:
        try:
            return self._subscribers.get(self._routes.connector_of(self.feed.messages).place)
        except EngineUnavailable:  # the nodes of the cluster are not known
            return None

    def _on_confirmed(self) -> None:
        for look in tuple(self._waiters):
            look()

    async def _on_connect(self, subscriber: Subscriber) -> None:
        is_home = subscriber is self._home
        if subscriber.connects > 1:
            self._topics.notify(frozenset({EVERY_TOPIC}))  # N7: notifications were lost before it was subscribed
        if is_home:
            self.feed.announce()
            if subscriber.connects > 1:
                self.feed.request_announcements()
            elif await subscriber.count_subscribers(self.feed.messages) > 0:
                self.feed.request_announcements()
                await self._send_pending(subscriber)
                await self.feed.wait_for_announcement()

    async def _send_pending(self, subscriber: Subscriber) -> None:
        if subscriber is self._home:
            while self.feed.has_pending:
                for message in self.feed.take_pending():
                    await subscriber.publish(message.channel, message.payload)
                    message.on_sent()


def _ignore(payload: bytes) -> None:
    """The channel of a worker carries no messages."""
