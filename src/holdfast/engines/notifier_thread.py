"""The thread of a notifier: an event loop of its own, on which it connects, sends and receives.

For engines whose stores are servers. All work is done on that loop; the public methods may be called from any thread.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress

from holdfast.engines.feed_channels import FeedChannels
from holdfast.errors import EngineUnavailable
from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime

SUBSCRIBE_TIMEOUT_S = 0.2  # until the server has a new subscription; callers of a later one are woken when it is there
START_TIMEOUT_S = 30.0  # for the start of the thread, which takes milliseconds
CLOSE_TIMEOUT_S = 1.0  # for what is pending when the engine is closed

log = logging.getLogger("holdfast")


class NotifierThread(ABC):
    """A subclass calls `_start` at the end of its `__init__`."""

    feed: FeedChannels

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._closing = False
        self._first_try_done = runtime.event()
        """It has connected, or could not."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._wake_requested = False

    def _start(self, name: str) -> None:
        ready = self._runtime.event()
        failures: list[OSError] = []
        self._thread = self._runtime.thread(lambda: self._main(ready.set, failures), name=name)
        # PF1
        if not ready.wait(START_TIMEOUT_S) or failures:
            self._closing = True
            why = failures[0] if failures else f"it waited for {START_TIMEOUT_S:.0f} s"
            raise EngineUnavailable(
                f"The thread for notifications could not start: {why}. Nothing was written. Try again."
            ) from next(iter(failures), None)

    # From any thread

    @property
    @abstractmethod
    def _is_down(self) -> bool:
        """True: a caller that waits for the server would wait in vain."""

    @abstractmethod
    def subscribe(self, topics: Iterable[str]) -> None:
        """There is a new local subscription to these topics: receive them from other processes."""

    def listen_to_feed(self, kinds: Iterable[str], receive: Callable[[bytes], None]) -> None:
        """Receive the feed. When the call returns, other processes have the announcement, unless the server is down."""
        sent = self._runtime.event()
        self.feed.listen(kinds, receive, sent.set)
        if not self._is_down:
            sent.wait(SUBSCRIBE_TIMEOUT_S)

    def wake(self) -> None:
        """There is something to do on the loop."""
        if not self._wake_requested:
            self._wake_requested = True
            self._on_loop(self._woken.set)

    def close(self) -> None:
        """Send what is pending, then end. A call that hangs is cancelled."""
        self._closing = True
        self._on_loop(self._woken.set)
        self._thread.join(CLOSE_TIMEOUT_S)
        task = self._task
        if task is not None and self._thread.is_alive():
            self._on_loop(task.cancel)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            log.warning("The thread for notifications has not ended within %.0f s.", 2 * CLOSE_TIMEOUT_S)

    def _on_loop(self, function: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(function)

    def _now_s(self) -> float:
        return self._runtime.monotonic() / SECOND

    # On the notifier's loop

    def _main(self, ready: Callable[[], None], failures: list[OSError]) -> None:
        try:
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                ready()
                with suppress(asyncio.CancelledError):
                    runner.run(self._run_as_task())
                self._loop = None
        except OSError as error:  # no file descriptor is left for the event loop
            failures.append(error)
        finally:
            ready()

    async def _run_as_task(self) -> None:
        self._task = asyncio.current_task()
        try:
            await self._run()
        finally:
            self._first_try_done.set()

    @abstractmethod
    async def _run(self) -> None:
        """Send and receive until `_closing` is true."""

    async def _wait_for_wake(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()
        self._wake_requested = False  # before the caller looks at what is wanted: later changes wake it again
