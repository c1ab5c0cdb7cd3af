"""The audit of a database: every column, counter and edge, worked out anew from the packed records."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping

from holdfast.engines.audit import problems_of_queue
from holdfast.engines.sqlite.rows import CODES, row_of, unpack_edge, unpack_job, unpack_lane
from holdfast.model.job import JobRecord
from holdfast.model.states import Hold, JobState


def problems_of_database(db: sqlite3.Connection, sql: Mapping[str, str], now: int) -> Iterator[str]:
    for (verdict,) in db.execute("PRAGMA integrity_check").fetchall():
        if verdict != "ok":
            yield f"SQLite's own check: {verdict}"
    queues: dict[str, list[JobRecord]] = {name: [] for (name,) in db.execute(sql["queue_names"]).fetchall()}
    for name, arrival, t, *columns, body in db.execute(sql["all_jobs"]).fetchall():
        job = unpack_job(body)
        queues.setdefault(name, []).append(job)
        expected = row_of(job, 0, t)
        if (job.queue, arrival, columns) != (name, expected[0], list(expected[4:-1])):
            yield f"job {job.id!r} of queue {name!r}: its columns are not those of its record"
    for name, jobs in queues.items():
        q = db.execute(sql["queue_number"], (name,)).fetchone()[0]
        lanes = [unpack_lane(row[0]) for row in db.execute(sql["lanes"], (q,)).fetchall()]
        yield from problems_of_queue(name, jobs, lanes)
        counts = {state: n for state, n in db.execute(sql["counts"], (q,)).fetchall() if n}
        if counts != dict(Counter(CODES[job.state] for job in jobs)):
            yield f"queue {name!r}: the counts {counts} are not those of the records"
        if jobs and db.execute(sql["queue"], (q,)).fetchone()[0] is None:
            yield f"queue {name!r} has jobs and no record"
        yield from _key_problems(name, jobs, now)
    yield from _edge_problems(db, sql, queues)


def _key_problems(queue: str, jobs: list[JobRecord], now: int) -> Iterator[str]:
    takers: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        takes = job.live or (job.state is JobState.SUCCEEDED and now < job.key_until)
        if job.unique_key is not None and takes:
            takers[job.task, job.unique_key] += 1
    for (task, key), count in takers.items():
        if count > 1:
            yield f"queue {queue!r}: key {key!r} of task {task!r} is taken {count} times"


def _edge_problems(db: sqlite3.Connection, sql: Mapping[str, str], queues: dict[str, list[JobRecord]]) -> Iterator[str]:
    jobs = {job.job_key: job for listed in queues.values() for job in listed}
    left: Counter[object] = Counter()
    for (body,) in db.execute(sql["all_edges"]).fetchall():
        edge = unpack_edge(body)
        if edge.parent not in jobs:
            yield f"an edge from {edge.parent}, which does not exist"
        child = jobs.get(edge.child)
        if child is not None and child.arrival == edge.arrival:
            left[edge.child] += 1
    for key, job in jobs.items():
        if job.hold & Hold.PARENTS and left[key] != job.parents_left:
            yield f"job {job.id!r} of queue {job.queue!r}: {job.parents_left} parents left, edges say {left[key]}"
