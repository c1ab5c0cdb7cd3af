"""Operations on a whole queue, pool or lane: pause, resume, clear, and a hook for when it has run empty.

While it is paused, no job is claimed, jobs can be enqueued, and due times are kept. `clear` cancels all jobs that have
not ended, running ones included: their workers lose their leases. Counters and pause stay as they are.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from holdfast.blocking import blocking
from holdfast.control import Control
from holdfast.core.connection import StoreConnection
from holdfast.engine import Engine
from holdfast.errors import InvalidOption
from holdfast.model.job import JobKey
from holdfast.model.records import LaneRecord, PoolRecord
from holdfast.telemetry.events import LaneEmpty, QueueEmpty, QueueEvent
from holdfast.views import Shown

H = TypeVar("H", bound=Callable[..., object])

RunState = Literal["running", "paused"]


class QueueOrLane:
    """A queue, or one lane of it."""

    def __init__(self, store: StoreConnection, queue: str, lane: str | None = None) -> None:
        self._store = store
        self._queue = queue
        self._lane = lane

    async def _check_exists(self) -> None:
        """Raise if the lane does not exist."""

    async def apause(self, /) -> bool:
        """No more jobs are claimed; jobs can still be enqueued. False: it was paused before."""
        await self._check_exists()
        return await Control(self._store).apause(self._queue, lane=self._lane)

    pause = blocking(apause)

    async def aresume(self, /) -> bool:
        """Undo `pause`. False: it was not paused."""
        await self._check_exists()
        return await Control(self._store).aresume(self._queue, lane=self._lane)

    resume = blocking(aresume)

    async def aclear(self, /) -> int:
        """Cancel all jobs that have not ended, running ones included; return their number."""
        await self._check_exists()
        return await Control(self._store).aclear(self._queue, lane=self._lane)

    clear = blocking(aclear)

    def on_empty(self, hook: H) -> H:
        """Call `hook(event)`, sync or async, each time its last job has ended in this process. A decorator."""
        if not callable(hook):
            raise InvalidOption("`on_empty` takes a function of the event.", option="hook")
        store, queue, lane = self._store, self._queue, self._lane

        async def run(event: QueueEvent) -> None:
            if inspect.iscoroutinefunction(hook):
                await hook(event)
                return
            answer = await store.runtime.run_blocking(hook, event)  # it may use blocking methods, so not on a loop
            if inspect.isawaitable(answer):
                await answer

        def listener(event: QueueEvent) -> Any:
            return run(event) if (event.queue, event.lane) == (queue, lane) else None

        listener.__qualname__ = getattr(hook, "__qualname__", repr(hook))
        self._store.bus.on(QueueEmpty if lane is None else LaneEmpty, listener)
        return hook


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PoolLaneStatus(Shown):
    """The depth and the counters of a pool's lane."""

    pool: str
    lane: int
    state: RunState
    depth: int
    """Jobs that have not ended, the current one included."""
    processed: int
    """Jobs that succeeded or failed since the lane exists."""
    failed: int
    """Of these, the failed ones."""
    current: int | None
    """The arrival number of the job whose turn it is; None: the lane is empty."""

    @classmethod
    def of(cls, record: LaneRecord, current: int | None) -> "PoolLaneStatus":
        totals = record.totals
        return cls(
            pool=record.queue,
            lane=int(record.lane),
            state="paused" if record.paused else "running",
            depth=record.depth,
            processed=totals.succeeded + totals.failed,
            failed=totals.failed,
            current=current,
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PoolStatus(Shown):
    """The depth and the counters of a pool. Pausing a lane does not pause the pool, and the other way round."""

    pool: str
    state: RunState
    depth: int
    processed: int
    failed: int
    current: int | None
    """The smallest arrival number of the jobs whose turn it is; None: the pool is empty."""
    resizing: bool
    """Jobs of the old size have not ended; jobs with a key wait for them."""
    lanes: tuple[PoolLaneStatus, ...]


async def lane_statuses(engine: Engine, pool: PoolRecord, *only: int) -> tuple[PoolLaneStatus, ...]:
    """The lanes of a pool by number, also lanes of its old size that are still stored. With numbers: these only."""
    found = (await engine.lanes(pool.name, *map(str, only))).lanes
    stored = {int(lane.lane): lane for lane in found if lane.lane.isdecimal() and lane.lane == str(int(lane.lane))}
    numbers = sorted({*(n for n in only or range(pool.lanes) if n < pool.lanes), *stored})
    records = [stored.get(n) or LaneRecord(queue=pool.name, lane=str(n)) for n in numbers]
    heads = [JobKey(pool.name, record.head) for record in records if record.head is not None]
    jobs = (await engine.get(*heads)).jobs if heads else ()
    arrivals = {job.id: job.arrival for job in jobs if job is not None}
    return tuple(
        PoolLaneStatus.of(record, None if record.head is None else arrivals.get(record.head)) for record in records
    )


class Lane(QueueOrLane):
    """One lane of a pool: `ledger.lane(3).pause()`. Made by `Pool.lane`."""

    def __init__(self, store: StoreConnection, pool: str, index: int, lanes: int) -> None:
        if type(index) is not int or index < 0:
            raise InvalidOption("`index` must be the number of a lane, from 0 on.", option="index")
        super().__init__(store, pool, str(index))
        self._lanes = lanes
        self.pool = pool
        """The name of the pool."""
        self.index = index
        """The number of the lane, from 0."""

    async def _check_exists(self) -> None:
        await self.astatus()

    async def astatus(self, /) -> PoolLaneStatus:
        """The depth and the counters of the lane."""
        engine = await self._store.engine()
        pool = await stored_pool(engine, self.pool, self._lanes)
        found = await lane_statuses(engine, pool, self.index)
        if not found:
            raise InvalidOption(
                f"Pool {self.pool!r} has {pool.lanes} lanes, from 0 on; there is no lane {self.index}.",
                option="index",
            )
        return found[0]

    status = blocking(astatus)

    def __repr__(self) -> str:
        return f"<Lane {self.index} of pool {self.pool!r}>"


async def stored_pool(engine: Engine, name: str, lanes: int) -> PoolRecord:
    """The stored record of the pool; before its first use, a record with the number of lanes in code."""
    found = (await engine.pools(name)).pools
    return found[0] if found else PoolRecord(name=name, lanes=lanes)
