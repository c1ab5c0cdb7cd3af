"""Emptied: a queue that has run empty tells one caller so, once for each time it happened."""

import asyncio

from holdfast.model.instants import HOUR
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, fail, jobs, new_job, retry, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


async def emptied(bench: Bench, queue: str = QUEUE) -> bool:
    return (await bench.engine.emptied(queue)).emptied


@guarantee(Guarantee.EMPTIED)
async def test_a_queue_that_never_held_anything_has_not_run_empty(bench: Bench) -> None:
    """E-D1"""
    assert await emptied(bench, "never seen") is False
    await bench.engine.pause(QUEUE)
    assert await emptied(bench) is False


@guarantee(Guarantee.EMPTIED)
async def test_a_queue_with_live_jobs_is_not_empty(bench: Bench) -> None:
    await bench.finish(new_job("done"))
    await bench.put(new_job("a"))
    assert await emptied(bench) is False
    lease = await bench.take_one()
    assert await emptied(bench) is False
    await bench.settle(retry(lease, HOUR))

    assert await emptied(bench) is False


# EM1
@guarantee(Guarantee.EMPTIED)
async def test_the_first_to_ask_after_the_last_end_is_told_and_nobody_else(bench: Bench) -> None:
    """E-D1"""
    await bench.put(*jobs("a", "b"))
    a, b = await bench.take(2)
    await bench.settle(succeed(a))
    assert await emptied(bench) is False
    await bench.settle(fail(b))

    assert [await emptied(bench) for _ in range(3)] == [True, False, False]


@guarantee(Guarantee.EMPTIED)
async def test_of_many_who_ask_at_once_one_is_told(bench: Bench) -> None:
    await bench.finish(new_job())

    answers = await asyncio.gather(*(emptied(bench) for _ in range(16)))

    assert answers.count(True) == 1


@guarantee(Guarantee.EMPTIED)
async def test_each_drain_is_told_once(bench: Bench) -> None:
    for id in "abc":
        await bench.finish(new_job(id))
        assert [await emptied(bench), await emptied(bench)] == [True, False]


@guarantee(Guarantee.EMPTIED)
async def test_a_drain_nobody_asked_about_is_told_with_the_next(bench: Bench) -> None:
    await bench.finish(new_job("a"))
    await bench.finish(new_job("b"))

    assert [await emptied(bench), await emptied(bench)] == [True, False]


@guarantee(Guarantee.EMPTIED)
async def test_jobs_that_were_cancelled_or_cleared_count_as_ended(bench: Bench) -> None:
    await bench.put(new_job("a"))
    await bench.engine.cancel(QUEUE, "a")
    assert await emptied(bench) is True
    await bench.put(new_job("b"))
    await bench.engine.clear(QUEUE)

    assert [await emptied(bench), await emptied(bench)] == [True, False]


@guarantee(Guarantee.EMPTIED)
async def test_removing_records_does_not_look_like_a_drain(bench: Bench) -> None:
    await bench.finish(new_job("a"))
    assert await emptied(bench) is True

    await bench.engine.delete(QUEUE, "a")

    assert await emptied(bench) is False


@guarantee(Guarantee.EMPTIED)
async def test_queues_run_empty_apart(bench: Bench) -> None:
    await bench.put(new_job("a", queue="red"))
    await bench.finish(new_job("b", queue="blue"))

    assert [await emptied(bench, "red"), await emptied(bench, "blue")] == [False, True]
