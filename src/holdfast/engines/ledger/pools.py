"""Pools: a queue with a number of lanes, over which jobs are spread.

A key always goes to the same lane, so the jobs of one key stay in order. The stored number of lanes wins over the one
in a producer's code, and the lane is chosen in the write that inserts the job.

A new size starts a new epoch. Keyed jobs of it are held until every job of the older size has ended, since their key
may have moved to another lane. A pool whose resize is not done cannot be resized again.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.engines.ledger.step import Step, as_waiting
from holdfast.model.job import JobRecord
from holdfast.model.operate import PoolAnswer, Pools, PoolsAnswer, PutPool, Resize
from holdfast.model.produce import NewJob, PoolPlace
from holdfast.model.records import PoolRecord
from holdfast.model.states import Hold


def place(step: Step, job: JobRecord, wanted: PoolPlace) -> JobRecord:
    """The job with its lane, and held if its pool is being resized."""
    pool = declare_pool(step, job.queue, wanted.lanes)
    # O2: the lane is chosen in the write that inserts the job; without a key, the next in turn.
    lane = lane_ahead(pool, wanted.key)
    if wanted.key is None:
        step.put(pool, replace(pool, turn=pool.turn + 1))
        return replace(job, lane=lane, epoch=pool.epoch, pool_key=None)
    # O3: a keyed job waits for the jobs of an older size.
    hold = job.hold | Hold.EPOCH if pool.old_live else job.hold
    return replace(job, lane=lane, epoch=pool.epoch, pool_key=wanted.key, hold=hold)


def lane_ahead(pool: PoolRecord, key: str | None, before: int = 0) -> str:
    """The lane of the next job with this key; without a key, after `before` other jobs without one."""
    return str((pool.turn + before) % pool.lanes if key is None else pool.lane_of(key))


def lanes_ahead(step: Step, jobs: list[NewJob]) -> list[str]:
    """The lanes that new jobs of one queue will get, in their order, without jobs that get none."""
    # E8: a pool that is not stored yet has the lanes of its first job.
    pool = step.state.pool(jobs[0].queue)
    ahead: list[str] = []
    keyless = 0
    for job in jobs:
        if job.pool is not None:
            pool = pool or PoolRecord(name=job.queue, lanes=job.pool.lanes)
            ahead.append(lane_ahead(pool, job.pool.key, keyless))
            if job.pool.key is None:
                keyless += 1
        elif job.lane is not None:
            ahead.append(job.lane)
    return ahead


def place_again(step: Step, job: JobRecord) -> JobRecord:
    """A requeued job with the lane that its key has now."""
    pool = step.state.pool(job.queue)
    return job if pool is None or not job.epoch else place(step, job, PoolPlace(pool.lanes, job.pool_key))


def lane_again(step: Step, job: JobRecord) -> str | None:
    """The lane that `place_again` will choose."""
    # O5: by the present size.
    pool = step.state.pool(job.queue)
    return job.lane if pool is None or not job.epoch else lane_ahead(pool, job.pool_key)


def leave_pool(step: Step, job: JobRecord) -> None:
    """A job of a pool has ended: the last one of an older size releases the jobs that are held."""
    # O3: `old_live` counts down.
    pool = step.state.pool(job.queue)
    if pool is None or job.epoch >= pool.epoch or not pool.old_live:
        return
    _set_old(step, pool, pool.old_live - 1)


def recount(step: Step, name: str) -> None:
    """Count the jobs of the older size again, after a record could not be read and was replaced."""
    pool = step.state.pool(name)
    if pool is not None and pool.old_live:
        _set_old(step, pool, sum(1 for job in step.state.live_jobs(name, None) if 0 < job.epoch < pool.epoch))


def _set_old(step: Step, pool: PoolRecord, count: int) -> None:
    step.put(pool, replace(pool, old_live=count))
    if count == 0:
        release_held(step, step.state.held_by_epoch(pool.name))


def release_held(step: Step, jobs: Iterable[JobRecord]) -> None:
    """Release jobs that waited for an older size."""
    for held in jobs:
        step.put_job(held, as_waiting(step, replace(held, hold=held.hold & ~Hold.EPOCH)))


def declare_pool(step: Step, name: str, lanes: int) -> PoolRecord:
    # O1: where the pool exists, the stored number of lanes wins.
    pool = step.state.pool(name)
    if pool is None:
        pool = PoolRecord(name=name, lanes=lanes)
        step.queue(name)
        step.put(None, pool)
    return pool


def put_pool(step: Step, command: PutPool) -> PoolAnswer:
    before = step.state.pool(command.name)
    pool = declare_pool(step, command.name, command.lanes)
    return PoolAnswer(at=step.at, pool=pool, changed=before is None)


def resize(step: Step, command: Resize) -> PoolAnswer:
    # O4: not for the same number, and not while an earlier resize goes on. An unknown pool is declared.
    before = step.state.pool(command.name)
    pool = declare_pool(step, command.name, command.lanes)
    if pool.lanes == command.lanes or pool.old_live:
        return PoolAnswer(at=step.at, pool=pool, changed=before is None)
    # O3: the next epoch.
    old = step.state.count_pooled(command.name)
    after = replace(pool, lanes=command.lanes, epoch=pool.epoch + 1, old_live=old)
    step.put(pool, after)
    return PoolAnswer(at=step.at, pool=after, changed=True)


def pools(step: Step, command: Pools) -> PoolsAnswer:
    return PoolsAnswer(at=step.at, pools=tuple(step.state.pools()))


def is_pool_lane(step: Step, queue: str, lane: str) -> bool:
    pool = step.state.pool(queue)
    return pool is not None and lane.isascii() and lane.isdecimal() and int(lane) < pool.lanes
