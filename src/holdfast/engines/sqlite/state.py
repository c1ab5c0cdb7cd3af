"""The questions of the rules, answered by SQLite.

Inside one write transaction this is the only view of the database. Jobs that were read or changed are kept in a
cache; changes gather there and are written in batches, at the latest before the next question whose answer depends
on an index. So a batch of a hundred settlements and a hundred claims is a few calls of `executemany`.

Between two transactions other connections may have written; SQLite's `data_version` tells. If nobody has, the
leased jobs are still known, and settling them needs no reading.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.engines.ledger.state import Name, Record, claim_of
from holdfast.engines.sqlite.audit import problems_of_database
from holdfast.engines.sqlite.chores import Chores
from holdfast.engines.sqlite.database import Database
from holdfast.engines.sqlite.rows import (
    CODES,
    STATES,
    BrokenLane,
    move_of,
    pack,
    row_of,
    same_order,
    unpack_edge,
    unpack_lane,
    unpack_queue,
    unpacked,
)
from holdfast.model.instants import FOREVER
from holdfast.model.job import JobRecord
from holdfast.model.records import Edge, LaneRecord, PoolRecord, QueueRecord, ScheduleRecord, WorkerRecord
from holdfast.model.states import LIVE, JobState

MOST_READ = 256
ALL = 2**63 - 1
"""Above every instant."""
NEWEST = {
    JobState.QUEUED: "newest_queued",
    JobState.FAILED: "newest_dead",
    JobState.CANCELLED: "newest_dead",
}
"""The statement that lists the jobs of a state, where it has an index of its own."""


class SqliteState(Chores):
    """A connection, seen as the rules' state."""

    def __init__(self, connection: sqlite3.Connection, sql: Mapping[str, str]) -> None:
        super().__init__()
        self.db = Database(connection, sql)
        self._jobs: dict[Name, JobRecord | None] = {}
        self._dirty: dict[Name, JobRecord | None] = {}
        """Changed jobs, with the record that the database still has."""
        self._queues: dict[str, QueueRecord | None] = {}
        self._moved: dict[tuple[str, JobState], int] = {}
        self._edges: bool | None = None
        self._sound: set[Name] = set()
        """Lanes whose head was found there, or put there, in this transaction."""
        self._looked_at = (0, "")
        """The last lane that `look_at_lanes` has seen."""
        self._version = -1
        self.trusting = True
        """Whether ids that are said to be new are taken to be so."""
        self.watching = True
        """Whether lanes are looked at as they are read. Not while what they miss is being set aside."""
        self.arrival = 0
        """The last one given out; set when a transaction begins, written when it ends."""

    # The life of a transaction

    def begin(self) -> None:
        """Keep what was known if nobody else has written since; else only the numbers of names."""
        self._sound.clear()
        self.begun = []
        version = self.db.version()
        if version != self._version:
            self.forget()
            self._version = version

    def settle_down(self) -> None:
        """After a commit: leased jobs are likely to be asked for again, the rest is not."""
        self._jobs = {name: job for name, job in self._jobs.items() if job is not None and job.token is not None}
        self.db.written = False

    def forget(self, *, numbers: bool = False) -> None:
        """Drop everything that may have changed; after a rollback also the numbers of names."""
        self._jobs = {}
        self._dirty = {}
        self._queues = {}
        self._moved = {}
        self._edges = None
        self._chores = None
        self._sound.clear()
        self._version = -1
        self.db.written = False
        if numbers:
            self.db.forget_numbers()

    def flush(self) -> None:
        """Write the changed jobs."""
        if not self._dirty:
            return
        adds, moves, changes, drops = [], [], [], []
        for name, old in self._dirty.items():
            new = self._jobs[name]
            if new is None:
                if old is not None:
                    drops.append((old.arrival,))
            elif old is None:
                adds.append(self._row(new))
            elif same_order(old, new):
                moves.append(move_of(new))
            else:
                arrival, _, _, *rest = self._row(new)
                changes.append((arrival, *rest, old.arrival))
        self._dirty.clear()
        self.db.many("drop_job", drops)
        self.db.many("change_job", changes)
        self.db.many("move_job", moves)
        self.db.many("add_job", adds)

    def recount(self, queue: str, was: JobState, now: JobState) -> None:
        """A row was changed behind the rules' back: from a state that nobody can read any more to this one."""
        for state, step in ((was, -1), (now, 1)):
            self._moved[queue, state] = self._moved.get((queue, state), 0) + step

    def finish(self) -> None:
        """Write what is left, at the end of the transaction."""
        self.flush()
        moved = [(self.db.queue_number(queue), CODES[state], n) for (queue, state), n in self._moved.items() if n]
        self.db.many("count", moved)
        self._moved.clear()

    def _row(self, job: JobRecord) -> tuple[Any, ...]:
        return row_of(job, self.db.queue_number(job.queue), self.db.task_number(job.task))

    # Changing

    def swap_job(self, before: JobRecord | None, after: JobRecord | None) -> None:
        job = after if after is not None else before
        assert job is not None
        name = (job.queue, job.id)
        if name not in self._dirty:
            self._dirty[name] = before
        self._jobs[name] = after
        moved = self._moved
        if before is not None:
            move = (job.queue, before.state)
            moved[move] = moved.get(move, 0) - 1
        if after is not None:
            move = (job.queue, after.state)
            moved[move] = moved.get(move, 0) + 1

    def swap(self, record: Record, *, there: bool) -> None:
        match record:
            case QueueRecord():
                self._queues[record.queue] = record if there else None
                self.db.write("put_queue", pack(record) if there else None, self.db.queue_number(record.queue))
            case LaneRecord():
                self._swap_lane(record, there=there)
            case Edge():
                self._swap_edge(record, there=there)
            case PoolRecord():
                self._swap_thing("pool", record.name, record, there=there)
            case WorkerRecord():
                self._swap_thing("worker", record.worker, record, there=there)
            case ScheduleRecord():
                self._swap_thing("schedule", record.name, record, there=there)

    def _swap_lane(self, lane: LaneRecord, *, there: bool) -> None:
        q = self.db.queue_number(lane.queue)
        self._sound.add((lane.queue, lane.lane))
        if there:
            idle = lane.emptied if lane.depth == 0 and not lane.paused else None
            self.db.write("put_lane", q, lane.lane, idle, pack(lane))
        else:
            self.db.write("drop_lane", q, lane.lane)

    def _swap_edge(self, edge: Edge, *, there: bool) -> None:
        self._edges = None
        names = (
            self.db.queue_number(edge.parent.queue),
            edge.parent.id,
            self.db.queue_number(edge.child.queue),
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
        """Records of rows (…, body), which become part of the cache."""
        jobs = []
        for row in rows:
            job = unpacked(row)
            self._jobs[job.queue, job.id] = job
            jobs.append(job)
        return jobs

    def _first(self, rows: list[Any]) -> JobRecord | None:
        return next(iter(self._read(rows)), None)

    def job(self, queue: str, job_id: str) -> JobRecord | None:
        name = (queue, job_id)
        if name in self._jobs:
            return self._jobs[name]
        row = self.db.one("job", self.db.known_queue(queue), job_id)
        self._jobs[name] = job = None if row is None else unpacked(row)
        return job

    def job_of_fresh_id(self, queue: str, job_id: str) -> JobRecord | None:
        # Only this transaction could have it; the unique index watches over the rest.
        return self._jobs.get((queue, job_id)) if self.trusting else self.job(queue, job_id)

    def key_taker(self, queue: str, task: str, unique_key: str) -> JobRecord | None:
        self.flush()
        return self._first(self.db.rows("key_taker", self.db.known_queue(queue), self.db.known_task(task), unique_key))

    def ready(self, queue: str, task: str, about: int) -> Iterator[JobRecord]:
        self.flush()
        cleared = self.being_cleared(queue)
        if None in cleared:
            return
        q, t = self.db.known_queue(queue), self.db.known_task(task)
        after = (-FOREVER, 0, 0)
        count = min(about, MOST_READ)
        while True:
            rows = self.db.rows("ready", q, t, *after, count)
            yield from (job for job in self._read(rows) if job.lane is None or job.lane not in cleared)
            if len(rows) < count:
                return
            arrival, rank, due, _ = rows[-1]
            after = (rank, due, arrival)

    def due(self, queue: str, now: int, limit: int) -> Iterator[JobRecord]:
        self.flush()
        return iter(self._read(self.db.rows("due", self.db.known_queue(queue), now, limit)))

    def next_due(self, queue: str) -> int | None:
        self.flush()
        row = self.db.one("next_due", self.db.known_queue(queue))
        return None if row is None else row[0]

    def newest(self, queue: str, state: JobState, below: int | None, limit: int) -> list[JobRecord]:
        self.flush()
        most = FOREVER if below is None else below
        return self._read(
            self.db.rows(NEWEST.get(state, "newest"), self.db.known_queue(queue), CODES[state], most, limit)
        )

    def expiring(self, now: int, limit: int) -> list[JobRecord]:
        self.flush()
        return self._read(self.db.rows("expiring", now, limit))

    def ended(self, now: int, limit: int) -> list[JobRecord]:
        self.flush()
        return self._read(self.db.rows("ended", now, limit))

    # Leases

    def held_by(self, claim_id: str) -> list[JobRecord]:
        self.flush()
        # A claim id with a dot in it may look like another one's token.
        held = self._read(self.db.rows("held_by", claim_id, claim_id))
        return [job for job in held if job.token is not None and claim_of(job.token) == claim_id]

    def leases_until(self, instant: int) -> list[JobRecord]:
        self.flush()
        return self._read(self.db.rows("leases", instant))

    def leases_of(self, workers: Iterable[str]) -> list[JobRecord]:
        named = set(workers)
        return [job for job in self.leases_until(ALL) if job.owner in named]

    # Queues and lanes

    def queue(self, name: str) -> QueueRecord | None:
        if name not in self._queues:
            row = self.db.one("queue", self.db.known_queue(name))
            self._queues[name] = None if row is None or row[0] is None else unpack_queue(row[0])
        return self._queues[name]

    def queues(self) -> list[QueueRecord]:
        return [unpack_queue(row[0]) for row in self.db.rows("queues")]

    def depth(self, queue: str) -> int:
        return sum(n for state, n in self._counts(queue).items() if state in LIVE)

    def counts(self, queue: str) -> Mapping[JobState, int]:
        return {state: n for state, n in self._counts(queue).items() if n}

    def _counts(self, queue: str) -> Counter[JobState]:
        rows = self.db.rows("counts", self.db.known_queue(queue))
        counts = Counter({STATES[code]: n for code, n in rows})
        for (moved_queue, state), n in self._moved.items():
            if moved_queue == queue:
                counts[state] += n
        return counts

    def oldest_ready(self, queue: str) -> int | None:
        self.flush()
        q, t = self.db.known_queue(queue), 0
        dues = []
        while (row := self.db.one("next_ready_task", q, t)) is not None:
            t = row[0]
            dues.append(self.db.rows("oldest_ready", q, t)[0][0])
        return min(dues, default=None)

    def count_due(self, queue: str, now: int) -> tuple[int, int | None]:
        self.flush()
        row = self.db.one("count_due", self.db.known_queue(queue), now)
        return (0, None) if row is None else (row[0], row[1])

    def lane(self, queue: str, lane: str) -> LaneRecord | None:
        row = self.db.one("lane", self.db.known_queue(queue), lane)
        return None if row is None else self._with_head(unpack_lane(row[0]))

    def _with_head(self, lane: LaneRecord) -> LaneRecord:
        """The lane, if its head is there: without one it would stand still for ever."""
        name = (lane.queue, lane.lane)
        if lane.head is not None and self.watching and name not in self._sound:
            if not self.has_job(lane.queue, lane.head):
                raise BrokenLane(*name)
            self._sound.add(name)
        return lane

    def has_job(self, queue: str, job_id: str) -> bool:
        """Whether there is such a row; its record is not read."""
        name = (queue, job_id)
        if name in self._jobs:
            return self._jobs[name] is not None
        return self.db.one("has_job", self.db.known_queue(queue), job_id) is not None

    def look_at_lanes(self, limit: int) -> None:
        """Look whether the heads of so many lanes are there; of the next ones, each time it is called."""
        # PR3: the next ones after the last call.
        rows = self.db.rows("next_lanes", *self._looked_at, limit)
        for *_, body in rows:
            self._with_head(unpack_lane(body))
        self._looked_at = rows[-1][:2] if len(rows) == limit else (0, "")

    def lanes(self, queue: str) -> list[LaneRecord]:
        return [unpack_lane(row[0]) for row in self.db.rows("lanes", self.db.known_queue(queue))]

    def next_in_lane(self, queue: str, lane: str) -> JobRecord | None:
        self.flush()
        following = self._first(self.db.rows("next_in_lane", self.db.known_queue(queue), lane))
        if following is None:  # only a lane whose depth says that there is one is asked for it
            raise BrokenLane(queue, lane)
        return following

    def earliest_in_lane(self, queue: str, lane: str) -> JobRecord | None:
        self.flush()
        return self._first(self.db.rows("earliest_in_lane", self.db.known_queue(queue), lane))

    def idle_lanes(self, emptied_before: int) -> list[LaneRecord]:
        return [unpack_lane(row[0]) for row in self.db.rows("idle_lanes", emptied_before)]

    # Edges

    def _any_edge(self) -> bool:
        if self._edges is None:
            self._edges = self.db.one("any_edge") is not None
        return self._edges

    def children(self, queue: str, job_id: str, limit: int | None = None) -> list[Edge]:
        if not self._any_edge():
            return []
        rows = self.db.rows("children", self.db.known_queue(queue), job_id, -1 if limit is None else limit)
        return [unpack_edge(row[0]) for row in rows]

    def ended_parents(self) -> Name | None:
        if not self._any_edge():
            return None
        self.flush()
        return self.db.one("ended_parent")

    def problems(self, now: int) -> Iterator[str]:
        self.flush()
        return problems_of_database(self.db.connection, self.db.sql, now)
