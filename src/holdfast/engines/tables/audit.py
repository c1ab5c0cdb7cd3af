"""The audit of the tables: build every index again from the records and compare it with the stored one."""

from collections.abc import Iterator

from holdfast.engines.audit import problems_of_queue
from holdfast.engines.ledger.state import claim_of
from holdfast.engines.tables.indexes import ByTime, Ended, InLane, QueueTables, Ready
from holdfast.engines.tables.tables import Tables
from holdfast.model.job import JobRecord
from holdfast.model.states import Hold, JobState


def problems_of_tables(tables: Tables, now: int) -> Iterator[str]:
    for queue in tables._queues.values():
        yield from _queue_problems(queue)
        yield from problems_of_queue(queue.name, queue.jobs.values(), [lane.record for lane in queue.lanes.values()])
        yield from _waiting_problems(queue)
        yield from _key_problems(queue, now)
    yield from _lease_problems(tables)
    yield from _edge_problems(tables)
    ended = {Ended(job.kept_until, job.queue, job.id) for job in _jobs(tables) if job.terminal}
    if tables._ended.current_entries() != ended:
        yield "the index of ended jobs is not that of the records"


def _jobs(tables: Tables) -> Iterator[JobRecord]:
    for queue in tables._queues.values():
        yield from queue.jobs.values()


def _queue_problems(queue: QueueTables) -> Iterator[str]:
    jobs = queue.jobs.values()
    for state, listed in queue.by_state.items():
        if listed != {job.arrival: job.id for job in jobs if job.state is state}:
            yield f"queue {queue.name!r}: the list of {state} jobs is not that of the records"
    if queue.live != sum(job.live for job in jobs):
        yield f"queue {queue.name!r}: depth {queue.live} is not the number of live jobs"
    for task in {job.task for job in jobs} | set(queue.ready):
        ready = {
            Ready(-job.priority, job.due, job.arrival, job.id)
            for job in jobs
            if job.task == task and job.state is JobState.QUEUED
        }
        if (queue.ready[task].current_entries() if task in queue.ready else set()) != ready:
            yield f"queue {queue.name!r}: ready jobs of task {task!r} are not those of the records"
    due = {ByTime(j.due, j.arrival, j.id) for j in jobs if j.state in (JobState.SCHEDULED, JobState.RETRYING)}
    if queue.due.current_entries() != due:
        yield f"queue {queue.name!r}: the index of due times is not that of the records"
    expiring = {ByTime(job.expires, job.arrival, job.id) for job in jobs if job.waiting and job.expires is not None}
    if queue.expiring.current_entries() != expiring:
        yield f"queue {queue.name!r}: the index of expiring jobs is not that of the records"
    if jobs and queue.record is None:
        yield f"queue {queue.name!r} has jobs and no record"


def _waiting_problems(queue: QueueTables) -> Iterator[str]:
    for name, lane in queue.lanes.items():
        held = (job for job in queue.jobs.values() if job.lane == name and job.hold & Hold.LANE)
        if lane.waiting.current_entries() != {InLane(-job.priority, job.arrival, job.id) for job in held}:
            yield f"lane {name!r} of queue {queue.name!r}: the jobs that wait are not those of the records"


def _key_problems(queue: QueueTables, now: int) -> Iterator[str]:
    for (task, key), job_id in queue.keys.items():
        job = queue.jobs.get(job_id)
        if job is None or (job.task, job.unique_key) != (task, key):
            yield f"queue {queue.name!r}: key {key!r} of task {task!r} names job {job_id!r}, which does not have it"
    for job in queue.jobs.values():
        takes = job.live or (job.state is JobState.SUCCEEDED and now < job.key_until)
        if job.unique_key is not None and takes and queue.keys.get((job.task, job.unique_key)) != job.id:
            yield f"queue {queue.name!r}: key {job.unique_key!r} does not name job {job.id!r}, which holds it"


def _lease_problems(tables: Tables) -> Iterator[str]:
    leases = {(job.queue, job.id): job for job in _jobs(tables) if job.token is not None}
    if tables._leases != leases:
        yield "the list of leases is not that of the records"
    claims: dict[str, set[tuple[str, str]]] = {}
    for name, job in leases.items():
        claims.setdefault(claim_of(str(job.token)), set()).add(name)
    if {claim_id: set(held) for claim_id, held in tables._claims.items()} != claims:
        yield "the list of claims is not that of the records"
    if len({job.token for job in leases.values()}) != len(leases):
        yield "two leases share a token"


def _edge_problems(tables: Tables) -> Iterator[str]:
    left: dict[tuple[str, str], int] = {}
    for parent, edges in tables._children.items():
        if tables.job(*parent) is None:
            yield f"edges from {parent}, which does not exist"
        for child, edge in edges.items():
            job = tables.job(*child)
            if job is not None and job.arrival == edge.arrival:
                left[child] = left.get(child, 0) + 1
    for job in _jobs(tables):
        if job.hold & Hold.PARENTS and left.get((job.queue, job.id), 0) != job.parents_left:
            yield f"job {job.id!r} of queue {job.queue!r}: {job.parents_left} parents left, edges say otherwise"
