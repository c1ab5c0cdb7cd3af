"""The reaper: brings back jobs whose worker went away with them.

List, decide, write. The list changes nothing; what is decided applies only if the lease is still the one that was
listed, so any number of reapers may do this at once, and an owner that renews in between keeps its job. It decodes no
payload. Every worker reaps, on a timer of its own, so that it happens also while all slots are taken.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.engine import Engine
from holdfast.model.job import JobKey
from holdfast.model.outcome import decide_loss
from holdfast.model.states import JobState
from holdfast.model.work import ExpiredLease, Settlement, SettleStatus
from holdfast.runtime import Runtime
from holdfast.service import Service
from holdfast.telemetry import events
from holdfast.telemetry.bus import Bus
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.reporting import Reporter
from holdfast.worker.slots import Slots

MOST_AT_ONCE = 500

_logger = logging.getLogger("holdfast.reaper")


class Reaper(Service):
    """Settles expired leases of the tasks it knows, and of any task once they are long expired."""

    name = "reaper"

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        *,
        worker: str,
        plans: Mapping[str, ExecutionPlan],
        slots: Slots,
        bus: Bus,
        reporter: Reporter,
        on_freed: Callable[[], None],
        interval: float,
    ) -> None:
        super().__init__(runtime)
        self._engine = engine
        self._worker = worker
        self._plans = plans
        self._slots = slots
        self._bus = bus
        self._reporter = reporter
        self._on_freed = on_freed
        self._interval = interval

    async def tick(self) -> float | None:
        answer = await self._engine.expired(self._worker, limit=MOST_AT_ONCE, tasks=self._plans)
        lost = [lease for lease in answer.leases if lease.token not in self._slots.attempts]
        if lost:
            await self._reap(lost)
        if len(answer.leases) == MOST_AT_ONCE and lost:
            return 0  # there may be more
        return self._interval * (0.9 + 0.2 * self.runtime.random())

    async def _reap(self, lost: list[ExpiredLease]) -> None:
        settlements = [self._decide(lease) for lease in lost]
        answer = await self._engine.settle(*settlements)
        for lease, settlement, settled in zip(lost, settlements, answer.settled, strict=True):
            if settled in (SettleStatus.APPLIED, SettleStatus.CANCELLED_INSTEAD):
                self._tell(lease, settlement, settled, answer.at.wall)
        self._on_freed()

    def _decide(self, lost: ExpiredLease) -> Settlement:
        plan = self._plans.get(lost.task)
        policy = None if plan is None else plan.policy.retry
        return decide_loss(lost, policy, draw=self.runtime.random())

    def _tell(self, lost: ExpiredLease, settlement: Settlement, settled: SettleStatus, at: int) -> None:
        _logger.warning(
            "Job %s (%s): its worker %s went away with it; the job is %s.",
            lost.id,
            lost.task,
            lost.owner,
            settlement.target if settled is SettleStatus.APPLIED else JobState.CANCELLED,
        )
        self._emit(events.Reaped, lost, at, owner=lost.owner, losses=lost.losses + 1)
        why = {"reason": settlement.reason, "note": settlement.note}
        if settled is SettleStatus.CANCELLED_INSTEAD:
            self._emit(events.Cancelled, lost, at, **why)
        elif settlement.target is JobState.FAILED:
            self._emit(events.Failed, lost, at, **why)
            plan = self._plans.get(lost.task)
            if plan is not None:
                self._reporter.dead_letter(JobKey(lost.queue, lost.id), plan.task, None)
        else:
            more = {"delay": settlement.delay, "max_attempts": lost.max_attempts}
            self._emit(events.Retrying, lost, at, **why, **more)

    def _emit(self, kind: type[events.JobEvent], lost: ExpiredLease, at: int, **more: Any) -> None:
        if self._bus.wants(kind):
            self._bus.emit(
                kind(
                    at=at,
                    queue=lost.queue,
                    job_id=lost.id,
                    task=lost.task,
                    attempt=lost.attempt,
                    worker=self._worker,
                    **more,
                )
            )
