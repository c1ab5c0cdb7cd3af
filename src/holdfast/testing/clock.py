"""Two ways to control time in a test.

`FakeClock` adds an offset to the clock of an engine. Real time goes on, so it also works with a server in another
process. `FrozenRuntime` replaces time for code in this process: the clocks stand still until the test moves them, and
two runs of a test see the same instants, ids and random numbers.
"""

import asyncio
import hashlib
import heapq
import itertools

from holdfast.engine import Engine
from holdfast.model.instants import DAY, HOUR, MINUTE, SECOND, Instant, Micros
from holdfast.runtime import SystemRuntime

START: Instant = 1_800_000_000 * SECOND
"""The first time of a frozen wall clock: a day in January 2027."""


def microseconds(seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0) -> Micros:
    """A duration in microseconds."""
    return round(seconds * SECOND) + round(minutes * MINUTE) + round(hours * HOUR) + round(days * DAY)


class FakeClock:
    """Moves an engine's clocks without waiting: `FakeClock(engine).advance(hours=1)`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def advance(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """From the next call on, the engine's time is this much later."""
        step = microseconds(seconds, minutes=minutes, hours=hours, days=days)
        if step < 0:
            raise ValueError("A FakeClock only goes forward. To play a clock that was set back, use `set_back`.")
        self._engine.clock_offset += step

    def set_back(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0) -> None:
        """Set the engine's clock to an earlier time. The contract says what an engine must do then."""
        self._engine.clock_offset -= microseconds(seconds, minutes=minutes, hours=hours)


class FrozenRuntime(SystemRuntime):
    """A runtime whose clocks stand still, and whose ids and random numbers come from a seed.

    Use it from one event loop only. Tasks, threads, processes and files are the real ones.
    """

    def __init__(self, *, wall: Instant = START, seed: int = 0) -> None:
        super().__init__()
        self._wall = wall
        self._elapsed = 0
        self._seed = seed
        self._draws = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    def advance(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Move all three clocks, and wake the sleepers whose time has come, the earliest first."""
        step = microseconds(seconds, minutes=minutes, hours=hours, days=days)
        if step < 0:
            raise ValueError(
                "Time only goes forward. Use `set_wall` to set the wall clock back; the other two cannot go back."
            )
        self._wall += step
        self._elapsed += step
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            _, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                sleeper.set_result(None)

    def set_wall(self, wall: int) -> None:
        """Set the wall clock forward or back, as a person or a time server may. The other clocks do not move."""
        self._wall = wall

    def wall(self) -> int:
        return self._wall + self.clock_offset

    def monotonic(self) -> int:
        return self._elapsed

    def boot(self) -> int:
        return HOUR + self._elapsed + self.clock_offset

    def boot_id(self) -> str:
        return f"frozen-{self._seed}"

    async def sleep(self, seconds: float) -> None:
        """Sleep until `advance` has moved past the end. Zero seconds end with the next `advance`."""
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + microseconds(seconds), next(self._draws), sleeper))
        await sleeper

    @property
    def sleeping(self) -> int:
        """How many coroutines sleep."""
        return sum(not sleeper.done() for _, _, sleeper in self._sleepers)

    def random(self) -> float:
        return int.from_bytes(self.token_bytes(7), "big") / 2**56

    def token_bytes(self, count: int) -> bytes:
        return hashlib.shake_128(f"{self._seed}:{next(self._draws)}".encode()).digest(count)
