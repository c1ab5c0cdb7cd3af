"""Claim: take ready jobs under leases.

A store keeps ready jobs in order per (queue, task). A claim names its tasks, so it merges the heads of those lists and
nothing else: jobs that wait for a lane, a due time or another worker cost it nothing.

In each queue, first the jobs that have fallen due become ready (a bounded number), then jobs are taken until the limit
of the claim, of the queue or of the task is reached. Jobs past their `expires` are cancelled on the way.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace

from msgspec.structs import replace

from holdfast.engines.ledger import parents
from holdfast.engines.ledger.ends import cancel_waiting
from holdfast.engines.ledger.state import rank_of
from holdfast.engines.ledger.step import Step, as_waiting
from holdfast.model.instants import At
from holdfast.model.job import JobRecord
from holdfast.model.limits import MOST_EXPIRED, MOST_PROMOTED
from holdfast.model.states import JobState, Reason
from holdfast.model.work import Claim, Lease, QueueClaim, TaskClaim, lease_of

RUNNING = JobState.RUNNING


def claim(step: Step, request: Claim) -> tuple[tuple[Lease, ...], int | None]:
    """Leases in claim order, and when the next waiting job of these queues falls due."""
    # T2: a claim sent again answers the leases it still holds, and takes nothing new.
    held = step.state.held_by(request.claim_id)
    leases = sorted(map(lease_of, held), key=lambda lease: rank_of(lease.token))
    next_due: int | None = None
    # S3: the queues in the order given.
    for wanted in request.queues:
        record = step.state.queue(wanted.queue)
        # C5, U1: a paused queue gives no job and no `next_due`.
        if record is None or record.paused:
            continue
        # C1: jobs that are due become ready, also where the claim takes nothing.
        promote_due(step, wanted.queue)
        if not held:
            # S2, R1, C2, C3, L8: in `take`. T1, T3, A1: in `grant`.
            take(step, request, wanted, leases)
        # C4: the earliest of all queues of the claim.
        due = step.state.next_due(wanted.queue)
        if due is not None and (next_due is None or due < next_due):
            next_due = due
    return tuple(leases), next_due


def promote_due(step: Step, queue: str) -> None:
    """Let jobs that have fallen due become ready."""
    # C1: in (due, arrival) order, a bounded number.
    for job in step.state.due(queue, step.now, MOST_PROMOTED):
        step.put_job(job, as_waiting(step, job))


Head = tuple[tuple[int, int, int], int, JobRecord, Iterator[JobRecord]]
"""The first ready job of one task: its place in claim order, the task's index in the claim, the job, those behind it.

A plain tuple, because each claimed job makes one. The arrival is in the order, so no two are equal.
"""


def take(step: Step, request: Claim, wanted: QueueClaim, leases: list[Lease]) -> None:
    # C2: the limits of queue and task cap running and assigned jobs together.
    first = step.state.first_rank()
    left = request.limit + request.prefetch - first - len(leases)
    if wanted.limit is not None:
        left = min(left, wanted.limit)
    if left <= 0:
        return
    shares = [left if task.limit is None else task.limit for task in wanted.tasks]
    heads = _heads(step, wanted, shares)
    expired = 0
    while left > 0 and heads:
        _, task, job, following = heads[0]
        if job.expires is not None and job.expires <= step.now:
            # C3: the claim goes on, and leaves the queue after a bounded number of them.
            cancel_waiting(step, job, Reason.EXPIRED)
            parents.resolve(step)
            heads = _heads(step, wanted, shares)  # a job of its lane or a child may come first now
            expired += 1
            if expired == MOST_EXPIRED:
                return
            continue
        leases.append(grant(step, job, request, wanted.tasks[task], first + len(leases)))
        left -= 1
        shares[task] -= 1
        head = _head(task, following) if shares[task] > 0 and left > 0 else None
        if head is None:
            heappop(heads)
        else:
            heapreplace(heads, head)


def _heads(step: Step, wanted: QueueClaim, shares: list[int]) -> list[Head]:
    """The first ready job of each task that still has a share, as a heap."""
    # R1: of the tasks that the claim names.
    heads = []
    for index, task in enumerate(wanted.tasks):
        if shares[index] > 0:
            about = shares[index] // len(wanted.tasks) + 1
            head = _head(index, step.state.ready(wanted.queue, task.task, about))
            if head is not None:
                heads.append(head)
    heapify(heads)
    return heads


def _head(task: int, jobs: Iterator[JobRecord]) -> Head | None:
    # S2: priority, due, arrival.
    job = next(jobs, None)
    return None if job is None else ((-job.priority, job.due, job.arrival), task, job, jobs)


def grant(step: Step, job: JobRecord, request: Claim, terms: TaskClaim, rank: int) -> Lease:
    """Give the lease: a new token, a higher fence, one more attempt."""
    if job.lane is None:
        after = leased_record(job, request, terms, rank, step.at, job.fence)
    else:
        lane = step.lane(job.queue, job.lane)
        after = leased_record(job, request, terms, rank, step.at, max(job.fence, lane.fence))
        step.put(lane, replace(lane, fence=after.fence))
    step.put_job(job, after)
    return lease_of(after)


def leased_record(job: JobRecord, request: Claim, terms: TaskClaim, rank: int, at: At, last_fence: int) -> JobRecord:
    """The record of a job with a new lease. `last_fence`: of the job, or of its lane if that is higher."""
    now, given = at.wall, job.given
    lease_len = terms.lease_len if given.lease_len is None else given.lease_len
    # C2: the first `limit` jobs run, the next `prefetch` are assigned.
    runs = rank < request.limit
    return replace(
        job,
        state=RUNNING if runs else JobState.ASSIGNED,
        attempt=job.attempt + 1,  # A1
        owner=request.worker,
        token=f"{request.claim_id}.{rank}",  # T1
        # T3: above the last fence of the job and of its lane, and at least the wall time.
        fence=now if now > last_fence else last_fence + 1,
        lease_expires=at.lease + lease_len,
        lease_len=lease_len,
        max_attempts=terms.max_attempts if given.max_attempts is None else given.max_attempts,
        max_losses=terms.max_losses if given.max_losses is None else given.max_losses,
        started=now if runs and job.started is None else job.started,
        last_started=now if runs else job.last_started,
        progress=None,
    )
