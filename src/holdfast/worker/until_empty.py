"""`until_empty`: when the worker may stop because there is nothing left that it could come to run.

It waits for the jobs of its tasks in its queues that are queued, running (on any worker), retrying, or due within a
minute. It waits for blocked jobs of its tasks as long as a job they may depend on can go on: one that runs, or one that
this or another live worker can take. A job that only its lane holds depends on jobs of that lane. It leaves jobs that
it cannot bring to an end: those of paused queues, those due later, those of tasks that it does not have, and jobs
blocked by such jobs or by a paused lane.
"""

import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass

from holdfast.engine import Engine
from holdfast.model.instants import SECOND, Instant, Micros, Seconds
from holdfast.model.job import JobRecord
from holdfast.model.observe import Find, QueueStats
from holdfast.model.records import WorkerRecord
from holdfast.model.states import LEASED, WAITING, Hold, JobState
from holdfast.model.text import shown
from holdfast.runtime import Runtime
from holdfast.service import Service
from holdfast.worker.exchange import Exchanger
from holdfast.worker.slots import Slots
from holdfast.worker.stop_request import StopReason

WAIT_AHEAD_US: Micros = 60 * SECOND
"""Jobs that are due within this time are waited for."""
POLL_S: Seconds = 0.5
"""Between two checks while there are jobs to wait for: they may end in another worker, which notifies nobody here."""
CONFIRM_S: Seconds = 0.5
"""Jobs are left if two checks with this much time, and a claim, in between find the same: a lock on a job may have
hidden it."""
REPORT_US: Micros = 60 * SECOND
"""Between two log lines that say what the worker waits for."""
PAGES = (10, 100, *(1_000,) * 20)
"""Jobs read at once while one that can go on is searched. The rest is then taken not to go on either."""

_logger = logging.getLogger("holdfast.worker")


@dataclass(frozen=True, slots=True)
class LeftJobs:
    """How many jobs a worker with `until_empty` has left, by the reason why it could not run them."""

    paused: int = 0
    """In paused queues."""
    unknown: int = 0
    """Of tasks that the worker does not have."""
    scheduled: int = 0
    """Due later."""
    blocked: int = 0
    """Blocked by such jobs, or in paused lanes."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.paused + self.unknown + self.scheduled + self.blocked

    def __str__(self) -> str:
        parts = (
            (self.paused, "in paused queues"),
            (self.unknown, "of tasks that this worker does not have"),
            (self.scheduled, "scheduled for later"),
            (self.blocked, "blocked by jobs or lanes that do not go on"),
        )
        jobs = "1 job is left" if self.total == 1 else f"{self.total} jobs are left"
        return f"{jobs}: {', '.join(f'{count} {text}' for count, text in parts if count)}."


class UntilEmpty(Service):
    """Stops the worker when it is idle and nothing is left that it could come to run."""

    name = "until empty"

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        exchanger: Exchanger,
        slots: Slots,
        worker: str,
        queues: Sequence[str],
        tasks: Collection[str],
        stop: Callable[[None, StopReason], object],
    ) -> None:
        super().__init__(runtime)
        self._engine = engine
        self._worker = worker
        self._queues = frozenset(queues)
        self._tasks = frozenset(tasks)
        self._exchanger = exchanger
        self._slots = slots
        self._stop = stop
        self._found_nothing = False
        """A claim has found nothing since the last job."""
        self._left_before: LeftJobs | None = None
        self._reported_at: Micros | None = None
        self.left = LeftJobs()

    def idle(self) -> None:
        """A claim has found nothing, and nothing runs here."""
        self._found_nothing = True
        self.wake()

    def _is_idle(self) -> bool:
        return self._slots.idle and not self._exchanger.has_unsettled

    async def tick(self) -> float | None:
        if not self._found_nothing or not self._is_idle():
            self._found_nothing, self._left_before = False, None
            return None
        answer = await self._engine.stats()
        own = [stats for stats in answer.queues if stats.queue in self._queues]
        goes_on = bool(sum(stats.depth for stats in own)) and await self._goes_on(answer.queues, own, answer.at.wall)
        if not self._is_idle():
            return POLL_S
        if goes_on:
            self._left_before = None
            self._report(own)
            return POLL_S
        left = _left(own)
        if left.total and left != self._left_before:
            self._left_before = left
            self._exchanger.wake()
            return CONFIRM_S
        self.left = left
        self._stop(None, StopReason.EMPTY)
        return None

    def _report(self, own: Sequence[QueueStats]) -> None:
        now = self.runtime.monotonic()
        if self._reported_at is None:
            self._reported_at = now - REPORT_US + SECOND  # nothing is logged about a short wait
        if now - self._reported_at >= REPORT_US:
            self._reported_at = now
            counts = {state: sum(stats.counts.get(state, 0) for stats in own) for state in (*WAITING, *LEASED)}
            text = ", ".join(f"{count} {state.value}" for state, count in sorted(counts.items()) if count)
            _logger.info("Worker %s waits until its queues are empty: %s.", shown(self._worker), text)

    # What can go on

    async def _goes_on(self, queues: Sequence[QueueStats], own: Sequence[QueueStats], now: Instant) -> bool:
        for stats in own:
            if await self._can_run_one(stats, now):
                return True
        blocked = [stats for stats in own if stats.counts.get(JobState.BLOCKED) and not stats.paused]
        if not blocked:
            return False
        answer = await self._engine.workers()
        others = [one for one in answer.workers if one.worker != self._worker and one.is_alive(answer.at.wall)]
        any_goes_on = _any_goes_on(queues, others, now)
        for stats in blocked:
            lanes = await self._lanes_that_go_on(stats, others, now)
            async for job in self._find(stats.queue, JobState.BLOCKED):
                if job.task not in self._tasks or job.hold & Hold.PAUSED:
                    continue
                if job.lane in lanes if job.hold == Hold.LANE else any_goes_on:
                    return True
        return False

    async def _lanes_that_go_on(self, stats: QueueStats, others: Sequence[WorkerRecord], now: Instant) -> set[str]:
        """The lanes of a queue in which a job runs, or waits for another live worker that has its task."""
        tasks = {task for worker in others if stats.queue in worker.queues for task in worker.tasks}
        states = [*LEASED]
        if tasks:
            states += [JobState.QUEUED, JobState.RETRYING, *([JobState.SCHEDULED] if _due_soon(stats, now) else [])]
        return {
            job.lane
            for state in states
            if stats.counts.get(state)
            async for job in self._find(stats.queue, state)
            if job.lane is not None and (state in LEASED or job.task in tasks)
        }

    async def _can_run_one(self, stats: QueueStats, now: Instant) -> bool:
        """True if this worker could come to run a job of this queue, now or soon."""
        if not stats.paused and not self._tasks.isdisjoint(stats.ready_tasks):
            return True
        for state in [*LEASED] if stats.paused else [*LEASED, JobState.RETRYING]:
            if stats.counts.get(state) and await self._has_task_in(stats.queue, state):
                return True
        return _due_soon(stats, now) and not stats.paused

    async def _has_task_in(self, queue: str, state: JobState) -> bool:
        async for job in self._find(queue, state):
            if job.task in self._tasks:
                return True
        return False

    async def _find(self, queue: str, state: JobState) -> AsyncIterator[JobRecord]:
        cursor = None
        for limit in PAGES:
            found = await self._engine.find(Find(queue=queue, state=state, limit=limit, cursor=cursor))
            for job in found.jobs:
                yield job
            cursor = found.cursor
            if cursor is None:
                break


def _any_goes_on(queues: Sequence[QueueStats], others: Sequence[WorkerRecord], now: Instant) -> bool:
    """True if any job of the store runs, or waits in a queue that another live worker takes from."""
    if any(stats.counts.get(state) for stats in queues for state in LEASED):
        return True
    served = {queue for worker in others for queue in worker.queues}
    return any(
        stats.counts.get(JobState.QUEUED) or stats.counts.get(JobState.RETRYING) or _due_soon(stats, now)
        for stats in queues
        if stats.queue in served and not stats.paused
    )


def _due_soon(stats: QueueStats, now: Instant) -> bool:
    if not stats.counts.get(JobState.SCHEDULED):
        return False
    return stats.next_due is not None and stats.next_due - now <= WAIT_AHEAD_US


def _left(own: Sequence[QueueStats]) -> LeftJobs:
    def count(*states: JobState) -> int:
        return sum(stats.counts.get(state, 0) for stats in own if not stats.paused for state in states)

    return LeftJobs(
        paused=sum(stats.depth for stats in own if stats.paused),
        unknown=count(JobState.QUEUED, JobState.RETRYING, *LEASED),
        scheduled=count(JobState.SCHEDULED),
        blocked=count(JobState.BLOCKED),
    )
