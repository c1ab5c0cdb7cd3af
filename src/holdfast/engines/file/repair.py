"""Repairing records after changes were lost: they agree with each other again, and no other job is lost.

Each record is complete in itself, since a change writes a whole record. What can be wrong is what several records say
together: the head and depth of a lane, the parents that are left, who holds a key, the older jobs of a pool. It is
computed again from the jobs and edges that are there.

A job ends as `failed(undecodable)` if it cannot go on: its payload is lost, or one of its edges, or the change that
ended it, so that another job has its place in the lane or its key. It is listed among the dead letters, and can be
requeued. A parent that is lost counts as failed in the same way.
"""

import logging
from collections import defaultdict

from msgspec.structs import replace

from holdfast.engines.file.records import Records
from holdfast.engines.ledger.ends import finish
from holdfast.engines.ledger.state import Name
from holdfast.engines.ledger.step import Step
from holdfast.engines.tables import Tables
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.lifetimes import untils
from holdfast.model.records import Edge, LaneRecord, PoolRecord, QueueRecord
from holdfast.model.states import Hold, JobState, Reason
from holdfast.model.text import shown

log = logging.getLogger("holdfast")

NO_PAYLOAD = "the stored change with its payload was damaged"
NO_END = "the stored change that ended it was damaged"
NO_EDGE = "the stored change that names a parent was damaged"
NO_RECORD = "the stored change with its record was damaged"


def repair(records: Records) -> None:
    """Make the records agree with each other."""
    repairing = _Repair(records)
    repairing.add_queues()
    repairing.repair_parents()
    repairing.repair_keys()
    repairing.repair_pools()
    repairing.repair_lanes()
    repairing.end_jobs()
    tables = Tables()
    records.fill(tables)
    for problem in tables.problems(records.at.wall):
        log.error("After the repair of a damaged store: %s", problem)


class _Repair:
    def __init__(self, records: Records) -> None:
        self._records = records
        self._now = records.at.wall
        self._ended: dict[Name, str] = {}
        """The jobs that will be ended, each with a note."""
        for name in records.without_payload:
            if records.jobs[name].live:
                self._ended[name] = NO_PAYLOAD

    def _put(self, job: JobRecord) -> None:
        self._records.jobs[job.queue, job.id] = job

    def _live(self) -> list[JobRecord]:
        """In the order of their arrival."""
        return sorted((job for job in self._records.jobs.values() if job.live), key=lambda job: job.arrival)

    def _put_waiting(self, job: JobRecord, hold: Hold, *, is_paused: bool = False) -> None:
        """Write a job that is blocked or queued, with what holds it now."""
        hold &= ~Hold.PAUSED
        if not hold and is_paused and job.due <= self._now:
            hold = Hold.PAUSED
        state = JobState.BLOCKED if hold else JobState.QUEUED if job.due <= self._now else JobState.SCHEDULED
        self._put(replace(job, hold=hold, state=state))

    # Queues

    def add_queues(self) -> None:
        records = self._records
        names = {queue for queue, _ in (*records.jobs, *records.lanes)} | set(records.pools)
        for (queue, _), _ in records.edges:
            names.add(queue)
        for name in names - set(records.queues):
            records.queues[name] = QueueRecord(queue=name)

    # Parents

    def repair_parents(self) -> None:
        jobs, edges = self._records.jobs, self._records.edges
        of_child: dict[Name, list[Edge]] = defaultdict(list)
        for (parent, child), edge in list(edges.items()):
            job = jobs.get(child)
            if job is not None and job.arrival == edge.arrival and job.hold & Hold.PARENTS:
                of_child[child].append(edge)
            elif parent not in jobs:
                del edges[parent, child]
        for job in self._live():
            if job.hold & Hold.PARENTS:
                self._repair_child(job, of_child[job.queue, job.id])
        for parent, _ in edges:
            if parent not in jobs:
                self._add_lost_parent(*parent)

    def _repair_child(self, job: JobRecord, edges: list[Edge]) -> None:
        """The number of parents that are left is the number of edges."""
        surplus = len(edges) - job.parents_left
        if surplus < 0:
            self._ended[job.queue, job.id] = NO_EDGE
        for edge in sorted(edges, key=self._parent_is_needed)[: max(surplus, 0)]:
            if not self._parent_is_needed(edge):  # the change that removed the edge is lost
                edges.remove(edge)
                del self._records.edges[_name(edge.parent), _name(edge.child)]
        hold = job.hold if edges else job.hold & ~Hold.PARENTS
        self._put(replace(job, parents_left=len(edges)))
        if not edges:
            self._put_waiting(self._records.jobs[job.queue, job.id], hold)

    def _parent_is_needed(self, edge: Edge) -> bool:
        parent = self._records.jobs.get(_name(edge.parent))
        return parent is not None and parent.live

    def _add_lost_parent(self, queue: str, job_id: str) -> None:
        self._records.arrival += 1
        job = JobRecord(
            queue=queue,
            id=job_id,
            arrival=self._records.arrival,
            created=self._now,
            due=self._now,
            state=JobState.FAILED,
            finished=self._now,
            reason=Reason.UNDECODABLE,
            note=NO_RECORD,
        )
        visible, result, key = untils(job, JobState.FAILED, self._now, None, None)
        self._put(replace(job, visible_until=visible, result_until=result, key_until=key))
        _log(job, NO_RECORD)

    # Keys

    def repair_keys(self) -> None:
        """One job holds a key: a live one, else one that has succeeded."""
        takers: dict[tuple[str, str, str], list[JobRecord]] = defaultdict(list)
        for job in self._records.jobs.values():
            if job.unique_key is not None and (job.live or self._keeps_key(job)):
                takers[job.queue, job.task, job.unique_key].append(job)
        for jobs in takers.values():
            *others, _ = sorted(jobs, key=lambda job: (job.live, job.generation, job.arrival))
            for job in others:
                if job.live:
                    self._ended[job.queue, job.id] = NO_END
                else:
                    self._put(replace(job, key_until=self._now))

    def _keeps_key(self, job: JobRecord) -> bool:
        return job.state is JobState.SUCCEEDED and job.key_until > self._now

    # Pools

    def repair_pools(self) -> None:
        """A pool counts the live jobs of its older size; if there are none, no job waits for them."""
        pooled: dict[str, list[JobRecord]] = {name: [] for name in self._records.pools}
        for job in self._live():
            if job.epoch or job.hold & Hold.EPOCH:
                pooled.setdefault(job.queue, []).append(job)
        for name, jobs in pooled.items():
            epoch = max((job.epoch for job in jobs), default=1)
            pool = self._records.pools.get(name)
            if pool is None:
                numbers = [int(job.lane) for job in jobs if job.lane is not None and job.lane.isdecimal()]
                pool = PoolRecord(name=name, lanes=max(numbers, default=0) + 1, epoch=epoch)
            epoch = max(epoch, pool.epoch)
            old_live = sum(0 < job.epoch < epoch for job in jobs)
            self._records.pools[name] = replace(pool, epoch=epoch, old_live=old_live)
            if not old_live:
                for job in jobs:
                    if job.hold & Hold.EPOCH:
                        self._put_waiting(job, job.hold & ~Hold.EPOCH)

    # Lanes

    def repair_lanes(self) -> None:
        members: dict[Name, list[JobRecord]] = {name: [] for name in self._records.lanes}
        for job in self._live():
            if job.lane is not None:
                members.setdefault((job.queue, job.lane), []).append(job)
        for (queue, name), jobs in members.items():
            is_paused = any(job.hold & Hold.PAUSED for job in jobs)
            lane = self._records.lanes.get((queue, name))
            if lane is None:
                lane = LaneRecord(queue=queue, lane=name, emptied=self._now, paused=is_paused)
            self._repair_lane(lane, jobs)

    def _repair_lane(self, lane: LaneRecord, jobs: list[JobRecord]) -> None:
        head = self._head(lane, jobs)
        emptied = self._now if head is None and lane.head is not None else lane.emptied
        self._records.lanes[lane.queue, lane.lane] = replace(
            lane,
            head=None if head is None else head.id,
            depth=len(jobs),
            emptied=emptied,
            fence=max((lane.fence, *(job.fence for job in jobs))),
        )
        for job in jobs:
            if job is head:
                if job.state in (JobState.BLOCKED, JobState.QUEUED):
                    self._put_waiting(job, job.hold & ~Hold.LANE, is_paused=lane.paused)
            elif not job.hold & Hold.LANE:
                if head is not None and head.id == lane.head:
                    self._ended[job.queue, job.id] = NO_END
                self._put_waiting(replace(job, token=None, lease_expires=None), job.hold | Hold.LANE)

    def _head(self, lane: LaneRecord, jobs: list[JobRecord]) -> JobRecord | None:
        """The head that the lane names; else a job that the lane does not hold; else the next one by the rules."""
        named = next((job for job in jobs if job.id == lane.head), None)
        free = [job for job in jobs if not job.hold & Hold.LANE]
        if named is not None and (not free or named in free):
            return named
        if free:
            return min(free, key=lambda job: (not job.leased, job.arrival))
        best = min(jobs, key=lambda job: (-job.priority, job.arrival), default=None)
        if best is not None and best.hold != Hold.LANE:
            return jobs[0]
        return best

    # Ends

    def end_jobs(self) -> None:
        """End the jobs that cannot go on, by the rules."""
        records = self._records
        if not self._ended:
            return
        for name in self._ended:
            job = records.jobs[name]
            # Only a running job can fail. It has no lease, and stays in its lane.
            self._put(replace(job, state=JobState.RUNNING, hold=job.hold & Hold.LANE, token=None, lease_expires=None))
        tables = Tables()
        records.fill(tables)
        step = Step(tables, records.at, record_changes=True)
        for (queue, job_id), note in self._ended.items():
            ended = tables.job(queue, job_id)
            assert ended is not None
            finish(step, ended, JobState.FAILED, Reason.UNDECODABLE, note=note)
            _log(ended, note)
        step.close()
        for change in step.changes or ():
            records.swap(change)


def _name(key: JobKey) -> Name:
    return key.queue, key.id


def _log(job: JobRecord, note: str) -> None:
    log.error("Job %s (%s) of queue %s has failed: %s.", shown(job.id), shown(job.task), shown(job.queue), note)
