"""Claim: take ready work under leases.

Ready jobs are kept in one heap per (queue, task). A claim names its tasks, so it merges the heads of those
heaps and nothing else: what waits behind a lane, a due time or a missing worker costs it nothing.

The queues are visited in the order given. In each, first what has fallen due moves up (a bounded number),
then jobs are taken until the claim, the queue's share or the task's share is full. What is past its `expires`
is cancelled on the way. The first `limit` leases are running, the next `prefetch` are assigned.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.engines.ledger import parents
from holdfast.engines.ledger.ends import cancel_waiting
from holdfast.engines.ledger.state import rank_of
from holdfast.engines.ledger.step import Step, rest
from holdfast.model.job import JobRecord
from holdfast.model.states import JobState, Reason
from holdfast.model.work import Claim, Lease, QueueClaim, TaskClaim

MOST_PROMOTED = 1_000
MOST_EXPIRED = 1_000


def claim(step: Step, request: Claim) -> tuple[tuple[Lease, ...], int | None]:
    """Leases in claim order, and when the next waiting job of these queues falls due."""
    held = step.state.held_by(request.claim_id)
    leases = sorted(map(lease_of, held), key=lambda lease: rank_of(lease.token))
    next_due: int | None = None
    for wanted in request.queues:
        record = step.state.queue(wanted.queue)
        if record is None or record.paused:
            continue
        promote_due(step, wanted.queue)
        if not held:
            _take(step, request, wanted, leases)
        due = step.state.next_due(wanted.queue)
        if due is not None and (next_due is None or due < next_due):
            next_due = due
    return tuple(leases), next_due


def promote_due(step: Step, queue: str) -> None:
    """Move up what has fallen due, in (due, arrival) order."""
    for job in step.state.due(queue, step.now, MOST_PROMOTED):
        step.put_job(job, rest(step, job))


class Head(NamedTuple):
    """The first ready job of one task, and those behind it; heads sort by claim order."""

    order: tuple[int, int, int]
    task: int
    job: JobRecord
    following: Iterator[JobRecord]


def _take(step: Step, request: Claim, wanted: QueueClaim, leases: list[Lease]) -> None:
    room = request.limit + request.prefetch - len(leases)
    if wanted.limit is not None:
        room = min(room, wanted.limit)
    if room <= 0:
        return
    shares = [room if task.limit is None else task.limit for task in wanted.tasks]
    heads = _heads(step, wanted, shares)
    expired = 0
    while room > 0 and heads:
        first = heads[0]
        task, job = first.task, first.job
        if job.expires is not None and job.expires <= step.now:
            cancel_waiting(step, job, Reason.EXPIRED)
            parents.resolve(step)
            heads = _heads(step, wanted, shares)  # its lane or its children may have a better one now
            expired += 1
            if expired == MOST_EXPIRED:
                return
            continue
        leases.append(_grant(step, job, request, wanted.tasks[task], len(leases)))
        room -= 1
        shares[task] -= 1
        head = _head(task, first.following) if shares[task] > 0 and room > 0 else None
        if head is None:
            heappop(heads)
        else:
            heapreplace(heads, head)


def _heads(step: Step, wanted: QueueClaim, shares: list[int]) -> list[Head]:
    """The first ready job of each task that still has a share, as a heap."""
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
    job = next(jobs, None)
    return None if job is None else Head((-job.priority, job.due, job.arrival), task, job, jobs)


def _grant(step: Step, job: JobRecord, request: Claim, terms: TaskClaim, rank: int) -> Lease:
    """Give the lease: a new token, a higher fence, one more attempt."""
    now = step.now
    fence = max(job.fence + 1, now)
    if job.lane is not None:
        lane = step.lane(job.queue, job.lane)
        fence = max(fence, lane.fence + 1)
        step.put(lane, replace(lane, fence=fence))
    given = job.given
    lease_len = terms.lease_len if given.lease_len is None else given.lease_len
    runs = rank < request.limit
    after = replace(
        job,
        state=JobState.RUNNING if runs else JobState.ASSIGNED,
        attempt=job.attempt + 1,
        owner=request.worker,
        token=f"{request.claim_id}.{rank}",
        fence=fence,
        lease_expires=step.at.lease + lease_len,
        lease_len=lease_len,
        max_attempts=terms.max_attempts if given.max_attempts is None else given.max_attempts,
        max_losses=terms.max_losses if given.max_losses is None else given.max_losses,
        started=now if runs and job.started is None else job.started,
        last_started=now if runs else job.last_started,
        progress=None,
    )
    step.put_job(job, after)
    return lease_of(after)


def lease_of(job: JobRecord) -> Lease:
    """What a worker is told of a job it holds."""
    assert job.token is not None
    assert job.lease_expires is not None
    return Lease(
        job.queue,
        job.id,
        job.generation,
        job.task,
        job.payload,
        job.codec,
        job.metadata,
        job.priority,
        job.lane,
        job.arrival,
        job.created,
        job.due,
        job.expires,
        job.state,
        job.attempt,
        job.losses,
        job.token,
        job.fence,
        job.lease_expires,
        job.lease_len,
        job.max_attempts,
        job.max_losses,
        job.started,
        job.given,
    )
