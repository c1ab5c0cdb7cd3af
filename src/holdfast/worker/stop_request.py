"""The request that a worker stops, and how long it may take. A second signal means: stop at once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import StrEnum

from holdfast.model.instants import SECOND, Micros, Seconds
from holdfast.runtime import Runtime
from holdfast.service import Waker


class StopReason(StrEnum):
    """Why a worker stops. The manager of a worker gets it as text."""

    SIGNAL = "signal"
    MANAGER = "manager"
    STORE = "store"
    """`holdfast workers stop`."""
    MAX_JOBS = "max_jobs"
    MAX_MEMORY = "max_memory"
    EMPTY = "empty"
    """With `until_empty`."""
    CALL = "call"
    """`Worker.stop`, or the end of a `with` block."""
    FAILURE = "failure"
    """One of its services has ended."""


class StoppedAtStart(Exception):
    """A stop was requested before the worker had started."""


class StopRequest:
    """One per run of a worker. Used from the loop's thread only."""

    def __init__(self, runtime: Runtime, grace_s: Seconds) -> None:
        self._runtime = runtime
        self._grace_s = grace_s
        self._deadline: Micros | None = None
        self._signals = 0
        self._start_limit: asyncio.Timeout | None = None
        self._start_has_grace = False
        self.immediate = False
        self.reason = StopReason.CALL
        """Of the first request."""
        self.on_first: Callable[[StopReason], object] = lambda reason: None
        """Called with the reason of the first request."""
        self.waker = Waker(runtime)

    @property
    def is_requested(self) -> bool:
        return self._deadline is not None

    def request(self, grace_s: Seconds | None = None, reason: StopReason = StopReason.CALL) -> None:
        """Stop within `grace_s`, by default the worker's setting. A second request can only shorten the time."""
        is_first = self._deadline is None
        length_s = self._grace_s if grace_s is None else grace_s
        deadline = self._runtime.monotonic() + round(length_s * SECOND)
        if self._deadline is None or deadline < self._deadline:
            self._deadline = deadline
        if not length_s:
            self.immediate = True
        self._limit_start()
        self.waker.wake()
        if is_first:
            self.reason = reason
            self.on_first(reason)

    def signal(self) -> None:
        """SIGTERM or SIGINT: the first stops within the grace, the second at once. Only signals count.

        A signal to the whole group of a manager and its workers may come after the manager's own request.
        """
        self._signals += 1
        self.request(0 if self._signals > 1 else None, StopReason.SIGNAL)

    def hang_up(self) -> None:
        """SIGHUP: stop within the grace. It is never the second signal: systemd can send it right after SIGTERM."""
        self.request(None, StopReason.SIGNAL)

    # While the worker starts

    @asynccontextmanager
    async def ends_start(self, *, after_grace: bool) -> AsyncIterator[None]:
        """A request ends this block with `StoppedAtStart`: at once, or when its grace is over."""
        try:
            async with asyncio.timeout(None) as limit:
                self._start_limit, self._start_has_grace = limit, after_grace
                self._limit_start()
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise StoppedAtStart from None
        finally:
            self._start_limit = None

    def _limit_start(self) -> None:
        if self._start_limit is not None and self.is_requested and not self._start_limit.expired():
            grace_s = self.grace_left_s() if self._start_has_grace else 0.0
            self._start_limit.reschedule(asyncio.get_running_loop().time() + grace_s)

    # While it stops

    async def wait(self) -> None:
        """Wait until a stop is requested."""
        while not self.is_requested:
            await self.waker.wait()  # no limit: the worker works until then

    def grace_left_s(self) -> Seconds:
        """How much of the grace is left."""
        return 0.0 if self._deadline is None else max(0.0, (self._deadline - self._runtime.monotonic()) / SECOND)

    async def wait_until(self, holds: Callable[[], object], timeout_s: Seconds | None = None) -> None:
        """Wait until `holds()` is true, at most `timeout_s`, by default the grace."""
        end = None if timeout_s is None else self._runtime.monotonic() + round(timeout_s * SECOND)
        while not holds():
            left_s = self.grace_left_s() if end is None else (end - self._runtime.monotonic()) / SECOND
            if left_s <= 0:
                return
            await self.waker.wait(left_s)
