"""Pools: the stored number of lanes decides, not the number in a producer's code."""

from holdfast.model.produce import PoolPlace
from holdfast.model.records import PoolRecord
from holdfast.model.states import Hold, JobState
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import new_job, retry, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


@guarantee(Guarantee.POOLS)
async def test_a_new_pool_is_stored(bench: Bench) -> None:
    answer = await bench.engine.put_pool("mail", 4)

    assert (answer.pool, answer.changed) == (PoolRecord(name="mail", lanes=4), True)
    assert (await bench.engine.pools()).pools == (PoolRecord(name="mail", lanes=4),)


# RD5
@guarantee(Guarantee.POOLS)
async def test_a_pool_is_read_by_its_name(bench: Bench) -> None:
    for pool in ("mail", "sms"):
        await bench.engine.put_pool(pool, 4)

    assert (await bench.engine.pools("sms")).pools == (PoolRecord(name="sms", lanes=4),)
    assert (await bench.engine.pools("absent")).pools == ()


# O1
@guarantee(Guarantee.POOLS)
async def test_a_second_declaration_does_not_change_the_stored_size(bench: Bench) -> None:
    await bench.engine.put_pool("mail", 4)

    answer = await bench.engine.put_pool("mail", 8)

    assert (answer.pool.lanes, answer.changed) == (4, False)
    assert (await bench.engine.pools()).pools[0].lanes == 4


@guarantee(Guarantee.POOLS)
async def test_an_idle_pool_can_be_resized(bench: Bench) -> None:
    await bench.engine.put_pool("mail", 4)
    await bench.finish(new_job("a", queue="mail", lane="3"))

    answer = await bench.engine.resize("mail", 2)

    assert (answer.pool, answer.changed) == (PoolRecord(name="mail", lanes=2, epoch=2), True)
    assert (await bench.engine.pools()).pools == (answer.pool,)
    assert (await bench.engine.resize("mail", 6)).pool == PoolRecord(name="mail", lanes=6, epoch=3)


# O2
@guarantee(Guarantee.POOLS)
async def test_jobs_without_a_key_are_placed_round_robin(bench: Bench) -> None:
    for number in range(7):
        await bench.put(new_job(f"job-{number}", queue="mail", pool=PoolPlace(3)))

    jobs = [await bench.get(f"job-{number}", "mail") for number in range(7)]
    assert [job.lane for job in jobs] == ["0", "1", "2", "0", "1", "2", "0"]
    assert [job.state for job in jobs] == [JobState.QUEUED] * 3 + [JobState.BLOCKED] * 4


# O2
@guarantee(Guarantee.POOLS)
async def test_a_key_always_goes_to_the_lane_of_its_hash(bench: Bench) -> None:
    """blake2b of the key, 8 bytes, big-endian, modulo the number of lanes: fixed for every engine."""
    for number, key in enumerate(("alice", "bob", "alice", "ünïcode")):
        await bench.put(new_job(f"job-{number}", queue="mail", pool=PoolPlace(8, key)))

    lanes = [(await bench.get(f"job-{number}", "mail")).lane for number in range(4)]
    assert lanes == ["1", "2", "1", "5"]


@guarantee(Guarantee.POOLS)
async def test_the_stored_size_decides_the_lane_and_not_the_producers_size(bench: Bench) -> None:
    await bench.engine.put_pool("mail", 2)
    await bench.put(new_job("a", queue="mail", pool=PoolPlace(50, "alice")))

    stored = (await bench.engine.pools()).pools[0]
    assert (await bench.get("a", "mail")).lane == str(stored.lane_of("alice"))
    assert stored.lanes == 2


# O3
@guarantee(Guarantee.POOLS)
async def test_after_a_resize_keyed_jobs_wait_for_those_of_the_older_size(bench: Bench) -> None:
    """E-D12"""
    await bench.put(new_job("old-1", queue="mail", pool=PoolPlace(4, "alice")))
    await bench.put(new_job("old-2", queue="mail", pool=PoolPlace(4, "bob")))
    answer = await bench.engine.resize("mail", 7)
    assert (answer.changed, answer.pool.lanes, answer.pool.epoch, answer.pool.old_live) == (True, 7, 2, 2)

    await bench.put(new_job("new", queue="mail", pool=PoolPlace(4, "alice")))
    job = await bench.get("new", "mail")
    assert (job.state, bool(job.hold & Hold.EPOCH)) == (JobState.BLOCKED, True)

    first, second = await bench.take(queue="mail", limit=10)
    await bench.settle(succeed(first))
    assert (await bench.get("new", "mail")).state is JobState.BLOCKED
    await bench.settle(succeed(second))
    assert (await bench.get("new", "mail")).state is JobState.QUEUED
    assert (await bench.engine.pools()).pools[0].old_live == 0


@guarantee(Guarantee.POOLS)
async def test_a_resize_counts_the_jobs_of_the_older_size_in_any_state(bench: Bench) -> None:
    await bench.put(new_job("a", queue="mail", pool=PoolPlace(1, "alice")))
    await bench.put(new_job("b", queue="mail", pool=PoolPlace(1, "alice")))
    await bench.settle(retry(await bench.take_one(queue="mail")))
    await bench.engine.resize("mail", 3)
    await bench.put(new_job("c", queue="mail", pool=PoolPlace(1, "alice")))

    order = []
    for _ in range(3):
        lease = await bench.take_one(queue="mail")
        order.append(lease.id)
        await bench.settle(succeed(lease))
    assert order == ["a", "b", "c"]


# O4
@guarantee(Guarantee.POOLS)
async def test_a_pool_cannot_be_resized_until_its_last_resize_is_complete(bench: Bench) -> None:
    await bench.put(new_job("a", queue="mail", pool=PoolPlace(4, "alice")))
    await bench.engine.resize("mail", 2)

    answer = await bench.engine.resize("mail", 9)
    assert (answer.pool.lanes, answer.changed) == (2, False)
    await bench.settle(succeed(await bench.take_one(queue="mail")))
    assert (await bench.engine.resize("mail", 9)).changed is True


@guarantee(Guarantee.POOLS)
async def test_clearing_a_pool_completes_its_resize(bench: Bench) -> None:
    await bench.put(new_job("a", queue="mail", pool=PoolPlace(4, "alice")))
    await bench.engine.resize("mail", 2)
    await bench.put(new_job("b", queue="mail", pool=PoolPlace(4, "alice")))

    assert (await bench.engine.clear("mail")).count == 2
    assert (await bench.engine.pools()).pools[0].old_live == 0
    await bench.put(new_job("c", queue="mail", pool=PoolPlace(4, "alice")))
    assert (await bench.get("c", "mail")).state is JobState.QUEUED


# O5
@guarantee(Guarantee.POOLS)
async def test_a_requeued_job_goes_to_the_lane_its_key_has_now(bench: Bench) -> None:
    await bench.put(new_job("a", queue="mail", pool=PoolPlace(4, "alice")))
    await bench.engine.cancel("mail", "a")
    await bench.engine.resize("mail", 7)
    await bench.engine.requeue("mail", "a")

    pool = (await bench.engine.pools()).pools[0]
    job = await bench.get("a", "mail")
    assert (job.lane, job.epoch, job.state) == (str(pool.lane_of("alice")), 2, JobState.QUEUED)


# O4
@guarantee(Guarantee.POOLS)
async def test_resizing_an_unknown_pool_declares_it(bench: Bench) -> None:
    answer = await bench.engine.resize("mail", 3)

    assert (answer.pool.lanes, answer.changed) == (3, True)
    assert (await bench.engine.put_pool("mail", 9)).pool.lanes == 3


@guarantee(Guarantee.POOLS)
async def test_pools_are_listed_by_name(bench: Bench) -> None:
    for name in ("b", "c", "a"):
        await bench.engine.put_pool(name, 1)

    assert [pool.name for pool in (await bench.engine.pools()).pools] == ["a", "b", "c"]


@guarantee(Guarantee.POOLS)
async def test_prune_keeps_the_lanes_of_a_pool(bench: Bench) -> None:
    await bench.engine.put_pool("mail", 2)
    await bench.finish(new_job("a", queue="mail", lane="0"))
    await bench.finish(new_job("b", queue="mail", lane="unrelated"))
    bench.clock.advance(days=3)

    await bench.engine.prune()

    names = [lane.lane for lane in (await bench.engine.lanes("mail")).lanes]
    assert "0" in names
    assert (await bench.lane("0", "mail")).totals.succeeded == 1
