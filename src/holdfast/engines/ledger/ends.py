"""How jobs end. Every road to a terminal state leads through `finish`, and through nothing else."""

from msgspec.structs import replace

from holdfast.engines.ledger import lanes, pools
from holdfast.engines.ledger.step import Step
from holdfast.model import history
from holdfast.model.clocks import untils
from holdfast.model.job import AttemptOutcome, AttemptRecord, JobRecord
from holdfast.model.states import Hold, JobState, Reason
from holdfast.model.text import ErrorInfo


def finish(
    step: Step,
    before: JobRecord,
    target: JobState,
    reason: Reason | None,
    *,
    job: JobRecord | None = None,
    note: str = "",
    result: bytes | None = None,
    result_ttl: int | None = None,
    retention: int | None = None,
) -> None:
    """End a job: void its lease, set its three clocks, free its lane, tell who waits.

    `job` carries what the end changes beside that (attempt, losses, history, last error); `before` is what
    is stored.
    """
    job = before if job is None else job
    now = step.now
    visible, result_until, key = untils(job, target, now, result_ttl, retention)
    after = replace(
        job,
        state=target,
        hold=Hold.NONE,
        parents_left=0,
        token=None,
        lease_expires=None,
        finished=now,
        reason=reason,
        note=note,
        result=result,
        visible_until=visible,
        result_until=result_until,
        key_until=key,
    )
    step.put_job(before, after)
    step.count_end(job.queue, target)
    step.topics.add("room:" + job.queue)
    for process in job.reply:
        step.topics.add("reply:" + process)
    if job.lane is not None:
        lanes.leave(step, after)
    if job.epoch:
        pools.leave(step, after)
    if after.kept_until <= now and not step.state.children(job.queue, job.id, 1):
        step.drop_job(after)


def end_attempt(job: JobRecord, outcome: AttemptOutcome, error: ErrorInfo | None, now: int) -> JobRecord:
    """Write a counted run that did not succeed into the history."""
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
    """End a job that nobody holds."""
    finish(step, job, JobState.CANCELLED, reason, note=note)


def cancel_anyway(step: Step, job: JobRecord, reason: Reason, note: str = "") -> None:
    """End a job whoever holds it; a run under way counts as cancelled, and its token is void."""
    if job.state is JobState.RUNNING:
        ended = end_attempt(job, AttemptOutcome.CANCELLED, None, step.now)
        finish(step, job, JobState.CANCELLED, reason, job=ended, note=note)
    else:
        finish(step, job, JobState.CANCELLED, reason, note=note)
