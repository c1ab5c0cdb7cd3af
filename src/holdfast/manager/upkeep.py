"""What a manager does with the store: its heartbeat, the look at the load, and the jobs of children that have died.

The store may fail at any time. Then these services pause, and one log line stands for all of them. The children go on:
they have their own connections. The number of children does not change while the load is not known.
"""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from holdfast.engine import Engine
from holdfast.manager.child import Child
from holdfast.manager.children import Children
from holdfast.manager.scaling import QueueLoad, Size, SizeLimits, next_size
from holdfast.model.instants import SECOND, Instant, Micros, Seconds
from holdfast.model.observe import QueueStats
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState
from holdfast.model.work import ExpiredLease
from holdfast.runtime import Runtime
from holdfast.service import Service
from holdfast.worker.keeper import HEARTBEAT_US
from holdfast.worker.reaper import Reaper

DISOWN_AGAIN_US: Micros = SECOND
"""A claim that a child sent just before its end may reach the server after the child was disowned."""
FINISH_TIMEOUT_S: Seconds = 5.0
"""At its end the manager waits this long for the store."""

_logger = logging.getLogger("holdfast.manager")


class ManagerHeartbeat(Service):
    """Writes the manager's record, by which operators see it and can stop it."""

    name = "heartbeat"

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        *,
        manager: str,
        limits: SizeLimits,
        children: Children,
        lost: "LostChildren",
        on_stop_requested: Callable[[], None],
    ) -> None:
        super().__init__(runtime)
        self._engine = engine
        self._manager = manager
        self._limits = limits
        self._children = children
        self._lost = lost
        self._on_stop_requested = on_stop_requested
        self._started: Instant = runtime.wall()
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def record(self) -> WorkerRecord:
        return WorkerRecord(
            worker=self._manager,
            host=socket.gethostname(),
            pid=os.getpid(),
            process=self._engine.process_name,
            started=self._started,
            interval=HEARTBEAT_US,
            children=(*self._children.worker_names(), *self._lost.worker_names()),
            min_children=self._limits.min,
            max_children=self._limits.max,
        )

    async def tick(self) -> float | None:
        if self._closed:
            return None
        self._idle.clear()
        try:
            answer = await self._engine.heartbeat(self.record())
        finally:
            self._idle.set()
        if answer.stop:
            self._on_stop_requested()
        return HEARTBEAT_US / SECOND

    async def close(self) -> None:
        """Wait for a call in flight, and send no more. A cancelled call could write the record after its removal."""
        self._closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                await self._idle.wait()


class Scaler(Service):
    """Looks at the load, and sets the number of children."""

    name = "scaling"

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        *,
        manager: str,
        limits: SizeLimits,
        children: Children,
        queues: tuple[str, ...],
        tasks: frozenset[str],
        interval_s: Seconds,
    ) -> None:
        super().__init__(runtime)
        self._engine = engine
        self._manager = manager
        self._limits = limits
        self._children = children
        self._queues = queues
        self._tasks = tasks
        self._interval_s = interval_s
        self._looked_at = runtime.monotonic()
        self._size = Size.first(limits, self._looked_at)

    async def tick(self) -> float | None:
        if self._limits.min == self._limits.max or not self._queues:
            return None
        stats = await self._engine.stats(*self._queues)
        workers = (await self._engine.workers()).workers
        now = self.runtime.monotonic()
        if now - self._looked_at > 3 * self._interval_s * SECOND:
            self._size = self._size.after_gap(now)
        self._looked_at = now
        self._children.busy = {worker.worker: worker.busy for worker in workers}
        alive = [worker for worker in workers if worker.is_alive(stats.at.wall)]
        load = load_of(stats.queues, alive, self._tasks, manager=self._manager, now=stats.at.wall)
        before = self._size.children
        self._size = next_size(self._limits, self._size, load, self._children.counts(), now)
        if self._size.children != before:
            _logger.info(
                "From %d to %d children: %d jobs are due, %d run, the oldest waits for %.1f s.",
                before,
                self._size.children,
                load.due,
                load.running,
                load.oldest_wait_us / SECOND,
            )
            self._children.size = self._size.children
            self._children.wake()
        return self._interval_s


def load_of(
    queues: Iterable[QueueStats],
    alive: list[WorkerRecord],
    tasks: frozenset[str],
    *,
    manager: str,
    now: Instant,
) -> QueueLoad:
    """The work for the children of a manager, from what the store says. `alive`: all live workers and managers."""
    due = running = oldest_wait_us = 0
    names: set[str] = set()
    for queue in queues:
        names.add(queue.queue)
        running += sum(queue.counts.get(state, 0) for state in (JobState.RUNNING, JobState.ASSIGNED))
        # A queue whose queued jobs are all of tasks of other Apps has no work for these children.
        is_foreign = bool(queue.ready_tasks) and tasks.isdisjoint(queue.ready_tasks)
        if queue.due and not queue.paused and not is_foreign:
            due += queue.due
            oldest_wait_us = max(oldest_wait_us, 0 if queue.oldest_due is None else now - queue.oldest_due)
    serving = {worker.worker: worker for worker in alive if not names.isdisjoint(worker.queues)}
    unmanaged = set(serving)
    other_capacity = 0
    for other in alive:
        unmanaged -= set(other.children)
        slots = [serving[child].slots for child in other.children if child in serving]
        if other.worker != manager and slots:
            other_capacity += other.max_children * max(slots)
    return QueueLoad(
        due=due,
        running=running,
        oldest_wait_us=oldest_wait_us,
        unmanaged_slots=sum(serving[name].slots for name in unmanaged if not serving[name].stop_asked),
        other_capacity=other_capacity,
    )


class LostChildren(Service):
    """Disowns the workers of children that have died, so that their jobs do not wait for the leases to expire."""

    name = "lost children"

    def __init__(self, runtime: Runtime, engine: Engine, reaper: Service) -> None:
        super().__init__(runtime)
        self._engine = engine
        self._reaper = reaper
        self._lost: deque[tuple[Child, Micros]] = deque()
        """Children, and when each is to be disowned; in this order."""

    def add(self, child: Child) -> None:
        self._lost.appendleft((child, 0))
        self.wake()

    def worker_names(self) -> tuple[str, ...]:
        """Those that have not been disowned yet. Until then they are children: others leave them to the manager."""
        return tuple(child.worker for child, due in self._lost if child.worker and not due)

    async def tick(self) -> float | None:
        while self._lost:
            child, due = self._lost[0]
            now = self.runtime.monotonic()
            if due > now:
                return (due - now) / SECOND
            await self._disown(child)
            self._lost.remove((child, due))
            if not due:
                self._lost.append((child, now + DISOWN_AGAIN_US))
        return None

    async def finish(self) -> None:
        """The manager ends: free the jobs of children that were lost last. Other services have stopped."""
        lost = [child for child, due in self._lost if not due]
        try:
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                for child in lost:
                    await self._disown(child)
                if lost:
                    await self._reaper.tick()
        except Exception as error:
            _logger.warning("Jobs of %d children wait until their leases expire: %s", len(lost), error)

    async def _disown(self, child: Child) -> None:
        names = (child.worker,) if child.worker else await self._names_of(child)
        if not names:
            return
        answer = await self._engine.disown(*names, error=child.death())
        for name in names:
            await self._engine.forget_worker(name)
        if answer.leases:
            jobs = len(answer.leases)
            _logger.warning("Child %s has left %d jobs; they run again.", child, jobs)
            self._reaper.wake()

    async def _names_of(self, child: Child) -> tuple[str, ...]:
        """It has ended before the manager knew its worker, which may have claimed jobs nevertheless."""
        began = self.runtime.wall() - (self.runtime.monotonic() - child.created_at)
        return tuple(
            worker.worker
            for worker in (await self._engine.workers()).workers
            if worker.host == socket.gethostname() and worker.pid == child.process.pid and worker.started >= began
        )


class LossReaper(Reaper):
    """The reaper of a manager. Jobs that are lost for the last time are left to the reapers of the children: users'
    dead-letter hooks run there, with the resources of a worker."""

    async def _reap(self, lost: list[ExpiredLease]) -> bool:
        retried = [lease for lease in lost if self._decide(lease).target is not JobState.FAILED]
        return bool(retried) and await super()._reap(retried)
