"""The event bus: passes events to listeners.

Code that wants to emit an event calls `wants` first. That is cheap, so an event without a listener is never built. A
listener registered for a class also gets its subclasses; `Event` gets everything. Listeners are called in the order in
which they were registered, on the thread that emits; an async listener runs in an asyncio task of its own. An error in
a listener is logged and does not reach the emitter or other listeners.

A listener gets the events of its own process. With `everywhere=True` it also gets those of other processes, as far as
the feed transports them (`feed.py`), on a thread of the feed.
"""

import asyncio
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakSet

from holdfast.errors import Interrupt
from holdfast.model.instants import Seconds
from holdfast.model.text import describe
from holdfast.runtime import Runtime
from holdfast.telemetry.events import Event

if TYPE_CHECKING:
    from holdfast.telemetry.feed import Feed

E = TypeVar("E", bound=Event)

Listener = Callable[[E], object]
"""Called with the event. An awaitable return value is awaited, any other is ignored."""

_logger = logging.getLogger("holdfast.events")

LISTENER_TIMEOUT_S: Seconds = 2.0
"""Async listeners get this long to end when a worker stops or the App is closed."""
_LOGGED_ERRORS = (Exception, Interrupt, SystemExit, asyncio.CancelledError)
"""Errors of a listener that are only logged: all but KeyboardInterrupt. A CancelledError is one of them: a function
cannot be cancelled, so it comes from a future or task that the listener has used."""


class ListenerEntry(NamedTuple):
    kind: type[Event]
    listener: Listener[Any]
    everywhere: bool


class Bus:
    """Creating it does no I/O. It may be shared between threads."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._entries_by_token: dict[object, ListenerEntry] = {}
        self._for_kind: dict[type[Event], tuple[ListenerEntry, ...]] = {}
        self._listener_tasks: set[asyncio.Task[None]] = set()
        self._late_tasks: WeakSet[asyncio.Task[None]] = WeakSet()
        """Those of them that did not end within the limit: nothing waits for them again."""
        self.feed: Feed | None = None
        """Transports events between processes while the engine is open."""

    def on(self, kind: type[E], listener: Listener[E], *, everywhere: bool = False) -> Callable[[], None]:
        """Call `listener` with every event of this kind. Call the returned function to remove it."""
        token = object()
        self._entries_by_token[token] = ListenerEntry(kind, listener, everywhere)
        self._changed(everywhere)

        def off() -> None:
            if self._entries_by_token.pop(token, None) is not None:
                self._changed(everywhere)

        return off

    def _changed(self, everywhere: bool) -> None:
        self._for_kind = {}
        if everywhere and self.feed is not None:
            self.feed.listen()

    @property
    def kinds_everywhere(self) -> frozenset[str]:
        """The kinds that listeners want from other processes."""
        return frozenset(entry.kind.__name__ for entry in tuple(self._entries_by_token.values()) if entry.everywhere)

    def attach(self, feed: "Feed | None") -> None:
        """Use this feed from now on; None: the engine is closed."""
        self.feed = feed
        if feed is not None:
            feed.listen()

    def wants(self, kind: type[Event]) -> bool:
        """True if a listener, here or in another process, would get such an event."""
        if self._entries(kind):
            return True
        feed = self.feed
        return feed is not None and feed.wants(kind)

    def emit(self, event: Event) -> None:
        """Pass the event to the listeners, here and in other processes. Never raises a listener's error."""
        for entry in self._entries(type(event)):
            self._call(entry.listener, event)
        feed = self.feed
        if feed is not None and feed.wants(type(event)):
            feed.publish(event)

    def deliver_remote(self, event: Event) -> None:
        """Pass an event of another process to the listeners here. It is not published again."""
        for entry in self._entries(type(event)):
            if entry.everywhere:
                try:
                    self._call(entry.listener, event)
                except BaseException:  # this is the feed's thread: there is nothing to cancel or to interrupt
                    _report(entry.listener, event)

    def _entries(self, kind: type[Event]) -> tuple[ListenerEntry, ...]:
        by_kind = self._for_kind  # read it first: a registration in another thread replaces the dict
        found = by_kind.get(kind)
        if found is None:
            entries = tuple(self._entries_by_token.values())
            found = by_kind[kind] = tuple(entry for entry in entries if issubclass(kind, entry.kind))
        return found

    def _call(self, listener: Listener[Any], event: Event) -> None:
        try:
            answer = listener(event)
            if inspect.isawaitable(answer):
                self._run_async(_finish(answer, listener, event))
        except _LOGGED_ERRORS:
            _report(listener, event)

    def _run_async(self, coro: Any) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # emitted by blocking code: there is no running loop
            asyncio.run(coro)
        else:
            task = self._runtime.spawn(coro, name="holdfast listener")
            self._listener_tasks.add(task)
            task.add_done_callback(self._listener_tasks.discard)

    async def wait_for_listeners(self) -> None:
        """Wait for the async listeners that still run on this loop, for a limited time, and for each of them once."""
        loop = asyncio.get_running_loop()
        running = {task for task in tuple(self._listener_tasks) if task.get_loop() is loop} - {asyncio.current_task()}
        running.difference_update(self._late_tasks)
        if running:
            _, late = await asyncio.wait(running, timeout=LISTENER_TIMEOUT_S)
            self._late_tasks.update(late)


async def _finish(answer: Awaitable[object], listener: Listener[Any], event: Event) -> None:
    try:
        await answer
    except _LOGGED_ERRORS as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        _report(listener, event)


def _report(listener: Listener[Any], event: Event) -> None:
    name = getattr(listener, "__qualname__", repr(listener))
    error = sys.exception()
    trace = "" if error is None else describe(error).traceback  # unlike logging, it never raises
    _logger.error("The listener %s failed on %s. The event went to the others.\n%s", name, type(event).__name__, trace)
