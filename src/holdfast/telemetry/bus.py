"""The bus: events from whoever made them to whoever listens.

`wants` comes first: it is cheap, so that an event nobody listens to is never built. A listener registered for a class
hears its subclasses too; `Event` hears everything. Listeners are called in the order in which they were registered, on
the thread that emits; an async one runs beside. One that raises is logged, and nobody else notices.

A listener hears the events of its own process. One that is registered for everywhere also hears those of other
processes, as far as the feed carries them (`feed.py`), on a thread of the feed's.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from holdfast.errors import Interrupt
from holdfast.runtime import Runtime
from holdfast.telemetry.events import Event

if TYPE_CHECKING:
    from holdfast.telemetry.feed import Feed

E = TypeVar("E", bound=Event)

Listener = Callable[[E], object]
"""Called with the event. What it returns is awaited if it can be, and otherwise ignored."""

_logger = logging.getLogger("holdfast.events")

_HARMLESS = (Exception, Interrupt, SystemExit)
"""What a listener may raise without anybody noticing: everything but a cancellation and Ctrl-C."""


class ListenerEntry(NamedTuple):
    kind: type[Event]
    listener: Listener[Any]
    everywhere: bool


class Bus:
    """Cheap to make, does no I/O by itself, may be shared between threads."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._registered: dict[object, ListenerEntry] = {}
        self._for_kind: dict[type[Event], tuple[ListenerEntry, ...]] = {}
        self._beside: set[asyncio.Task[None]] = set()
        self.feed: Feed | None = None
        """The way to other processes, while the engine is open."""

    def on(self, kind: type[E], listener: Listener[E], *, everywhere: bool = False) -> Callable[[], None]:
        """Call `listener` with every event of this kind. The answer takes it back."""
        key = object()
        self._registered[key] = ListenerEntry(kind, listener, everywhere)
        self._changed(everywhere)

        def off() -> None:
            if self._registered.pop(key, None) is not None:
                self._changed(everywhere)

        return off

    def _changed(self, everywhere: bool) -> None:
        self._for_kind = {}
        if everywhere and self.feed is not None:
            self.feed.listen()

    @property
    def kinds_everywhere(self) -> frozenset[str]:
        """What is to be heard of other processes."""
        return frozenset(entry.kind.__name__ for entry in tuple(self._registered.values()) if entry.everywhere)

    def attach(self, feed: "Feed | None") -> None:
        """From now on this is the way to other processes."""
        self.feed = feed
        if feed is not None:
            feed.listen()

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody would hear such an event."""
        if self._entries(kind):
            return True
        feed = self.feed
        return feed is not None and feed.wants(kind)

    def emit(self, event: Event) -> None:
        """Tell the listeners, here and elsewhere. Never raises for what a listener does."""
        for entry in self._entries(type(event)):
            self._tell(entry.listener, event)
        feed = self.feed
        if feed is not None and feed.wants(type(event)):
            feed.publish(event)

    def pass_on(self, event: Event) -> None:
        """Tell the listeners here of something that happened elsewhere. It goes no further."""
        for entry in self._entries(type(event)):
            if entry.everywhere:
                try:
                    self._tell(entry.listener, event)
                except BaseException:  # the thread is the feed's: there is nothing to cancel or to interrupt
                    _report(entry.listener, event)

    def _entries(self, kind: type[Event]) -> tuple[ListenerEntry, ...]:
        known = self._for_kind  # taken first: whoever registers meanwhile has replaced it
        found = known.get(kind)
        if found is None:
            entries = tuple(self._registered.values())
            found = known[kind] = tuple(entry for entry in entries if issubclass(kind, entry.kind))
        return found

    def _tell(self, listener: Listener[Any], event: Event) -> None:
        try:
            answer = listener(event)
            if inspect.isawaitable(answer):
                self._run_beside(_finish(answer, listener, event))
        except _HARMLESS:
            _report(listener, event)

    def _run_beside(self, coro: Any) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # emitted by blocking code: there is no loop to run it beside
            asyncio.run(coro)
        else:
            task = self._runtime.spawn(coro, name="holdfast listener")
            self._beside.add(task)
            task.add_done_callback(self._beside.discard)

    async def finish(self, seconds: float) -> None:
        """Wait so long for the async listeners that still run on this loop."""
        loop = asyncio.get_running_loop()
        running = {task for task in tuple(self._beside) if task.get_loop() is loop} - {asyncio.current_task()}
        if running:
            await asyncio.wait(running, timeout=seconds)


async def _finish(answer: Awaitable[object], listener: Listener[Any], event: Event) -> None:
    try:
        await answer
    except _HARMLESS:
        _report(listener, event)


def _report(listener: Listener[Any], event: Event) -> None:
    name = getattr(listener, "__qualname__", repr(listener))
    _logger.exception("The listener %s failed on %s. The event went to the others.", name, type(event).__name__)
