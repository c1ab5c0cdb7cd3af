"""The wish that a worker stop, and how long it may take. Asked again, it is wanted at once."""

from collections.abc import Callable

from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime
from holdfast.service import Waker


class StopRequest:
    """One per run. Used from the loop's thread only."""

    def __init__(self, runtime: Runtime, grace: float) -> None:
        self._runtime = runtime
        self._grace = grace
        self._deadline: int | None = None
        self.immediate = False
        self.waker = Waker(runtime)

    @property
    def is_requested(self) -> bool:
        return self._deadline is not None

    def request(self, grace: float | None = None) -> None:
        """Stop within `grace` seconds, or the usual ones. A second wish can only shorten the first."""
        length = self._grace if grace is None else grace
        deadline = self._runtime.monotonic() + round(length * SECOND)
        if self._deadline is None or deadline < self._deadline:
            self._deadline = deadline
        if not length:
            self.immediate = True
        self.waker.wake()

    def signal(self) -> None:
        """SIGTERM or SIGINT: gently at first, then at once."""
        self.request(0 if self.is_requested else None)

    async def wait(self) -> None:
        """Until someone asks."""
        while not self.is_requested:
            await self.waker.wait()

    def grace_left_s(self) -> float:
        """Seconds of grace that are left."""
        return 0.0 if self._deadline is None else max(0.0, (self._deadline - self._runtime.monotonic()) / SECOND)

    async def wait_until(self, holds: Callable[[], object], seconds: float | None = None) -> None:
        """Wait until it holds, but no longer than so many seconds, or than the grace."""
        end = None if seconds is None else self._runtime.monotonic() + round(seconds * SECOND)
        while not holds():
            left = self.grace_left_s() if end is None else (end - self._runtime.monotonic()) / SECOND
            if left <= 0:
                return
            await self.waker.wait(left)
