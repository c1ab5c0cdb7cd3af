"""Dedupe by `unique_key`: scoped to queue and task, independent of the payload."""

import asyncio

import pytest

from holdfast.model.instants import HOUR, MINUTE
from holdfast.model.job import KeyScope
from holdfast.model.produce import EnqueueStatus
from holdfast.model.states import JobState
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, fail, new_job, retry, settlement, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


# D10
@guarantee(Guarantee.ONE_PER_KEY)
async def test_a_duplicate_by_key_is_answered_with_the_id_of_the_live_job(bench: Bench) -> None:
    first = await bench.put_one(new_job("a", unique_key="key", payload_hash=b"one"))

    second = await bench.put_one(new_job("b", unique_key="key", payload_hash=b"two"))

    assert (second.status, second.id, second.state) == (EnqueueStatus.DUPLICATE, "a", JobState.QUEUED)
    assert (second.arrival, second.generation, second.position, second.depth) == (first.arrival, 0, None, None)
    assert await bench.get_or_none("b") is None
    assert await bench.take_ids() == ["a"]


# S1
@guarantee(Guarantee.ONE_PER_KEY)
async def test_a_key_belongs_to_its_queue_and_task(bench: Bench) -> None:
    """E-Q2"""
    await bench.put(new_job("a", unique_key="key"))

    others = await bench.put(
        new_job("b", unique_key="other"),
        new_job("c", unique_key="key", task="other"),
        new_job("d", unique_key="key", queue="other"),
        new_job("e"),
    )

    assert {job.status for job in others} == {EnqueueStatus.CREATED}


@guarantee(Guarantee.ONE_PER_KEY)
async def test_the_first_job_of_a_group_takes_the_key(bench: Bench) -> None:
    accepted = await bench.put(new_job("a", unique_key="key"), new_job("b", unique_key="key"), new_job("c"))

    assert [(job.status, job.id) for job in accepted] == [
        (EnqueueStatus.CREATED, "a"),
        (EnqueueStatus.DUPLICATE, "a"),
        (EnqueueStatus.CREATED, "c"),
    ]


@guarantee(Guarantee.ONE_PER_KEY)
async def test_exactly_one_of_callers_racing_for_a_key_creates_a_job(bench: Bench) -> None:
    """E-F9, E-P22"""
    answers = await asyncio.gather(*(bench.put_one(new_job(f"job-{n}", unique_key="key")) for n in range(32)))

    winners = [answer.id for answer in answers if answer.status is EnqueueStatus.CREATED]
    assert len(winners) == 1
    assert {answer.id for answer in answers} == set(winners)
    assert await bench.take_ids() == winners


@guarantee(Guarantee.ONE_PER_KEY)
async def test_a_key_stays_taken_while_its_job_lives(bench: Bench) -> None:
    await bench.put(new_job("a", unique_key="key"))
    lease = await bench.take_one()
    while_running = await bench.put_one(new_job("b", unique_key="key"))
    await bench.settle(retry(lease, HOUR))
    while_retrying = await bench.put_one(new_job("b", unique_key="key"))
    bench.clock.advance(days=400)
    much_later = await bench.put_one(new_job("b", unique_key="key"))

    assert [job.status for job in (while_running, while_retrying, much_later)] == [EnqueueStatus.DUPLICATE] * 3
    assert [job.state for job in (while_running, while_retrying, much_later)] == [
        JobState.RUNNING,
        JobState.RETRYING,
        JobState.RETRYING,
    ]


@guarantee(Guarantee.ONE_PER_KEY)
@pytest.mark.parametrize("end", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
async def test_by_default_a_key_is_free_when_its_job_ends(bench: Bench, end: JobState) -> None:
    """E-X5"""
    await bench.put(new_job("a", unique_key="key"))
    await bench.settle(settlement(await bench.take_one(), end))

    again = await bench.put_one(new_job("b", unique_key="key"))

    assert (again.status, again.id, again.generation) == (EnqueueStatus.CREATED, "b", 0)
    assert await bench.take_ids() == ["b"]


# D10
@guarantee(Guarantee.ONE_PER_KEY)
@pytest.mark.parametrize("scope", [KeyScope.RESULT, KeyScope.WINDOW, KeyScope.FOREVER])
async def test_a_failed_job_frees_its_key_in_every_scope(bench: Bench, scope: KeyScope) -> None:
    job = new_job("a", unique_key="key", key_scope=scope, key_window=HOUR)
    await bench.put(job)
    await bench.settle(fail(await bench.take_one()))

    again = await bench.put_one(new_job("b", unique_key="key", key_scope=scope, key_window=HOUR))

    assert (again.status, again.id) == (EnqueueStatus.CREATED, "b")


@guarantee(Guarantee.ONE_PER_KEY)
async def test_a_cancelled_job_frees_its_key(bench: Bench) -> None:
    await bench.put(new_job("a", unique_key="key", key_scope=KeyScope.FOREVER))
    await bench.engine.cancel(QUEUE, "a")

    assert (await bench.put_one(new_job("b", unique_key="key"))).status is EnqueueStatus.CREATED


@guarantee(Guarantee.ONE_PER_KEY)
async def test_with_the_scope_result_a_key_is_taken_until_the_result_lapses(bench: Bench) -> None:
    await bench.finish(new_job("a", unique_key="key", key_scope=KeyScope.RESULT), result=b"42", result_ttl=HOUR)

    bench.clock.advance(minutes=59)
    within = await bench.put_one(new_job("b", unique_key="key"))
    bench.clock.advance(minutes=2)
    later = await bench.put_one(new_job("b", unique_key="key"))

    assert (within.status, within.id, within.result) == (EnqueueStatus.COMPLETED, "a", b"42")
    assert (later.status, later.id) == (EnqueueStatus.CREATED, "b")


@guarantee(Guarantee.ONE_PER_KEY)
async def test_a_window_on_a_key_counts_from_creation(bench: Bench) -> None:
    await bench.put(new_job("a", unique_key="key", key_scope=KeyScope.WINDOW, key_window=HOUR))
    bench.clock.advance(minutes=30)
    await bench.settle(succeed(await bench.take_one(), result_ttl=MINUTE))

    bench.clock.advance(minutes=28)
    within = await bench.put_one(new_job("b", unique_key="key"))
    bench.clock.advance(minutes=3)
    later = await bench.put_one(new_job("b", unique_key="key"))

    assert (within.status, within.id, within.state) == (EnqueueStatus.DUPLICATE, "a", JobState.SUCCEEDED)
    assert within.result is None
    assert later.status is EnqueueStatus.CREATED


@guarantee(Guarantee.ONE_PER_KEY)
async def test_the_scope_forever_keeps_the_key_of_a_succeeded_job(bench: Bench) -> None:
    """E-F9"""
    await bench.finish(new_job("a", unique_key="key", key_scope=KeyScope.FOREVER))

    bench.clock.advance(days=1_000)
    await bench.engine.prune()
    again = await bench.put_one(new_job("b", unique_key="key"))

    assert (again.status, again.id, again.state) == (EnqueueStatus.DUPLICATE, "a", JobState.SUCCEEDED)


# D8
@guarantee(Guarantee.ONE_PER_KEY)
async def test_the_scope_of_a_key_does_not_change_how_long_the_id_is_taken(bench: Bench) -> None:
    await bench.finish(new_job("a", unique_key="key", key_scope=KeyScope.INCOMPLETE), result=b"42")

    by_id = await bench.put_one(new_job("a", unique_key="another"))
    by_key = await bench.put_one(new_job("b", unique_key="key"))

    assert (by_id.status, by_id.result) == (EnqueueStatus.COMPLETED, b"42")
    assert by_key.status is EnqueueStatus.CREATED


# D1
@guarantee(Guarantee.ONE_PER_KEY)
async def test_the_id_is_checked_before_the_key(bench: Bench) -> None:
    await bench.put(new_job("a"), new_job("b", unique_key="key"))

    again = await bench.put_one(new_job("a", unique_key="key"))

    assert (again.status, again.id) == (EnqueueStatus.DUPLICATE, "a")


@guarantee(Guarantee.ONE_PER_KEY)
async def test_a_job_with_a_free_id_and_a_taken_key_is_a_duplicate(bench: Bench) -> None:
    await bench.put(new_job("a"))
    await bench.settle(fail(await bench.take_one()))
    await bench.put(new_job("b", unique_key="key"))

    again = await bench.put_one(new_job("a", unique_key="key"))

    assert (again.status, again.id) == (EnqueueStatus.DUPLICATE, "b")
    assert ((await bench.get("a")).state, (await bench.get("a")).generation) == (JobState.FAILED, 0)


@guarantee(Guarantee.ONE_PER_KEY)
async def test_a_job_that_replaces_another_frees_the_earlier_key(bench: Bench) -> None:
    await bench.put(new_job("a", unique_key="old"))
    await bench.settle(fail(await bench.take_one()))
    await bench.put(new_job("a", unique_key="new"))

    old = await bench.put_one(new_job("b", unique_key="old"))
    new = await bench.put_one(new_job("c", unique_key="new"))

    assert (old.status, old.id) == (EnqueueStatus.CREATED, "b")
    assert (new.status, new.id) == (EnqueueStatus.DUPLICATE, "a")


@guarantee(Guarantee.ONE_PER_KEY)
async def test_deleting_an_earlier_job_does_not_free_the_key_of_a_later_one(bench: Bench) -> None:
    await bench.put(new_job("a", unique_key="key"))
    await bench.settle(fail(await bench.take_one()))
    await bench.put(new_job("b", unique_key="key"))
    await bench.engine.delete(QUEUE, "a")

    again = await bench.put_one(new_job("c", unique_key="key"))

    assert (again.status, again.id) == (EnqueueStatus.DUPLICATE, "b")


@guarantee(Guarantee.ONE_PER_KEY)
async def test_the_reply_of_a_duplicate_by_key_is_added_to_the_live_job(bench: Bench) -> None:
    await bench.put(new_job("a", unique_key="key", reply="process-1"))
    await bench.put(new_job("b", unique_key="key", reply="process-2"))

    assert (await bench.get("a")).reply == ("process-1", "process-2")
