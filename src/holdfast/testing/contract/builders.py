"""Commands with defaults for the fields that an example does not need."""

from typing import Any

from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.produce import DepthLimit, NewJob, Parent
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.model.work import Claim, ExpiredLease, Lease, QueueClaim, Renewal, Settlement, Start, TaskClaim

QUEUE = "work"
TASK = "example.task"
WORKER = "worker-1"
REAPER = "reaper"
LEASE = 30 * SECOND
"""Far longer than any example takes, so that no lease expires on a slow machine."""

BOOM = ErrorInfo("example.Boom", "it broke", "Traceback: it broke")


# --- Producing ---


def new_job(id: str = "a", **fields: Any) -> NewJob:
    """A job of `TASK` on `QUEUE`, ready at once."""
    return NewJob(id=id, **{"queue": QUEUE, "task": TASK, **fields})


def jobs(*ids: str, **fields: Any) -> tuple[NewJob, ...]:
    """Jobs that differ only in their ids."""
    return tuple(new_job(id, **fields) for id in ids)


def after(*ids: str, any_end: bool = False, queue: str = QUEUE) -> tuple[Parent, ...]:
    """The parents that a job waits for."""
    return tuple(Parent(JobKey(queue, id), any_end) for id in ids)


def at_most(limit: int, *, lane: str | None = None, queue: str = QUEUE) -> tuple[DepthLimit, ...]:
    return (DepthLimit(queue, limit, lane),)


# --- Claiming ---


def task_claim(task: str = TASK, **fields: Any) -> TaskClaim:
    """The part of a claim for one task, with a lease of `LEASE`."""
    return TaskClaim(task=task, **{"lease_len": LEASE, **fields})


def claim(claim_id: str, **fields: Any) -> Claim:
    """A claim of one job of `TASK` from `QUEUE`.

    Instead of `queues` it accepts `queue`, `tasks` (names), and the fields of `TaskClaim` for all of these tasks.
    """
    queue = fields.pop("queue", QUEUE)
    names = fields.pop("tasks", (TASK,))
    of_task = {name: fields.pop(name) for name in ("lease_len", "max_attempts", "max_losses") if name in fields}
    queues = fields.pop("queues", (QueueClaim(queue, tuple(task_claim(name, **of_task) for name in names)),))
    return Claim(claim_id=claim_id, queues=queues, **{"worker": WORKER, "limit": 1, **fields})


def start(lease: Lease) -> Start:
    return Start(lease.queue, lease.id, lease.token)


def renewal(lease: Lease, **fields: Any) -> Renewal:
    return Renewal(lease.queue, lease.id, lease.token, **fields)


# --- Settling ---


def settlement(lease: Lease, target: JobState, **fields: Any) -> Settlement:
    return Settlement(queue=lease.queue, id=lease.id, token=lease.token, target=target, **fields)


def succeed(lease: Lease, result: bytes | None = b"fine", **fields: Any) -> Settlement:
    return settlement(lease, JobState.SUCCEEDED, result=result, **fields)


def fail(lease: Lease, **fields: Any) -> Settlement:
    """The job failed, and is not tried again."""
    return settlement(lease, JobState.FAILED, **{"reason": Reason.EXHAUSTED, "error": BOOM, **fields})


def retry(lease: Lease, delay: int = 0, **fields: Any) -> Settlement:
    """The attempt failed; the job is tried again after `delay`."""
    return settlement(lease, JobState.RETRYING, delay=delay, **{"reason": Reason.ERROR, "error": BOOM, **fields})


def snooze(lease: Lease, delay: int = 0, **fields: Any) -> Settlement:
    """The handler postponed the job; the attempt is refunded."""
    return settlement(lease, JobState.SCHEDULED, delay=delay, **{"reason": Reason.SNOOZED, "refund": True, **fields})


def release(lease: Lease, **fields: Any) -> Settlement:
    """The worker gave the job back; the attempt is refunded."""
    return settlement(lease, JobState.QUEUED, **{"reason": Reason.RELEASED, "refund": True, **fields})


def confirm_cancel(lease: Lease, **fields: Any) -> Settlement:
    """The handler stopped because of a cancel request."""
    return settlement(lease, JobState.CANCELLED, **{"reason": Reason.ASKED, **fields})


def died(lease: Lease, target: JobState = JobState.RETRYING, **fields: Any) -> Settlement:
    """The process of the handler died, and its owner adds a loss."""
    return settlement(lease, target, **{"reason": Reason.WORKER_LOST, "loss": True, **fields})


def reap(lost: ExpiredLease, target: JobState = JobState.RETRYING, **fields: Any) -> Settlement:
    """What a reaper writes about a listed lease. An attempt that never started is refunded."""
    return Settlement(
        queue=lost.queue,
        id=lost.id,
        token=lost.token,
        target=target,
        listed_expiry=lost.lease_expires,
        **{"reason": Reason.WORKER_LOST, "refund": lost.state is JobState.ASSIGNED, **fields},
    )
