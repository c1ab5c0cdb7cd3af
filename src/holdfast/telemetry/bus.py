"""The bus: events inside one process, from whoever made them to whoever listens.

`wants` comes first: it is cheap, so that an event nobody listens to is never built. A listener registered for a class
hears its subclasses too; `Event` hears everything. Listeners are called in the order in which they were registered, on
the thread that emits; an async one runs beside. One that raises is logged, and nobody else notices.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.errors import Interrupt
from holdfast.runtime import Runtime
from holdfast.telemetry.events import Event

E = TypeVar("E", bound=Event)

Listener = Callable[[E], object]
"""Called with the event. What it returns is awaited if it can be, and otherwise ignored."""

_logger = logging.getLogger("holdfast.events")

_HARMLESS = (Exception, Interrupt, SystemExit)
"""What a listener may raise without anybody noticing: everything but a cancellation and Ctrl-C."""


class Bus:
    """In-process delivery. Cheap to make, does no I/O, may be shared between threads."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._registered: tuple[tuple[type[Event], Listener[Any]], ...] = ()
        self._for_kind: dict[type[Event], tuple[Listener[Any], ...]] = {}

    def on(self, kind: type[E], listener: Listener[E]) -> Callable[[], None]:
        """Call `listener` with every event of this kind. The answer takes it back."""
        entry = (kind, listener)
        self._registered = (*self._registered, entry)
        self._for_kind = {}

        def off() -> None:
            self._registered = tuple(other for other in self._registered if other is not entry)
            self._for_kind = {}

        return off

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody would hear such an event."""
        return bool(self._listeners(kind))

    def emit(self, event: Event) -> None:
        """Tell the listeners. Never raises for what a listener does."""
        for listener in self._listeners(type(event)):
            self._tell(listener, event)

    def _listeners(self, kind: type[Event]) -> tuple[Listener[Any], ...]:
        found = self._for_kind.get(kind)
        if found is None:
            found = tuple(listener for wanted, listener in self._registered if issubclass(kind, wanted))
            self._for_kind[kind] = found
        return found

    def _tell(self, listener: Listener[Any], event: Event) -> None:
        try:
            answer = listener(event)
            if inspect.isawaitable(answer):
                self._beside(_finish(answer, listener, event))
        except _HARMLESS:
            _report(listener, event)

    def _beside(self, coro: Any) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # emitted by blocking code: there is no loop to run it beside
            asyncio.run(coro)
        else:
            self._runtime.spawn(coro, name="holdfast listener")


async def _finish(answer: Awaitable[object], listener: Listener[Any], event: Event) -> None:
    try:
        await answer
    except _HARMLESS:
        _report(listener, event)


def _report(listener: Listener[Any], event: Event) -> None:
    name = getattr(listener, "__qualname__", repr(listener))
    _logger.exception("The listener %s failed on %s. The event went to the others.", name, type(event).__name__)
