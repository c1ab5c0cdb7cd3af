"""The feed on Redis: messages about events, sent to other processes by PUBLISH.

A process that listens to the feed subscribes to its channel, and announces the kinds of messages it wants: when it
begins, with every probe of its notifier, and when another process requests it. The others forget it when its
announcements stop. So a process knows whether it must publish a message at all.

A new process asks the server whether the channel has a subscriber. If so, it requests announcements and waits for the
first one, because it may end soon after its first messages.

Messages may be lost. The notifier sends them, over its connection. Each begins with the name of its sender, because a
process receives its own messages as well.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime

LISTENER_TTL_S = 15.0  # a listener announces itself every 5 s, and messages may be lost
ANNOUNCEMENT_TIMEOUT_S = 2.0  # how long a new process waits for the announcement of a listener
MAX_PENDING_MESSAGES = 100  # more are dropped: they may be lost, and must not fill the memory

REQUEST = b"?"
"""The text, on the channel of the listeners, that requests announcements."""

Receive = Callable[[bytes], None]


class Message(NamedTuple):
    channel: str
    payload: bytes
    on_sent: Callable[[], object] = lambda: None


class PubSubFeed:
    """The part of a notifier that sends and receives the feed.

    `publish`, `listen` and `kinds` may be used in any thread, the rest on the notifier's loop. `wake` makes the
    notifier subscribe to `channels` and send what `take_pending` returns; it may be called in any thread.
    """

    def __init__(self, prefix: str, runtime: Runtime, wake: Callable[[], None]) -> None:
        self._runtime = runtime
        self._wake = wake
        self.messages = f"{prefix}feed"
        self._announcements = f"{prefix}listeners"
        self._name = runtime.new_id().encode()
        self._pending: list[Message] = []
        self._own_kinds: tuple[str, ...] = ()
        self._receive: Receive | None = None
        self._listeners: dict[bytes, tuple[float, frozenset[str]]] = {}
        """By the name of their process: the time until which an announcement holds, and its kinds."""
        self._announced = asyncio.Event()
        """Set when another process has announced itself."""

    @property
    def channels(self) -> dict[str, Callable[[bytes], None]]:
        """The channels to subscribe to, each with the function that takes its payloads."""
        channels = {self._announcements: self._from_others(self._on_announcement)}
        if self._own_kinds:
            channels[self.messages] = self._from_others(self._on_message)
        return channels

    # From any thread

    def publish(self, message: bytes) -> None:
        if len(self._pending) < MAX_PENDING_MESSAGES:
            self._send(self.messages, message)

    def listen(self, kinds: Iterable[str], receive: Receive, on_sent: Callable[[], object]) -> None:
        """`on_sent` is called when the process is subscribed and the server has its announcement."""
        self._own_kinds, self._receive = tuple(kinds), receive
        self._send_announcement(on_sent)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of messages that other processes listen for."""
        if not self._listeners:
            return frozenset()
        now_s = self._now_s()
        return frozenset().union(*(kinds for until_s, kinds in tuple(self._listeners.values()) if until_s > now_s))

    # On the notifier's loop

    def take_pending(self) -> list[Message]:
        pending, self._pending = self._pending, []
        return pending

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def request_announcements(self) -> None:
        self._announced.clear()
        self._send(self._announcements, REQUEST)

    async def wait_for_announcement(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(ANNOUNCEMENT_TIMEOUT_S):
                await self._announced.wait()

    def announce(self) -> None:
        """Send the kinds that this process listens for to the other processes, if it listens."""
        if self._own_kinds and len(self._pending) < MAX_PENDING_MESSAGES:
            self._send_announcement()

    def _send_announcement(self, on_sent: Callable[[], object] = lambda: None) -> None:
        self._send(self._announcements, msgspec.json.encode(self._own_kinds), on_sent)

    def _send(self, channel: str, payload: bytes, on_sent: Callable[[], object] = lambda: None) -> None:
        self._pending.append(Message(channel, self._name + b" " + payload, on_sent))
        self._wake()

    def _from_others(self, receive: Callable[[bytes, bytes], None]) -> Callable[[bytes], None]:
        def receive_from_others(message: bytes) -> None:
            sender, _, payload = message.partition(b" ")
            if sender != self._name:
                receive(sender, payload)

        return receive_from_others

    def _on_message(self, sender: bytes, payload: bytes) -> None:
        if self._own_kinds and self._receive is not None:
            self._receive(payload)

    def _on_announcement(self, sender: bytes, payload: bytes) -> None:
        if payload == REQUEST:
            self.announce()
            return
        try:
            kinds = msgspec.json.decode(payload, type=frozenset[str])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        now_s = self._now_s()
        for other in [other for other, (until_s, _) in tuple(self._listeners.items()) if until_s <= now_s]:
            self._listeners.pop(other, None)
        self._listeners[sender] = (now_s + LISTENER_TTL_S, kinds)
        self._announced.set()

    def _now_s(self) -> float:
        return self._runtime.monotonic() / SECOND
