"""Jobs of tasks that no live worker has: they are reported once, and fail only if the configuration says so.

A task that this worker does not have may be known to another worker, or to the next release. So its jobs stay as they
are, and a warning and an event say once that no live worker knows the task. If the setting `unknown_task_after` is set,
such a job fails when it has been due for that long, and becomes a dead letter.
"""

import logging
from collections.abc import Collection, Iterable, Sequence

from holdfast.engine import Engine
from holdfast.model.instants import SECOND, Instant, Micros, Seconds
from holdfast.model.observe import Find
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState, Reason
from holdfast.model.text import shown
from holdfast.model.work import Claim, Lease, QueueClaim, Settlement, TaskClaim
from holdfast.runtime import Runtime
from holdfast.service import MAINTENANCE_DELAY_S, Service
from holdfast.telemetry import events
from holdfast.telemetry.bus import Bus

INTERVAL_S: Seconds = 60.0
"""Time between two searches of the queues."""
MAX_JOBS_SEARCHED = 1_000
"""Queued jobs looked at to find one of an unknown task, so that a search stays cheap."""
MAX_JOBS_FAILED = 100
"""Jobs failed per task and search."""
LEASE_US: Micros = 30 * SECOND
"""The lease on jobs that are about to be failed: enough for one more call."""

_logger = logging.getLogger("holdfast.worker")


class UnknownTasks(Service):
    """Searches the worker's queues from time to time, a bounded number of jobs each time."""

    name = "unknown_tasks"
    start_delay_s = MAINTENANCE_DELAY_S

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        *,
        worker: str,
        queues: Sequence[str],
        tasks: Collection[str],
        bus: Bus,
        fail_after_s: Seconds = 0.0,
        interval_s: Seconds = INTERVAL_S,
    ) -> None:
        super().__init__(runtime)
        self._engine = engine
        self._worker = worker
        self._queues = queues
        self._tasks = frozenset(tasks)
        self._bus = bus
        self._fail_after_us: Micros = round(fail_after_s * SECOND)
        self._interval_s = interval_s
        self._reported: set[tuple[str, str]] = set()

    async def tick(self) -> float | None:
        unknown_tasks = await self._unknown() if self._queues else []
        if unknown_tasks:
            known_tasks = {task for worker in await self._workers() for task in worker.tasks}
            for queue, task in unknown_tasks:
                if task not in known_tasks:
                    await self._report(queue, task)
        return self._interval_s * (0.9 + 0.2 * self.runtime.random())

    async def _unknown(self) -> list[tuple[str, str]]:
        """Queues and tasks of queued jobs that this worker does not have. No bare payloads."""
        answer = await self._engine.stats(*self._queues)
        return [
            (stats.queue, task)
            for stats in answer.queues
            for task in stats.ready_tasks
            if task and task not in self._tasks
        ]

    async def _workers(self) -> Iterable[WorkerRecord]:
        answer = await self._engine.workers()
        return [one for one in answer.workers if answer.at.wall - one.seen <= 3 * max(one.interval, SECOND)]

    async def _report(self, queue: str, task: str) -> None:
        if (queue, task) not in self._reported:
            one = Find(queue=queue, state=JobState.QUEUED, task=task, limit=1, scan=MAX_JOBS_SEARCHED)
            found = await self._engine.find(one)
            if not found.jobs:
                return  # it was claimed meanwhile, or more jobs arrived after it: the next search tries again
            self._reported.add((queue, task))
            _logger.warning(
                "Jobs of task %r wait in queue %r, and no live worker knows that task.", shown(task), shown(queue)
            )
            at = self.runtime.wall()
            self._bus.emit(events.UnknownTask(at=at, queue=queue, task=task, job_id=found.jobs[0].id))
        if self._fail_after_us:
            await self._fail(queue, task)

    async def _fail(self, queue: str, task: str) -> None:
        """Prefetch some of these jobs, fail those due for too long, release the others unchanged."""
        claim = Claim(
            claim_id=self.runtime.new_claim_id(),
            worker=self._worker,
            queues=(QueueClaim(queue, (TaskClaim(task=task, lease_len=LEASE_US),)),),
            limit=0,
            prefetch=MAX_JOBS_FAILED,
        )
        answer = await self._engine.claim(claim)
        await self._engine.settle(*(self._settlement(lease, answer.at.wall) for lease in answer.leases))

    def _settlement(self, lease: Lease, now: Instant) -> Settlement:
        if now - lease.due < self._fail_after_us:
            target, reason, note = JobState.QUEUED, Reason.RELEASED, ""
        else:
            target, reason = JobState.FAILED, Reason.UNKNOWN_TASK
            note = f"No live worker knows task {lease.task!r}."
        return Settlement(
            queue=lease.queue,
            id=lease.id,
            token=lease.token,
            target=target,
            reason=reason,
            note=note,
            refund=target is JobState.QUEUED,
        )
