"""Damaged rows: set aside one by one, with their bytes, so that everything around them goes on.

A row whose packed record cannot be read is noticed by whoever meets it. The transaction is given up, the row is
rescued in one of its own, and the work begins again. Its bytes are kept in a table beside; what its columns still say
makes a record that ends as `failed(undecodable)`: counted, listed among the dead letters, its lane freed.
"""

import logging
import sqlite3
from collections.abc import Mapping
from contextlib import suppress

from holdfast.engines.ledger import pools
from holdfast.engines.ledger.ends import finish
from holdfast.engines.ledger.step import Step
from holdfast.engines.sqlite.rows import STATES, DamagedRow, pack
from holdfast.engines.sqlite.state import SqliteState
from holdfast.model.instants import At
from holdfast.model.job import JobRecord
from holdfast.model.states import LIVE, Hold, JobState, Reason

log = logging.getLogger("holdfast")

NOTE = "its stored record was damaged; the bytes are kept"


def rescue(db: sqlite3.Connection, sql: Mapping[str, str], state: SqliteState, arrival: int, at: At) -> None:
    """Set one row aside, inside the caller's write transaction."""
    row = db.execute(sql["damaged_row"], (arrival,)).fetchone()
    if row is None:
        return  # another process was faster
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
