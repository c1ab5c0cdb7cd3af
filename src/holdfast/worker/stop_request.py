"""The request that a worker stops, and how long it may take. A second signal means: stop at once."""

from collections.abc import Callable

from holdfast.model.instants import SECOND, Micros, Seconds
from holdfast.runtime import Runtime
from holdfast.service import Waker


class StopRequest:
    """One per run of a worker. Used from the loop's thread only."""

    def __init__(self, runtime: Runtime, grace_s: Seconds) -> None:
        self._runtime = runtime
        self._grace_s = grace_s
        self._deadline: Micros | None = None
        self.immediate = False
        self.waker = Waker(runtime)

    @property
    def is_requested(self) -> bool:
        return self._deadline is not None

    def request(self, grace_s: Seconds | None = None) -> None:
        """Stop within `grace_s`, by default the worker's setting. A second request can only shorten the time."""
        length_s = self._grace_s if grace_s is None else grace_s
        deadline = self._runtime.monotonic() + round(length_s * SECOND)
        if self._deadline is None or deadline < self._deadline:
            self._deadline = deadline
        if not length_s:
            self.immediate = True
        self.waker.wake()

    def signal(self) -> None:
        """SIGTERM or SIGINT: the first stops within the grace, the second at once."""
        self.request(0 if self.is_requested else None)

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
