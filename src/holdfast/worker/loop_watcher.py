"""The watcher: a thread that notices when the event loop no longer turns, and when leases get too old.

It throws a ball to the loop and waits for it to come back. If it does not, some handler blocks the loop: the watcher
writes down where, with the stack, once per blockage, while it still lasts. Leases are not in danger, the keeper has its
own thread; but nothing else moves, and people look for the reason in the wrong place.
"""

import asyncio
import logging
import sys
import traceback
from collections.abc import Callable

from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime

PERIOD = 0.25
BLOCKED_AFTER = 1.0

_logger = logging.getLogger("holdfast.watcher")

Blocked = Callable[[int, str], None]
"""Told for how long the loop has stood still, in microseconds, and where."""


class LoopWatcher:
    """Made on the loop it watches."""

    def __init__(
        self, runtime: Runtime, *, guard: Callable[[], None], blocked: Blocked, after: float = BLOCKED_AFTER
    ) -> None:
        self._runtime = runtime
        self._guard = guard
        self._blocked = blocked
        self._after = round(after * SECOND)
        self._loop = asyncio.get_running_loop()
        self._thread_id = _own_thread_id()
        self._thrown: int | None = None
        """When the ball was thrown. None: it is back."""
        self._reported = False
        self._stop = runtime.event()

    def start(self) -> None:
        self._runtime.thread(self._work, name="holdfast watcher")

    def stop(self) -> None:
        self._stop.set()

    def _work(self) -> None:
        period = min(PERIOD, self._after / SECOND / 2)
        while not self._stop.wait(period):
            try:
                self._guard()
                self.look()
            except Exception:
                _logger.exception("The watcher stumbled and goes on.")

    def look(self) -> None:
        """Throw the ball, or see how long it has been away."""
        now = self._runtime.monotonic()
        if self._thrown is None:
            self._thrown = now
            try:
                self._loop.call_soon_threadsafe(self._catch)
            except RuntimeError:  # the loop is closed
                self._stop.set()
        elif now - self._thrown >= self._after and not self._reported:
            self._reported = True
            self._report(now - self._thrown)

    def _catch(self) -> None:
        thrown, self._thrown = self._thrown, None
        if self._reported and thrown is not None:
            self._reported = False
            away = self._runtime.monotonic() - thrown
            _logger.warning("The event loop turns again after %.1f s.", away / SECOND)

    def _report(self, away: int) -> None:
        frame = sys._current_frames().get(self._thread_id)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        _logger.warning(
            "The event loop has not turned for %.1f s. Something blocks it here; make it a plain function, which runs "
            "in a thread, or await:\n%s",
            away / SECOND,
            stack,
        )
        self._blocked(away, stack)


def _own_thread_id() -> int:
    mine = sys._getframe()
    return next(ident for ident, frame in sys._current_frames().items() if frame is mine)
