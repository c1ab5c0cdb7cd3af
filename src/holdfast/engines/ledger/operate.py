"""What an operator does to single jobs: cancel, requeue, trigger, delete, amend.

Each answers per job, in the order asked. Nothing here can touch a lease but by asking: a leased job that is
cancelled is marked, its worker's bell is rung, and its next settlement or renewal tells the worker.
"""

from msgspec.structs import replace

from holdfast.engines.ledger import lanes, parents, pools
from holdfast.engines.ledger.ends import cancel_waiting
from holdfast.engines.ledger.enqueue import depth_of, key_holder
from holdfast.engines.ledger.step import Step, rest
from holdfast.model.clocks import key_until, later
from holdfast.model.job import JobRecord
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
        answers.append(_cancel(step, command, job_id))
        parents.resolve(step)
    return CancelJobsAnswer(at=step.at, jobs=tuple(answers))


def _cancel(step: Step, command: Cancel, job_id: str) -> CancelResult:
    job = step.state.job(command.queue, job_id)
    if job is None:
        return CancelResult(CancelStatus.NOT_FOUND)
    if job.state in TERMINAL:
        return CancelResult(CancelStatus.FINISHED, job.state)
    if job.state in WAITING:
        cancel_waiting(step, job, Reason.ASKED, command.note)
        return CancelResult(CancelStatus.CANCELLED, JobState.CANCELLED)
    if not job.cancel_asked:
        step.put_job(job, replace(job, cancel_asked=True, cancel_note=command.note))
    step.topics.add("worker:" + job.owner)
    return CancelResult(CancelStatus.REQUESTED, job.state)


def requeue(step: Step, command: Requeue) -> OperateAnswer:
    return OperateAnswer(at=step.at, jobs=tuple([_requeue(step, command, job_id) for job_id in command.ids]))


def _requeue(step: Step, command: Requeue, job_id: str) -> OperateResult:
    job = step.state.job(command.queue, job_id)
    if job is None:
        return NOT_FOUND
    if job.state not in (JobState.FAILED, JobState.CANCELLED):
        return OperateResult(OperateStatus.WRONG_STATE, job.state)
    if step.state.children(job.queue, job.id, 1):
        parents.resolve_one(step, (job.queue, job.id))  # its children hear of this end before it lives again
        if step.state.job(job.queue, job.id) is None:
            return NOT_FOUND
    key = job.unique_key
    if key is not None and key_holder(step.state, job.queue, job.task, key, step.now) is not None:
        return OperateResult(OperateStatus.KEY_TAKEN, job.state)
    if any(_is_full(step, limit, job) for limit in command.limits):
        return OperateResult(OperateStatus.QUEUE_FULL, job.state)
    after = replace(
        job,
        generation=job.generation + 1,
        arrival=step.state.new_arrival(job.queue),
        due=step.now,
        hold=Hold.NONE,
        attempt=0,
        losses=0,
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
    after = pools.place_again(step, after)
    if after.lane is not None:
        after, _ = lanes.admit(step, after)
    after = rest(step, after)
    step.put_job(job, after)
    return OperateResult(OperateStatus.DONE, after.state)


def _is_full(step: Step, limit: DepthLimit, job: JobRecord) -> bool:
    """Whether this limit has no room for a job that is to come back, where that will be."""
    if limit.queue != job.queue:
        return False
    lane = limit.lane
    if limit.each_lane or lane is not None:
        ahead = pools.lane_again(step, job)
        if ahead is None or lane not in (None, ahead):
            return False
        lane = ahead
    return depth_of(step, limit.queue, lane) >= limit.limit


def trigger(step: Step, command: Trigger) -> OperateAnswer:
    return OperateAnswer(at=step.at, jobs=tuple([_trigger(step, command, job_id) for job_id in command.ids]))


def _trigger(step: Step, command: Trigger, job_id: str) -> OperateResult:
    job = step.state.job(command.queue, job_id)
    if job is None:
        return NOT_FOUND
    if job.state is JobState.QUEUED:
        return OperateResult(OperateStatus.DONE, job.state)
    if job.state not in (JobState.SCHEDULED, JobState.RETRYING):
        return OperateResult(OperateStatus.WRONG_STATE, job.state)
    after = rest(step, replace(job, due=step.now))
    step.put_job(job, after)
    return OperateResult(OperateStatus.DONE, after.state)


def delete(step: Step, command: Delete) -> OperateAnswer:
    return OperateAnswer(at=step.at, jobs=tuple([_delete(step, command, job_id) for job_id in command.ids]))


def _delete(step: Step, command: Delete, job_id: str) -> OperateResult:
    job = step.state.job(command.queue, job_id)
    if job is None:
        return NOT_FOUND
    if job.state not in TERMINAL:
        return OperateResult(OperateStatus.WRONG_STATE, job.state)
    if step.state.children(job.queue, job.id, 1):
        parents.resolve_one(step, (job.queue, job.id))
    if step.state.job(job.queue, job.id) is not None:
        step.drop_job(job)
    return OperateResult(OperateStatus.DONE, job.state)


def amend(step: Step, command: Amend) -> OperateAnswer:
    return OperateAnswer(at=step.at, jobs=tuple([_amend(step, command, job_id) for job_id in command.ids]))


def _amend(step: Step, command: Amend, job_id: str) -> OperateResult:
    job = step.state.job(command.queue, job_id)
    if job is None:
        return NOT_FOUND
    ended = job.state in TERMINAL
    if command.priority is not None and ended:
        return OperateResult(OperateStatus.WRONG_STATE, job.state)
    if command.due is not None and (job.state not in WAITING or job.state is JobState.QUEUED):
        return OperateResult(OperateStatus.WRONG_STATE, job.state)
    after = _amended_end(job, command, step.now) if ended else _amended_life(step, job, command)
    if after != job:
        step.put_job(job, after)
    return OperateResult(OperateStatus.DONE, after.state)


def _amended_end(job: JobRecord, command: Amend, now: int) -> JobRecord:
    """The clocks run anew from when it finished; the key follows the result where its scope says so."""
    assert job.finished is not None
    visible, result = job.visible_until, job.result_until
    if command.retention is not None:
        visible = later(job.finished, command.retention)
    if command.result_ttl is not None:
        result = later(job.finished, command.result_ttl)
    key = key_until(job, job.state, job.finished, result)
    if job.unique_key is not None and job.key_until <= now:
        key = job.key_until  # it has lapsed, and somebody else may have taken it since
    return replace(job, visible_until=visible, result_until=result, key_until=key)


def _amended_life(step: Step, job: JobRecord, command: Amend) -> JobRecord:
    given = job.given
    if command.retention is not None:
        given = replace(given, retention=command.retention)
    if command.result_ttl is not None:
        given = replace(given, result_ttl=command.result_ttl)
    due = job.due
    if command.due is not None:
        due = max(step.now, command.due)
        step.topics.add("queue:" + job.queue)
    reply = job.reply
    if command.reply is not None and command.reply not in reply:
        reply = (*reply, command.reply)
    priority = job.priority if command.priority is None else command.priority
    return replace(job, given=given, due=due, reply=reply, priority=priority)
