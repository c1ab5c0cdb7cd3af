"""From what happened to what to write: the policy of Holdfast, in one place.

A worker knows how an attempt came out: an `Outcome`. `decide` turns it into a `Settlement`, which any engine applies
if the lease still stands. A reaper knows that a lease has run out: `decide_loss` does the same for it. Retrying,
giving up, timing out, losing a worker: all of it is decided here, above the engines, from values alone. The random
draw that makes the jitter is an argument, too.
"""

from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import InvalidOption
from holdfast.model.instants import Instant, Micros
from holdfast.model.retry import DEFAULT_BACKOFF, RetryPolicy, Stop, loss_delay, next_delay
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.model.work import ExpiredLease, Lease, Settlement


class Returned(Struct, frozen=True):
    """The handler returned."""

    result: bytes


class Raised(Struct, frozen=True):
    """The handler raised an ordinary error; `error` decides, `info` is what is kept."""

    error: BaseException
    info: ErrorInfo


class TimedOut(Struct, frozen=True):
    """It ran longer than it may. Counts as a failure."""

    info: ErrorInfo


class RetryRequested(Struct, frozen=True):
    """The handler asked for another attempt, after its own delay or the back-off's."""

    note: str = ""
    delay: Micros | None = None
    info: ErrorInfo | None = None


class Snoozed(Struct, frozen=True):
    """The handler asked to be called later; this attempt does not count."""

    delay: Micros | None = None
    due: Instant | None = None
    note: str = ""


class GaveUp(Struct, frozen=True):
    """The handler said that trying again is pointless."""

    note: str = ""
    info: ErrorInfo | None = None


class CancelledByHandler(Struct, frozen=True):
    """The handler said that the job is not wanted any more, or stopped because a cancel was asked."""

    note: str = ""


class Released(Struct, frozen=True):
    """Given back without having been worked on, or cut short by a shutdown; this attempt does not count."""


class NotRetryable(Struct, frozen=True):
    """It cannot be run or stored at all, however often it is tried."""

    reason: Reason
    info: ErrorInfo | None = None


Outcome = (
    Returned | Raised | TimedOut | RetryRequested | Snoozed | GaveUp | CancelledByHandler | Released | NotRetryable
)

_WHY = {
    Stop.EXHAUSTED: Reason.EXHAUSTED,
    Stop.GIVE_UP_ON: Reason.GAVE_UP,
    Stop.NOT_RETRIED: Reason.GAVE_UP,
    Stop.TOO_LONG: Reason.RETRY_WINDOW,
    Stop.BACKOFF: Reason.GAVE_UP,
}


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
    """What to write because of `outcome`. `now` is engine time; the TTLs are those of the task's code."""
    if isinstance(outcome, Returned):
        return Settlement(
            queue=lease.queue,
            id=lease.id,
            token=lease.token,
            target=JobState.SUCCEEDED,
            result=outcome.result,
            result_ttl=result_ttl,
            retention=retention,
            lane=lease.lane,
        )
    settle = Settlement(
        queue=lease.queue,
        id=lease.id,
        token=lease.token,
        target=JobState.QUEUED,
        result_ttl=result_ttl,
        lane=lease.lane,
    )
    match outcome:
        case Raised(error=error, info=info):
            settle = _retry_or_fail(replace(settle, error=info), Reason.ERROR, lease, policy, error, now, draw, None)
        case TimedOut(info=info):
            settle = _retry_or_fail(replace(settle, error=info), Reason.TIMEOUT, lease, policy, None, now, draw, None)
        case RetryRequested(note=note, delay=asked, info=info):
            settle = replace(settle, error=info, note=note)
            settle = _retry_or_fail(settle, Reason.RETRY_ASKED, lease, policy, None, now, draw, asked)
        case Snoozed(delay=delay, due=due, note=note):
            settle = replace(settle, target=JobState.SCHEDULED, reason=Reason.SNOOZED, note=note)
            settle = replace(settle, delay=delay or 0, due=due, refund=True)  # A5
        case GaveUp(note=note, info=info):
            settle = replace(settle, target=JobState.FAILED, reason=Reason.GAVE_UP, note=note, error=info)
        case CancelledByHandler(note=note):
            settle = replace(settle, target=JobState.CANCELLED, reason=Reason.ASKED, note=note)
        case Released():
            return replace(settle, reason=Reason.RELEASED, refund=True)  # A5
        case NotRetryable(reason=reason, info=info):
            settle = replace(settle, target=JobState.FAILED, reason=reason, error=info)
        case _:
            assert_never(outcome)
    return replace(settle, retention=failed_retention if settle.target is JobState.FAILED else retention)


def _retry_or_fail(
    settle: Settlement,
    reason: Reason,
    lease: Lease,
    policy: RetryPolicy,
    error: BaseException | None,
    now: Instant,
    draw: float,
    asked: Micros | None,
) -> Settlement:
    # What was given at enqueue won at the claim; the lease carries it.
    policy = replace(policy, max_attempts=lease.max_attempts or None)

    def ask(policy: RetryPolicy) -> int | Stop:
        return next_delay(
            policy,
            attempt=lease.attempt,
            error=error,
            first_started=lease.started,
            now=now,
            draw=draw,
            asked=asked,
        )

    try:
        answer = ask(policy)
    except InvalidOption:  # a back-off function that misbehaves must not lose the job
        answer = ask(replace(policy, backoff=DEFAULT_BACKOFF))
    if isinstance(answer, Stop):
        # A timeout that was the last one is still best described as a timeout.
        why = reason if reason is Reason.TIMEOUT else _WHY[answer]
        return replace(settle, target=JobState.FAILED, reason=why)
    return replace(settle, target=JobState.RETRYING, reason=reason, delay=answer)


def decide_loss(lost: ExpiredLease, policy: RetryPolicy | None, *, draw: float) -> Settlement:
    """What to write because a lease has run out. `policy` is None where the reaper does not know the task.

    A loss costs the attempt if it had begun, and meets the same cap; so many losses end the job in any case. A job
    that kills its workers is therefore bounded, also with attempts for ever.
    """
    losses = lost.losses + 1
    begun = lost.state is JobState.RUNNING
    spent = begun and lost.max_attempts and lost.attempt >= lost.max_attempts
    settle = Settlement(
        queue=lost.queue,
        id=lost.id,
        token=lost.token,
        target=JobState.RETRYING,
        reason=Reason.WORKER_LOST,
        note=f"{lost.owner} went away with it",
        refund=not begun,  # A5
        listed_expiry=lost.lease_expires,
    )
    # A7: too many losses, or a loss in the last attempt allowed.
    if spent or losses >= lost.max_losses:
        return replace(settle, target=JobState.FAILED)
    return replace(settle, delay=loss_delay(policy, losses, draw))
