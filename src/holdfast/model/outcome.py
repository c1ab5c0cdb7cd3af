"""From the outcome of an attempt to the settlement: Holdfast's policy, in one place.

A worker knows how an attempt ended: an `Outcome`. `decide` turns it into a `Settlement`, which an engine applies if the
lease is still valid. A reaper knows that a lease has expired: `decide_loss` makes its settlement. Retrying, giving up,
timing out, losing a worker and losing the process of a handler are all decided here, above the engines, from values
alone. The random number for the jitter is an argument too.
"""

from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import InvalidOption
from holdfast.model.instants import Instant, Micros
from holdfast.model.retry import DEFAULT_BACKOFF, Backoff, RetryPolicy, Stop, loss_delay, next_delay
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo, shown
from holdfast.model.work import ExpiredLease, Lease, Settlement


class Returned(Struct, frozen=True):
    """The handler returned."""

    result: bytes


class Raised(Struct, frozen=True):
    """The handler raised. The retry policy is applied to `error`; `info` is stored.

    `error` is None if the handler ran in another process: whether it is retried was decided there, and `backoff` is
    what a function of the policy returned there.
    """

    error: BaseException | None
    info: ErrorInfo
    backoff: Backoff | None = None


class TimedOut(Struct, frozen=True):
    """It ran longer than its timeout. Counts as a failure."""

    info: ErrorInfo


class RetryRequested(Struct, frozen=True):
    """The handler requested another attempt, after its own delay or that of the back-off."""

    note: str = ""
    delay: Micros | None = None
    info: ErrorInfo | None = None


class Snoozed(Struct, frozen=True):
    """The handler postponed the job; this attempt does not count."""

    delay: Micros | None = None
    due: Instant | None = None
    note: str = ""


class GaveUp(Struct, frozen=True):
    """The handler gave up: another attempt would not help."""

    note: str = ""
    info: ErrorInfo | None = None


class CancelledByHandler(Struct, frozen=True):
    """The handler cancelled the job, or stopped because a cancel was requested."""

    note: str = ""


class Released(Struct, frozen=True):
    """The job was released before it started, or because the worker stops; this attempt does not count."""


class LostLease(Struct, frozen=True):
    """The worker lives but could not keep the lease. The attempt counts if it had started; it is no loss."""

    started: bool = True


class ProcessDied(Struct, frozen=True):
    """The process of the handler has died (`isolate="process"`); the worker lives. It is a loss, not a failure."""

    info: ErrorInfo


class DoesNotFit(Struct, frozen=True):
    """The payload can be read and does not fit the task as this worker has it: another worker may have newer code."""

    info: ErrorInfo


class NotRetryable(Struct, frozen=True):
    """The job cannot run, or its outcome cannot be stored: another attempt would fail in the same way."""

    reason: Reason
    info: ErrorInfo | None = None


Outcome = (
    Returned
    | Raised
    | TimedOut
    | RetryRequested
    | Snoozed
    | GaveUp
    | CancelledByHandler
    | Released
    | LostLease
    | ProcessDied
    | DoesNotFit
    | NotRetryable
)

LOSSES_REPORTED_UP_TO_ATTEMPT = 20  # A9
"""Later attempts that lose their lease are left to the reaper, so that a job without a limit of attempts that stalls
its worker each time still ends by `max_losses`. As many as the default `max_attempts`."""

_REASON_OF_STOP = {
    Stop.EXHAUSTED: Reason.EXHAUSTED,
    Stop.GIVE_UP_ON: Reason.GAVE_UP,
    Stop.NOT_RETRIED: Reason.GAVE_UP,
    Stop.TOO_LONG: Reason.RETRY_WINDOW,
    Stop.BACKOFF: Reason.GAVE_UP,
}

SUCCEEDED = JobState.SUCCEEDED

_FINAL_REASONS = frozenset({Reason.TIMEOUT, Reason.WORKER_LOST, Reason.UNDECODABLE})


def decide(
    outcome: Outcome,
    lease: Lease,
    policy: RetryPolicy,
    *,
    now: Instant,
    draw: float,
    result_ttl: Micros | None = None,
    retention: Micros | None = None,
    failed_retention: Micros | None = None,
) -> Settlement:
    """The settlement for `outcome`. `now` is engine time; the lifetimes are those of the task's declaration."""
    if isinstance(outcome, Returned):
        return decide_success(outcome.result, lease, result_ttl, retention)
    settlement = Settlement(
        queue=lease.queue,
        id=lease.id,
        token=lease.token,
        target=JobState.QUEUED,
        result_ttl=result_ttl,
        lane=lease.lane,
    )
    match outcome:
        case Raised(error=error, info=info, backoff=backoff):
            policy = policy if backoff is None else replace(policy, backoff=backoff)
            settlement = _retry_or_fail(
                replace(settlement, error=info), Reason.ERROR, lease, policy, error, now, draw, None
            )
        case TimedOut(info=info):
            settlement = _retry_or_fail(
                replace(settlement, error=info), Reason.TIMEOUT, lease, policy, None, now, draw, None
            )
        case RetryRequested(note=note, delay=requested_us, info=info):
            settlement = replace(settlement, error=info, note=note)
            settlement = _retry_or_fail(settlement, Reason.RETRY_ASKED, lease, policy, None, now, draw, requested_us)
        case Snoozed(delay=delay, due=due, note=note):
            settlement = replace(settlement, target=JobState.SCHEDULED, reason=Reason.SNOOZED, note=note)
            settlement = replace(settlement, delay=delay or 0, due=due, refund=True)  # A5
        case GaveUp(note=note, info=info):
            settlement = replace(settlement, target=JobState.FAILED, reason=Reason.GAVE_UP, note=note, error=info)
        case CancelledByHandler(note=note):
            settlement = replace(settlement, target=JobState.CANCELLED, reason=Reason.ASKED, note=note)
        case Released():
            return replace(settlement, reason=Reason.RELEASED, refund=True)  # A5
        case LostLease(started=started):
            # A9: like a failure; the engine recognises the report by its reason (A8).
            settlement = replace(settlement, note="The worker could not renew the lease.")
            if not started:
                return replace(settlement, reason=Reason.WORKER_LOST, refund=True)  # A5
            settlement = _retry_or_fail(settlement, Reason.WORKER_LOST, lease, policy, None, now, draw, None)
        case ProcessDied(info=info):
            # A12: a loss that the owner counts itself.
            settlement = _after_loss(
                replace(settlement, reason=Reason.WORKER_LOST, error=info, loss=True), lease, True, policy, draw
            )
        case DoesNotFit(info=info):
            # A10: tried again with the back-off; the kinds of errors in the policy are about handlers.
            settlement = replace(settlement, error=info)
            settlement = _retry_or_fail(settlement, Reason.UNDECODABLE, lease, policy, None, now, draw, None)
        case NotRetryable(reason=reason, info=info):
            settlement = replace(settlement, target=JobState.FAILED, reason=reason, error=info)
        case _:
            assert_never(outcome)
    return replace(settlement, retention=failed_retention if settlement.target is JobState.FAILED else retention)


def decide_success(
    result: bytes, lease: Lease, result_ttl: Micros | None = None, retention: Micros | None = None
) -> Settlement:
    """`decide` for `Returned`, the most frequent outcome. No policy of retries applies to it."""
    return Settlement(
        queue=lease.queue,
        id=lease.id,
        token=lease.token,
        target=SUCCEEDED,
        result=result,
        result_ttl=result_ttl,
        retention=retention,
        lane=lease.lane,
    )


def _retry_or_fail(
    settlement: Settlement,
    reason: Reason,
    lease: Lease,
    policy: RetryPolicy,
    error: BaseException | None,
    now: Instant,
    draw: float,
    requested_us: Micros | None,
) -> Settlement:
    # A value given at enqueue has replaced the task's at the claim; the lease has the result.
    policy = replace(policy, max_attempts=lease.max_attempts or None)

    def delay_by(policy: RetryPolicy) -> int | Stop:
        return next_delay(
            policy,
            attempt=lease.attempt,
            error=error,
            first_started=lease.started,
            now=now,
            draw=draw,
            requested_us=requested_us,
        )

    try:
        answer = delay_by(policy)
    except InvalidOption:  # an error in a back-off function must not lose the job
        answer = delay_by(replace(policy, backoff=DEFAULT_BACKOFF))
    if isinstance(answer, Stop):
        # If the last attempt timed out, lost its lease or did not fit, that says more than `exhausted`.
        final_reason = reason if reason in _FINAL_REASONS else _REASON_OF_STOP[answer]
        return replace(settlement, target=JobState.FAILED, reason=final_reason)
    return replace(settlement, target=JobState.RETRYING, reason=reason, delay=answer)


def decide_loss(lost: ExpiredLease, policy: RetryPolicy | None, *, draw: float) -> Settlement:
    """The settlement for an expired lease. `policy` is None if the reaper does not know the task.

    A loss costs the attempt if that had started, and `max_attempts` applies as usual. After `max_losses` losses the job
    fails in any case: a job that kills its workers ends, even if its attempts are not limited.
    """
    started = lost.state is JobState.RUNNING
    settlement = Settlement(
        queue=lost.queue,
        id=lost.id,
        token=lost.token,
        target=JobState.RETRYING,
        reason=Reason.WORKER_LOST,
        note=f"Worker {shown(lost.owner)} was lost",
        refund=not started,  # A5
        error=lost.loss_error if started else None,  # A14
        listed_expiry=lost.lease_expires,
    )
    return _after_loss(settlement, lost, started, policy, draw)


def _after_loss(
    settlement: Settlement, lost: Lease | ExpiredLease, started: bool, policy: RetryPolicy | None, draw: float
) -> Settlement:
    losses = lost.losses + 1
    attempts_used_up = started and lost.max_attempts and lost.attempt >= lost.max_attempts
    # A7: too many losses, or a loss in the last attempt allowed.
    if attempts_used_up or losses >= lost.max_losses:
        return replace(settlement, target=JobState.FAILED)
    return replace(settlement, target=JobState.RETRYING, delay=loss_delay(policy, losses, draw))
