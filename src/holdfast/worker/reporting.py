"""What follows a settlement: events, log lines, dead-letter hooks, and the check whether a queue has run empty.

All of it happens after the store has answered. A success without a listener costs nothing here.
"""

import logging
import sys
from collections.abc import Sequence
from typing import Any

from holdfast.context import AbortReason
from holdfast.engine import Engine
from holdfast.errors import EngineError, GiveUp
from holdfast.model.instants import SECOND, Instant, Seconds
from holdfast.model.job import JobKey, ProgressRecord
from holdfast.model.states import TERMINAL, JobState, Reason
from holdfast.model.text import ErrorInfo, shown
from holdfast.model.work import ExchangeAnswer, Lease, Settlement, SettleStatus
from holdfast.telemetry import events
from holdfast.telemetry.active_error import call_with_active, failure_template
from holdfast.telemetry.bus import Bus
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.hooks import Hooks
from holdfast.worker.protocols import HandledTask

_logger = logging.getLogger("holdfast.worker")

_END_EVENTS: tuple[type[events.Event], ...] = (
    events.Succeeded,
    events.Failed,
    events.Retrying,
    events.Cancelled,
    events.Progressed,
)


class Reporter:
    """Emits the events of this worker's jobs, logs their failures and queues their dead-letter hooks."""

    def __init__(self, engine: Engine, bus: Bus, hooks: Hooks, worker: str) -> None:
        self._engine = engine
        self._bus = bus
        self._hooks = hooks
        self._worker = worker
        self._finished: set[str] = set()
        """Queues in which a job has ended since the store was last asked whether they are empty."""
        self._settled_in_lane: dict[tuple[str, str | None], LeasedAttempt] = {}
        """By queue and lane: attempts with a settlement in a transaction of their own, for events in order."""
        self.has_listeners = False
        """True if a listener wants events about the ends of attempts."""

    def refresh(self) -> None:
        """Check again whether there are listeners."""
        self.has_listeners = any(map(self._bus.wants, _END_EVENTS))

    # Starts

    def started(self, attempts: Sequence[LeasedAttempt], at: Instant) -> None:
        if self._bus.wants(events.Started):
            for attempt in attempts:
                if self._settled_in_lane and attempt.lease.lane is not None:
                    self._report_before(attempt.lease)
                self._emit(events.Started, attempt.lease, at, waited=max(0, at - attempt.lease.due))

    def assigned(self, leases: Sequence[Lease], at: Instant) -> None:
        if self._bus.wants(events.Assigned):
            for lease in leases:
                if lease.state is JobState.ASSIGNED:
                    self._emit(events.Assigned, lease, at)

    def progressed(self, attempt: LeasedAttempt, progress: ProgressRecord | None, at: Instant) -> None:
        """The store has this progress of a running attempt. One that has ended reports the last progress itself."""
        transactions = attempt.used_transactions
        if attempt.settlement is None and (transactions is None or not transactions.reported):
            self._report_progress(attempt, progress, at)

    def _report_progress(self, attempt: LeasedAttempt, progress: ProgressRecord | None, at: Instant) -> None:
        if progress is not None and attempt.reported_progress != progress:
            attempt.reported_progress = progress
            self._emit(events.Progressed, attempt.lease, at, fraction=progress.fraction, note=progress.note)

    # Ends inside a transaction of the handler

    def note_settlement(self, attempt: LeasedAttempt) -> None:
        """A transaction ends the job when it commits, and its lane goes on before the handler returns. Any thread."""
        lease = attempt.lease
        if self.has_listeners and lease.lane is not None:
            self._settled_in_lane[lease.queue, lease.lane] = attempt

    def _report_before(self, lease: Lease) -> None:
        """A job starts, so the one before it in the lane has ended: report that first."""
        before = self._settled_in_lane.pop((lease.queue, lease.lane), None)
        if before is None or before.used_transactions is None or before.lease.id == lease.id:
            return  # its own next attempt: the transaction was rolled back
        if before.used_transactions.may_have_committed:
            self.committed(before)

    def committed(self, attempt: LeasedAttempt) -> None:
        """Report, once, the end of a job that its handler has committed, with the recorded time."""
        settlement, transactions = attempt.transaction_settlement, attempt.used_transactions
        if settlement is None or transactions is None or transactions.reported or transactions.settled_at is None:
            return
        if self.has_listeners:
            self.settled(attempt, settlement, SettleStatus.APPLIED, transactions.settled_at)
        transactions.reported = True

    # Ends

    def settled(self, attempt: LeasedAttempt, settlement: Settlement, status: SettleStatus, at: Instant) -> None:
        """The store has answered a settlement: report it."""
        lease = attempt.lease
        error, attempt.error = attempt.error, None  # its traceback refers to the frames of this attempt
        if attempt.used_transactions is not None:
            if self._settled_in_lane.get((lease.queue, lease.lane)) is attempt:  # else it is the next job's
                del self._settled_in_lane[lease.queue, lease.lane]
            if attempt.used_transactions.reported:
                return
        match status:
            case SettleStatus.LOST | SettleStatus.GONE:
                if attempt.abort_reason is not AbortReason.OWNERSHIP_LOST:  # else it was reported when it was aborted
                    self.ownership_lost(attempt, at)
                return
            case SettleStatus.CANCELLED_INSTEAD:
                self._emit(events.Cancelled, lease, at, reason=Reason.ASKED)
                return
            case SettleStatus.BUSY:
                return  # it is sent again
            case SettleStatus.APPLIED:
                pass
        self._report_progress(attempt, settlement.progress or attempt.sent_progress, at)
        match settlement.target:
            case JobState.SUCCEEDED:
                self._emit(events.Succeeded, lease, at, ran=attempt.ran_us)
            case JobState.FAILED:
                self._failed(attempt, settlement, error, at)
            case JobState.CANCELLED:
                self._emit(events.Cancelled, lease, at, reason=settlement.reason, note=settlement.note)
            case _:
                self._runs_again(attempt, settlement, at)

    def _failed(self, attempt: LeasedAttempt, settlement: Settlement, error: BaseException | None, at: Instant) -> None:
        lease, ran_us = attempt.lease, attempt.ran_us

        def report() -> None:
            self._log_failure(lease, settlement)
            values = {"reason": settlement.reason, "note": settlement.note, "error": settlement.error, "ran": ran_us}
            self._emit(events.Failed, lease, at, **values)

        call_with_active(error, report)
        self.dead_letter(lease.job_key, attempt.plan.task, settlement.error, lease)

    def stopping(self, grace_s: Seconds, running: int, at: Instant) -> None:
        """The worker was asked to stop."""
        if running:
            _logger.info(
                "Worker %s stops. It waits up to %g s for its %d running %s.",
                shown(self._worker),
                round(grace_s, 1),
                running,
                "job" if running == 1 else "jobs",
            )
        grace_us = round(grace_s * SECOND)
        self._bus.emit(events.WorkerStopping(at=at, worker=self._worker, grace=grace_us, running=running))

    def _log_failure(self, lease: Lease, settlement: Settlement) -> None:
        """Log the end of a job with its traceback, which is text already: its exception is never formatted here.

        The record has the active exception only if it has that text, which `logging` then prints instead.
        """
        if not _logger.isEnabledFor(logging.ERROR):
            return
        error = settlement.error
        kind, detail = (str(settlement.reason), settlement.note) if error is None else (error.type, error.message)
        text = failure_template(lease.task, kind) + "job %s failed at attempt %d (%s)%s"
        args = (shown(lease.id), lease.attempt, settlement.reason, f": {shown(detail)}" if detail else "")
        path, line, function, _ = _logger.findCaller()
        record = _logger.makeRecord(
            _logger.name,
            logging.ERROR,
            path,
            line,
            text,
            args,
            None,
            function,
            {
                "job_id": lease.id,
                "task": lease.task,
                "queue": lease.queue,
                "attempt": lease.attempt,
                "worker": self._worker,
                "error": error,
            },
        )
        active = sys.exc_info()
        gave_up = settlement.reason is Reason.GAVE_UP if active[0] is None else issubclass(active[0], GiveUp)
        if error is not None and not gave_up:  # the message says why
            trace = error.traceback.rstrip()
            if '  File "' in trace:  # without frames it repeats the message
                record.exc_text, record.exc_info = trace, active if active[0] is not None else None
        _logger.handle(record)

    def _runs_again(self, attempt: LeasedAttempt, settlement: Settlement, at: Instant) -> None:
        lease = attempt.lease
        delay = settlement.delay if settlement.due is None else max(0, settlement.due - at)
        if settlement.reason is not Reason.RELEASED:
            _logger.log(
                logging.WARNING if settlement.loss else logging.INFO,
                "Job %s (%s) runs again in %.1f s: %s at attempt %d%s",
                shown(lease.id),
                shown(lease.task),
                delay / SECOND,
                settlement.reason,
                lease.attempt,
                _detail(settlement),
            )
        elif attempt.began_at is not None:
            _logger.info(
                "Job %s (%s) was stopped at attempt %d and is released: it runs again, without the loss of an attempt.",
                shown(lease.id),
                shown(lease.task),
                lease.attempt,
            )
        self._emit(
            events.Retrying,
            lease,
            at,
            delay=delay,
            reason=settlement.reason,
            note=settlement.note,
            error=settlement.error,
            max_attempts=lease.max_attempts,
            ran=attempt.ran_us,
        )

    def ownership_lost(self, attempt: LeasedAttempt, at: Instant) -> None:
        lease = attempt.lease
        _logger.warning(
            "Job %s (%s): the lease is lost; the outcome of attempt %d is dropped.",
            shown(lease.id),
            shown(lease.task),
            lease.attempt,
        )
        self._emit(events.OwnershipLost, lease, at)

    def dead_letter(self, job: JobKey, task: HandledTask, error: ErrorInfo | None, lease: Lease | None = None) -> None:
        """Queue the task's dead-letter hooks; they run soon."""
        for hook in task.dead_letter_hooks:
            self._hooks.add(hook, job, error, lease)

    # Empty queues and lanes

    async def after_exchange(self, settlements: Sequence[Settlement], answer: ExchangeAnswer) -> None:
        """Report lanes and queues that have just run empty. Asks the store only if a listener wants `QueueEmpty`."""
        for name in answer.emptied:
            self._bus.emit(events.LaneEmpty(at=answer.at.wall, queue=name.queue, lane=name.lane))
        if not self._bus.wants(events.QueueEmpty):
            return
        self._finished.update(settlement.queue for settlement in settlements if settlement.target in TERMINAL)
        for queue in sorted(self._finished - {lease.queue for lease in answer.leases}):
            await self._check_empty(queue)

    async def _check_empty(self, queue: str) -> None:
        try:
            answer = await self._engine.emptied(queue)
        except EngineError as error:
            _logger.info("The store could not be asked whether queue %s is empty: %s", shown(queue), error)
            return
        self._finished.discard(queue)
        if answer.emptied:
            self._bus.emit(events.QueueEmpty(at=answer.at.wall, queue=queue))

    # Events

    def _emit(self, kind: type[events.JobEvent], lease: Lease, at: Instant, **more: Any) -> None:
        """Emit an event about a job, if a listener wants it."""
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


def _detail(settlement: Settlement) -> str:
    if settlement.error is not None:
        return f": {settlement.error.type}: {shown(settlement.error.message)}"
    return f": {shown(settlement.note)}" if settlement.note else ""
