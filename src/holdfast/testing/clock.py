"""Two ways to own time in a test.

`FakeClock` shifts the clock of an engine, whatever that engine reads it from: real time goes on underneath, so it works
on a server in another process as well. `FrozenRuntime` replaces time altogether for code that runs in this process:
nothing moves until the test says so, and two runs of a test see the same instants, ids and dice.
"""

import asyncio
import hashlib
import heapq
import itertools

from holdfast.engine import Engine
from holdfast.model.instants import DAY, HOUR, MINUTE, SECOND
from holdfast.runtime import SystemRuntime

START = 1_800_000_000 * SECOND
"""Where a frozen wall clock stands at first: some day in January 2027."""


def microseconds(seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0) -> int:
    """A length of time as engines count it."""
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
        """Somebody sets the engine's clock to an earlier time. What an engine makes of that is part of the contract."""
        self._engine.clock_offset -= microseconds(seconds, minutes=minutes, hours=hours)


class FrozenRuntime(SystemRuntime):
    """A runtime whose clocks stand still, and whose ids and random numbers follow from a seed.

    Use it from one event loop only. Tasks, threads, processes and files are the real ones.
    """

    def __init__(self, *, wall: int = START, seed: int = 0) -> None:
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
            raise ValueError("Only `set_wall` can go back: nobody can set the other two clocks.")
        self._wall += step
        self._elapsed += step
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            _, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                sleeper.set_result(None)

    def set_wall(self, wall: int) -> None:
        """Set the wall clock, as a person or a time server may: forward or back, and nothing else moves."""
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
        """Until `advance` has passed the end of it. Zero seconds end with the next `advance`, however short."""
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
