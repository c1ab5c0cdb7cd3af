"""Bells and the feed over LISTEN and NOTIFY: one connection, on a thread and an event loop of its own.

Ringing is a statement of its own, after the commit it tells of: inside a hot transaction NOTIFY would make all commits
of the database wait for each other. While one is under way the next ones gather. There is one channel for all bells of
a namespace: the server wakes every listener of the database anyway, and nobody has to wait until a LISTEN is in force.

A plain enqueue is rung only where somebody listens for queues, as its answer says. Whoever does holds a lock for as
long as the session listens; a subscription is answered when that lock is held.

A connection that has gone deaf does not say so: a proxy that hands the session to somebody else loses the LISTEN
without a word. So the tower rings a bell of its own every few seconds and expects to hear it. If it does not, it
connects anew; if a fresh connection is deaf too, LISTEN cannot work here, and everybody polls. Ringing goes on: others
may hear it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import asyncpg
import msgspec

from holdfast.engines.postgres.messages import listeners_lock
from holdfast.engines.topics import EVERY_TOPIC, Topics
from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime

Connect = Callable[[], Awaitable[asyncpg.Connection]]
Hear = Callable[[bytes], None]

PROBE_EVERY = 5.0
PROBE_WITHIN = 2.0
ROOM_EVERY = 0.1
"""Whoever waits for room need not hear of every single job that has ended."""
KEPT_FOR = 3 * PROBE_EVERY
"""How long a listener is believed to be there after it last said so."""
SHORTEST_PAUSE = 0.05
LONGEST_PAUSE = 5.0
"""Between two attempts to connect."""
DEAF_PAUSE = 60.0
"""After which LISTEN gets another chance."""
ATTENDED_WITHIN = 0.2
"""Seconds for a subscription to wait until others know of it. What comes before they do is found by looking."""
MET_WITHIN = 2.0
"""Seconds for those who listen to the feed to say so, where somebody does: a process may be gone soon after."""
LAST_WORDS = 1.0
"""Seconds for the last bells, when the tower is closed."""
MOST_BELLS = 8
"""In one notification: names have up to 800 bytes each, and a payload may have 8,000."""
MOST_RUNG = 1_000
MOST_WAITING = 100
"""Bells and messages of the feed that wait to be sent. Both may be lost; nobody shall run out of memory for them."""

SHARE = "SELECT pg_advisory_lock_shared(hashtextextended($1, 0))"
IS_FREE = """
SELECT CASE WHEN pg_try_advisory_lock(hashtextextended($1, 0))
    THEN pg_advisory_unlock(hashtextextended($1, 0)) ELSE false END
"""

log = logging.getLogger("holdfast")


class Tower:
    """Everything is done on the tower's own loop; the public methods may be called from any thread.

    `mute` is for a way to the server on which nothing can be heard, as is known beforehand.
    """

    def __init__(self, connect: Connect, schema: str, topics: Topics, runtime: Runtime, *, mute: bool = False) -> None:
        self._connect = connect
        self._topics = topics
        self._runtime = runtime
        self._mute = mute
        self.deaf = mute
        self._rung: dict[str, None] = {}
        self._out: list[tuple[str, str]] = []
        """Messages to be sent, with their channels."""
        self._rooms_at = 0.0
        self._listeners: dict[int, tuple[float, frozenset[str]]] = {}
        self._kinds: tuple[str, ...] = ()
        self._hear: Hear | None = None
        self._bells = f"holdfast_{schema}"
        self._probe = f"{self._bells}_probe"
        self._lock = listeners_lock(schema)
        self._attends = False
        """Somebody here listens for queues."""
        self._attended = runtime.event()
        """And others know."""
        self._feed = f"{self._bells}_feed"
        self._talk = f"{self._bells}_talk"
        self._feed_lock = f"{schema} feed"
        self._tells = False
        """Others know that somebody here listens to the feed."""
        self._met = asyncio.Event()
        self._heard_probe = asyncio.Event()
        self._warned = False
        self._direct = True
        """No proxy stands between us and the server: its process is the one that the handshake named."""
        self._closing = False
        self._first = runtime.event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._woken = False
        ready = runtime.event()
        self._thread = runtime.thread(lambda: self._main(ready.set), name="holdfast-postgres-bells")
        ready.wait()

    # From any thread

    def wait_ready(self) -> None:
        """Until it hears, or it is known that it cannot yet."""
        self._first.wait(2 * PROBE_WITHIN)

    def notify(self, bells: Iterable[str]) -> None:
        fresh = dict.fromkeys(bell for bell in bells if bell not in self._rung)  # the others are yet to be sent
        if fresh and len(self._rung) < MOST_RUNG:
            self._rung |= fresh
            self._soon()

    def attend(self, bells: Iterable[str]) -> None:
        """Somebody is about to listen for these."""
        if self._attended.is_set() or not any(bell.startswith("queue:") for bell in bells):
            return
        self._attends = True
        self._soon()
        if not self.deaf:
            self._attended.wait(ATTENDED_WITHIN)

    def publish(self, message: bytes) -> None:
        if len(self._out) < MOST_WAITING:
            self._out.append((self._feed, message.decode()))
            self._soon()

    def listen_to_feed(self, kinds: Iterable[str], hear: Hear) -> None:
        self._kinds, self._hear = tuple(kinds), hear
        self._out.append((self._talk, self._listening()))
        self._soon()

    @property
    def feed_kinds(self) -> frozenset[str]:
        if not self._listeners:
            return frozenset()
        now = self._now()
        return frozenset().union(*(kinds for until, kinds in tuple(self._listeners.values()) if until > now))

    def _now(self) -> float:
        return self._runtime.monotonic() / SECOND

    def _soon(self) -> None:
        if not self._woken:
            self._woken = True
            self._on_loop(self._wake.set)

    def close(self) -> None:
        """What was rung is still sent; then it ends, whatever it was waiting for."""
        self._closing = True
        self._on_loop(self._wake.set)
        self._thread.join(LAST_WORDS)
        task = self._task
        if task is not None and self._thread.is_alive():
            self._on_loop(task.cancel)
        self._thread.join()

    def _on_loop(self, what: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(what)

    # On the tower's loop

    def _main(self, ready: Callable[[], None]) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            ready()
            with suppress(asyncio.CancelledError):
                runner.run(self._stay())
            self._loop = None

    async def _stay(self) -> None:
        self._task = asyncio.current_task()
        pause = SHORTEST_PAUSE
        while not self._closing:
            began = self._now()
            try:
                await self._live_once()
            except Exception as error:
                if not self.deaf:
                    log.warning("Bells are not heard for now (%s). Workers poll until they are again.", error)
                self.deaf = True
            if self._now() - began > PROBE_EVERY:
                pause = SHORTEST_PAUSE
            self._first.set()
            await self._rest(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _live_once(self) -> None:
        connection = await self._connect()
        try:
            await self._serve(connection)
        finally:
            self._attended.clear()
            connection.terminate()

    async def _rest(self, seconds: float) -> None:
        until = self._now() + seconds
        while not self._closing and (left := until - self._now()) > 0:
            await self._until_woken(left)

    async def _until_woken(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()
        self._woken = False  # before anything is looked at: what comes from here on wakes again

    async def _serve(self, connection: asyncpg.Connection) -> None:
        """Until the connection is no good any more."""
        connection.add_termination_listener(lambda _: self._wake.set())
        if not self._mute:
            await self._listen(connection)
            self._judge(await self._proves_itself(connection))
            await self._let_others_know(connection)
            await self._meet(connection)
        if self._first.is_set() and not self.deaf:
            self._topics.notify(frozenset({EVERY_TOPIC}))  # whatever rang while nobody heard
        self._first.set()
        self._announce()
        probe_at = self._now() + (DEAF_PAUSE if self.deaf else PROBE_EVERY)
        while not connection.is_closed():
            await self._let_others_know(connection)
            await self._catch_up(connection)
            if self._closing:
                if self._out or self._rung:
                    continue  # they came while the others were being sent
                return
            left = probe_at - self._now()
            if left <= 0:
                if self.deaf and not self._mute:
                    return  # another connection, another chance
                if not self._mute and not await self._proves_itself(connection):
                    raise ConnectionError("the connection has gone deaf")
                probe_at = self._now() + PROBE_EVERY
                self._announce()
                continue
            if any(bell.startswith("room:") for bell in tuple(self._rung)):
                left = min(left, ROOM_EVERY)
            await self._until_woken(left)
        raise ConnectionError("the connection broke")

    async def _listen(self, connection: asyncpg.Connection) -> None:
        await connection.execute("SET synchronous_commit = off")
        mine: int = await connection.fetchval("SELECT pg_backend_pid()")
        self._direct = mine == connection.get_server_pid()
        own = {
            self._bells: self._on_bells,
            self._probe: self._on_probe,
            self._feed: self._on_feed,
            self._talk: self._on_talk,
        }
        for channel, callback in own.items():
            await connection.add_listener(channel, _of_others(mine, callback, channel == self._probe))

    async def _meet(self, connection: asyncpg.Connection) -> None:
        """Get to know who listens to the feed. Whoever does holds a lock, as for bells, and says so when asked."""
        self._tells = False
        if self.deaf or await connection.fetchval(IS_FREE, self._feed_lock):
            return
        self._met.clear()
        await connection.execute("SELECT pg_notify($1, '?')", self._talk)
        with suppress(TimeoutError):
            async with asyncio.timeout(MET_WITHIN):
                await self._met.wait()

    async def _let_others_know(self, connection: asyncpg.Connection) -> None:
        if self._kinds and not self._tells and not self.deaf:
            await connection.execute(SHARE, self._feed_lock)
            self._tells = True
        if not self._attends or self._attended.is_set() or self.deaf:
            return
        began = self._now()
        await connection.execute(SHARE, self._lock)
        self._attended.set()
        if self._now() - began > ATTENDED_WITHIN / 2:
            self._topics.notify_kinds("queue:")  # what came meanwhile was rung for nobody

    def _judge(self, hears: bool) -> None:
        if not hears and not self._warned:
            self._warned = True
            log.warning(
                "LISTEN does not work on this way to PostgreSQL, probably because of a proxy that shares "
                "sessions. Workers poll instead, four times a second. Say `[postgres] pooled = true`, and give "
                "`[postgres] listen_url` a direct address for bells."
            )
        self.deaf = not hears

    async def _catch_up(self, connection: asyncpg.Connection) -> None:
        told, self._out = self._out, []
        bells = self._due_bells(everything=self._closing)
        for start in range(0, len(bells), MOST_BELLS):
            told.append((self._bells, msgspec.json.encode(bells[start : start + MOST_BELLS]).decode()))
        if told:
            await connection.execute(
                "SELECT pg_notify(channel, message) FROM unnest($1::text[], $2::text[]) AS n (channel, message)",
                [channel for channel, _ in told],
                [message for _, message in told],
            )

    def _due_bells(self, *, everything: bool) -> list[str]:
        now = self._now()
        rooms = everything or now - self._rooms_at >= ROOM_EVERY
        due = [bell for bell in tuple(self._rung) if rooms or not bell.startswith("room:")]
        if rooms and any(bell.startswith("room:") for bell in due):
            self._rooms_at = now
        for bell in due:
            self._rung.pop(bell, None)
        return due

    async def _proves_itself(self, connection: asyncpg.Connection) -> bool:
        """Ring, and hear it. What the same session has said comes with the answer, even where a proxy would lose what
        comes at any other time: so behind one, somebody else has to ring."""
        self._heard_probe.clear()
        if self._direct:
            await self._ring_probe(connection)
        else:
            other = await self._connect()
            try:
                await self._ring_probe(other)
            finally:
                other.terminate()
        try:
            async with asyncio.timeout(PROBE_WITHIN):
                await self._heard_probe.wait()
        except TimeoutError:
            return False
        return True

    async def _ring_probe(self, connection: asyncpg.Connection) -> None:
        await connection.execute("SELECT pg_notify($1, '')", self._probe, timeout=PROBE_EVERY)

    # What is heard

    def _on_bells(self, pid: int, payload: str) -> None:
        with suppress(msgspec.MsgspecError):
            self._topics.notify(msgspec.json.decode(payload, type=frozenset[str]))

    def _on_probe(self, pid: int, payload: str) -> None:
        self._heard_probe.set()

    def _on_feed(self, pid: int, payload: str) -> None:
        if self._kinds and self._hear is not None:
            self._hear(payload.encode())

    # Who listens to the feed: they say so every now and then, and when somebody new asks

    def _on_talk(self, pid: int, payload: str) -> None:
        if payload == "?":
            self._announce()
            return
        try:
            kinds = msgspec.json.decode(payload, type=frozenset[str])
        except msgspec.MsgspecError:
            return
        now = self._now()
        for other in [other for other, (until, _) in tuple(self._listeners.items()) if until <= now]:
            self._listeners.pop(other, None)
        self._listeners[pid] = (now + KEPT_FOR, kinds)
        self._met.set()

    def _announce(self) -> None:
        if self._kinds:
            self._out.append((self._talk, self._listening()))
            self._wake.set()

    def _listening(self) -> str:
        return msgspec.json.encode(self._kinds).decode()


def _of_others(mine: int, callback: Callable[[int, str], None], also_own: bool) -> Callable[..., None]:
    """A listener that does not hear what this very connection has said."""

    def heard(connection: object, pid: int, channel: str, payload: object) -> None:
        if also_own or pid != mine:
            callback(pid, str(payload))

    return heard
