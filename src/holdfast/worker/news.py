"""What follows a settlement: events, log lines, dead-letter hooks, and the notice that a queue has run empty.

Only after the store has taken it, and never in its way: a success that nobody listens to costs nothing here.
"""

import logging
from collections.abc import Sequence
from typing import Any

from holdfast.engine import Engine
from holdfast.errors import EngineError
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.states import TERMINAL, JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.model.work import ExchangeAnswer, Lease, Settlement, SettleStatus
from holdfast.telemetry import events
from holdfast.telemetry.bus import Bus
from holdfast.worker.attempt import Attempt
from holdfast.worker.hooks import Hooks
from holdfast.worker.host import Handled

_logger = logging.getLogger("holdfast.worker")

_ENDS: tuple[type[events.Event], ...] = (events.Succeeded, events.Failed, events.Retrying, events.Cancelled)


class News:
    """Tells what happened to this worker's jobs."""

    def __init__(self, engine: Engine, bus: Bus, hooks: Hooks, worker: str) -> None:
        self._engine = engine
        self._bus = bus
        self._hooks = hooks
        self._worker = worker
        self._finished: set[str] = set()
        """Queues in which something has ended since they were last asked whether they are empty."""
        self.listening = False
        """Somebody hears how attempts end."""

    def refresh(self) -> None:
        """Look who listens."""
        self.listening = any(map(self._bus.wants, _ENDS))

    # Beginnings

    def started(self, attempts: Sequence[Attempt], at: int) -> None:
        if self._bus.wants(events.Started):
            for attempt in attempts:
                self._tell(events.Started, attempt.lease, at, waited=max(0, at - attempt.lease.due))

    def assigned(self, leases: Sequence[Lease], at: int) -> None:
        if self._bus.wants(events.Assigned):
            for lease in leases:
                if lease.state is JobState.ASSIGNED:
                    self._tell(events.Assigned, lease, at)

    # Ends

    def settled(self, attempt: Attempt, settlement: Settlement, settled: SettleStatus, at: int) -> None:
        """The store has answered a settlement."""
        lease = attempt.lease
        match settled:
            case SettleStatus.LOST | SettleStatus.GONE:
                self.ownership_lost(attempt, at)
                return
            case SettleStatus.CANCELLED_INSTEAD:
                self._tell(events.Cancelled, lease, at, reason=Reason.ASKED)
                return
            case SettleStatus.APPLIED:
                pass
        match settlement.target:
            case JobState.SUCCEEDED:
                self._tell(events.Succeeded, lease, at, ran=attempt.ran)
            case JobState.FAILED:
                self._failed(attempt, settlement, at)
            case JobState.CANCELLED:
                self._tell(events.Cancelled, lease, at, reason=settlement.reason, note=settlement.note)
            case _:
                self._again(attempt, settlement, at)

    def _failed(self, attempt: Attempt, settlement: Settlement, at: int) -> None:
        lease = attempt.lease
        _logger.warning(
            "Job %s (%s) failed at attempt %d: %s%s",
            lease.id,
            lease.task,
            lease.attempt,
            settlement.reason,
            _said(settlement),
        )
        self._tell(
            events.Failed,
            lease,
            at,
            reason=settlement.reason,
            note=settlement.note,
            error=settlement.error,
            ran=attempt.ran,
        )
        self.dead_letter(lease.job_key, attempt.plan.task, settlement.error, lease)

    def _again(self, attempt: Attempt, settlement: Settlement, at: int) -> None:
        lease = attempt.lease
        delay = settlement.delay if settlement.due is None else max(0, settlement.due - at)
        if settlement.reason is not Reason.RELEASED:
            _logger.info(
                "Job %s (%s) runs again in %.1f s: %s at attempt %d%s",
                lease.id,
                lease.task,
                delay / SECOND,
                settlement.reason,
                lease.attempt,
                _said(settlement),
            )
        self._tell(
            events.Retrying,
            lease,
            at,
            delay=delay,
            reason=settlement.reason,
            note=settlement.note,
            error=settlement.error,
            max_attempts=lease.max_attempts,
            ran=attempt.ran,
        )

    def ownership_lost(self, attempt: Attempt, at: int) -> None:
        lease = attempt.lease
        _logger.warning(
            "Job %s (%s): the lease is lost, its attempt %d is dropped.", lease.id, lease.task, lease.attempt
        )
        self._tell(events.OwnershipLost, lease, at)

    def dead_letter(self, job: JobKey, task: Handled, error: ErrorInfo | None, lease: Lease | None = None) -> None:
        """Let the task's hooks run, some time soon."""
        for hook in task.dead_letter_hooks:
            self._hooks.add(hook, job, error, lease)

    # Empty

    async def after(self, settlements: Sequence[Settlement], answer: ExchangeAnswer) -> None:
        """Lanes and queues that have just run empty. Asked of the store only where someone wants to know."""
        for name in answer.emptied:
            self._bus.emit(events.LaneEmpty(at=answer.at.wall, queue=name.queue, lane=name.lane))
        if not self._bus.wants(events.QueueEmpty):
            return
        self._finished.update(settlement.queue for settlement in settlements if settlement.target in TERMINAL)
        for queue in sorted(self._finished - {lease.queue for lease in answer.leases}):
            await self._ask_empty(queue)

    async def _ask_empty(self, queue: str) -> None:
        try:
            told = await self._engine.emptied(queue)
        except EngineError as error:
            _logger.info("Queue %s may be empty, but could not be asked: %s", queue, error)
            return
        self._finished.discard(queue)
        if told.emptied:
            self._bus.emit(events.QueueEmpty(at=told.at.wall, queue=queue))

    # The words

    def _tell(self, kind: type[events.JobEvent], lease: Lease, at: int, **more: Any) -> None:
        """Emit an event about a job, if anybody wants it."""
        if self._bus.wants(kind):
            self._bus.emit(
                kind(
                    at=at,
                    queue=lease.queue,
                    job_id=lease.id,
                    task=lease.task,
                    attempt=lease.attempt,
                    lane=lease.lane,
                    worker=self._worker,
                    **more,
                )
            )


def _said(settlement: Settlement) -> str:
    if settlement.error is not None:
        return f": {settlement.error.type}: {settlement.error.message}"
    return f": {settlement.note}" if settlement.note else ""
