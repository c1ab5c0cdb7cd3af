"""Fills a database with jobs in bulk, and counts the virtual-machine steps of a claim."""

from pathlib import Path

from msgspec.structs import replace

from holdfast.engines.engine_clock import EngineClock
from holdfast.engines.sqlite.rows import job_row, unpack_job
from holdfast.engines.sqlite.statements import load
from holdfast.engines.sqlite.store import StoreOptions
from holdfast.engines.sqlite.writer import Writer
from holdfast.model.instants import DAY, SECOND
from holdfast.model.job import JobRecord
from holdfast.model.produce import Enqueue, Group, NewJob
from holdfast.model.states import Hold, JobState
from holdfast.model.work import Claim, Exchange, QueueClaim, TaskClaim
from holdfast.runtime import SystemRuntime

QUEUE = "work"
CLAIMED, UNCLAIMED = "claimed", "unclaimed"


def fill(path: Path, *, queued: int, finished: int, blocked: int, unclaimed: int) -> Writer:
    """Rows as the engine writes them, made from one job of each task that it wrote itself."""
    runtime = SystemRuntime()
    store = Writer(StoreOptions(str(path), "holdfast", "none", 1.0), runtime, EngineClock(runtime))
    store.prepare(auto_migrate=True)
    jobs = tuple(NewJob(queue=QUEUE, id=f"seed-{task}", task=task, payload=b"x" * 100) for task in (UNCLAIMED, CLAIMED))
    (done,) = store.run([Enqueue(groups=(Group(jobs),))])
    assert done.error is None, done.error
    db = store.connection
    models = [unpack_job(body) for (body,) in db.execute("SELECT body FROM holdfast_job ORDER BY arrival")]
    unclaimed_job, claimed_job = models
    q, tasks = 1, {UNCLAIMED: 1, CLAIMED: 2}
    arrival = 10

    def many(model: JobRecord, count: int, **changes: object) -> None:
        nonlocal arrival
        rows = []
        for _ in range(count):
            arrival += 1
            job = replace(model, id=f"job-{arrival}", arrival=arrival, **changes)
            rows.append(job_row(job, q, tasks[job.task]))
        db.executemany(load("statements.sql", "holdfast")["add_job"], rows)

    db.execute("BEGIN")
    many(unclaimed_job, unclaimed)
    many(replace(claimed_job, lane="slow"), blocked, state=JobState.BLOCKED, hold=Hold.LANE)
    ended = {
        "visible_until": claimed_job.created + DAY,
        "result_until": claimed_job.created + DAY,
        "finished": claimed_job.created,
    }
    many(claimed_job, finished, state=JobState.SUCCEEDED, **ended)
    many(claimed_job, queued)
    db.execute("UPDATE holdfast_meta SET arrival = ?", (arrival,))
    db.execute("COMMIT")
    return store


def steps_per_claimed_job(store: Writer, jobs: int = 100) -> float:
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    tasks = (TaskClaim(task=CLAIMED, lease_len=30 * SECOND),)
    claim = Claim(claim_id="c" * 32, worker="w", queues=(QueueClaim(QUEUE, tasks),), limit=jobs)
    store.connection.set_progress_handler(count, 1)
    (done,) = store.run([Exchange(claim=claim)])
    store.connection.set_progress_handler(None, 1)
    assert len(done.answer.leases) == jobs
    store.close()
    return steps / jobs
