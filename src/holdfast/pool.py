"""A pool: a fixed number of ordered lanes behind one name; a handler works on them.

    ledger = jobs.pool("ledger", Transfer, lanes=8)

    @ledger.handler(max_attempts=10)
    async def book(ctx: Context, event: Transfer) -> None: ...

    ledger.enqueue(Transfer("alice", 500), key="alice")

Inside a lane one job runs at a time, in the order of arrival; a job that fails keeps its lane until it has ended. One
key always goes to one lane, so what belongs together stays in order. Without a key the lanes take turns.

The store chooses the lane, in the write that inserts the job, and its number of lanes wins over the code's: producers
of different releases cannot send one key two ways. `resize` changes it; keyed jobs of the new size wait until all of
the old one have ended.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, Unpack, overload

from holdfast.blocking import blocking
from holdfast.core.connection import StoreConnection
from holdfast.core.enqueue import enqueue
from holdfast.declare.handling import (
    AsyncAlone,
    AsyncWithContext,
    HandlerDecorator,
    HandlerOptions,
    SyncAlone,
    SyncWithContext,
)
from holdfast.declare.payload import PayloadTask, PoolOptions, chosen, declare_depth_limits, in_pool
from holdfast.declare.registry import Registry
from holdfast.draft import Draft
from holdfast.errors import InvalidOption, WrongState
from holdfast.handle import Handle
from holdfast.lanes import Lane, PoolStatus, QueueOrLane, lane_statuses, stored_pool
from holdfast.model.produce import PoolPlace
from holdfast.model.text import check_name
from holdfast.task import AsyncTask, SyncTask
from holdfast.telemetry.events import SoftLimit

T = TypeVar("T")
R = TypeVar("R")
H = TypeVar("H", bound=Callable[..., object])

MAX_LANES = 100_000


class Pool(QueueOrLane, Generic[T]):
    """Made by `jobs.pool(name, payload, lanes=N)`. It may be shared between threads."""

    def __init__(
        self,
        store: StoreConnection,
        registry: Registry,
        name: str,
        payload: type[T],
        /,
        *,
        lanes: int,
        max_depth: int | None = None,
        lane_max_depth: int | None = None,
    ) -> None:
        super().__init__(store, check_name(name, "pool"))
        self._lanes = _check_lanes(lanes)
        self._task = PayloadTask(store, f"Pool {name!r}", name, name, payload)
        declare_depth_limits(store, name, max_depth, lane_max_depth)
        self._payload = payload
        self._registry = registry
        self._dead_letter_hooks: list[Callable[..., object]] = []
        self._over_soft_limit = False
        """The pool was over its soft limit at the last enqueue, and an event has been sent."""
        self.name: str = name
        """Also the name of its queue and of its task."""

    # Producing

    def draft(self, payload: T, /, *, key: str | None = None, **options: Unpack[PoolOptions]) -> Draft[Any]:
        """A job, checked but not enqueued: for `jobs.client.enqueue_many`. It has its id already."""
        draft = self._task.using(**chosen(options, PoolOptions)).draft(payload)
        return in_pool(draft, PoolPlace(self._lanes, key))

    async def aenqueue(
        self,
        payload: T,
        /,
        *,
        key: str | None = None,
        transaction: Any | None = None,
        **options: Unpack[PoolOptions],
    ) -> Handle[Any]:
        """Make a job of this payload, in the lane of its key, or in turn.

        `transaction`: your own; the job exists if, and only if, it commits.
        """
        draft = self.draft(payload, key=key, **options)
        (accepted,) = await enqueue(
            self._store, (draft.job,), wait_for_room_us=draft.wait_for_room_us, transaction=transaction
        )
        if transaction is None and self._store.bus.wants(SoftLimit):
            await self._emit_pool_soft_limit()
        return self._task.handle_of(self.name, accepted, in_transaction=transaction is not None)

    enqueue = blocking(aenqueue)

    async def _emit_pool_soft_limit(self) -> None:
        """Once each time the pool reaches its soft limit. The answer to an enqueue has only the depth of the lane."""
        limit = self._store.queue_limits(self.name).max_depth
        if not limit:
            return
        answer = await (await self._store.engine()).stats(self.name)
        depth = answer.queues[0].depth
        before, self._over_soft_limit = self._over_soft_limit, depth >= self._soft_limit(limit)
        if self._over_soft_limit and not before:
            self._store.bus.emit(SoftLimit(at=answer.at.wall, queue=self.name, depth=depth, limit=limit))

    def _soft_limit(self, limit: int) -> float:
        return self._store.config.queue(self.name).soft_limit * limit

    # Working

    @overload
    def handler(self, function: AsyncWithContext[T, R], /) -> AsyncTask[[T], R]: ...  # type: ignore[overload-overlap]
    @overload
    def handler(self, function: SyncWithContext[T, R], /) -> SyncTask[[T], R]: ...
    @overload
    def handler(self, function: AsyncAlone[T, R], /) -> AsyncTask[[T], R]: ...  # type: ignore[overload-overlap]
    @overload
    def handler(self, function: SyncAlone[T, R], /) -> SyncTask[[T], R]: ...
    @overload
    def handler(self, /, **options: Unpack[HandlerOptions]) -> HandlerDecorator[T]: ...
    def handler(self, function: Any = None, /, **options: Unpack[HandlerOptions]) -> Any:
        """Let this function, `(payload)` or `(ctx, payload)`, sync or async, work on the pool. A decorator.

        It becomes a task of the pool's name, run by ordinary workers. A pool has one handler.
        """
        decorate = HandlerDecorator(
            self._store, self._registry, self.name, self._payload, self._lanes, self._dead_letter_hooks, options
        )
        return decorate if function is None else decorate(function)

    def on_dead_letter(self, hook: H) -> H:
        """Call `hook(job, error)`, sync or async, when a job has failed for good. Its lane goes on. A decorator."""
        if not callable(hook):
            raise InvalidOption("`on_dead_letter` takes a function of the job and its error.", option="hook")
        self._dead_letter_hooks.append(hook)
        return hook

    # Lanes

    def lane(self, index: int, /) -> Lane:
        """One lane, to pause, resume, clear or look at. Does no I/O."""
        return Lane(self._store, self.name, index, self._lanes)

    async def aresize(self, lanes: int, /) -> None:
        """Change the number of lanes. No job is lost, and every key keeps its order.

        Refused while jobs of an earlier size are still there.
        """
        answer = await (await self._store.engine()).resize(self.name, _check_lanes(lanes))
        if answer.pool.lanes != lanes:
            raise WrongState(
                f"Pool {self.name!r} is still changing: {answer.pool.old_live} jobs of its old size have not ended. "
                "Try again later.",
                job_id=self.name,
                state="changing",
                verb="resize",
            )

    resize = blocking(aresize)

    async def astatus(self, /) -> PoolStatus:
        """The depth and the counters of the pool and its lanes. An unused pool is empty."""
        engine = await self._store.engine()
        pool = await stored_pool(engine, self.name, self._lanes)
        lanes = await lane_statuses(engine, pool)
        (stats,) = (await engine.stats(self.name)).queues
        return PoolStatus(
            pool=self.name,
            state="paused" if stats.paused else "running",
            depth=stats.depth,
            processed=stats.totals.succeeded + stats.totals.failed,
            failed=stats.totals.failed,
            current=min((lane.current for lane in lanes if lane.current is not None), default=None),
            resizing=pool.old_live > 0,
            lanes=lanes,
        )

    status = blocking(astatus)

    def __repr__(self) -> str:
        return f"<Pool {self.name!r}>"


def _check_lanes(lanes: int) -> int:
    if type(lanes) is not int or not 1 <= lanes <= MAX_LANES:
        raise InvalidOption(f"`lanes` must be a whole number from 1 to {MAX_LANES}.", option="lanes")
    return lanes
