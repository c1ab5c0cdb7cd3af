"""Pools: a stored number of lanes that wins over what the code says."""

from holdfast.model.records import PoolRecord
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import new_job, retry, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


@guarantee(Guarantee.POOLS)
async def test_a_new_pool_is_stored(bench: Bench) -> None:
    answer = await bench.engine.put_pool("mail", 4)

    assert (answer.pool, answer.changed) == (PoolRecord(name="mail", lanes=4, epoch=0), True)
    assert (await bench.engine.pools()).pools == (PoolRecord(name="mail", lanes=4, epoch=0),)


@guarantee(Guarantee.POOLS)
async def test_the_stored_size_wins_over_a_second_declaration(bench: Bench) -> None:
    await bench.engine.put_pool("mail", 4)

    answer = await bench.engine.put_pool("mail", 8)

    assert (answer.pool.lanes, answer.changed) == (4, False)
    assert (await bench.engine.pools()).pools[0].lanes == 4


@guarantee(Guarantee.POOLS)
async def test_an_idle_pool_can_be_resized(bench: Bench) -> None:
    await bench.engine.put_pool("mail", 4)
    await bench.finish(new_job("a", queue="mail", lane="3"))

    answer = await bench.engine.resize("mail", 2)

    assert (answer.pool, answer.changed) == (PoolRecord(name="mail", lanes=2, epoch=1), True)
    assert (await bench.engine.pools()).pools == (answer.pool,)
    assert (await bench.engine.resize("mail", 6)).pool == PoolRecord(name="mail", lanes=6, epoch=2)


@guarantee(Guarantee.POOLS)
async def test_a_pool_with_live_jobs_keeps_its_size(bench: Bench) -> None:
    """E-D12"""
    await bench.engine.put_pool("mail", 4)
    await bench.put(new_job("a", queue="mail", lane="3"))
    waiting = await bench.engine.resize("mail", 2)
    lease = await bench.take_one(queue="mail")
    running = await bench.engine.resize("mail", 2)
    await bench.settle(retry(lease))
    retrying = await bench.engine.resize("mail", 2)

    for answer in (waiting, running, retrying):
        assert (answer.pool, answer.changed) == (PoolRecord(name="mail", lanes=4, epoch=0), False)
    await bench.settle(succeed(await bench.take_one(queue="mail")))
    assert (await bench.engine.resize("mail", 2)).changed is True


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
async def test_the_lanes_of_a_pool_are_not_forgotten(bench: Bench) -> None:
    await bench.engine.put_pool("mail", 2)
    await bench.finish(new_job("a", queue="mail", lane="0"))
    await bench.finish(new_job("b", queue="mail", lane="stranger"))
    bench.clock.advance(days=3)

    await bench.engine.prune()

    names = [lane.lane for lane in (await bench.engine.lanes("mail")).lanes]
    assert "0" in names
    assert (await bench.lane("0", "mail")).totals.succeeded == 1
