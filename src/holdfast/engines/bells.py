"""Bells inside one process: who listens, and how they are woken.

A bell is a name. Ringing it marks it for every subscription that listens for it, and wakes the one that waits, on
whatever event loop it waits. Ringing twice before anybody looks is ringing once.
"""

import asyncio
from collections.abc import Callable

from holdfast.engine import Subscription

EVERYTHING = "*"
"""Rung when it is not known which: everybody looks."""


class Belfry:
    """All subscriptions of one engine."""

    def __init__(self) -> None:
        self._subscriptions: set[Ears] = set()
        self.someone_waits: Callable[[], object] | None = None
        """Called when somebody begins to wait; from any thread."""

    @property
    def attended(self) -> bool:
        """Whether anybody waits for a bell right now."""
        return any(ears.waits for ears in self._subscriptions)

    def subscribe(self, *bells: str) -> Subscription:
        ears = Ears(self, frozenset(bells))
        self._subscriptions = self._subscriptions | {ears}  # replaced, not changed: `ring` may be under way
        return ears

    def forget(self, ears: "Ears") -> None:
        self._subscriptions = self._subscriptions - {ears}

    def ring(self, bells: frozenset[str]) -> None:
        """From any thread."""
        for ears in self._subscriptions:
            ears.hear(bells)

    def ring_kinds(self, *kinds: str) -> None:
        """Ring every bell of these kinds, such as `queue:`, that somebody listens for."""
        for ears in self._subscriptions:
            ears.hear(frozenset(bell for bell in ears._bells if bell.startswith(kinds)))

    def close(self) -> None:
        for ears in self._subscriptions:
            ears.close()


class Ears(Subscription):
    """Bells that have rung since the last `wait`."""

    def __init__(self, belfry: Belfry, bells: frozenset[str]) -> None:
        self._belfry = belfry
        self._bells = bells
        self._rung: dict[str, None] = {}
        """Filled by ringers and emptied by the waiter one entry at a time: each step is atomic, so none is lost."""
        self._closed = False
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    @property
    def waits(self) -> bool:
        return self._waiter is not None

    def hear(self, bells: frozenset[str]) -> None:
        heard = self._bells if EVERYTHING in bells else bells & self._bells
        if heard:
            for bell in heard:
                self._rung[bell] = None
            self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            loop, future = waiter
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:
                self._waiter = None  # its loop has been closed: nobody waits there any more

    async def wait(self, timeout: float | None = None) -> frozenset[str]:
        if not self._rung and not self._closed:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._waiter = (loop, future)
            someone_waits = self._belfry.someone_waits
            if someone_waits is not None:
                someone_waits()
            try:
                if not self._rung and not self._closed:  # it may have rung since
                    async with asyncio.timeout(timeout):
                        await future
            except TimeoutError:
                pass
            finally:
                self._waiter = None
        rung = set()
        while self._rung:
            rung.add(self._rung.popitem()[0])
        return frozenset(rung)

    def close(self) -> None:
        self._closed = True
        self._belfry.forget(self)
        self._wake()


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
