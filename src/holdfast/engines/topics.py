"""Notifications inside one process: who subscribes to which topics, and how a waiter is woken.

A topic is a name, such as `queue:Q`. `notify` marks it in every subscription to it, and wakes the waiter of that
subscription, on its own event loop. Two notifications before the waiter looks count as one.
"""

import asyncio
from collections.abc import Callable

from holdfast.engine import Subscription

EVERY_TOPIC = "*"
"""Sent when it is not known which topic changed: every waiter looks."""


class Topics:
    """All subscriptions of one engine."""

    def __init__(self) -> None:
        self._subscriptions: set[TopicSubscription] = set()
        self.on_wait: Callable[[], object] | None = None
        """Called when a subscription begins to wait; from any thread."""

    @property
    def has_waiter(self) -> bool:
        """True if a subscription waits for a notification right now."""
        return any(subscription.waits for subscription in self._subscriptions)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that have a subscription."""
        return frozenset().union(*(subscription.topics for subscription in self._subscriptions))

    def subscribe(self, *topics: str) -> Subscription:
        subscription = TopicSubscription(self, frozenset(topics))
        # Replaced, not changed in place: `notify` may be iterating over the set in another thread.
        self._subscriptions = self._subscriptions | {subscription}
        return subscription

    def unsubscribe(self, subscription: "TopicSubscription") -> None:
        self._subscriptions = self._subscriptions - {subscription}

    def notify(self, topics: frozenset[str]) -> None:
        """From any thread."""
        for subscription in self._subscriptions:
            subscription.deliver(topics)

    def notify_kinds(self, *kinds: str) -> None:
        """Notify every subscribed topic of these kinds, such as `queue:`."""
        for subscription in self._subscriptions:
            subscription.deliver(frozenset(topic for topic in subscription.topics if topic.startswith(kinds)))

    def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()


class TopicSubscription(Subscription):
    """The topics that were notified since the last `wait`."""

    def __init__(self, owner: Topics, topics: frozenset[str]) -> None:
        self.topics = topics
        self._owner = owner
        self._notified: dict[str, None] = {}
        """`deliver` adds entries, the waiter removes them one at a time. Each step is atomic, so none is lost."""
        self._closed = False
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    @property
    def waits(self) -> bool:
        return self._waiter is not None

    def deliver(self, topics: frozenset[str]) -> None:
        notified = self.topics if EVERY_TOPIC in topics else topics & self.topics
        if notified:
            for topic in notified:
                self._notified[topic] = None
            self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            loop, future = waiter
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:
                self._waiter = None  # its loop has been closed: nothing waits there any more

    async def wait(self, timeout: float | None = None) -> frozenset[str]:
        if not self._notified and not self._closed:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._waiter = (loop, future)
            on_wait = self._owner.on_wait
            if on_wait is not None:
                on_wait()
            try:
                if not self._notified and not self._closed:  # a notification may have come since the first check
                    async with asyncio.timeout(timeout):
                        await future
            except TimeoutError:
                pass
            finally:
                self._waiter = None
        notified = set()
        while self._notified:
            notified.add(self._notified.popitem()[0])
        return frozenset(notified)

    def close(self) -> None:
        self._closed = True
        self._owner.unsubscribe(self)
        self._wake()


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
