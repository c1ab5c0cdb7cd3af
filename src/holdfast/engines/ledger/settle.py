"""Exchange: settle what has ended, start what was prefetched, claim what is ready. In this order.

A settlement applies only while its token is the current one; a reaper's also only if the lease still expires exactly
when the reaper saw it expire, and that instant has passed. A late settlement changes nothing.

One decision is taken here: if a cancel was requested, a settlement that would let the job run again ends it as
cancelled instead. Success and final failure stand.
"""

from msgspec.structs import replace

from holdfast.engines.ledger import parents
from holdfast.engines.ledger.claim import claim
from holdfast.engines.ledger.ends import end_attempt, finish
from holdfast.engines.ledger.step import Step, as_waiting
from holdfast.model.job import AttemptOutcome, JobRecord
from holdfast.model.states import ENDS_A_RUN, TERMINAL, JobState, Reason
from holdfast.model.work import Exchange, ExchangeAnswer, Settlement, SettleStatus, Start, StartStatus


def exchange(step: Step, command: Exchange) -> ExchangeAnswer:
    # G8: commands run one after the other here, so no job is locked and nothing is `busy`.
    # W2: settlements, then children, then starts, then due jobs and the claim.
    settled = tuple([settle(step, settlement) for settlement in command.settlements])
    parents.resolve(step)
    started = tuple([start(step, one) for one in command.starts])
    leases, next_due = ((), None) if command.claim is None else claim(step, command.claim)
    return ExchangeAnswer(
        at=step.at,
        settled=settled,
        started=started,
        emptied=tuple(step.emptied),  # L8
        leases=leases,
        next_due=next_due,
    )


def settle(step: Step, settlement: Settlement) -> SettleStatus:
    job = step.state.job(settlement.queue, settlement.id)
    # G1: there is no record.
    if job is None:
        return SettleStatus.GONE
    reap = settlement.listed_expiry is not None
    # G2: only the current token settles; the owner's last one is answered again.
    if job.token != settlement.token:
        # A11: the process of its handler has died, so the loss that the reaper has counted stays.
        if not reap and settlement.reason is Reason.WORKER_LOST and not settlement.loss:
            give_back_loss(step, job, settlement.token)
        again = not reap and job.settled_token == settlement.token
        return SettleStatus.APPLIED if again else SettleStatus.LOST
    # G3: the lease was renewed or began to run after the reaper listed it.
    if reap and not _may_reap(step, job, settlement):
        return SettleStatus.LOST
    # A3: settling an assigned job implies its start, except for a release and a reap.
    if job.state is JobState.ASSIGNED and not reap and settlement.target is not JobState.QUEUED:
        job = begin_attempt(step, job)
    # G4: a job with a cancel request does not run again.
    if job.cancel_asked and settlement.target not in TERMINAL:
        apply_settlement(step, job, settlement, JobState.CANCELLED, Reason.ASKED, job.cancel_note)
        return SettleStatus.CANCELLED_INSTEAD
    # G5: cancelling without a note of its own keeps the note of the cancel request.
    note = settlement.note
    if settlement.target is JobState.CANCELLED:
        note = note or job.cancel_note
    apply_settlement(step, job, settlement, settlement.target, settlement.reason, note)
    return SettleStatus.APPLIED


def _may_reap(step: Step, job: JobRecord, settlement: Settlement) -> bool:
    """Whether the lease is still the one that the reaper listed, and has expired."""
    assert settlement.listed_expiry is not None
    if settlement.refund and job.state is JobState.RUNNING:
        return False  # it began to run after it was listed, so its attempt counts
    return job.lease_expires == settlement.listed_expiry and settlement.listed_expiry <= step.at.lease


def give_back_loss(step: Step, job: JobRecord, token: str) -> None:
    """The owner of a reaped lease reports that it lives."""
    # A8: the loss does not count any more; a job that has ended stays as it is.
    if job.live and job.reaped_token == token:
        step.put_job(job, replace(job, losses=job.losses - 1, reaped_token=None))


def apply_settlement(
    step: Step, before: JobRecord, settlement: Settlement, target: JobState, reason: Reason | None, note: str
) -> None:
    reap = settlement.listed_expiry is not None
    succeeded = target is JobState.SUCCEEDED
    job = before
    # H1: a counted run that did not succeed; H2: under the name of its outcome.
    counted = before.state is JobState.RUNNING and not settlement.refund
    if counted and target in ENDS_A_RUN:
        job = end_attempt(job, outcome_of(target, settlement.reason), settlement.error, step.now)
    error = settlement.error if settlement.error is not None else job.last_error
    settled_token = job.settled_token if reap else settlement.token  # G7
    last_error = None if succeeded else error  # W5
    loss = reap or settlement.loss  # A6, A11
    if loss or settlement.refund or last_error is not job.last_error:  # a plain success changes none of these
        job = replace(
            job,
            attempt=job.attempt - 1 if settlement.refund else job.attempt,  # A4
            losses=job.losses + 1 if loss else job.losses,
            reaped_token=settlement.token if reap else job.reaped_token,  # A8
            last_error=last_error,
        )
    if settlement.progress is not None:  # W6
        job = replace(job, progress=settlement.progress)
    if target in TERMINAL:
        finish(
            step,
            before,
            target,
            reason,
            job=job,
            note=note,
            settled_token=settled_token,
            result=settlement.result if succeeded else None,  # W5
            result_ttl=settlement.result_ttl,
            retention=settlement.retention,
        )
        return
    job = replace(
        job, settled_token=settled_token, token=None, lease_expires=None, loss_error=None, reason=reason, note=note
    )
    if target is JobState.QUEUED:
        # W3: a release keeps its due time.
        step.put_job(before, as_waiting(step, job))
    else:
        # W1: written as retrying or scheduled, also if it is due at once.
        due = step.now + settlement.delay if settlement.due is None else max(step.now, settlement.due)
        step.put_job(before, replace(job, state=target, due=due))
        # N1: it can be claimed now, or a reaper, which claims nothing, has set when it falls due.
        if due <= step.now or reap:
            step.topics.add("queue:" + job.queue)


def outcome_of(target: JobState, reason: Reason | None) -> AttemptOutcome:
    """How the history names a run that did not succeed."""
    # H2: by the reason first, then by the target.
    if reason is Reason.WORKER_LOST:
        return AttemptOutcome.WORKER_LOST
    if reason is Reason.TIMEOUT:
        return AttemptOutcome.TIMED_OUT
    return AttemptOutcome.CANCELLED if target is JobState.CANCELLED else AttemptOutcome.FAILED


# Starting what was prefetched


def start(step: Step, one: Start) -> StartStatus:
    # A2: the checks in this order.
    job = step.state.job(one.queue, one.id)
    if job is None or job.token != one.token:
        return StartStatus.LOST
    if job.cancel_asked:
        return StartStatus.CANCEL
    if job.state is JobState.RUNNING:
        return StartStatus.STARTED
    if scope_paused(step, job):
        return StartStatus.HOLD
    begin_attempt(step, job)
    return StartStatus.STARTED


def begin_attempt(step: Step, job: JobRecord) -> JobRecord:
    """Let an assigned job run."""
    # A1: the attempt was counted at the claim.
    after = replace(
        job,
        state=JobState.RUNNING,
        started=step.now if job.started is None else job.started,
        last_started=step.now,
    )
    step.put_job(job, after)
    return after


def scope_paused(step: Step, job: JobRecord) -> bool:
    """Whether the job's queue or lane is paused."""
    if step.queue(job.queue).paused:
        return True
    return job.lane is not None and step.lane(job.queue, job.lane).paused
