"""Fast path: a claim takes plain jobs without the general path.

A job is plain if it has no lane and no expiry date: then its lease changes no other record. The leases of a claim are
counted and written together. A job with a lane takes the general path (`grant`) at its place in the order. A claim with
limits of its own, and the rest of a queue behind an expired job, are left to the general path (`take`).
"""

from collections.abc import Iterator
from heapq import merge
from itertools import repeat
from operator import itemgetter
from typing import Any

from holdfast.engines.ledger.claim import grant, leased_record, take
from holdfast.engines.ledger.step import Step
from holdfast.engines.sqlite.fast_updates import lease_row
from holdfast.engines.sqlite.state import SqliteState
from holdfast.model.job import JobRecord
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Lease, QueueClaim, TaskClaim, lease_of

QUEUED = JobState.QUEUED
RUNNING = JobState.RUNNING


class PlainClaims(SqliteState):
    def take(self, step: Step, request: Claim, wanted: QueueClaim, leases: list[Lease]) -> None:
        left = request.limit - len(leases)
        has_limits = wanted.limit is not None or any(task.limit is not None for task in wanted.tasks)
        if request.prefetch or has_limits or left <= 0 or not wanted.tasks:
            return take(step, request, wanted, leases)
        at, queue, jobs = step.at, wanted.queue, self._jobs
        rows: list[Any] = []
        for job, terms in self._candidates(wanted, left):
            if job.lane is None and job.expires is None:
                after = leased_record(job, request, terms, len(leases), at, job.fence)
                jobs[queue, job.id] = after
                rows.append(lease_row(after))
                leases.append(lease_of(after))
            elif job.expires is None or job.expires > step.now:
                leases.append(grant(step, job, request, terms, len(leases)))
            else:  # C3: its end may free other jobs
                self._write_leases(queue, rows)
                return take(step, request, wanted, leases)
            left -= 1
            if not left:
                break
        self._write_leases(queue, rows)

    def _candidates(self, wanted: QueueClaim, left: int) -> Iterator[tuple[JobRecord, TaskClaim]]:
        """The ready jobs of the tasks, in claim order."""
        queue, tasks = wanted.queue, wanted.tasks
        if len(tasks) == 1:
            return zip(self.ready(queue, tasks[0].task, left), repeat(tasks[0]))
        about = left // len(tasks) + 1
        streams = [_in_claim_order(self.ready(queue, task.task, about), task) for task in tasks]
        return map(itemgetter(3, 4), merge(*streams))

    def _write_leases(self, queue: str, rows: list[Any]) -> None:
        """Write these leases and count them."""
        if rows:
            self.db.many("update_job_lease", rows)
            self.count_moves(queue, QUEUED, RUNNING, len(rows))


def _in_claim_order(jobs: Iterator[JobRecord], task: TaskClaim) -> Iterator[tuple[int, int, int, JobRecord, TaskClaim]]:
    # S2: priority, due, arrival.
    return ((-job.priority, job.due, job.arrival, job, task) for job in jobs)
