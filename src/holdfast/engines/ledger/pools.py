"""Pools: a queue with a number of lanes, over which jobs are spread.

A key always goes to the same lane, so the jobs of one key stay in order. The stored number of lanes wins over the one
in a producer's code, and the lane is chosen in the write that inserts the job.

A new size starts a new epoch. Keyed jobs of it are held until every job of the older size has ended, since their key
may have moved to another lane. A pool whose resize is not done cannot be resized again.
"""

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.engines.ledger.lanes import lane_depth
from holdfast.engines.ledger.step import Step, as_waiting
from holdfast.model.job import JobRecord
from holdfast.model.limits import LANES_LOOKED_AT
from holdfast.model.operate import PoolAnswer, Pools, PoolsAnswer, PutPool, Resize
from holdfast.model.produce import DepthLimit, NewJob, PoolPlace
from holdfast.model.records import PoolRecord
from holdfast.model.states import Hold


def place(step: Step, job: JobRecord, wanted: PoolPlace, lane: str) -> JobRecord:
    """The job in the lane that was chosen for it, and held if its pool is being resized."""
    pool = declare_pool(step, job.queue, wanted.lanes)
    if wanted.key is None:
        # O2: the turn goes on behind this lane.
        turn = pool.turn + (int(lane) - pool.turn) % pool.lanes + 1
        step.put(pool, replace(pool, turn=turn))
        return replace(job, lane=lane, epoch=pool.epoch, pool_key=None)
    # O3: a keyed job waits for the jobs of an older size.
    hold = job.hold | Hold.EPOCH if pool.old_live else job.hold
    return replace(job, lane=lane, epoch=pool.epoch, pool_key=wanted.key, hold=hold)


def choose_lanes(step: Step, jobs: list[NewJob], limits: tuple[DepthLimit, ...]) -> dict[tuple[str, str], str]:
    """The lanes of those of a group's new jobs that go to a pool, by queue and id."""
    chosen: dict[tuple[str, str], str] = {}
    for queue, _ in Counter([job.queue for job in jobs if job.pool is not None]).items():
        pool = step.state.pool(queue)
        added: dict[str, int] = {}
        keyless: list[NewJob] = []
        for job in [job for job in jobs if job.queue == queue]:
            lane = job.lane
            if job.pool is not None:
                # E8: a pool that is not stored yet has the lanes of its first job.
                pool = pool or PoolRecord(name=queue, lanes=job.pool.lanes)
                if job.pool.key is None:
                    keyless.append(job)
                else:
                    lane = str(pool.lane_of(job.pool.key))
                    chosen[queue, job.id] = lane
            if lane is not None:
                added[lane] = added.get(lane, 0) + 1
        # E8: jobs without a key come last, and leave the others their room.
        assert pool is not None
        lanes = take_turns(step, pool, len(keyless), limits, added)
        for index, job in enumerate(keyless):
            chosen[queue, job.id] = lanes[index]
    return chosen


def take_turns(
    step: Step, pool: PoolRecord, count: int, limits: tuple[DepthLimit, ...], added: dict[str, int]
) -> list[str]:
    """The lanes of the next jobs without a key: round-robin, without lanes that are full."""
    # O2: full with what is stored and `added`. Round again: only lanes that had room.
    found: list[str] = []
    turn, behind, again = pool.turn, pool.turn, 0
    end = turn + min(pool.lanes, max(count, LANES_LOOKED_AT))
    while len(found) < count and (turn < end or again < len(found)):
        if turn < end:
            lane = str(turn % pool.lanes)
            turn += 1
        else:
            lane = found[again]
            again += 1
        more = added.get(lane, 0) + 1
        if has_room(step, limits, pool.name, lane, more):
            added[lane] = more
            found.append(lane)
            behind = int(lane) + 1
    # E8: none has room. The limit then refuses the lane whose turn it is.
    while len(found) < count:
        found.append(str(behind % pool.lanes))
    return found


def has_room(step: Step, limits: tuple[DepthLimit, ...], queue: str, lane: str, more: int) -> bool:
    """Whether the limits on this lane have room for so many jobs more."""
    return all(
        lane_depth(step, queue, lane) + more <= limit.limit
        for limit in limits
        if limit.queue == queue and (limit.each_lane or limit.lane == lane)
    )


def place_again(step: Step, job: JobRecord, lane: str | None) -> JobRecord:
    """A requeued job in the lane that `lane_again` has chosen."""
    pool = step.state.pool(job.queue)
    if pool is None or not job.epoch or lane is None:
        return job
    return place(step, job, PoolPlace(pool.lanes, job.pool_key), lane)


def lane_again(step: Step, job: JobRecord, limits: tuple[DepthLimit, ...]) -> str | None:
    """The lane of a requeued job."""
    # O5: by the present size.
    pool = step.state.pool(job.queue)
    if pool is None or not job.epoch:
        return job.lane
    if job.pool_key is None:
        return take_turns(step, pool, 1, limits, {})[0]
    return str(pool.lane_of(job.pool_key))


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
    # RD5: without a read of the other pools.
    if command.name is None:
        return PoolsAnswer(at=step.at, pools=tuple(step.state.pools()))
    pool = step.state.pool(command.name)
    return PoolsAnswer(at=step.at, pools=() if pool is None else (pool,))


def is_pool_lane(step: Step, queue: str, lane: str) -> bool:
    pool = step.state.pool(queue)
    return pool is not None and lane.isascii() and lane.isdecimal() and int(lane) < pool.lanes
