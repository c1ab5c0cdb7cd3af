"""What is done to a queue, a pool or one lane as a whole: pause, resume, clear, and hear when it has run empty.

While paused, nothing is taken and everything may be enqueued; due times are kept. `clear` cancels what has not ended,
running jobs included: whoever works on one finds its lease lost. Counters and pause stay as they are.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from holdfast.blocking import blocking
from holdfast.control import Control
from holdfast.core.link import Link
from holdfast.engine import Engine
from holdfast.errors import InvalidOption
from holdfast.model.job import JobKey
from holdfast.model.records import LaneRecord, PoolRecord
from holdfast.telemetry.events import LaneEmpty, QueueEmpty, QueueEvent
from holdfast.views import Shown

H = TypeVar("H", bound=Callable[..., object])

State = Literal["running", "paused"]


class Scope:
    """A queue, or one lane of it."""

    def __init__(self, link: Link, queue: str, lane: str | None = None) -> None:
        self._link = link
        self._queue = queue
        self._lane = lane

    async def _exists(self) -> None:
        """Raise where there is no such thing to operate on."""

    async def apause(self, /) -> bool:
        """Nothing of it is taken any more; enqueueing goes on. False: it was paused before."""
        await self._exists()
        return await Control(self._link).apause(self._queue, lane=self._lane)

    pause = blocking(apause)

    async def aresume(self, /) -> bool:
        """Undo `pause`. False: it was not paused."""
        await self._exists()
        return await Control(self._link).aresume(self._queue, lane=self._lane)

    resume = blocking(aresume)

    async def aclear(self, /) -> int:
        """Cancel everything in it that has not ended, running jobs included; answer how many that were."""
        await self._exists()
        return await Control(self._link).aclear(self._queue, lane=self._lane)

    clear = blocking(aclear)

    def on_empty(self, hook: H) -> H:
        """Call `hook(event)`, sync or async, each time its last job has ended in this process. A decorator."""
        if not callable(hook):
            raise InvalidOption("`on_empty` takes a function of the event.", option="hook")
        link, queue, lane = self._link, self._queue, self._lane

        async def run(event: QueueEvent) -> None:
            if inspect.iscoroutinefunction(hook):
                await hook(event)
                return
            answer = await link.runtime.run_blocking(hook, event)  # it may use the blocking methods: not on a loop
            if inspect.isawaitable(answer):
                await answer

        def hear(event: QueueEvent) -> Any:
            return run(event) if (event.queue, event.lane) == (queue, lane) else None

        hear.__qualname__ = getattr(hook, "__qualname__", repr(hook))
        self._link.bus.on(QueueEmpty if lane is None else LaneEmpty, hear)
        return hook


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PoolLaneStatus(Shown):
    """A lane of a pool at a glance, from its own counters."""

    pool: str
    lane: int
    state: State
    pending: int
    """Jobs that have not ended, the current one included."""
    processed: int
    """Jobs that were worked to an end since the lane exists: succeeded or failed."""
    failed: int
    """Of these, the dead letters."""
    current: int | None
    """The arrival number of the job whose turn it is; None: the lane is empty."""

    @classmethod
    def of(cls, record: LaneRecord, current: int | None) -> "PoolLaneStatus":
        totals = record.totals
        return cls(
            pool=record.queue,
            lane=int(record.lane),
            state="paused" if record.paused else "running",
            pending=record.depth,
            processed=totals.succeeded + totals.failed,
            failed=totals.failed,
            current=current,
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PoolStatus(Shown):
    """A pool at a glance. A paused lane does not make the pool paused, and the other way round."""

    pool: str
    state: State
    pending: int
    processed: int
    failed: int
    current: int | None
    """The smallest arrival number of the jobs whose turn it is; None: the pool is empty."""
    resizing: bool
    """Jobs of the size before have not ended, and keyed ones of this size wait for them."""
    lanes: tuple[PoolLaneStatus, ...]


async def lane_statuses(engine: Engine, pool: PoolRecord) -> tuple[PoolLaneStatus, ...]:
    """The lanes of a pool, also those of its size before while they are known, by number."""
    found = (await engine.lanes(pool.name)).lanes
    stored = {int(lane.lane): lane for lane in found if lane.lane.isdecimal() and lane.lane == str(int(lane.lane))}
    numbers = sorted({*range(pool.lanes), *stored})
    records = [stored.get(n) or LaneRecord(queue=pool.name, lane=str(n)) for n in numbers]
    heads = [JobKey(pool.name, record.head) for record in records if record.head is not None]
    jobs = (await engine.get(*heads)).jobs if heads else ()
    arrivals = {job.id: job.arrival for job in jobs if job is not None}
    return tuple(
        PoolLaneStatus.of(record, None if record.head is None else arrivals.get(record.head)) for record in records
    )


class Lane(Scope):
    """One lane of a pool: `ledger.lane(3).pause()`. Made by `Pool.lane`."""

    def __init__(self, link: Link, pool: str, index: int, lanes: int) -> None:
        if type(index) is not int or index < 0:
            raise InvalidOption("`index` must be the number of a lane, from 0 on.", option="index")
        super().__init__(link, pool, str(index))
        self._lanes = lanes
        self.pool = pool
        self.index = index

    async def _exists(self) -> None:
        await self.astatus()

    async def astatus(self, /) -> PoolLaneStatus:
        """The lane at a glance."""
        engine = await self._link.engine()
        statuses = await lane_statuses(engine, await stored_pool(engine, self.pool, self._lanes))
        found = next((status for status in statuses if status.lane == self.index), None)
        if found is None:
            said = f"Pool {self.pool!r} has {len(statuses)} lanes, from 0 on; there is no lane {self.index}."
            raise InvalidOption(said, option="index")
        return found

    status = blocking(astatus)

    def __repr__(self) -> str:
        return f"<Lane {self.index} of pool {self.pool!r}>"


async def stored_pool(engine: Engine, name: str, lanes: int) -> PoolRecord:
    """The pool as the store has it; before its first use as the code has it."""
    found = (pool for pool in (await engine.pools()).pools if pool.name == name)
    return next(found, PoolRecord(name=name, lanes=lanes))
