"""Damaged and missing rows: repaired one by one, so that all other jobs go on.

**A damaged row.** A transaction that reads a row whose packed record cannot be decoded is rolled back. The writer then
repairs the row in a transaction of its own and runs the commands again. The bytes of the record are kept in the table
`damaged`. The columns of the row make a new record, which ends as `failed(undecodable)`: it is counted, it is listed
among the dead letters, and its lane goes on.

**A missing row.** A row that was deleted by hand leaves its lane incomplete. The engine notices when it uses the lane
and its head does not exist, when the lane counts a waiting job and none is found, and when a prune checks the lane. A
missing head ends as `failed(undecodable)`, too. Missing jobs behind the head are only counted as failed, because their
ids are not stored anywhere else. The queue's counts are computed again.

**A damaged index.** An entry of the index of ready jobs that is out of order hides the entries behind it: their jobs
would wait for ever, without an error. The engine notices when it claims a job whose entry does not match its record,
and when a prune checks the order and the number of the entries. SQLite itself notices an entry that is missing when its
row changes. All indexes of jobs are then made again.
"""

import logging
import sqlite3
from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace

from holdfast.engines.ledger import pools
from holdfast.engines.ledger.ends import finish
from holdfast.engines.ledger.step import Step
from holdfast.engines.sqlite.rows import STATES_BY_NUMBER, DamagedRow, pack_job, unpack_lane
from holdfast.engines.sqlite.state import SqliteState
from holdfast.model.instants import At
from holdfast.model.job import JobRecord
from holdfast.model.states import LIVE, Hold, JobState, Reason
from holdfast.model.text import shown

log = logging.getLogger("holdfast")

DAMAGED_NOTE = "its stored record was damaged; the bytes are kept"
MISSING_NOTE = "its stored record is missing"
CHECK = "Other parts of the file may be damaged, too: see the guide to SQLite, Recover a damaged file."


def repair_row(db: sqlite3.Connection, sql: Mapping[str, str], state: SqliteState, arrival: int, at: At) -> bool:
    """Repair one row, inside the caller's write transaction. False: another process has repaired it."""
    row = db.execute(sql["damaged_row"], (arrival,)).fetchone()
    if row is None:
        return False
    queue, job_id, task, state_number, rank, due, lane, unique_key, body = row
    db.execute(sql["keep_damaged"], (arrival, queue, job_id, at.wall, body))
    before = STATES_BY_NUMBER[state_number]
    waits_behind_head = lane is not None
    if not waits_behind_head and before in LIVE:
        lane = next((record.lane for record in state.lanes(queue) if record.head == job_id), None)
    # The record is running without a lease, because a running job may fail. The counters follow that step, too.
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
        hold=Hold.LANE if waits_behind_head else Hold.NONE,
    )
    db.execute(sql["repair_row"], (pack_job(job), arrival))
    state.count_moves(queue, before, JobState.RUNNING)
    step = Step(state, at)
    if before in LIVE:
        finish(step, job, JobState.FAILED, Reason.UNDECODABLE, note=DAMAGED_NOTE)
        with suppress(DamagedRow):  # another row of the pool is damaged: its own repair counts again
            pools.recount(step, queue)
    else:  # it had ended: only its report is lost
        step.drop_job(job)
    step.close()
    log.error("Job %s (%s) of queue %s: %s.", shown(job_id), shown(task), shown(queue), DAMAGED_NOTE)
    return True


def repair_lane(state: SqliteState, queue: str, name: str, at: At) -> bool:
    """Let an incomplete lane go on, inside the caller's write transaction. False: no job of it is missing."""
    q = state.db.queue_number(queue)
    row = state.db.one("lane", q, name)
    lane = None if row is None else unpack_lane(row[0])
    if lane is None or lane.head is None:
        return False
    head_is_missing = not state.has_job(queue, lane.head)
    depth = 1 + state.db.rows("count_waiting", q, name)[0][0]
    missing = max(0, lane.depth - depth)
    if not head_is_missing and not missing:
        return False
    _recount(state, queue)
    step = Step(state, at)
    step.put(lane, replace(lane, depth=depth, totals=lane.totals.plus(JobState.FAILED, missing)))
    if head_is_missing:
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
        finish(step, job, JobState.FAILED, Reason.UNDECODABLE, note=MISSING_NOTE)
        state.db.write("keep_damaged", job.arrival, queue, job.id, at.wall, None)
        log.error("Job %s of queue %s, the head of lane %s: %s.", shown(job.id), shown(queue), name, MISSING_NOTE)
    if missing:
        step.count_end(queue, JobState.FAILED, missing)
        log.error("Lane %s of queue %s: %s waiting jobs are missing from the store.", name, shown(queue), missing)
    with suppress(DamagedRow):
        pools.recount(step, queue)
    step.close()
    return True


def repair_index(state: SqliteState, queue: str) -> bool:
    """Make the indexes of jobs again from the rows, and count the jobs, inside the caller's write transaction."""
    state.db.write("reindex_jobs")
    if queue:
        _recount(state, queue)
    log.error("An index of the jobs%s was damaged and was made again. %s", f" of queue {queue}" if queue else "", CHECK)
    return True


def _recount(state: SqliteState, queue: str) -> None:
    """Compute the counts of a queue again from its rows, at the beginning of a transaction."""
    q = state.db.queue_number(queue)
    actual, stored = dict(state.db.rows("count_states", q)), dict(state.db.rows("counts", q))
    state.db.many("count", [(q, code, actual.get(code, 0) - stored.get(code, 0)) for code in {*actual, *stored}])
