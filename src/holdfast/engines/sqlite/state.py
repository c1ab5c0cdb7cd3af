"""The ledger's `State` over a SQLite database.

Inside one write transaction the rules see the database only through this class. Jobs that were read or changed are
cached. Changed jobs are written in batches (`flush`), at the latest before the next question that an index answers. So
a hundred settlements and a hundred claims cost a few calls of `executemany`.

This is the general path: it reads everything again in every transaction. `FastState` adds the fast paths.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.engines.ledger.state import Name, Record, claim_of
from holdfast.engines.sqlite.audit import problems_of_database
from holdfast.engines.sqlite.database import Database
from holdfast.engines.sqlite.ready_jobs import ReadyJobs
from holdfast.engines.sqlite.rows import (
    MAX_INTEGER,
    NO_LIMIT,
    STATE_NUMBERS,
    STATES_BY_NUMBER,
    BrokenLane,
    job_row,
    pack,
    read_job,
    unpack_edge,
    unpack_lane,
    unpack_queue,
)
from holdfast.model.job import JobRecord
from holdfast.model.records import Edge, LaneRecord, PoolRecord, QueueRecord, WorkerRecord
from holdfast.model.states import LIVE, JobState

NEWEST = {
    JobState.QUEUED: "newest_queued",
    JobState.FAILED: "newest_dead",
    JobState.CANCELLED: "newest_dead",
}
"""The statement that lists the jobs of a state, for states that an index serves."""
DENSE_FROM = 10_000
"""Queued jobs of a queue from which it is worth while to ask whether to read them from the table: see `_newest_of`."""
ROW_COST = 4
"""Reading a row of the table takes as long as sorting this many entries of an index (measured)."""
JobChange = tuple[JobRecord, JobRecord]
"""A stored job, before and after."""


class SqliteState(ReadyJobs):
    """The `State` of one connection."""

    trusts_fresh_ids = False
    """True if `job_of_fresh_id` does not read the database: see `fast_fresh_ids.py`."""

    def __init__(self, connection: sqlite3.Connection, sql: Mapping[str, str]) -> None:
        super().__init__()
        self.db = Database(connection, sql)
        self._dirty: dict[Name, JobRecord | None] = {}
        """Changed jobs that are not written yet, with the record that the database has."""
        self._queues: dict[str, QueueRecord | None] = {}
        self._has_edges: bool | None = None
        self._complete_lanes: set[Name] = set()
        """Lanes whose head was found, or written, in this transaction."""
        self._last_checked_lane = (0, "")
        """Where `check_lanes` continues."""
        self.checks_lanes = True
        """True if reading a lane checks that its head exists. False during a repair."""
        self.arrival = 0
        """The last arrival number in use: read when a transaction begins, written when it ends."""

    # Begin, roll back and end a transaction

    def begin(self) -> None:
        """Called when a write transaction has begun: another connection may have written since the last one."""
        self.clear_cache()
        self.begun = []

    def after_commit(self) -> None:
        self.clear_cache()

    def clear_cache(self) -> None:
        """Drop all that a rollback undoes, and all that another connection may change, such as the numbers of names."""
        self._jobs = {}
        self._dirty = {}
        self._queues = {}
        self._moves = {}
        self._next_due = {}
        self._has_edges = None
        self._unfinished = None
        self._complete_lanes.clear()
        self.db.written = False
        self.db.forget_numbers()

    def flush(self) -> None:
        """Write the changed jobs."""
        if not self._dirty:
            return
        adds: list[Any] = []
        drops: list[Any] = []
        changes: list[JobChange] = []
        for name, old in self._dirty.items():
            new = self._jobs[name]
            if new is None:
                if old is not None:
                    drops.append((old.arrival,))
            elif old is None:
                adds.append(self._row(new))
            else:
                changes.append((old, new))
        self._dirty.clear()
        self.db.many("drop_job", drops)
        self._update_jobs(changes)
        self.db.many("add_job", adds)

    def _update_jobs(self, changes: list[JobChange]) -> None:
        updates = []
        for old, new in changes:
            arrival, _, _, *values = self._row(new)  # all but `ID_COLUMNS`
            updates.append((arrival, *values, old.arrival))
        self.db.many("update_job", updates)

    def count_moves(self, queue: str, before: JobState | None, after: JobState, count: int = 1) -> None:
        """Count rows that were moved from one state to another without `swap_job`."""
        move = (queue, before, after)
        self._moves[move] = self._moves.get(move, 0) + count

    def finish(self) -> None:
        """Write the changed jobs and counts: at the end of the transaction, and before a queue is removed."""
        self.flush()
        self._write_counts()

    def _row(self, job: JobRecord) -> tuple[Any, ...]:
        return job_row(job, self.db.add_queue_number(job.queue), self.db.add_task_number(job.task))

    # Changing

    def swap_job(self, before: JobRecord | None, after: JobRecord | None) -> None:
        job = after if after is not None else before
        assert job is not None
        name = (job.queue, job.id)
        if name not in self._dirty:
            self._dirty[name] = before
        self._jobs[name] = after
        move = (job.queue, None if before is None else before.state, None if after is None else after.state)
        self._moves[move] = self._moves.get(move, 0) + 1

    def swap(self, record: Record, *, there: bool) -> None:
        match record:
            case QueueRecord() if there:
                self._queues[record.queue] = record
                self.db.write("put_queue", pack(record), self.db.add_queue_number(record.queue))
            case QueueRecord():
                self.finish()  # a rule removes a queue without jobs: its counts are 0 now
                self._queues[record.queue] = None
                self.db.drop_queue_number(record.queue)
            case LaneRecord():
                self._swap_lane(record, there=there)
            case Edge():
                self._swap_edge(record, there=there)
            case PoolRecord():
                self._swap_small("pool", record.name, record, there=there)
            case WorkerRecord():
                self._swap_small("worker", record.worker, record, there=there)

    def _swap_lane(self, lane: LaneRecord, *, there: bool) -> None:
        q = self.db.add_queue_number(lane.queue)
        self._complete_lanes.add((lane.queue, lane.lane))
        if there:
            idle = lane.emptied if lane.depth == 0 and not lane.paused else None
            self.db.write("put_lane", q, lane.lane, idle, pack(lane))
        else:
            self.db.write("drop_lane", q, lane.lane)

    def _swap_edge(self, edge: Edge, *, there: bool) -> None:
        self._has_edges = None
        names = (
            self.db.add_queue_number(edge.parent.queue),
            edge.parent.id,
            self.db.add_queue_number(edge.child.queue),
            edge.child.id,
        )
        if there:
            self.db.write("put_edge", *names, pack(edge))
        else:
            self.db.write("drop_edge", *names)

    def new_arrival(self, queue: str) -> int:
        self.arrival += 1
        return self.arrival

    # Jobs

    def _read(self, rows: Iterable[Any]) -> list[JobRecord]:
        """Decode rows (arrival, …, body) and put the records into the cache."""
        jobs = []
        for row in rows:
            job = read_job(row)
            self._jobs[job.queue, job.id] = job
            jobs.append(job)
        return jobs

    def _first(self, rows: list[Any]) -> JobRecord | None:
        return next(iter(self._read(rows)), None)

    def job(self, queue: str, job_id: str) -> JobRecord | None:
        name = (queue, job_id)
        if name in self._jobs:
            return self._jobs[name]
        row = self.db.one("job", self.db.queue_number(queue), job_id)
        self._jobs[name] = job = None if row is None else read_job(row)
        return job

    def key_taker(self, queue: str, task: str, unique_key: str) -> JobRecord | None:
        self.flush()
        return self._first(
            self.db.rows("key_taker", self.db.queue_number(queue), self.db.task_number(task), unique_key)
        )

    def newest(self, queue: str, state: JobState, below: int | None, limit: int) -> list[JobRecord]:
        self.flush()
        statement, number = self._newest_of(queue, state, limit), STATE_NUMBERS[state]
        bound = MAX_INTEGER if below is None else below
        return self._read(self.db.rows(statement, self.db.queue_number(queue), number, bound, limit))

    def _newest_of(self, queue: str, state: JobState, limit: int) -> str:
        """The statement for a page of jobs. The one for queued jobs sorts them all, for each page: if they are a large
        part of the table, reading the table backwards meets a page of them sooner."""
        if state is JobState.QUEUED and (queued := self._counts(queue)[state]) >= DENSE_FROM:
            (first, last) = self.db.one("arrivals") or (0, 0)
            rows_per_queued_job = max(1, (last - first) / queued)
            if limit * rows_per_queued_job * ROW_COST < queued:
                return "newest"
        return NEWEST.get(state, "newest")

    def expiring(self, now: int, limit: int) -> list[JobRecord]:
        self.flush()
        return self._read(self.db.rows("expiring", now, limit))

    def ended(self, now: int, limit: int) -> list[JobRecord]:
        self.flush()
        return self._read(self.db.rows("ended", now, limit))

    # Leases

    def held_by(self, claim_id: str) -> list[JobRecord]:
        self.flush()
        jobs = self._read(self.db.rows("held_by", claim_id, claim_id))
        # The range also contains tokens of other claims whose ids begin with this id and a dot.
        return [job for job in jobs if job.token is not None and claim_of(job.token) == claim_id]

    def leases_until(self, instant: int) -> list[JobRecord]:
        self.flush()
        return self._read(self.db.rows("leases", instant))

    def leases_of(self, workers: Iterable[str]) -> list[JobRecord]:
        owners = set(workers)
        return [job for job in self.leases_until(MAX_INTEGER) if job.owner in owners]

    # Queues and lanes

    def queue(self, name: str) -> QueueRecord | None:
        if name not in self._queues:
            row = self.db.one("queue", self.db.queue_number(name))
            self._queues[name] = None if row is None or row[0] is None else unpack_queue(row[0])
        return self._queues[name]

    def queues(self) -> list[QueueRecord]:
        return [unpack_queue(row[0]) for row in self.db.rows("queues")]

    def depth(self, queue: str) -> int:
        return sum(n for state, n in self._counts(queue).items() if state in LIVE)

    def counts(self, queue: str) -> Mapping[JobState, int]:
        return {state: n for state, n in self._counts(queue).items() if n}

    def _counts(self, queue: str) -> Counter[JobState]:
        rows = self.db.rows("counts", self.db.queue_number(queue))
        # A row with another number is damaged. Its count is then missing, and the check of the ready index notices.
        counts = Counter({STATES_BY_NUMBER[number]: n for number, n in rows if number in STATES_BY_NUMBER})
        for (changed_queue, state), change in self._count_changes().items():
            if changed_queue == queue:
                counts[state] += change
        return counts

    def lane(self, queue: str, lane: str) -> LaneRecord | None:
        row = self.db.one("lane", self.db.queue_number(queue), lane)
        return None if row is None else self._with_checked_head(unpack_lane(row[0]))

    def _with_checked_head(self, lane: LaneRecord) -> LaneRecord:
        """The lane, if its head exists. Without a head no job of the lane would ever be claimed."""
        name = (lane.queue, lane.lane)
        if lane.head is not None and self.checks_lanes and name not in self._complete_lanes:
            if not self.has_job(lane.queue, lane.head):
                raise BrokenLane(*name)
            self._complete_lanes.add(name)
        return lane

    def has_job(self, queue: str, job_id: str) -> bool:
        """True if the row exists. Its record is not read."""
        name = (queue, job_id)
        if name in self._jobs:
            return self._jobs[name] is not None
        return self.db.one("has_job", self.db.queue_number(queue), job_id) is not None

    def check_lanes(self, limit: int) -> None:
        """Check the heads of the next `limit` lanes; every call continues where the last one stopped."""
        # PR3: the next ones after the last call.
        rows = self.db.rows("next_lanes", *self._last_checked_lane, limit)
        for *_, body in rows:
            self._with_checked_head(unpack_lane(body))
        self._last_checked_lane = rows[-1][:2] if len(rows) == limit else (0, "")

    def lanes(self, queue: str) -> list[LaneRecord]:
        return [unpack_lane(row[0]) for row in self.db.rows("lanes", self.db.queue_number(queue))]

    def next_in_lane(self, queue: str, lane: str) -> JobRecord | None:
        self.flush()
        following = self._first(self.db.rows("next_in_lane", self.db.queue_number(queue), lane))
        if following is None:  # the rules ask only if the lane's depth counts a waiting job
            raise BrokenLane(queue, lane)
        return following

    def earliest_in_lane(self, queue: str, lane: str) -> JobRecord | None:
        self.flush()
        return self._first(self.db.rows("earliest_in_lane", self.db.queue_number(queue), lane))

    def idle_lanes(self, emptied_before: int) -> list[LaneRecord]:
        return [unpack_lane(row[0]) for row in self.db.rows("idle_lanes", emptied_before)]

    # Edges

    def _any_edge(self) -> bool:
        if self._has_edges is None:
            self._has_edges = self.db.one("any_edge") is not None
        return self._has_edges

    def children(self, queue: str, job_id: str, limit: int | None = None) -> list[Edge]:
        if not self._any_edge():
            return []
        rows = self.db.rows("children", self.db.queue_number(queue), job_id, NO_LIMIT if limit is None else limit)
        return [unpack_edge(row[0]) for row in rows]

    def ended_parents(self) -> Name | None:
        if not self._any_edge():
            return None
        self.flush()
        return self.db.one("ended_parent")

    def problems(self, now: int) -> Iterator[str]:
        self.flush()
        return problems_of_database(self.db.connection, self.db.sql, now)
