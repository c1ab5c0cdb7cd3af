"""The feed: events from this process to those that listen elsewhere, and theirs to the listeners here.

It rides on the bells of the engine and is as lossy: a process that is killed, or told too much at once, loses events,
and nobody waits for anybody. What nobody has asked for is neither encoded nor sent. Events that come from elsewhere
are never told again.

Events gather for a moment and share messages, which go out one after the other, so that listeners can keep up. Events
of one process arrive in their order; those of different processes may overtake each other.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar
from weakref import ref

from holdfast.runtime import Runtime
from holdfast.telemetry.bus import Bus
from holdfast.telemetry.events import Event
from holdfast.telemetry.wire import KINDS, pack, unpack

GATHER = 0.01
"""Seconds for which events wait for others to share their message."""
PACE = 0.001
"""Seconds between two messages. A datagram socket may hold as few as ten."""
MOST = 10_000
"""Events, or messages of others, that wait. If there are more, the oldest are lost."""
LAST_WORDS = 1.0
"""Seconds in which the last events have to be sent as the engine is closed."""

T = TypeVar("T")

_logger = logging.getLogger("holdfast.events")


class FeedTransport(Protocol):
    """What the feed needs of an engine, which says there what each promises."""

    @property
    def feed_kinds(self) -> frozenset[str]: ...
    def publish(self, message: bytes) -> None: ...
    def listen_to_feed(self, kinds: Iterable[str], hear: Callable[[bytes], None]) -> None: ...


class Feed:
    """Between the bus of an App and its engine, for as long as that is open in this process."""

    def __init__(self, seat: FeedTransport, runtime: Runtime, bus: Bus) -> None:
        self._seat = seat
        self._bus = ref(bus)  # or the threads here would keep an App that nobody else wants any more
        self._pid = os.getpid()
        self._lock = runtime.lock()
        self._kinds: frozenset[str] = frozenset()
        self._known: tuple[frozenset[str], dict[type[Event], bool]] = (frozenset(), {})
        self._out = BackgroundQueue(runtime, self._send, "holdfast-events-out", GATHER)
        self._in = BackgroundQueue(runtime, self._publish, "holdfast-events-in")
        self.ignored = 0
        """Lines of messages that could not be read."""

    # Its life

    def open(self) -> None:
        """The engine is open."""
        bus = self._bus()
        if bus is not None:
            bus.attach(self)

    def close(self) -> None:
        """The engine is about to close: say the last words."""
        bus = self._bus()
        if bus is not None and bus.feed is self:
            bus.attach(None)
        if self._pid == os.getpid():
            self.listen(stop=True)
            self._in.close()
            self._out.close(LAST_WORDS)

    @property
    def talks(self) -> bool:
        """It has told something, so that closing may have to wait for the last of it."""
        return self._out.begun

    # To the others

    def wants(self, kind: type[Event]) -> bool:
        """Whether another process would hear such an event."""
        feed_kinds = self._seat.feed_kinds
        if not feed_kinds or self._pid != os.getpid():
            return False
        known = self._known
        if known[0] != feed_kinds:
            known = self._known = (feed_kinds, {})
        wanted = known[1].get(kind)
        if wanted is None:
            wanted = known[1][kind] = not feed_kinds.isdisjoint(KINDS.get(kind, ()))
        return wanted

    def publish(self, event: Event) -> None:
        self._out.put(event)

    def _send(self, told: list[Event]) -> None:
        for message in pack(told):
            self._seat.publish(message)
            self._out.rest(PACE)

    # From the others

    def listen(self, *, stop: bool = False) -> None:
        """The listeners here are others than before."""
        if self._pid != os.getpid():
            return
        with self._lock:
            bus = self._bus()
            kinds = frozenset[str]() if bus is None or stop else bus.kinds_everywhere
            if kinds == self._kinds:
                return
            self._kinds = kinds
            try:
                self._seat.listen_to_feed(kinds, self._in.put)
            except Exception as error:  # such as a folder that may not be written to
                _logger.warning("Events of other processes cannot be heard: %s", error)

    def _publish(self, messages: list[bytes]) -> None:
        for message in messages:
            told, unread = unpack(message)
            self.ignored += unread
            bus = self._bus()
            if bus is not None and bus.feed is self:
                for event in told:
                    bus.pass_on(event)


class BackgroundQueue(Generic[T]):
    """Carries things to a thread of its own. Whoever puts something on it never waits; what is too much falls off."""

    def __init__(self, runtime: Runtime, take: Callable[[list[T]], None], name: str, gather: float = 0) -> None:
        self._runtime = runtime
        self._take = take
        self._name = name
        self._gather = gather
        self._things: deque[T] = deque(maxlen=MOST)
        self._some = runtime.event()
        self._over = runtime.event()
        self._lock = runtime.lock()
        self._join: Callable[[float], None] | None = None
        """Waits for the thread, once there is one."""

    @property
    def begun(self) -> bool:
        return self._join is not None

    def put(self, thing: T) -> None:
        self._things.append(thing)
        if not self._some.is_set():
            self._some.set()
        if not self.begun:
            self._begin()

    def _begin(self) -> None:
        with self._lock:
            if not self.begun and not self._over.is_set():
                self._join = self._runtime.thread(self._work, name=self._name).join

    def rest(self, seconds: float) -> None:
        """Wait in the middle of the work, unless it is to end."""
        self._over.wait(seconds)

    def _work(self) -> None:
        while self._things or not self._over.is_set():
            self._some.wait()
            self._over.wait(self._gather)
            self._some.clear()
            things: list[T] = []
            with suppress(IndexError):
                while True:
                    things.append(self._things.popleft())
            try:
                self._take(things)
            except Exception:
                _logger.exception("Some events were lost.")

    def close(self, patience: float = 0) -> None:
        """End the thread, and wait so long for it to carry what is left."""
        self._over.set()
        self._some.set()
        if self._join is not None and patience:
            self._join(patience)
