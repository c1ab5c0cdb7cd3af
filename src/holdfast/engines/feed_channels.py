"""The feed of an engine whose store is a server: messages about events, sent to other processes by its notifier.

A process that listens to the feed announces the kinds of messages it wants: when it begins, with every probe of its
notifier, and when another process requests it. The others forget it when its announcements stop. So a process knows
whether it must publish a message at all. A new process requests announcements, if a process listens, and waits for the
first one, because it may end soon after its first messages.

Messages may be lost.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime

LISTENER_TTL_S = 15.0  # a listener announces itself every 5 s, and messages may be lost
ANNOUNCEMENT_TIMEOUT_S = 2.0  # how long a new process waits for the announcement of a listener
MAX_PENDING_MESSAGES = 100  # more are dropped: they may be lost, and must not fill the memory

REQUEST = b"?"
"""The payload, on the channel of the announcements, that requests them."""

Receive = Callable[[bytes], None]


class Message(NamedTuple):
    channel: str
    payload: bytes
    on_sent: Callable[[], object] = lambda: None


class FeedChannels:
    """The part of a notifier that sends and receives the feed, on two channels.

    `publish`, `listen` and `kinds` may be used in any thread, the rest on the notifier's loop. `wake` makes the
    notifier send what `take_pending` returns; it may be called in any thread.
    """

    def __init__(self, messages: str, announcements: str, runtime: Runtime, wake: Callable[[], None]) -> None:
        self._runtime = runtime
        self._wake = wake
        self.messages = messages
        self.announcements = announcements
        self._pending: list[Message] = []
        self._own_kinds: tuple[str, ...] = ()
        self._receive: Receive | None = None
        self._listeners: dict[Hashable, tuple[float, frozenset[str]]] = {}
        """By their sender: the time until which an announcement holds, and its kinds."""
        self._announced = asyncio.Event()
        """Set when another process has announced itself."""

    # From any thread

    def publish(self, message: bytes) -> None:
        if len(self._pending) < MAX_PENDING_MESSAGES:
            self._send(self.messages, message)

    def listen(self, kinds: Iterable[str], receive: Receive, on_sent: Callable[[], object] = lambda: None) -> None:
        """`on_sent` is called when the server has the announcement."""
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
        self._send(self.announcements, REQUEST)

    async def wait_for_announcement(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(ANNOUNCEMENT_TIMEOUT_S):
                await self._announced.wait()

    def announce(self) -> None:
        """Send the kinds that this process listens for to the other processes, if it listens."""
        if self._own_kinds and len(self._pending) < MAX_PENDING_MESSAGES:
            self._send_announcement()

    def _send_announcement(self, on_sent: Callable[[], object] = lambda: None) -> None:
        self._send(self.announcements, msgspec.json.encode(self._own_kinds), on_sent)

    def _send(self, channel: str, payload: bytes, on_sent: Callable[[], object] = lambda: None) -> None:
        self._pending.append(Message(channel, payload, on_sent))
        self._wake()

    def on_message(self, sender: Hashable, payload: bytes) -> None:
        """A message of another process."""
        if self._own_kinds and self._receive is not None:
            self._receive(payload)

    def on_announcement(self, sender: Hashable, payload: bytes) -> None:
        """An announcement of another process, or its request for announcements."""
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
