"""The feed: sends events of this process to listeners in other processes, and delivers theirs to listeners here.

It uses the engine's notifications and is as lossy as they are: a process that is killed, or that gets more events than
it can handle, loses events, and no sender waits for a receiver. An event that no other process wants is neither encoded
nor sent. An event that came from another process is never sent on.

Events are collected for a moment and share messages. Messages are sent with a small gap, so that receivers can keep up.
Events of one process arrive in their order; the order between processes is not defined.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar
from weakref import ref

from holdfast.model.instants import Seconds
from holdfast.runtime import Runtime
from holdfast.telemetry.bus import Bus
from holdfast.telemetry.events import Event
from holdfast.telemetry.wire import KINDS, pack, unpack

COLLECT_S: Seconds = 0.01
"""Events are collected for this long before they are sent, so that they share messages."""
MESSAGE_GAP_S: Seconds = 0.001
"""Pause between two messages: the buffer of a datagram socket may hold only ten."""
MAX_WAITING = 10_000
"""Events to send, or messages received, that may wait. If there are more, the oldest are lost."""
FLUSH_TIMEOUT_S: Seconds = 1.0
"""Closing the engine waits this long for the last events to be sent."""

T = TypeVar("T")

_logger = logging.getLogger("holdfast.events")


class FeedTransport(Protocol):
    """What the feed needs of an engine; `engine.py` documents each method."""

    @property
    def feed_kinds(self) -> frozenset[str]: ...
    def publish(self, message: bytes) -> None: ...
    def listen_to_feed(self, kinds: Iterable[str], receive: Callable[[bytes], None]) -> None: ...


class Feed:
    """Connects the bus of an App with its engine while that is open in this process."""

    def __init__(self, transport: FeedTransport, runtime: Runtime, bus: Bus) -> None:
        self._transport = transport
        self._bus = ref(bus)  # a weak reference: the threads here must not keep an App alive
        self._pid = os.getpid()
        self._lock = runtime.lock()
        self._kinds: frozenset[str] = frozenset()
        self._wanted: tuple[frozenset[str], dict[type[Event], bool]] = (frozenset(), {})
        self._out = BackgroundQueue(runtime, self._send, "holdfast-events-out", COLLECT_S)
        self._in = BackgroundQueue(runtime, self._deliver, "holdfast-events-in")
        self.unreadable_lines = 0
        """Lines of messages that could not be decoded."""

    # Open and close

    def open(self) -> None:
        """The engine is open: begin."""
        bus = self._bus()
        if bus is not None:
            bus.attach(self)

    def close(self) -> None:
        """The engine is about to close: send the last events."""
        bus = self._bus()
        if bus is not None and bus.feed is self:
            bus.attach(None)
        if self._pid == os.getpid():
            self.listen(stop=True)
            self._in.close()
            self._out.close(FLUSH_TIMEOUT_S)

    @property
    def has_sent(self) -> bool:
        """True if it has sent events: then closing may have to wait for the last of them."""
        return self._out.started

    # Sending

    def wants(self, kind: type[Event]) -> bool:
        """True if another process wants such events."""
        feed_kinds = self._transport.feed_kinds
        if not feed_kinds or self._pid != os.getpid():
            return False
        cache = self._wanted
        if cache[0] != feed_kinds:
            cache = self._wanted = (feed_kinds, {})
        wanted = cache[1].get(kind)
        if wanted is None:
            wanted = cache[1][kind] = not feed_kinds.isdisjoint(KINDS.get(kind, ()))
        return wanted

    def publish(self, event: Event) -> None:
        self._out.put(event)

    def _send(self, events: list[Event]) -> None:
        for message in pack(events):
            self._transport.publish(message)
            self._out.pause(MESSAGE_GAP_S)

    # Receiving

    def listen(self, *, stop: bool = False) -> None:
        """The listeners here have changed: pass the kinds that they want to the engine."""
        if self._pid != os.getpid():
            return
        with self._lock:
            bus = self._bus()
            kinds = frozenset[str]() if bus is None or stop else bus.kinds_everywhere
            if kinds == self._kinds:
                return
            self._kinds = kinds
            try:
                self._transport.listen_to_feed(kinds, self._in.put)
            except Exception as error:  # such as a folder without write permission
                _logger.warning("Events of other processes cannot be received: %s", error)

    def _deliver(self, messages: list[bytes]) -> None:
        for message in messages:
            events, unreadable = unpack(message)
            self.unreadable_lines += unreadable
            bus = self._bus()
            if bus is not None and bus.feed is self:
                for event in events:
                    bus.deliver_remote(event)


class BackgroundQueue(Generic[T]):
    """Hands items to a thread of its own. `put` never waits; if the queue is full, the oldest item is lost."""

    def __init__(self, runtime: Runtime, handle: Callable[[list[T]], None], name: str, collect_s: Seconds = 0) -> None:
        self._runtime = runtime
        self._handle = handle
        self._name = name
        self._collect_s = collect_s
        self._items: deque[T] = deque(maxlen=MAX_WAITING)
        self._has_items = runtime.event()
        self._closing = runtime.event()
        self._lock = runtime.lock()
        self._join: Callable[[float], None] | None = None
        """Joins the thread. None until it was started."""

    @property
    def started(self) -> bool:
        return self._join is not None

    def put(self, item: T) -> None:
        self._items.append(item)
        if not self._has_items.is_set():
            self._has_items.set()
        if not self.started:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if not self.started and not self._closing.is_set():
                self._join = self._runtime.thread(self._work, name=self._name).join

    def pause(self, seconds: Seconds) -> None:
        """Pause between two items, unless the queue is being closed. Called by the thread."""
        self._closing.wait(seconds)

    def _work(self) -> None:
        while self._items or not self._closing.is_set():
            self._has_items.wait()  # no limit: `close` sets it
            self._closing.wait(self._collect_s)
            self._has_items.clear()
            items: list[T] = []
            with suppress(IndexError):
                while True:
                    items.append(self._items.popleft())
            try:
                self._handle(items)
            except Exception:
                _logger.exception("Events were lost because of this error.")

    def close(self, timeout_s: Seconds = 0) -> None:
        """End the thread, and wait up to `timeout_s` until it has handled what is left."""
        self._closing.set()
        self._has_items.set()
        if self._join is not None and timeout_s:
            self._join(timeout_s)
