"""The audit of a database: every column, counter and edge is computed from the packed records and compared."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from holdfast.engines.audit import problems_of_queue
from holdfast.engines.sqlite.database import NO_NUMBER
from holdfast.engines.sqlite.rows import COLUMNS, STATE_NUMBERS, job_row, unpack_edge, unpack_job, unpack_lane
from holdfast.model.job import JobRecord
from holdfast.model.states import Hold, JobState


def problems_of_database(db: sqlite3.Connection, sql: Mapping[str, str], now: int) -> Iterator[str]:
    """Contradictions in the file, as lines of text. Damage is such a line, too, and never an error."""
    yield from _damage(_integrity_problems(db))
    queues: dict[str, list[JobRecord]] = {}
    yield from _damage(_row_problems(db, sql, queues))
    for name, jobs in queues.items():
        yield from _damage(_queue_problems(db, sql, name, jobs, now))
    yield from _damage(_edge_problems(db, sql, queues))


def _damage(problems: Iterator[str]) -> Iterator[str]:
    try:
        yield from problems
    except (sqlite3.DatabaseError, msgspec.DecodeError, UnicodeDecodeError) as error:
        yield f"a part of the file cannot be read: {error}"


def _integrity_problems(db: sqlite3.Connection) -> Iterator[str]:
    for (verdict,) in db.execute("PRAGMA integrity_check").fetchall():
        if verdict != "ok":
            yield f"SQLite's integrity check: {verdict}"


def _row_problems(db: sqlite3.Connection, sql: Mapping[str, str], queues: dict[str, list[JobRecord]]) -> Iterator[str]:
    """Fills `queues`."""
    queues.update({name: [] for (name,) in db.execute(sql["queue_names"]).fetchall()})
    for name, *values in db.execute(sql["all_jobs"]):
        columns = dict(zip(COLUMNS, values, strict=True))
        try:
            job = unpack_job(columns["body"])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            yield f"job {columns['id']!r} of queue {name!r}: its record cannot be decoded: {error}"
            continue
        queues.setdefault(name, []).append(job)
        expected = job_row(job, columns["q"], columns["t"])
        if job.queue != name or tuple(values[:-1]) != expected[:-1]:  # all but `body`
            yield f"job {job.id!r} of queue {name!r}: its columns do not match its record"


def _queue_problems(
    db: sqlite3.Connection, sql: Mapping[str, str], name: str, jobs: list[JobRecord], now: int
) -> Iterator[str]:
    (q,) = db.execute(sql["queue_number"], (name,)).fetchone() or (NO_NUMBER,)
    lanes = [unpack_lane(row[0]) for row in db.execute(sql["lanes"], (q,)).fetchall()]
    yield from problems_of_queue(name, jobs, lanes)
    counts = {state: n for state, n in db.execute(sql["counts"], (q,)).fetchall() if n}
    if counts != dict(Counter(STATE_NUMBERS[job.state] for job in jobs)):
        yield f"queue {name!r}: the counts {counts} do not match the records"
    (body,) = db.execute(sql["queue"], (q,)).fetchone() or (None,)
    if jobs and body is None:
        yield f"queue {name!r} has jobs but no record"
    yield from _key_problems(name, jobs, now)


def _key_problems(queue: str, jobs: list[JobRecord], now: int) -> Iterator[str]:
    holders: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        holds_key = job.live or (job.state is JobState.SUCCEEDED and now < job.key_until)
        if job.unique_key is not None and holds_key:
            holders[job.task, job.unique_key] += 1
    for (task, key), count in holders.items():
        if count > 1:
            yield f"queue {queue!r}: key {key!r} of task {task!r} is held by {count} jobs"


def _edge_problems(db: sqlite3.Connection, sql: Mapping[str, str], queues: dict[str, list[JobRecord]]) -> Iterator[str]:
    by_key = {job.job_key: job for jobs in queues.values() for job in jobs}
    edges_left: Counter[object] = Counter()
    for (body,) in db.execute(sql["all_edges"]).fetchall():
        edge = unpack_edge(body)
        if edge.parent not in by_key:
            yield f"an edge names the parent {edge.parent}, which does not exist"
        child = by_key.get(edge.child)
        if child is not None and child.arrival == edge.arrival:
            edges_left[edge.child] += 1
    for key, job in by_key.items():
        if job.hold & Hold.PARENTS and edges_left[key] != job.parents_left:
            yield (
                f"job {job.id!r} of queue {job.queue!r}: its record counts {job.parents_left} parents left, "
                f"its edges {edges_left[key]}"
            )
