"""Leases between claim and settlement: renewed, expired, disowned; and the workers that hold them.

Expiry changes nothing by itself: it only makes a lease reapable. The reaper lists expired leases, decides above the
engine how each job goes on, and settles under the guard of `settle.py`. A renewal that comes first moves the expiry,
and the reaper gets `lost`.
"""

from msgspec.structs import replace

from holdfast.engines.ledger.settle import scope_paused
from holdfast.engines.ledger.step import Step
from holdfast.model.job import JobRecord
from holdfast.model.limits import REAPED_BY_ALL_AFTER
from holdfast.model.states import JobState
from holdfast.model.work import (
    Disown,
    DisownAnswer,
    Expired,
    ExpiredAnswer,
    ExpiredLease,
    ForgetWorker,
    Heartbeat,
    HeartbeatAnswer,
    Renew,
    Renewal,
    RenewAnswer,
    RenewResult,
    RenewStatus,
    StopWorker,
    WorkerAnswer,
    Workers,
    WorkersAnswer,
)


def renew(step: Step, command: Renew) -> RenewAnswer:
    # T4: accepted while the token is the current one, also after the expiry.
    # PF4: `at.lease` is the store's own clock; a time that a process has seen is not part of it.
    # T9: commands run one after the other here, so no job is locked and nothing is `busy`.
    # T5: extended, also if the answer is `cancel` or `hold`.
    return RenewAnswer(at=step.at, jobs=tuple([_renew(step, renewal) for renewal in command.jobs]))


def _renew(step: Step, renewal: Renewal) -> RenewResult:
    job = step.state.job(renewal.queue, renewal.id)
    if job is None or job.token != renewal.token or job.lease_expires is None:
        return RenewResult(RenewStatus.LOST)
    expires = max(job.lease_expires, step.at.lease + job.lease_len)
    progress = job.progress if renewal.progress is None else renewal.progress
    # A13: its owner lives.
    step.put_job(job, replace(job, lease_expires=expires, progress=progress, loss_error=None))
    if job.cancel_asked:
        return RenewResult(RenewStatus.CANCEL, expires)
    if job.state is JobState.ASSIGNED and scope_paused(step, job):
        return RenewResult(RenewStatus.HOLD, expires)
    return RenewResult(RenewStatus.HELD, expires)


def expired(step: Step, command: Expired) -> ExpiredAnswer:
    # PF4: by the store's own clock.
    # T6: of the tasks named, and of every task after a long time.
    overdue = sorted(
        (job for job in step.state.leases_until(step.at.lease) if is_listed(step, command, job)),
        key=lambda job: (job.lease_expires, job.queue, job.id),
    )
    # T7: reapers that list at the same time begin at different places.
    if overdue:
        start = step.state.reap_start(command.worker, len(overdue))
        overdue = overdue[start:] + overdue[:start]
    return ExpiredAnswer(at=step.at, leases=tuple(_listed(job) for job in overdue[: command.limit]))


def is_listed(step: Step, command: Expired, job: JobRecord) -> bool:
    assert job.lease_expires is not None
    late = step.at.lease - job.lease_expires
    return command.tasks is None or job.task in command.tasks or late > REAPED_BY_ALL_AFTER * job.lease_len


def _listed(job: JobRecord) -> ExpiredLease:
    assert job.token is not None
    assert job.lease_expires is not None
    return ExpiredLease(
        queue=job.queue,
        id=job.id,
        task=job.task,
        token=job.token,
        owner=job.owner,
        lease_expires=job.lease_expires,
        state=job.state,
        attempt=job.attempt,
        losses=job.losses,
        max_attempts=job.max_attempts,
        max_losses=job.max_losses,
        cancel_asked=job.cancel_asked,
        loss_error=job.loss_error,
    )


def disown(step: Step, command: Disown) -> DisownAnswer:
    # PF4: by the store's own clock.
    # T8: all leases of these workers expire now at the latest.
    leases = sorted(step.state.leases_of(command.workers), key=lambda job: (job.queue, job.id))
    for job in leases:
        assert job.lease_expires is not None
        # A13: an error replaces an earlier one; without one, that stays.
        if job.lease_expires > step.at.lease or command.error is not None:
            expires = min(job.lease_expires, step.at.lease)
            error = job.loss_error if command.error is None else command.error
            step.put_job(job, replace(job, lease_expires=expires, loss_error=error))
    return DisownAnswer(at=step.at, leases=tuple(job.job_key for job in leases))


# Worker records


def heartbeat(step: Step, command: Heartbeat) -> HeartbeatAnswer:
    # WK1: the record as sent, but `seen` and `stop_asked` are the engine's.
    before = step.state.worker(command.worker.worker)
    stop = before is not None and before.stop_asked
    step.put(before, replace(command.worker, seen=step.now, stop_asked=stop))
    return HeartbeatAnswer(at=step.at, stop=stop)


def workers(step: Step, command: Workers) -> WorkersAnswer:
    return WorkersAnswer(at=step.at, workers=tuple(step.state.workers()))


def stop_worker(step: Step, command: StopWorker) -> WorkerAnswer:
    worker = step.state.worker(command.worker)
    if worker is not None:
        # WK2: the next heartbeat answers `stop`. N4: the worker is notified.
        step.put(worker, replace(worker, stop_asked=True))
        step.topics.add("worker:" + command.worker)
    return WorkerAnswer(at=step.at, found=worker is not None)


def forget_worker(step: Step, command: ForgetWorker) -> WorkerAnswer:
    # WK1: a worker that ends removes its record.
    worker = step.state.worker(command.worker)
    if worker is not None:
        step.put(worker, None)
    return WorkerAnswer(at=step.at, found=worker is not None)
