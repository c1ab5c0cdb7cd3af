"""The reaper: settles jobs whose lease has expired because their worker was lost.

It lists expired leases, decides on a settlement for each, and writes them. Listing changes nothing. A settlement
applies only if the lease still has the token and the expiry that were listed. So any number of reapers may run at once,
and an owner that renews in the meantime keeps its job. The reaper decodes no payload. Every worker has a reaper on its
own timer, so it also runs while all slots are taken.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.engine import Engine
from holdfast.model.instants import Instant, Seconds
from holdfast.model.job import JobKey
from holdfast.model.outcome import decide_loss
from holdfast.model.states import JobState
from holdfast.model.text import shown
from holdfast.model.work import ExpiredLease, Settlement, SettleStatus
from holdfast.runtime import Runtime
from holdfast.service import Service
from holdfast.telemetry import events
from holdfast.telemetry.active_error import failure_template
from holdfast.telemetry.bus import Bus
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.reporting import Reporter
from holdfast.worker.slots import Slots

MAX_LEASES_PER_CALL = 500
"""Expired leases listed and settled in one call; a settle call takes no more."""

_logger = logging.getLogger("holdfast.reaper")


class Reaper(Service):
    """Settles expired leases of this worker's tasks, and of any task once they have been expired for long."""

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
        interval_s: Seconds,
    ) -> None:
        super().__init__(runtime)
        self._engine = engine
        self._worker = worker
        self._plans = plans
        self._slots = slots
        self._bus = bus
        self._reporter = reporter
        self._on_freed = on_freed
        self._interval_s = interval_s

    async def tick(self) -> float | None:
        answer = await self._engine.expired(self._worker, limit=MAX_LEASES_PER_CALL, tasks=self._plans)
        lost = [lease for lease in answer.leases if lease.token not in self._slots.attempts]
        settled_any = bool(lost) and await self._reap(lost)
        if len(answer.leases) == MAX_LEASES_PER_CALL and settled_any:
            return 0  # there may be more
        return self._interval_s * (0.9 + 0.2 * self.runtime.random())

    async def _reap(self, lost: list[ExpiredLease]) -> bool:
        """False: other transactions have locked all these jobs."""
        settlements = [self._decide(lease) for lease in lost]
        answer = await self._engine.settle(*settlements)
        for lease, settlement, status in zip(lost, settlements, answer.settled, strict=True):
            if status in (SettleStatus.APPLIED, SettleStatus.CANCELLED_INSTEAD):
                self._report(lease, settlement, status, answer.at.wall)
        self._on_freed()
        return any(status is not SettleStatus.BUSY for status in answer.settled)

    def _decide(self, lost: ExpiredLease) -> Settlement:
        plan = self._plans.get(lost.task)
        policy = None if plan is None else plan.policy.retry
        return decide_loss(lost, policy, draw=self.runtime.random())

    def _report(self, lost: ExpiredLease, settlement: Settlement, status: SettleStatus, at: Instant) -> None:
        state = settlement.target if status is SettleStatus.APPLIED else JobState.CANCELLED
        _logger.log(
            logging.ERROR if state is JobState.FAILED else logging.WARNING,
            failure_template(lost.task, "worker lost") + "job %s of worker %s is %s.%s",
            shown(lost.id),
            shown(lost.owner),
            state,
            "" if lost.loss_error is None else f" {shown(lost.loss_error.message)}",
        )
        self._emit(events.Reaped, lost, at, owner=lost.owner, losses=lost.losses + 1)
        reason = {"reason": settlement.reason, "note": settlement.note}
        if status is SettleStatus.CANCELLED_INSTEAD:
            self._emit(events.Cancelled, lost, at, **reason)
        elif settlement.target is JobState.FAILED:
            self._emit(events.Failed, lost, at, **reason, error=settlement.error)
            plan = self._plans.get(lost.task)
            if plan is not None:
                self._reporter.dead_letter(JobKey(lost.queue, lost.id), plan.task, settlement.error)
        else:
            more = {"delay": settlement.delay, "max_attempts": lost.max_attempts, "error": settlement.error}
            self._emit(events.Retrying, lost, at, **reason, **more)

    def _emit(self, kind: type[events.JobEvent], lost: ExpiredLease, at: Instant, **more: Any) -> None:
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
