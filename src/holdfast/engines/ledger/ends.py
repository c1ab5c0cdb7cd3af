"""How jobs end. Every change to a terminal state is made by `finish`."""

from msgspec.structs import replace

from holdfast.engines.ledger import lanes, pools
from holdfast.engines.ledger.step import Step
from holdfast.model import history
from holdfast.model.instants import Instant
from holdfast.model.job import AttemptOutcome, AttemptRecord, JobRecord
from holdfast.model.lifetimes import untils
from holdfast.model.states import Hold, JobState, Reason
from holdfast.model.text import ErrorInfo

NO_HOLD = Hold.NONE


def finish(
    step: Step,
    before: JobRecord,
    target: JobState,
    reason: Reason | None,
    *,
    job: JobRecord | None = None,
    note: str = "",
    settled_token: str | None = None,
    result: bytes | None = None,
    result_ttl: int | None = None,
    retention: int | None = None,
) -> None:
    """End a job: void its lease, set its three lifetimes, free its lane, notify the callers that wait.

    `before` is the stored record. `job` has the other changes of this end: attempt, losses, history, last error.
    `settled_token` is the token of a settlement; None keeps the last one.
    """
    job = before if job is None else job
    now = step.now
    # K1, K2, K3, K4, K5: in `model/lifetimes.py`.
    visible, result_until, key = untils(job, target, now, result_ttl, retention)
    after = ended_record(
        job,
        target,
        now,
        reason=reason,
        note=note,
        settled_token=job.settled_token if settled_token is None else settled_token,
        result=result,
        lifetimes=(visible, result_until, key),
    )
    step.put_job(before, after)
    step.count_end(job.queue, target)
    # N2: producers that wait for room. N3: callers that wait for the job.
    step.topics.add("room:" + job.queue)
    for process in job.reply:
        step.topics.add("reply:" + process)
    if job.lane is not None:
        lanes.leave_lane(step, after)
    if job.epoch:
        pools.leave_pool(step, after)
    # K6, P8: all lifetimes have passed, and no child waits for it.
    if visible <= now and result_until <= now and key <= now and not step.state.children(job.queue, job.id, 1):
        step.drop_job(after)


def ended_record(
    job: JobRecord,
    target: JobState,
    now: Instant,
    *,
    reason: Reason | None,
    note: str,
    settled_token: str | None,
    result: bytes | None,
    lifetimes: tuple[Instant, Instant, Instant],
) -> JobRecord:
    """The record of a job that has ended. `lifetimes`: as from `untils`."""
    visible, result_until, key = lifetimes
    # W4: an ended record has no token, no lease expiry and no hold. A13: the error of a loss is with the lease.
    return replace(
        job,
        state=target,
        hold=NO_HOLD,
        parents_left=0,
        token=None,
        lease_expires=None,
        loss_error=None,
        settled_token=settled_token,
        finished=now,
        reason=reason,
        note=note,
        result=result,
        visible_until=visible,
        result_until=result_until,
        key_until=key,
    )


def end_attempt(job: JobRecord, outcome: AttemptOutcome, error: ErrorInfo | None, now: int) -> JobRecord:
    """Write a counted run that did not succeed into the history."""
    # H3: under its generation. H4: the first entry and the last ones stay.
    entry = AttemptRecord(
        number=job.attempt,
        generation=job.generation,
        worker=job.owner,
        started=job.last_started if job.last_started is not None else now,
        ended=now,
        outcome=outcome,
        error=error,
    )
    return replace(job, history=history.extend(job.history, entry))


def cancel_waiting(step: Step, job: JobRecord, reason: Reason, note: str = "") -> None:
    """End a job without a lease."""
    finish(step, job, JobState.CANCELLED, reason, note=note)


def cancel_anyway(step: Step, job: JobRecord, reason: Reason, note: str = "") -> None:
    """End a job with or without a lease; a run counts as cancelled, and its token is void."""
    if job.state is JobState.RUNNING:
        # H1: a cleared run is in the history.
        ended = end_attempt(job, AttemptOutcome.CANCELLED, None, step.now)
        finish(step, job, JobState.CANCELLED, reason, job=ended, note=note)
    else:
        finish(step, job, JobState.CANCELLED, reason, note=note)
