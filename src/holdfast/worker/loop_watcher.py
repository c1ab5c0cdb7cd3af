"""The loop watcher: a thread that detects a blocked event loop.

It schedules a callback on the loop. If the callback does not run in time, a handler blocks the loop: the watcher logs
the stack of the loop's thread, once per blockage, while it lasts. Leases are still renewed, because the keeper has a
thread of its own; but no other attempt makes progress, and the log says which code is the reason.

If the watcher itself does not run, and the process used the processor meanwhile, a handler's C code held the GIL: no
thread could run, the keeper neither. The watcher notices that afterwards (`on_stall`).

The same thread calls `on_period` each time: the worker uses it to stop attempts whose lease is nearly over.
"""

import asyncio
import logging
import os
import traceback
from collections.abc import Callable

from holdfast.model.instants import SECOND, Micros, Seconds
from holdfast.runtime import Runtime, thread_frames

PERIOD_S: Seconds = 0.25
"""Time between two checks."""
BLOCKED_AFTER_S: Seconds = 1.0
"""The loop counts as blocked after this long without running the callback."""

_logger = logging.getLogger("holdfast.watcher")

OnBlocked = Callable[[Micros, str], None]
"""Called with how long the loop has been blocked, and the stack of its thread."""


class LoopWatcher:
    """Create it on the loop that it is to watch."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        on_period: Callable[[], None],
        on_blocked: OnBlocked,
        on_stall: Callable[[Micros], None] = lambda stalled_us: None,
        after_s: Seconds = BLOCKED_AFTER_S,
    ) -> None:
        self._runtime = runtime
        self._on_period = on_period
        self._on_blocked = on_blocked
        self._on_stall = on_stall
        """Called with how long no thread of this process could run. A process that was stopped does not count."""
        self._blocked_after_us: Micros = round(after_s * SECOND)
        self._loop = asyncio.get_running_loop()
        self._thread_id = runtime.thread_id()
        self._scheduled_at: Micros | None = None
        """When the callback was scheduled, on the monotonic clock. None: it has run."""
        self._reported = False
        self._stop = runtime.event()

    def start(self) -> None:
        self._runtime.thread(self._work, name="holdfast watcher")

    def stop(self) -> None:
        self._stop.set()

    def _work(self) -> None:
        period_s = min(PERIOD_S, self._blocked_after_us / SECOND / 2)
        while not self._wait(period_s):
            try:
                self._on_period()
                self.check()
            except Exception:
                _logger.exception("A check of the loop watcher failed. It goes on.")

    def _wait(self, period_s: Seconds) -> bool:
        """Wait for one period. True: stop. Notices if the wait took much longer than it should."""
        began_at, cpu_s = self._runtime.monotonic(), _cpu_s()
        stopped = self._stop.wait(period_s)
        stalled_us = self._runtime.monotonic() - began_at - round(period_s * SECOND)
        if stalled_us > self._blocked_after_us and (_cpu_s() - cpu_s) * SECOND > stalled_us / 10:
            try:
                self._on_stall(stalled_us)
            except Exception:
                _logger.exception("A stall of %.1f s could not be reported.", stalled_us / SECOND)
        return stopped

    def check(self) -> None:
        """Schedule the callback; or, if it is scheduled and has not run, check for how long."""
        now = self._runtime.monotonic()
        if self._scheduled_at is None:
            self._scheduled_at = now
            try:
                self._loop.call_soon_threadsafe(self._callback)
            except RuntimeError:  # the loop is closed
                self._stop.set()
        elif now - self._scheduled_at >= self._blocked_after_us and not self._reported:
            self._reported = True
            self._report(now - self._scheduled_at)

    def _callback(self) -> None:
        scheduled_at, self._scheduled_at = self._scheduled_at, None
        if self._reported and scheduled_at is not None:
            self._reported = False
            blocked_us = self._runtime.monotonic() - scheduled_at
            _logger.warning("The event loop runs again after %.1f s.", blocked_us / SECOND)

    def _report(self, blocked_us: Micros) -> None:
        frame = thread_frames().get(self._thread_id)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        _logger.warning(
            "The event loop has been blocked for %.1f s by the code below. Make it a plain function, which runs in a "
            "thread, or await:\n%s",
            blocked_us / SECOND,
            stack,
        )
        self._on_blocked(blocked_us, stack)


def _cpu_s() -> Seconds:
    """Processor time that this process has used."""
    times = os.times()
    return times.user + times.system
