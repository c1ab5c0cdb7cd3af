"""Damaged and missing rows: set aside one by one, so that everything around them goes on.

A row whose packed record cannot be read is noticed by whoever meets it. The transaction is given up, the row is
rescued in one of its own, and the work begins again. Its bytes are kept in a table beside; what its columns still say
makes a record that ends as `failed(undecodable)`: counted, listed among the dead letters, its lane freed.

A row that somebody has deleted by hand is missed by its lane: when the lane is used and its head is not there, when it
counts one more but none waits, and when a prune comes round to it. A missing head ends as `failed(undecodable)`, too;
those that waited are only counted as failed, since nobody knows their names. The queue's counts are made anew.
"""

import logging
import sqlite3
from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace

from holdfast.engines.ledger import pools
from holdfast.engines.ledger.ends import finish
from holdfast.engines.ledger.step import Step
from holdfast.engines.sqlite.rows import STATES, DamagedRow, pack, unpack_lane
from holdfast.engines.sqlite.state import SqliteState
from holdfast.model.instants import At
from holdfast.model.job import JobRecord
from holdfast.model.states import LIVE, Hold, JobState, Reason

log = logging.getLogger("holdfast")

NOTE = "its stored record was damaged; the bytes are kept"
MISSING = "its stored record is missing"


def rescue(db: sqlite3.Connection, sql: Mapping[str, str], state: SqliteState, arrival: int, at: At) -> bool:
    """Set one row aside, inside the caller's write transaction. False: another process was faster."""
    row = db.execute(sql["damaged_row"], (arrival,)).fetchone()
    if row is None:
        return False
    queue, job_id, task, code, rank, due, lane, unique_key, body = row
    db.execute(sql["keep_damaged"], (arrival, queue, job_id, at.wall, body))
    was = STATES[code]
    held = lane is not None
    if not held and was in LIVE:
        lane = next((record.lane for record in state.lanes(queue) if record.head == job_id), None)
    # As if it ran without a lease: from there a job may fail. The counters learn of that step, too.
    job = JobRecord(
        queue=queue,
        id=job_id,
        task=task,
        arrival=arrival,
        priority=-rank,
        created=due,
        due=due,
        lane=lane,
        unique_key=unique_key,
        state=JobState.RUNNING,
        hold=Hold.LANE if held else Hold.NONE,
    )
    db.execute(sql["mend_row"], (pack(job), arrival))
    state.recount(queue, was, JobState.RUNNING)
    step = Step(state, at)
    if was in LIVE:
        finish(step, job, JobState.FAILED, Reason.UNDECODABLE, note=NOTE)
        with suppress(DamagedRow):  # another one: its own rescue counts again
            pools.recount(step, queue)
    else:  # it had ended: only its report is lost
        step.drop_job(job)
    step.close()
    log.error("Job %s (%s) of queue %s: %s.", job_id, task, queue, NOTE)
    return True


def mend_lane(state: SqliteState, queue: str, name: str, at: At) -> bool:
    """Let a lane go on that misses jobs, inside the caller's write transaction. False: it misses none (any more)."""
    q = state.db.known_queue(queue)
    row = state.db.one("lane", q, name)
    lane = None if row is None else unpack_lane(row[0])
    if lane is None or lane.head is None:
        return False
    headless = not state.has_job(queue, lane.head)
    depth = 1 + state.db.rows("count_waiting", q, name)[0][0]
    lost = max(0, lane.depth - depth)
    if not headless and not lost:
        return False
    _recount(state, queue)
    step = Step(state, at)
    step.put(lane, replace(lane, depth=depth, totals=lane.totals.plus(JobState.FAILED, lost)))
    if headless:
        job = JobRecord(
            queue=queue,
            id=lane.head,
            task="",
            arrival=state.new_arrival(queue),
            created=at.wall,
            due=at.wall,
            lane=name,
            state=JobState.RUNNING,
        )
        state.swap_job(None, job)
        finish(step, job, JobState.FAILED, Reason.UNDECODABLE, note=MISSING)
        state.db.write("keep_damaged", job.arrival, queue, job.id, at.wall, None)
        log.error("Job %s of queue %s, the head of lane %s: %s.", job.id, queue, name, MISSING)
    if lost:
        step.count_end(queue, JobState.FAILED, lost)
        log.error("Lane %s of queue %s: %s jobs that waited are missing from the store.", name, queue, lost)
    with suppress(DamagedRow):
        pools.recount(step, queue)
    step.close()
    return True


def _recount(state: SqliteState, queue: str) -> None:
    """Count the jobs of a queue by their states anew, at the beginning of a transaction."""
    q = state.db.known_queue(queue)
    there, known = dict(state.db.rows("count_states", q)), dict(state.db.rows("counts", q))
    state.db.many("count", [(q, code, there.get(code, 0) - known.get(code, 0)) for code in {*there, *known}])
