"""What an operator does to single jobs: cancel, requeue, trigger, delete, amend.

Each verb answers per job, in the order of the request. None of them takes a lease away: a leased job that is cancelled
is marked and its worker is notified, and the worker's next renewal or settlement gets the cancel.
"""

from msgspec.structs import replace

from holdfast.engines.ledger import lanes, parents, pools
from holdfast.engines.ledger.ends import cancel_waiting
from holdfast.engines.ledger.enqueue import depth_of, key_holder
from holdfast.engines.ledger.step import Step, as_waiting
from holdfast.model.job import JobRecord
from holdfast.model.lifetimes import key_until, later
from holdfast.model.operate import (
    Amend,
    Cancel,
    CancelJobsAnswer,
    CancelResult,
    CancelStatus,
    Delete,
    OperateAnswer,
    OperateResult,
    OperateStatus,
    Requeue,
    Trigger,
)
from holdfast.model.produce import DepthLimit
from holdfast.model.states import TERMINAL, WAITING, Hold, JobState, Reason

NOT_FOUND = OperateResult(OperateStatus.NOT_FOUND)


def cancel(step: Step, command: Cancel) -> CancelJobsAnswer:
    answers = []
    for job_id in command.ids:
        answers.append(cancel_one(step, command, job_id))
        parents.resolve(step)
    return CancelJobsAnswer(at=step.at, jobs=tuple(answers))


def cancel_one(step: Step, command: Cancel, job_id: str) -> CancelResult:
    job = step.state.job(command.queue, job_id)
    # X3: absent or ended.
    if job is None:
        return CancelResult(CancelStatus.NOT_FOUND)
    if job.state in TERMINAL:
        return CancelResult(CancelStatus.FINISHED, job.state)
    # X1: a waiting job ends at once.
    if job.state in WAITING:
        cancel_waiting(step, job, Reason.ASKED, command.note)
        return CancelResult(CancelStatus.CANCELLED, JobState.CANCELLED)
    # X2: a leased job is marked, and the first note stays. N4: its worker is notified.
    if not job.cancel_asked:
        step.put_job(job, replace(job, cancel_asked=True, cancel_note=command.note))
    step.topics.add("worker:" + job.owner)
    return CancelResult(CancelStatus.REQUESTED, job.state)


def requeue(step: Step, command: Requeue) -> OperateAnswer:
    return OperateAnswer(at=step.at, jobs=tuple([requeue_one(step, command, job_id) for job_id in command.ids]))


def requeue_one(step: Step, command: Requeue, job_id: str) -> OperateResult:
    job = step.state.job(command.queue, job_id)
    if job is None:
        return NOT_FOUND
    # RQ1: failed or cancelled, its key free, its queue or lane not full.
    if job.state not in (JobState.FAILED, JobState.CANCELLED):
        return OperateResult(OperateStatus.WRONG_STATE, job.state)
    if step.state.children(job.queue, job.id, 1):
        # P7: its children get this end before it is requeued. P8: only its edges may have kept the record.
        parents.resolve_one(step, (job.queue, job.id))
        if step.state.job(job.queue, job.id) is None:
            return NOT_FOUND
    key = job.unique_key
    if key is not None and key_holder(step.state, job.queue, job.task, key, step.now) is not None:
        return OperateResult(OperateStatus.KEY_TAKEN, job.state)
    lane = pools.lane_again(step, job, command.limits)
    if any(is_full(step, limit, job, lane) for limit in command.limits):
        return OperateResult(OperateStatus.QUEUE_FULL, job.state)
    after = pools.place_again(step, revive(step, job), lane)
    if after.lane is not None:
        # L6: at the tail.
        after, _ = lanes.admit(step, after)
    after = as_waiting(step, after)
    step.put_job(job, after)
    return OperateResult(OperateStatus.DONE, after.state)


def revive(step: Step, job: JobRecord) -> JobRecord:
    """The record of an ended job as it begins again."""
    # RQ2: everything about the last generation is cleared, but history, last error, fence, reply and `expires` stay.
    # H3, P9, T3, W5: so history and last error stay, the child has no parents, and its fence grows.
    return replace(
        job,
        generation=job.generation + 1,
        arrival=step.state.new_arrival(job.queue),
        due=step.now,
        hold=Hold.NONE,
        attempt=0,
        losses=0,
        reaped_token=None,
        started=None,
        last_started=None,
        progress=None,
        cancel_asked=False,
        cancel_note="",
        finished=None,
        reason=None,
        note="",
        result=None,
        visible_until=0,
        result_until=0,
        key_until=0,
    )


def is_full(step: Step, limit: DepthLimit, job: JobRecord, ahead: str | None) -> bool:
    """Whether this limit leaves no room for a requeued job in the lane `ahead`."""
    # RQ1: a limit on lanes is about the lane that the job will go to.
    if limit.queue != job.queue:
        return False
    lane = limit.lane
    if limit.each_lane or lane is not None:
        if ahead is None or lane not in (None, ahead):
            return False
        lane = ahead
    return depth_of(step, limit.queue, lane) >= limit.limit


def trigger(step: Step, command: Trigger) -> OperateAnswer:
    return OperateAnswer(at=step.at, jobs=tuple([trigger_one(step, command, job_id) for job_id in command.ids]))


def trigger_one(step: Step, command: Trigger, job_id: str) -> OperateResult:
    job = step.state.job(command.queue, job_id)
    if job is None:
        return NOT_FOUND
    # TR1: only a due time can be moved.
    if job.state is JobState.QUEUED:
        return OperateResult(OperateStatus.DONE, job.state)
    if job.state not in (JobState.SCHEDULED, JobState.RETRYING):
        return OperateResult(OperateStatus.WRONG_STATE, job.state)
    after = as_waiting(step, replace(job, due=step.now))
    step.put_job(job, after)
    return OperateResult(OperateStatus.DONE, after.state)


def delete(step: Step, command: Delete) -> OperateAnswer:
    # DL1: ended jobs only.
    return OperateAnswer(at=step.at, jobs=tuple([delete_one(step, command, job_id) for job_id in command.ids]))


def delete_one(step: Step, command: Delete, job_id: str) -> OperateResult:
    job = step.state.job(command.queue, job_id)
    if job is None:
        return NOT_FOUND
    if job.state not in TERMINAL:
        return OperateResult(OperateStatus.WRONG_STATE, job.state)
    if step.state.children(job.queue, job.id, 1):
        # P7: the children get the end first.
        parents.resolve_one(step, (job.queue, job.id))
    if step.state.job(job.queue, job.id) is not None:
        step.drop_job(job)
    return OperateResult(OperateStatus.DONE, job.state)


def amend(step: Step, command: Amend) -> OperateAnswer:
    return OperateAnswer(at=step.at, jobs=tuple([amend_one(step, command, job_id) for job_id in command.ids]))


def amend_one(step: Step, command: Amend, job_id: str) -> OperateResult:
    job = step.state.job(command.queue, job_id)
    if job is None:
        return NOT_FOUND
    # AM2, AM4: a part that does not fit the state refuses all of them.
    ended = job.state in TERMINAL
    if command.priority is not None and ended:
        return OperateResult(OperateStatus.WRONG_STATE, job.state)
    if command.due is not None and (job.state not in WAITING or job.state is JobState.QUEUED):
        return OperateResult(OperateStatus.WRONG_STATE, job.state)
    # AM1, AM3: on an ended job the lifetimes, on a live one `given` and `reply`.
    after = _amend_ended(job, command, step.now) if ended else _amend_live(step, job, command)
    if after != job:
        step.put_job(job, after)
    return OperateResult(OperateStatus.DONE, after.state)


def _amend_ended(job: JobRecord, command: Amend, now: int) -> JobRecord:
    """Compute the lifetimes again from the end of the job; the key follows the result if its scope says so."""
    assert job.finished is not None
    visible, result = job.visible_until, job.result_until
    if command.retention is not None:
        visible = later(job.finished, command.retention)
    if command.result_ttl is not None:
        result = later(job.finished, command.result_ttl)
    key = key_until(job, job.state, job.finished, result)
    if job.unique_key is not None and job.key_until <= now:
        key = job.key_until  # it has lapsed, and another job may have taken it
    return replace(job, visible_until=visible, result_until=result, key_until=key)


def _amend_live(step: Step, job: JobRecord, command: Amend) -> JobRecord:
    given = job.given
    if command.retention is not None:
        given = replace(given, retention=command.retention)
    if command.result_ttl is not None:
        given = replace(given, result_ttl=command.result_ttl)
    due = job.due
    if command.due is not None:
        due = max(step.now, command.due)
        step.topics.add("queue:" + job.queue)  # N1
    reply = job.reply
    if command.reply is not None and command.reply not in reply:
        reply = (*reply, command.reply)
    priority = job.priority if command.priority is None else command.priority
    return replace(job, given=given, due=due, reply=reply, priority=priority)
