"""Prune: delete ended jobs past their lifetimes and cancel jobs past `expires`, a limited number per call.

Any number of callers may prune at once, and each may take any part of what may go.
"""

from holdfast.engines.ledger import parents
from holdfast.engines.ledger.ends import cancel_waiting
from holdfast.engines.ledger.pools import is_pool_lane
from holdfast.engines.ledger.step import Step
from holdfast.model.lifetimes import RETENTION
from holdfast.model.limits import SILENT_AFTER_INTERVALS, SILENT_AT_LEAST
from holdfast.model.observe import Prune, PruneAnswer
from holdfast.model.records import WorkerRecord
from holdfast.model.states import Reason


def prune(step: Step, command: Prune, chosen: PruneAnswer | None = None) -> PruneAnswer:
    """`chosen` is another engine's choice of what to take, when the ledger only follows it."""
    # PR1: waiting jobs past their `expires` first, since they may be deletable at once.
    late = [job.job_key for job in step.state.expiring(step.now, command.limit + 1)]
    expired = tuple(sorted(late[: command.limit] if chosen is None else chosen.expired))
    for key in expired:
        job = step.state.job(key.queue, key.id)
        if job is not None and job.waiting:  # not cancelled already by a parent before it
            cancel_waiting(step, job, Reason.EXPIRED)
    parents.resolve(step)
    # PR1, K6: ended jobs whose three lifetimes have passed, and that no edge keeps.
    over = [job.job_key for job in step.state.ended(step.now, command.limit + 1)]
    deleted = tuple(sorted(over[: command.limit] if chosen is None else chosen.deleted))
    for key in deleted:
        job = step.state.job(key.queue, key.id)
        assert job is not None
        step.drop_job(job)
    # PR2: workers without heartbeats, and lanes that have been empty for a day.
    silent = tuple(worker for worker in step.state.workers() if is_silent(worker, step.now))
    for worker in silent:
        step.put(worker, None)
    for lane in step.state.idle_lanes(step.now - RETENTION):
        if not is_pool_lane(step, lane.queue, lane.lane):
            step.put(lane, None)  # L9: the queue's totals have counted its jobs
    more = max(len(late), len(over)) > command.limit or step.state.ended_parents() is not None
    names = tuple(worker.worker for worker in silent)
    return PruneAnswer(at=step.at, deleted=deleted, expired=expired, workers=names, more=more)


def is_silent(worker: WorkerRecord, now: int) -> bool:
    return now - worker.seen > max(SILENT_AFTER_INTERVALS * worker.interval, SILENT_AT_LEAST)
