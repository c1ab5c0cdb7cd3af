"""Pools: a queue with a number of lanes, over which jobs are spread.

A key always goes to the same lane, so the jobs of one key stay in order. Jobs without a key go round. The stored
number of lanes wins over the one in a producer's code, and the lane is chosen here, in the write that inserts the
job: producers of different ages cannot send one key to two lanes.

Another size starts a new epoch. Keyed jobs of it are held (`epoch`) until every job of the size before has ended,
since their key may have moved to another lane; so no key is reordered, and nothing is lost. A pool that is still
changing its size cannot be given yet another one.
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from holdfast.engines.ledger.step import Step, rest
from holdfast.model.job import JobRecord
from holdfast.model.operate import PoolAnswer, Pools, PoolsAnswer, PutPool, Resize
from holdfast.model.produce import NewJob, PoolPlace
from holdfast.model.records import PoolRecord
from holdfast.model.states import Hold


def place(step: Step, job: JobRecord, wanted: PoolPlace) -> JobRecord:
    """The job with its lane, and with the hold it may need."""
    pool = _declare(step, job.queue, wanted.lanes)
    lane = lane_ahead(pool, wanted.key)
    if wanted.key is None:
        step.put(pool, replace(pool, turn=pool.turn + 1))
        return replace(job, lane=lane, epoch=pool.epoch, pool_key=None)
    hold = job.hold | Hold.EPOCH if pool.old_live else job.hold
    return replace(job, lane=lane, epoch=pool.epoch, pool_key=wanted.key, hold=hold)


def lane_ahead(pool: PoolRecord, key: str | None, before: int = 0) -> str:
    """The lane that the next job of this key will get; without a key, after so many others without one."""
    return str((pool.turn + before) % pool.lanes if key is None else pool.lane_of(key))


def lanes_ahead(step: Step, jobs: list[NewJob]) -> Iterator[str]:
    """The lanes that new jobs of one queue will get, in their order; who goes to no lane is passed over."""
    pool = step.state.pool(jobs[0].queue)
    keyless = 0
    for job in jobs:
        if job.pool is not None:
            pool = pool or PoolRecord(name=job.queue, lanes=job.pool.lanes)
            yield lane_ahead(pool, job.pool.key, keyless)
            keyless += job.pool.key is None
        elif job.lane is not None:
            yield job.lane


def place_again(step: Step, job: JobRecord) -> JobRecord:
    """A requeued job goes where its key belongs now."""
    pool = step.state.pool(job.queue)
    return job if pool is None or not job.epoch else place(step, job, PoolPlace(pool.lanes, job.pool_key))


def lane_again(step: Step, job: JobRecord) -> str | None:
    """The lane that `place_again` will give it."""
    pool = step.state.pool(job.queue)
    return job.lane if pool is None or not job.epoch else lane_ahead(pool, job.pool_key)


def leave(step: Step, job: JobRecord) -> None:
    """A job of a pool has ended: the last one of an older size lets the held ones go."""
    pool = step.state.pool(job.queue)
    if pool is None or job.epoch >= pool.epoch or not pool.old_live:
        return
    _set_old(step, pool, pool.old_live - 1)


def recount(step: Step, name: str) -> None:
    """Count the jobs of the older size anew, after one was lost whose size nobody can read any more."""
    pool = step.state.pool(name)
    if pool is not None and pool.old_live:
        _set_old(step, pool, sum(1 for job in step.state.live_jobs(name, None) if 0 < job.epoch < pool.epoch))


def _set_old(step: Step, pool: PoolRecord, count: int) -> None:
    step.put(pool, replace(pool, old_live=count))
    if count == 0:
        let_go(step, step.state.held_by_epoch(pool.name))


def let_go(step: Step, jobs: Iterable[JobRecord]) -> None:
    """These need not wait for an older size any more."""
    for held in jobs:
        step.put_job(held, rest(step, replace(held, hold=held.hold & ~Hold.EPOCH)))


def _declare(step: Step, name: str, lanes: int) -> PoolRecord:
    pool = step.state.pool(name)
    if pool is None:
        pool = PoolRecord(name=name, lanes=lanes)
        step.queue(name)
        step.put(None, pool)
    return pool


def put_pool(step: Step, command: PutPool) -> PoolAnswer:
    known = step.state.pool(command.name)
    pool = _declare(step, command.name, command.lanes)
    return PoolAnswer(at=step.at, pool=pool, changed=known is None)


def resize(step: Step, command: Resize) -> PoolAnswer:
    known = step.state.pool(command.name)
    pool = _declare(step, command.name, command.lanes)
    if pool.lanes == command.lanes or pool.old_live:
        return PoolAnswer(at=step.at, pool=pool, changed=known is None)
    old = sum(1 for job in step.state.live_jobs(command.name, None) if job.epoch)
    after = replace(pool, lanes=command.lanes, epoch=pool.epoch + 1, old_live=old)
    step.put(pool, after)
    return PoolAnswer(at=step.at, pool=after, changed=True)


def pools(step: Step, command: Pools) -> PoolsAnswer:
    return PoolsAnswer(at=step.at, pools=tuple(step.state.pools()))


def is_pool_lane(step: Step, queue: str, lane: str) -> bool:
    pool = step.state.pool(queue)
    return pool is not None and lane.isdecimal() and int(lane) < pool.lanes
