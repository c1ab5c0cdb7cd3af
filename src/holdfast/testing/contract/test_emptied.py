"""Emptied: when the last live job of a queue has ended, exactly one call reports that the queue is empty."""

import asyncio

from holdfast.model.instants import HOUR
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, fail, jobs, new_job, retry, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


async def emptied(bench: Bench, queue: str = QUEUE) -> bool:
    return (await bench.engine.emptied(queue)).emptied


@guarantee(Guarantee.EMPTIED)
async def test_a_queue_that_never_had_jobs_is_not_reported_empty(bench: Bench) -> None:
    """E-D1"""
    assert await emptied(bench, "absent") is False
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
async def test_only_the_first_call_after_the_last_end_reports_the_queue_empty(bench: Bench) -> None:
    """E-D1"""
    await bench.put(*jobs("a", "b"))
    a, b = await bench.take(2)
    await bench.settle(succeed(a))
    assert await emptied(bench) is False
    await bench.settle(fail(b))

    assert [await emptied(bench) for _ in range(3)] == [True, False, False]


@guarantee(Guarantee.EMPTIED)
async def test_only_one_of_many_concurrent_calls_reports_the_queue_empty(bench: Bench) -> None:
    await bench.finish(new_job())

    answers = await asyncio.gather(*(emptied(bench) for _ in range(16)))

    assert answers.count(True) == 1


@guarantee(Guarantee.EMPTIED)
async def test_each_time_a_queue_becomes_empty_is_reported_once(bench: Bench) -> None:
    for id in "abc":
        await bench.finish(new_job(id))
        assert [await emptied(bench), await emptied(bench)] == [True, False]


@guarantee(Guarantee.EMPTIED)
async def test_a_queue_that_became_empty_twice_between_calls_is_reported_once(bench: Bench) -> None:
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
async def test_deleting_a_record_does_not_report_the_queue_empty(bench: Bench) -> None:
    await bench.finish(new_job("a"))
    assert await emptied(bench) is True

    await bench.engine.delete(QUEUE, "a")

    assert await emptied(bench) is False


@guarantee(Guarantee.EMPTIED)
async def test_each_queue_is_reported_empty_separately(bench: Bench) -> None:
    await bench.put(new_job("a", queue="red"))
    await bench.finish(new_job("b", queue="blue"))

    assert [await emptied(bench, "red"), await emptied(bench, "blue")] == [False, True]
