"""The feed on PostgreSQL: messages about events, sent to other processes by NOTIFY.

A process that listens to the feed announces the kinds of messages it wants: when it begins, with every probe of its
notifier, and when another process requests it. The others forget it when its announcements stop. So a process knows
whether it must publish a message at all.

A process that listens also holds a lock, shared, for as long as its session does. A new process tests the lock: if a
session holds it, the new process requests announcements and waits for the first one, because it may end soon after its
first messages.

Messages may be lost. The notifier sends them, over its connection.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

import asyncpg
import msgspec

from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime

LISTENER_TTL_S = 15.0  # a listener announces itself every 5 s, and notifications may be lost
ANNOUNCEMENT_TIMEOUT_S = 2.0  # how long a new process waits for the announcement of a listener
MAX_PENDING_MESSAGES = 100  # more are dropped: they may be lost, and must not fill the memory

REQUEST = "?"
"""The payload, on the channel of the listeners, that requests announcements."""

LOCK_SHARED = "SELECT pg_advisory_lock_shared(hashtextextended($1, 0))"
LOCK_IS_FREE = """
SELECT CASE WHEN pg_try_advisory_lock(hashtextextended($1, 0))
    THEN pg_advisory_unlock(hashtextextended($1, 0)) ELSE false END
"""

Receive = Callable[[bytes], None]
Notification = tuple[str, str]
"""Channel and payload."""


class FeedChannels:
    """The part of a notifier that sends and receives the feed.

    `publish`, `listen` and `kinds` may be used in any thread, the rest on the notifier's loop. `wake` makes the
    notifier send what `take_pending` returns; it may be called in any thread.
    """

    def __init__(self, namespace: str, runtime: Runtime, wake: Callable[[], None]) -> None:
        self._runtime = runtime
        self._wake = wake
        self._messages = f"holdfast_{namespace}_feed"
        self._announcements = f"holdfast_{namespace}_listeners"
        self._lock = f"{namespace} feed"
        self._holds_lock = False
        self._pending: list[Notification] = []
        self._own_kinds: tuple[str, ...] = ()
        self._receive: Receive | None = None
        self._listeners: dict[int, tuple[float, frozenset[str]]] = {}
        """By the process id of their session: the time until which an announcement holds, and its kinds."""
        self._announced = asyncio.Event()
        """Set when another process has announced itself."""

    @property
    def callbacks(self) -> dict[str, Callable[[int, str], None]]:
        """For each channel, the function that takes its notifications."""
        return {self._messages: self._on_message, self._announcements: self._on_announcement}

    # From any thread

    def publish(self, message: bytes) -> None:
        if len(self._pending) < MAX_PENDING_MESSAGES:
            self._pending.append((self._messages, message.decode()))
            self._wake()

    def listen(self, kinds: Iterable[str], receive: Receive) -> None:
        self._own_kinds, self._receive = tuple(kinds), receive
        self._send_announcement()

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of messages that other processes listen for."""
        if not self._listeners:
            return frozenset()
        now_s = self._now_s()
        return frozenset().union(*(kinds for until_s, kinds in tuple(self._listeners.values()) if until_s > now_s))

    # On the notifier's loop

    def take_pending(self) -> list[Notification]:
        pending, self._pending = self._pending, []
        return pending

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    async def find_listeners(self, connection: asyncpg.Connection) -> None:
        """On a new connection: wait for the first announcement, if another session holds the lock."""
        if await connection.fetchval(LOCK_IS_FREE, self._lock):
            return
        self._announced.clear()
        await connection.execute("SELECT pg_notify($1, $2)", self._announcements, REQUEST)
        with suppress(TimeoutError):
            async with asyncio.timeout(ANNOUNCEMENT_TIMEOUT_S):
                await self._announced.wait()

    async def take_lock(self, connection: asyncpg.Connection) -> None:
        if self._own_kinds and not self._holds_lock:
            await connection.execute(LOCK_SHARED, self._lock)
            self._holds_lock = True

    def forget_lock(self) -> None:
        """The connection has ended, and the lock with it."""
        self._holds_lock = False

    def announce(self) -> None:
        """Send the kinds that this process listens for to the other processes, if it listens."""
        if self._own_kinds:
            self._send_announcement()

    def _send_announcement(self) -> None:
        self._pending.append((self._announcements, msgspec.json.encode(self._own_kinds).decode()))
        self._wake()

    def _on_message(self, pid: int, payload: str) -> None:
        if self._own_kinds and self._receive is not None:
            self._receive(payload.encode())

    def _on_announcement(self, pid: int, payload: str) -> None:
        if payload == REQUEST:
            self.announce()
            return
        try:
            kinds = msgspec.json.decode(payload, type=frozenset[str])
        except msgspec.MsgspecError:
            return
        now_s = self._now_s()
        for other in [other for other, (until_s, _) in tuple(self._listeners.items()) if until_s <= now_s]:
            self._listeners.pop(other, None)
        self._listeners[pid] = (now_s + LISTENER_TTL_S, kinds)
        self._announced.set()

    def _now_s(self) -> float:
        return self._runtime.monotonic() / SECOND
