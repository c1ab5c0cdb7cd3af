"""Jobs of tasks that no live worker knows: noticed and told, never failed unless the configuration says so.

A task may be unknown here and known to another worker, or to the next release. So the rule is to leave it alone. What
helps people is to be told, once: "no live worker knows task X". With `unknown_task_after` set, such a job fails when it
has been due for that long, and waits among the dead letters.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from holdfast.engine import Engine
from holdfast.model.instants import SECOND
from holdfast.model.observe import Find
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState, Reason
from holdfast.model.work import Claim, Lease, QueueClaim, Settlement, TaskClaim
from holdfast.runtime import Runtime
from holdfast.service import Service
from holdfast.telemetry import events
from holdfast.telemetry.bus import Bus

INTERVAL = 60.0
MOST_LOOKED_AT = 200
MOST_FAILED = 100
LEASE = 30 * SECOND

_logger = logging.getLogger("holdfast.worker")


class UnknownTasks(Service):
    """Looks through the worker's queues now and then, at a bounded number of jobs."""

    name = "unknown_tasks"

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        *,
        worker: str,
        queues: Sequence[str],
        tasks: Collection[str],
        bus: Bus,
        fail_after: float = 0.0,
        interval: float = INTERVAL,
    ) -> None:
        super().__init__(runtime)
        self._engine = engine
        self._worker = worker
        self._queues = queues
        self._tasks = frozenset(tasks)
        self._bus = bus
        self._fail_after = round(fail_after * SECOND)
        self._interval = interval
        self._reported: set[tuple[str, str]] = set()

    async def tick(self) -> float | None:
        unknown_tasks = [found for queue in self._queues for found in (await self._unknown(queue)).items()]
        if unknown_tasks:
            known_tasks = {task for worker in await self._workers() for task in worker.tasks}
            for (queue, task), job_id in unknown_tasks:
                if task not in known_tasks:
                    await self._report(queue, task, job_id)
        return self._interval * (0.9 + 0.2 * self.runtime.random())

    async def _unknown(self, queue: str) -> Mapping[tuple[str, str], str]:
        """Tasks of queued jobs that are not ours, each with a job. A bare payload has no task, and no handler."""
        found = await self._engine.find(Find(queue=queue, state=JobState.QUEUED, limit=MOST_LOOKED_AT))
        return {(queue, job.task): job.id for job in found.jobs if job.task and job.task not in self._tasks}

    async def _workers(self) -> Iterable[WorkerRecord]:
        answer = await self._engine.workers()
        return [one for one in answer.workers if answer.at.wall - one.seen <= 3 * max(one.interval, SECOND)]

    async def _report(self, queue: str, task: str, job_id: str) -> None:
        if (queue, task) not in self._reported:
            self._reported.add((queue, task))
            _logger.warning("Jobs of task %r wait in queue %r, and no live worker knows that task.", task, queue)
            at = self.runtime.wall()
            self._bus.emit(events.UnknownTask(at=at, queue=queue, task=task, job_id=job_id))
        if self._fail_after:
            await self._fail(queue, task)

    async def _fail(self, queue: str, task: str) -> None:
        """Take some of these jobs ahead of need, fail those due for too long, give the others back untouched."""
        claim = Claim(
            claim_id=self.runtime.new_claim_id(),
            worker=self._worker,
            queues=(QueueClaim(queue, (TaskClaim(task=task, lease_len=LEASE),)),),
            limit=0,
            prefetch=MOST_FAILED,
        )
        answer = await self._engine.claim(claim)
        await self._engine.settle(*(self._judge(lease, answer.at.wall) for lease in answer.leases))

    def _judge(self, lease: Lease, now: int) -> Settlement:
        if now - lease.due < self._fail_after:
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
