"""The signals that stop a worker, or a manager.

    SIGTERM, SIGINT     the first stops within the grace, the second at once
    SIGHUP              stops within the grace; a worker that has a manager ignores it, because the manager handles it.
                        A manager replaces its workers

The event loop calls the callbacks. The signal handlers of Python only limit the time: they run in the main thread also
while other Python code blocks the loop.
"""

import asyncio
import signal
from collections.abc import Callable
from typing import Any, Self

from holdfast.model.instants import Seconds
from holdfast.runtime import Runtime
from holdfast.worker.forced_exit import ForcedExit
from holdfast.worker.stop_request import StopRequest

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
HANG_UP: signal.Signals | None = getattr(signal, "SIGHUP", None)
"""None: this system has no such signal."""


class StopSignals:
    """A context manager, for the main thread with its running event loop. At its end the handlers are as before."""

    def __init__(
        self,
        runtime: Runtime,
        stop_request: StopRequest,
        grace_s: Seconds,
        *,
        managed: bool = False,
        on_hang_up: Callable[[], None] | None = None,
        margin_s: Seconds = 0.0,
        process_ends: bool = False,
    ) -> None:
        """`on_hang_up`: called on SIGHUP, which then does not stop. `margin_s`: the end by force comes later by it.

        `process_ends`: the process is to end with the worker, so the end by force is for what keeps it alive, too.
        """
        self._forced_exit = ForcedExit(runtime)
        self._grace_s = grace_s
        self._margin_s = margin_s
        self._process_ends = process_ends
        self._count = 0
        self._hang_up_stops = not managed and on_hang_up is None
        self._callbacks: dict[signal.Signals, Callable[[], None]] = dict.fromkeys(STOP_SIGNALS, stop_request.signal)
        if HANG_UP is not None and on_hang_up is not None:
            self._callbacks[HANG_UP] = on_hang_up
        elif HANG_UP is not None and signal.getsignal(HANG_UP) is not signal.SIG_IGN:  # `nohup` ignores it
            self._callbacks[HANG_UP] = _do_nothing if managed else stop_request.hang_up
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._forced_exit.start()
        for number, callback in self._callbacks.items():
            before = signal.getsignal(number)
            self._loop.add_signal_handler(number, callback)
            self._before[number] = before
            signal.signal(number, self._limit)  # the loop is still notified, through its descriptor
            signal.siginterrupt(number, False)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            self._loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL if before is None else before)
        if self._process_ends:
            self._forced_exit.after(self._grace_s)  # or sooner, if a signal has set a limit
        else:
            self._forced_exit.stop()

    def _limit(self, number: int, _: object) -> None:
        if number == HANG_UP:
            if self._hang_up_stops:
                self._forced_exit.after(self._grace_s)
            return
        self._count += 1
        self._forced_exit.after(self._margin_s + (self._grace_s if self._count == 1 else 0))


def _do_nothing() -> None: ...
