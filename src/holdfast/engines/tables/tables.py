"""The state in plain Python: records in dictionaries, and indexes that follow from them.

`_leave` removes a job from the indexes of its old record, `_enter` adds it to those of its new one. No rule touches an
index directly, so records and indexes stay equal; `audit.py` builds the indexes again and compares.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from holdfast.engines.ledger.state import Name, Record, State, claim_of
from holdfast.engines.tables.heap import LazyHeap
from holdfast.engines.tables.indexes import ABOVE_ALL, LAST, ByTime, Ended, InLane, LaneTables, QueueTables, Ready
from holdfast.model.job import JobRecord
from holdfast.model.records import Edge, LaneRecord, PoolRecord, QueueRecord, WorkerRecord
from holdfast.model.states import BY_DUE, LIVE, TERMINAL, WAITING, Hold, JobState

QUEUED = JobState.QUEUED
FREE = Hold.NONE


class Tables(State):
    """All records of an engine."""

    def __init__(self) -> None:
        self._queues: dict[str, QueueTables] = {}
        self._leases: dict[Name, JobRecord] = {}
        """Every leased job. All of them are visited to find expired ones: there are as many as slots, not as jobs."""
        self._claims: dict[str, dict[Name, None]] = {}
        """Claim id → the jobs that it still holds."""
        self._ended: LazyHeap[Ended] = LazyHeap(self._is_ended)
        self._children: dict[Name, dict[Name, Edge]] = {}
        self._ended_parents: dict[Name, None] = {}
        self._pools: dict[str, PoolRecord] = {}
        self._workers: dict[str, WorkerRecord] = {}
        self._last_arrival = 0

    def _queue(self, name: str) -> QueueTables:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = QueueTables(name)
        return queue

    def _is_ended(self, entry: Ended) -> bool:
        job = self.job(entry.queue, entry.id)
        return job is not None and job.state in TERMINAL and job.kept_until == entry.kept_until

    # Changing

    def swap_job(self, before: JobRecord | None, after: JobRecord | None) -> None:
        if before is not None:
            self._leave(before, after)
        if after is not None:
            self._enter(before, after)

    def _leave(self, job: JobRecord, after: JobRecord | None) -> None:
        queue = self._queues[job.queue]
        state = job.state
        del queue.by_state[state][job.arrival]
        if state is QUEUED:
            queue.ready[job.task].mark_stale()
        elif state in BY_DUE:
            queue.due.mark_stale()
        elif state in TERMINAL:
            self._ended.mark_stale()
        if state in LIVE:
            queue.live -= 1
            if job.expires is not None and state in WAITING:
                queue.expiring.mark_stale()
        if job.hold is not FREE and job.hold & Hold.LANE:
            queue.lanes[str(job.lane)].waiting.mark_stale()
        if job.token is not None:
            self._drop_lease((job.queue, job.id), claim_of(job.token))
        if after is None:
            del queue.jobs[job.id]
            self._ended_parents.pop((job.queue, job.id), None)
        if job.unique_key is not None and (after is None or after.generation != job.generation):
            key = (job.task, job.unique_key)
            if queue.keys.get(key) == job.id:
                del queue.keys[key]

    def _drop_lease(self, name: Name, claim_id: str) -> None:
        del self._leases[name]
        held = self._claims[claim_id]
        del held[name]
        if not held:
            del self._claims[claim_id]

    def _enter(self, before: JobRecord | None, job: JobRecord) -> None:
        queue = self._queue(job.queue)
        state = job.state
        queue.jobs[job.id] = job
        queue.by_state[state][job.arrival] = job.id
        self._last_arrival = max(self._last_arrival, job.arrival)
        if state is QUEUED:
            queue.ready_of(job.task).push(Ready(-job.priority, job.due, job.arrival, job.id))
        elif state in BY_DUE:
            queue.due.push(ByTime(job.due, job.arrival, job.id))
        elif state in TERMINAL:
            self._ended.push(Ended(job.kept_until, job.queue, job.id))
        if state in LIVE:
            queue.live += 1
            if job.expires is not None and state in WAITING:
                queue.expiring.push(ByTime(job.expires, job.arrival, job.id))
            if job.unique_key is not None:
                queue.keys[(job.task, job.unique_key)] = job.id
        elif job.unique_key is not None and state is JobState.SUCCEEDED:
            self._keep_key(queue, job, (job.task, job.unique_key))
        if job.hold is not FREE and job.hold & Hold.LANE:
            queue.lanes[str(job.lane)].waiting.push(InLane(-job.priority, job.arrival, job.id))
        if job.token is not None:
            name = (job.queue, job.id)
            self._leases[name] = job
            self._claims.setdefault(claim_of(job.token), {})[name] = None
        if self._children and (before is None or (before.state in TERMINAL) != (state in TERMINAL)):
            self._mark_parent((job.queue, job.id))

    def _keep_key(self, queue: QueueTables, job: JobRecord, key: tuple[str, str]) -> None:
        """A succeeded job keeps its key. Only one that is loaded, or brought back by undoing, does not have it yet."""
        taker = queue.keys.get(key)
        if taker == job.id:
            return
        other = None if taker is None else queue.jobs[taker]
        if other is None or (other.state in TERMINAL and other.key_until < job.key_until):
            queue.keys[key] = job.id

    def swap(self, record: Record, *, there: bool) -> None:
        match record:
            case QueueRecord() if there:
                self._queue(record.queue).record = record
            case QueueRecord():  # a rule removes it only without jobs and lanes, so its indexes are empty
                del self._queues[record.queue]
            case LaneRecord():
                self._swap_lane(record, there=there)
            case Edge():
                self._swap_edge(record, there=there)
            case PoolRecord():
                _keep(self._pools, record.name, record, there=there)
            case WorkerRecord():
                _keep(self._workers, record.worker, record, there=there)

    def _swap_lane(self, record: LaneRecord, *, there: bool) -> None:
        queue = self._queue(record.queue)
        lane = queue.lanes.get(record.lane)
        if not there:
            del queue.lanes[record.lane]
        elif lane is None:
            queue.lanes[record.lane] = LaneTables(record, queue.jobs)
        else:
            lane.record = record

    def _swap_edge(self, edge: Edge, *, there: bool) -> None:
        parent = (edge.parent.queue, edge.parent.id)
        child = (edge.child.queue, edge.child.id)
        if there:
            self._children.setdefault(parent, {})[child] = edge
        else:
            del self._children[parent][child]
            if not self._children[parent]:
                del self._children[parent]
        self._mark_parent(parent)

    def _mark_parent(self, parent: Name) -> None:
        job = self.job(*parent)
        if parent in self._children and job is not None and job.state in TERMINAL:
            self._ended_parents[parent] = None
        else:
            self._ended_parents.pop(parent, None)

    def new_arrival(self, queue: str) -> int:
        return self._last_arrival + 1

    @property
    def last_arrival(self) -> int:
        """The highest arrival number so far, also of jobs that were deleted."""
        return self._last_arrival

    @last_arrival.setter
    def last_arrival(self, arrival: int) -> None:
        self._last_arrival = max(self._last_arrival, arrival)

    def records(self) -> Iterator[Record]:
        """All records. A job comes after the records of its queue and lane, an edge after its jobs."""
        yield from self.queues()
        for queue in self._queues.values():
            yield from (lane.record for lane in queue.lanes.values())
        for table in (self._pools, self._workers):
            yield from table.values()
        for queue in self._queues.values():
            yield from queue.jobs.values()
        for edges in self._children.values():
            yield from edges.values()

    # Jobs

    def job(self, queue: str, job_id: str) -> JobRecord | None:
        index = self._queues.get(queue)
        return None if index is None else index.jobs.get(job_id)

    def key_taker(self, queue: str, task: str, unique_key: str) -> JobRecord | None:
        index = self._queues.get(queue)
        taker = None if index is None else index.keys.get((task, unique_key))
        return None if taker is None else self.job(queue, taker)

    def ready(self, queue: str, task: str, about: int) -> Iterator[JobRecord]:
        index = self._queues.get(queue)
        heap = None if index is None else index.ready.get(task)
        if index is not None and heap is not None:
            while (entry := heap.first()) is not None:
                yield index.jobs[entry.id]

    def due(self, queue: str, now: int, limit: int) -> Iterator[JobRecord]:
        index = self._queues.get(queue)
        if index is not None:
            for _ in range(limit):
                entry = index.due.first()
                if entry is None or entry.instant > now:
                    return
                yield index.jobs[entry.id]

    def next_due(self, queue: str) -> int | None:
        index = self._queues.get(queue)
        first = None if index is None else index.due.first()
        return None if first is None else first.instant

    def live_jobs(self, queue: str, lane: str | None) -> list[JobRecord]:
        index = self._queue(queue)
        jobs = [index.jobs[job_id] for state in LIVE for job_id in index.by_state[state].values()]
        return sorted((job for job in jobs if lane in (None, job.lane)), key=lambda job: -job.arrival)

    def held_by_epoch(self, queue: str) -> list[JobRecord]:
        index = self._queue(queue)
        return [
            job
            for _, job_id in sorted(index.by_state[JobState.BLOCKED].items())
            if (job := index.jobs[job_id]).hold & Hold.EPOCH
        ]

    def newest(self, queue: str, state: JobState, below: int | None, limit: int) -> list[JobRecord]:
        index = self._queue(queue)
        listed = index.by_state[state]
        arrivals = sorted(listed)  # fast, because most are in order already
        end = len(arrivals) if below is None else bisect_left(arrivals, below)
        return [index.jobs[listed[arrival]] for arrival in reversed(arrivals[max(0, end - limit) : end])]

    def expiring(self, now: int, limit: int) -> list[JobRecord]:
        bound = ByTime(now, ABOVE_ALL, LAST)
        late = (queue.jobs[entry.id] for queue in self._queues.values() for entry in queue.expiring.up_to(bound))
        return list(islice(late, limit))

    def ended(self, now: int, limit: int) -> list[JobRecord]:
        over = self._ended.up_to(Ended(now, LAST, LAST))
        free = (self._queues[entry.queue].jobs[entry.id] for entry in over if entry[1:] not in self._children)
        return list(islice(free, limit))

    # Leases

    def held_by(self, claim_id: str) -> list[JobRecord]:
        return [self._leases[name] for name in self._claims.get(claim_id, ())]

    def leases_until(self, instant: int) -> list[JobRecord]:
        return [job for job in self._leases.values() if job.lease_expires is not None and job.lease_expires <= instant]

    def leases_of(self, workers: Iterable[str]) -> list[JobRecord]:
        named = set(workers)
        return [job for job in self._leases.values() if job.owner in named]

    # Queues and lanes

    def queue(self, name: str) -> QueueRecord | None:
        index = self._queues.get(name)
        return None if index is None else index.record

    def queues(self) -> list[QueueRecord]:
        records = [queue.record for _, queue in sorted(self._queues.items())]
        return [record for record in records if record is not None]

    def depth(self, queue: str) -> int:
        index = self._queues.get(queue)
        return 0 if index is None else index.live

    def counts(self, queue: str) -> Mapping[JobState, int]:
        index = self._queues.get(queue)
        return {} if index is None else {state: len(jobs) for state, jobs in index.by_state.items() if jobs}

    def first_ready(self, queue: str) -> Mapping[str, int]:
        index = self._queues.get(queue)
        heaps = {} if index is None else index.ready
        return {task: head.due for task, heap in heaps.items() if (head := heap.first()) is not None}

    def count_due(self, queue: str, now: int) -> tuple[int, int | None]:
        index = self._queues.get(queue)
        fallen = [] if index is None else [entry.instant for entry in index.due.up_to(ByTime(now, ABOVE_ALL, LAST))]
        return len(fallen), min(fallen, default=None)

    def lane(self, queue: str, lane: str) -> LaneRecord | None:
        index = self._queues.get(queue)
        found = None if index is None else index.lanes.get(lane)
        return None if found is None else found.record

    def lanes(self, queue: str) -> list[LaneRecord]:
        index = self._queues.get(queue)
        return [] if index is None else [lane.record for _, lane in sorted(index.lanes.items())]

    def next_in_lane(self, queue: str, lane: str) -> JobRecord | None:
        entry = self._queues[queue].lanes[lane].waiting.first()
        return None if entry is None else self.job(queue, entry.id)

    def earliest_in_lane(self, queue: str, lane: str) -> JobRecord | None:
        waiting = self._queues[queue].lanes[lane].waiting.current_entries()
        entry = min(waiting, key=lambda entry: entry.arrival, default=None)
        return None if entry is None else self.job(queue, entry.id)

    def idle_lanes(self, emptied_before: int) -> list[LaneRecord]:
        lanes = (lane.record for queue in self._queues.values() for lane in queue.lanes.values())
        return [lane for lane in lanes if lane.depth == 0 and not lane.paused and lane.emptied <= emptied_before]

    # Edges

    def children(self, queue: str, job_id: str, limit: int | None = None) -> list[Edge]:
        return list(self._children.get((queue, job_id), {}).values())[:limit]

    def edge(self, like: Edge) -> Edge | None:
        edges = self._children.get((like.parent.queue, like.parent.id), {})
        return edges.get((like.child.queue, like.child.id))

    def ended_parents(self) -> Name | None:
        return min(self._ended_parents, default=None)

    # Everything else

    def pool(self, name: str) -> PoolRecord | None:
        return self._pools.get(name)

    def pools(self) -> list[PoolRecord]:
        return [pool for _, pool in sorted(self._pools.items())]

    def worker(self, name: str) -> WorkerRecord | None:
        return self._workers.get(name)

    def workers(self) -> list[WorkerRecord]:
        return [worker for _, worker in sorted(self._workers.items())]

    def problems(self, now: int) -> Iterator[str]:
        from holdfast.engines.tables.audit import problems_of_tables

        return problems_of_tables(self, now)


def _keep(table: dict[str, Any], key: str, record: Record, *, there: bool) -> None:
    if there:
        table[key] = record
    else:
        table.pop(key, None)
