"""Notifications of a worker, received on the worker's own event loop.

The notifier receives on a thread of its own, so a notification wakes two threads: the notifier's, then the worker's.
A worker waits for notifications all its life, so it gets a second connection, on its own loop. When the server has
confirmed the channels there, the notifier drops them. When that connection ends, the notifier takes them back, until
the loop has connected again. So the guarantees of the notifier hold: this is only a shorter way.

The presence of a worker stays with the notifier (`presence.py`): a handler may block the worker's loop.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from holdfast import forks
from holdfast.engines.redis.notifier import ChannelNotifier
from holdfast.engines.redis.routes import OnePrimary
from holdfast.engines.redis.subscriber import Subscriber, Verbs
from holdfast.engines.topics import TopicSubscription
from holdfast.runtime import Runtime


def is_of_worker(topics: Iterable[str]) -> bool:
    """True if the caller is a worker on its event loop: no one else subscribes to the topic of a worker."""
    return asyncio._get_running_loop() is not None and any(topic.startswith("worker:") for topic in topics)


class LoopSubscriber:
    """Made on the event loop that receives. It ends when the subscription is closed, or with the loop."""

    def __init__(
        self,
        routes: OnePrimary,
        subscription: TopicSubscription,
        notifier: ChannelNotifier,
        runtime: Runtime,
    ) -> None:
        self._subscription = subscription
        self._notifier = notifier
        self._loop = asyncio.get_running_loop()
        self._channels = {
            f"{routes.home}{topic}": partial(self._receive, frozenset({topic})) for topic in subscription.topics
        }
        self._confirmed: dict[str, Subscriber] = {}
        self._subscriber = Subscriber(
            routes.connector,
            runtime,
            Verbs(),
            self._confirmed,
            on_change=self._compare,
            after_try=lambda _: self._compare(),
            reports=False,  # the notifier does
        )
        self._subscriber.set_channels(self._channels)
        self._subscriber.task.add_done_callback(lambda _: self._on_end())
        subscription.on_close = self.close
        forks.call_in_child(self._leave_to_parent)

    def close(self) -> None:
        """From any thread."""
        with suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._subscriber.task.cancel)

    def _receive(self, topics: frozenset[str], payload: bytes) -> None:
        self._subscription.deliver(topics)

    def _compare(self) -> None:
        """The confirmed channels may have changed."""
        self._set_received(self._channels.keys() <= self._confirmed.keys())

    def _on_end(self) -> None:
        """PF3: other code may have cancelled the task."""
        self._set_received(False)

    def _set_received(self, received: bool) -> None:
        subscription = self._subscription
        if received is not subscription.is_received_apart:
            subscription.is_received_apart = received
            if received:
                self._notifier.refresh()
            else:
                self._notifier.take_back(subscription.topics)

    def _leave_to_parent(self) -> None:
        """PF2: this is a forked child, whose loop may go on. It does not connect."""
        self._subscription.is_received_apart = False
        self._subscriber.closing = True
