"""Remove a queue: only one in which nothing is, and nothing is left of it."""

import asyncio

import pytest

from holdfast.model.instants import MINUTE
from holdfast.model.operate import RemoveStatus
from holdfast.model.produce import PoolPlace
from holdfast.model.records import Totals, WorkerRecord
from holdfast.model.states import JobState
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, after, jobs, new_job, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


async def remove(bench: Bench, queue: str = QUEUE) -> RemoveStatus:
    return (await bench.engine.remove_queue(queue)).status


async def queues(bench: Bench) -> list[str]:
    return [stats.queue for stats in (await bench.engine.stats()).queues]


async def use_up(bench: Bench, *ids: str) -> None:
    """Enqueue jobs, run them and delete them, so that the queue is left without jobs."""
    await bench.put(*jobs(*ids))
    await bench.engine.settle(*(succeed(lease) for lease in await bench.take(len(ids))))
    await bench.engine.delete(QUEUE, *ids)


# RM2
@guarantee(Guarantee.REMOVE)
async def test_a_removed_queue_is_listed_no_more_and_begins_anew(bench: Bench) -> None:
    await use_up(bench, "a", "b")
    await bench.put(new_job("c", queue="other"))
    assert (await bench.stats()).totals == Totals(succeeded=2)

    assert await remove(bench) is RemoveStatus.REMOVED

    assert await queues(bench) == ["other"]
    assert await remove(bench) is RemoveStatus.NOT_FOUND
    await bench.put(new_job("a"))
    assert await queues(bench) == ["other", QUEUE]
    stats = await bench.stats()
    assert (stats.depth, stats.totals) == (1, Totals())
    assert await bench.take_ids() == ["a"]
    assert await bench.take_ids(queue="other") == ["c"]


# RM1
@guarantee(Guarantee.REMOVE)
async def test_a_queue_with_jobs_is_not_removed_also_if_all_have_ended(bench: Bench) -> None:
    await bench.put(*jobs("a", "b"))
    answer = await bench.engine.remove_queue(QUEUE)
    assert (answer.status, answer.jobs) == (RemoveStatus.HAS_JOBS, 2)

    await bench.engine.settle(*(succeed(lease) for lease in await bench.take(2)))
    answer = await bench.engine.remove_queue(QUEUE)
    assert (answer.status, answer.jobs) == (RemoveStatus.HAS_JOBS, 2)

    bench.clock.advance(days=2)
    await bench.engine.prune()
    assert await remove(bench) is RemoveStatus.REMOVED


# RM1
@guarantee(Guarantee.REMOVE)
async def test_a_paused_queue_is_not_removed_and_keeps_its_pause(bench: Bench) -> None:
    await bench.engine.pause(QUEUE)
    assert await remove(bench) is RemoveStatus.PAUSED
    assert (await bench.stats()).paused is True

    await bench.engine.resume(QUEUE)
    assert await remove(bench) is RemoveStatus.REMOVED
    assert await queues(bench) == []


# RM1
@guarantee(Guarantee.REMOVE)
async def test_a_queue_with_a_paused_lane_is_not_removed(bench: Bench) -> None:
    await bench.engine.pause(QUEUE, "lane")
    assert await remove(bench) is RemoveStatus.PAUSED

    await bench.engine.resume(QUEUE, "lane")
    assert await remove(bench) is RemoveStatus.REMOVED
    assert (await bench.engine.lanes(QUEUE)).lanes == ()


# RM1
@guarantee(Guarantee.REMOVE)
async def test_a_queue_is_not_removed_while_a_live_worker_takes_from_it(bench: Bench) -> None:
    await use_up(bench, "a")
    for name, taken in (("here", (QUEUE, "other")), ("too", (QUEUE,)), ("elsewhere", ("other",))):
        await bench.engine.heartbeat(WorkerRecord(worker=name, queues=taken, interval=MINUTE))

    answer = await bench.engine.remove_queue(QUEUE)
    assert (answer.status, answer.workers) == (RemoveStatus.SERVED, ("here", "too"))

    await bench.engine.forget_worker("too")
    bench.clock.advance(minutes=2)
    assert await remove(bench) is RemoveStatus.SERVED
    bench.clock.advance(minutes=2)
    assert await remove(bench) is RemoveStatus.REMOVED


@guarantee(Guarantee.REMOVE)
async def test_a_worker_without_an_interval_counts_as_alive_for_half_a_minute(bench: Bench) -> None:
    await use_up(bench, "a")
    await bench.engine.heartbeat(WorkerRecord(worker="w", queues=(QUEUE,)))
    bench.clock.advance(seconds=20)
    assert await remove(bench) is RemoveStatus.SERVED
    bench.clock.advance(seconds=20)
    assert await remove(bench) is RemoveStatus.REMOVED


# RM2
@guarantee(Guarantee.REMOVE)
async def test_a_removed_pool_gets_its_size_and_its_turns_anew(bench: Bench) -> None:
    for id in ("a", "b", "c"):
        await bench.put(new_job(id, pool=PoolPlace(4)))
    await bench.engine.put_pool("other", 5)
    await bench.engine.clear(QUEUE)
    await bench.engine.delete(QUEUE, "a", "b", "c")

    assert await remove(bench) is RemoveStatus.REMOVED

    assert [pool.name for pool in (await bench.engine.pools()).pools] == ["other"]
    await bench.put(new_job("a", pool=PoolPlace(2)), new_job("o", queue="other", pool=PoolPlace(2)))
    pools = {pool.name: pool for pool in (await bench.engine.pools()).pools}
    assert [(name, pools[name].lanes, pools[name].turn) for name in sorted(pools)] == [("other", 5, 1), (QUEUE, 2, 1)]
    assert (await bench.get("a")).lane == "0"


@guarantee(Guarantee.REMOVE)
async def test_a_key_of_a_removed_queue_is_free(bench: Bench) -> None:
    await bench.put(new_job("a", unique_key="k"))
    await bench.engine.cancel(QUEUE, "a")
    await bench.engine.delete(QUEUE, "a")
    assert await remove(bench) is RemoveStatus.REMOVED
    assert (await bench.put_one(new_job("b", unique_key="k"))).id == "b"


@guarantee(Guarantee.PARENTS)
async def test_the_end_of_a_parent_has_no_effect_on_the_removed_queue_of_a_deleted_child(bench: Bench) -> None:
    if not bench.engine.capabilities.cross_queue_atomic:
        pytest.skip("not offered: the engine has no edges between queues (S4)")
    await bench.put(new_job("parent", queue="other"))
    await bench.put(new_job("child", parents=after("parent", queue="other")))
    await bench.engine.cancel(QUEUE, "child")
    await bench.engine.delete(QUEUE, "child")
    assert await remove(bench) is RemoveStatus.REMOVED

    await bench.put(new_job("child"))
    await bench.settle(succeed(await bench.take_one(queue="other")))
    assert await bench.states("child") == [JobState.QUEUED]
    bench.clock.advance(days=2)
    assert [key.id for key in (await bench.engine.prune()).deleted] == ["parent"]


@guarantee(Guarantee.REMOVE)
async def test_emptied_is_reported_again_for_a_queue_that_began_anew(bench: Bench) -> None:
    await use_up(bench, "a", "b")
    assert (await bench.engine.emptied(QUEUE)).emptied is True
    assert await remove(bench) is RemoveStatus.REMOVED
    assert (await bench.engine.emptied(QUEUE)).emptied is False
    await use_up(bench, "c")
    assert (await bench.engine.emptied(QUEUE)).emptied is True


# RM3
@guarantee(Guarantee.REMOVE)
async def test_no_job_is_lost_that_is_enqueued_while_its_queue_is_removed(bench: Bench) -> None:
    for round in range(20):
        await bench.engine.put_pool(QUEUE, 2)
        ids = [f"{round}-{kind}" for kind in ("plain", "lane", "pool")]
        plain, lane, pool = ids
        await asyncio.gather(
            bench.put(new_job(plain)),
            bench.engine.remove_queue(QUEUE),
            bench.put(new_job(lane, lane="left")),
            bench.engine.remove_queue(QUEUE),
            bench.put(new_job(pool, pool=PoolPlace(2, "key"))),
            bench.engine.remove_queue(QUEUE),
        )
        leases = await bench.take(10)
        assert sorted(lease.id for lease in leases) == sorted(ids)
        assert (await bench.stats()).depth == 3
        await bench.engine.settle(*(succeed(lease) for lease in leases))
        await bench.engine.delete(QUEUE, *ids)
        assert await remove(bench) is RemoveStatus.REMOVED
    assert await queues(bench) == []
