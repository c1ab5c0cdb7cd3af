"""Notifications between processes, by LISTEN and NOTIFY: one connection, on a thread and an event loop of its own.

The notifier sends a notification in a statement of its own, after the commit of the change: a NOTIFY inside a busy
transaction makes all commits of the server wait for each other. That takes a second call, from another thread; so a
plain enqueue that a worker waits for, and an exchange that a caller waits for, notify with their own commit, one of
them at a time (`notify_at_commit` in `rules/step.sql`). While the notifier sends, it collects the next topics. All
topics of a namespace share one channel. The server wakes every listening session of the database anyway, and so no
subscription has to wait until its own LISTEN is in force.

A plain enqueue is notified only if a session subscribes to queues; the answer of the enqueue says so. Such a session
holds a lock, shared, for as long as it listens. `subscribe` returns when the session holds the lock.

A connection can stop receiving without an error: a proxy that gives the session to another client drops the LISTEN
silently. So the notifier sends a probe to itself every few seconds. If the probe does not arrive, it connects again.
If it does not arrive on the new connection either, LISTEN cannot work on this address, and all callers poll. The
notifier goes on sending, because other processes may receive.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import asyncpg
import msgspec

from holdfast.engines.feed_channels import Message
from holdfast.engines.notifier_thread import CLOSE_TIMEOUT_S, SUBSCRIBE_TIMEOUT_S, NotifierThread
from holdfast.engines.postgres.feed import LOCK_SHARED, NotifyFeed
from holdfast.engines.postgres.messages import listeners_lock
from holdfast.engines.topics import EVERY_TOPIC, Topics
from holdfast.runtime import Runtime

Connect = Callable[[], Awaitable[asyncpg.Connection]]

PROBE_INTERVAL_S = 5.0  # a connection that stopped receiving is noticed after this time
PROBE_TIMEOUT_S = 2.0  # a probe normally arrives within a millisecond
ROOM_INTERVAL_S = 0.1  # callers that wait for room in a queue need no notification for every job that ends
MIN_RECONNECT_PAUSE_S = 0.05  # doubled after each failure
MAX_RECONNECT_PAUSE_S = 2.0  # after an outage, workers poll until the next try
LISTEN_RETRY_S = 60.0  # where LISTEN does not work: the time until the next try
TOPICS_PER_NOTIFICATION = 6  # a topic has at most 1,210 bytes as JSON, a payload at most 8,000
MAX_PENDING_TOPICS = 1_000  # more are dropped: they may be lost, and must not fill the memory

RELEASE_LOCKS = "SELECT pg_advisory_unlock_all()"
"""The server notices the end of a connection some time later. Until then, locks would say that this process listens."""

log = logging.getLogger("holdfast")


class Notifier(NotifierThread):
    """`send_only`: it is known in advance that nothing can be received on this address."""

    feed: NotifyFeed

    def __init__(
        self, connect: Connect, namespace: str, topics: Topics, runtime: Runtime, *, send_only: bool = False
    ) -> None:
        super().__init__(runtime)
        self._connect = connect
        self._topics = topics
        self._send_only = send_only
        self.receives = not send_only
        """False: notifications do not arrive, so callers must poll."""
        self._topics_channel = f"holdfast_{namespace}"
        self._probe_channel = f"holdfast_{namespace}_probe"
        self.sender = f"from:{runtime.new_id()}"
        """Stands among the topics that the server notifies with a commit of this process, which ignores them."""
        self._pending_topics: dict[str, None] = {}
        self._room_sent_at_s = 0.0
        self._subscribers_lock = listeners_lock(namespace)
        self._wants_lock = False
        """This process has a subscription to a queue."""
        self._wants_lock_since_s = 0.0
        self._holds_lock = runtime.event()
        """Other processes can see that it has one."""
        self._probe_arrived = asyncio.Event()
        self._warned = False
        self._direct = True
        """False: a proxy is in between, because the server's process is not the one that the handshake named."""
        self.feed = NotifyFeed(namespace, runtime, self.wake)
        self._start("holdfast-postgres-notifier")

    # From any thread

    def wait_ready(self) -> None:
        """Wait until notifications arrive, or until the first try to connect has failed."""
        self._first_try_done.wait(2 * PROBE_TIMEOUT_S)

    def notify(self, topics: Iterable[str]) -> None:
        added = dict.fromkeys(topic for topic in topics if topic not in self._pending_topics)
        if added and len(self._pending_topics) < MAX_PENDING_TOPICS:
            self._pending_topics |= added
            self.wake()

    def subscribe(self, topics: Iterable[str]) -> None:
        """Let other processes know that this one subscribes to these topics."""
        if self._holds_lock.is_set() or not any(topic.startswith("queue:") for topic in topics):
            return
        if not self._wants_lock:
            self._wants_lock_since_s = self._now_s()
            self._wants_lock = True
        self.wake()
        if self.receives:
            self._holds_lock.wait(SUBSCRIBE_TIMEOUT_S)

    @property
    def _is_down(self) -> bool:
        return not self.receives

    # On the notifier's loop: connecting

    async def _run(self) -> None:
        pause_s = MIN_RECONNECT_PAUSE_S
        while not self._closing:
            began_s = self._now_s()
            try:
                await self._connect_and_serve()
            except Exception as error:
                if self.receives:
                    log.info("Notifications do not arrive for now (%s). Workers poll until they do again.", error)
                self.receives = False
            if self._now_s() - began_s > PROBE_INTERVAL_S:
                pause_s = MIN_RECONNECT_PAUSE_S
            self._first_try_done.set()
            await self._pause(pause_s * (0.5 + 0.5 * self._runtime.random()))  # processes do not all come at once
            pause_s = min(2 * pause_s, MAX_RECONNECT_PAUSE_S)

    async def _connect_and_serve(self) -> None:
        connection = await self._connect()
        try:
            await self._serve(connection)
            await connection.execute(RELEASE_LOCKS, timeout=CLOSE_TIMEOUT_S)
        finally:
            self._holds_lock.clear()
            self.feed.forget_lock()
            connection.terminate()

    async def _pause(self, seconds: float) -> None:
        until_s = self._now_s() + seconds
        while not self._closing and (left_s := until_s - self._now_s()) > 0:
            await self._wait_for_wake(left_s)

    # Serving one connection

    async def _serve(self, connection: asyncpg.Connection) -> None:
        """Send and receive until the connection fails, or until the notifier is closed."""
        connection.add_termination_listener(lambda _: self._woken.set())
        if not self._send_only:
            await self._listen(connection)
            self._set_receives(await self._probe_arrives(connection))
            if self.receives:
                await self._take_locks(connection)
                await self.feed.find_listeners(connection)
        if self._first_try_done.is_set() and self.receives:
            self._topics.notify(frozenset({EVERY_TOPIC}))  # notifications were lost before this connection listened
        self._first_try_done.set()
        self.feed.announce()
        probe_at_s = self._now_s() + (PROBE_INTERVAL_S if self.receives else LISTEN_RETRY_S)
        while not connection.is_closed():
            if self.receives:
                await self._take_locks(connection)
            await self._send_pending(connection)
            if self._closing:
                if self.feed.has_pending or self._pending_topics:
                    continue  # they came during the send
                return
            left_s = probe_at_s - self._now_s()
            if left_s <= 0:
                if not self._send_only:
                    if not self.receives:
                        return  # try LISTEN on a new connection
                    if not await self._probe_arrives(connection):
                        raise ConnectionError("the connection stopped receiving")
                probe_at_s = self._now_s() + PROBE_INTERVAL_S
                self.feed.announce()
                continue
            if any(topic.startswith("room:") for topic in tuple(self._pending_topics)):
                left_s = min(left_s, ROOM_INTERVAL_S)
            await self._wait_for_wake(left_s)
        raise ConnectionError("the connection broke")

    async def _listen(self, connection: asyncpg.Connection) -> None:
        await connection.execute("SET synchronous_commit = off")
        own_pid: int = await connection.fetchval("SELECT pg_backend_pid()")
        self._direct = own_pid == connection.get_server_pid()
        callbacks = {self._topics_channel: self._on_topics, **self.feed.callbacks}
        for channel, callback in callbacks.items():
            await connection.add_listener(channel, _from_other_sessions(own_pid, callback))
        await connection.add_listener(self._probe_channel, lambda *_: self._probe_arrived.set())

    async def _take_locks(self, connection: asyncpg.Connection) -> None:
        await self.feed.take_lock(connection)
        if not self._wants_lock or self._holds_lock.is_set():
            return
        await connection.execute(LOCK_SHARED, self._subscribers_lock)
        self._holds_lock.set()
        if self._now_s() - self._wants_lock_since_s > SUBSCRIBE_TIMEOUT_S / 2:
            self._topics.notify_kinds("queue:")  # jobs that came while it waited for the lock were not notified

    def _set_receives(self, receives: bool) -> None:
        if not receives and not self._warned:
            self._warned = True
            log.warning(
                "LISTEN does not work on this address of PostgreSQL, probably because a proxy shares sessions there. "
                "Workers poll instead, four times a second. Set `[postgres] pooled = true`, and set "
                "`[postgres] listen_url` to a direct address for notifications."
            )
        self.receives = receives

    async def _send_pending(self, connection: asyncpg.Connection) -> None:
        messages = self.feed.take_pending()
        topics = self._take_due_topics()
        for start in range(0, len(topics), TOPICS_PER_NOTIFICATION):
            part = topics[start : start + TOPICS_PER_NOTIFICATION]
            messages.append(Message(self._topics_channel, msgspec.json.encode(part)))
        if messages:
            await connection.execute(
                "SELECT pg_notify(channel, message) FROM unnest($1::text[], $2::text[]) AS n (channel, message)",
                [message.channel for message in messages],
                [message.payload.decode() for message in messages],
            )
        for message in messages:
            message.on_sent()

    def _take_due_topics(self) -> list[str]:
        """The pending topics; those about room only every `ROOM_INTERVAL_S`, and at the end."""
        now_s = self._now_s()
        with_room = self._closing or now_s - self._room_sent_at_s >= ROOM_INTERVAL_S
        due = [topic for topic in tuple(self._pending_topics) if with_room or not topic.startswith("room:")]
        if with_room and any(topic.startswith("room:") for topic in due):
            self._room_sent_at_s = now_s
        for topic in due:
            self._pending_topics.pop(topic, None)
        return due

    async def _probe_arrives(self, connection: asyncpg.Connection) -> bool:
        """Send a probe and wait for it.

        Behind a proxy, another connection sends it: a session receives its own notifications together with the answer,
        even where the proxy loses all those that come at other times.
        """
        self._probe_arrived.clear()
        if self._direct:
            await self._send_probe(connection)
        else:
            other = await self._connect()
            try:
                await self._send_probe(other)
            finally:
                other.terminate()
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._probe_arrived.wait()
        except TimeoutError:
            return False
        return True

    async def _send_probe(self, connection: asyncpg.Connection) -> None:
        await connection.execute("SELECT pg_notify($1, '')", self._probe_channel, timeout=PROBE_INTERVAL_S)

    def _on_topics(self, pid: int, payload: bytes) -> None:
        with suppress(msgspec.MsgspecError):
            topics = msgspec.json.decode(payload, type=frozenset[str])
            if self.sender not in topics:
                self._topics.notify(topics)


def _from_other_sessions(own_pid: int, callback: Callable[[int, bytes], None]) -> Callable[..., None]:
    """Calls `callback` for the notifications of other sessions only."""

    def receive(connection: object, pid: int, channel: str, payload: object) -> None:
        if pid != own_pid:
            callback(pid, str(payload).encode())

    return receive
