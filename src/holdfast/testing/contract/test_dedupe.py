"""Dedupe by id: when a second job is a duplicate, for how long, and what the answer contains."""

import asyncio

import pytest

from holdfast.model.instants import HOUR, MINUTE, SECOND
from holdfast.model.job import Given, JobKey, KeyScope
from holdfast.model.produce import EnqueueStatus, GroupConflict
from holdfast.model.states import JobState
from holdfast.model.work import SettleStatus
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import BOOM, QUEUE, after, fail, jobs, new_job, retry, settlement, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


# D3
@guarantee(Guarantee.ONE_PER_ID)
async def test_a_job_with_the_id_of_a_live_job_is_a_duplicate(bench: Bench) -> None:
    """E-Q15"""
    first = await bench.put_one(new_job(payload=b"first", priority=1))

    second = await bench.put_one(new_job(payload=b"second", priority=2))

    assert (second.status, second.id, second.state) == (EnqueueStatus.DUPLICATE, "a", JobState.QUEUED)
    assert (second.arrival, second.generation) == (first.arrival, 0)
    assert (second.position, second.depth, second.result) == (None, None, None)
    job = await bench.get()
    assert (job.payload, job.priority) == (b"first", 1)
    assert await bench.take_ids() == ["a"]


@guarantee(Guarantee.ONE_PER_ID)
async def test_the_answer_to_a_duplicate_contains_the_state_of_the_first_job(bench: Bench) -> None:
    await bench.put(*jobs("running", "retrying"))
    _, failed_once = await bench.take(2)
    await bench.settle(retry(failed_once, HOUR))
    await bench.put(new_job("scheduled", delay=HOUR), *jobs("head", "blocked", lane="lane"))

    again = await bench.put(*jobs("running", "retrying", "scheduled", "head", "blocked"))

    assert {job.status for job in again} == {EnqueueStatus.DUPLICATE}
    assert [job.state for job in again] == [
        JobState.RUNNING,
        JobState.RETRYING,
        JobState.SCHEDULED,
        JobState.QUEUED,
        JobState.BLOCKED,
    ]


# E5
@guarantee(Guarantee.ONE_PER_ID)
async def test_the_answer_to_a_duplicate_in_a_lane_has_neither_position_nor_depth(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="lane"))

    again = await bench.put_one(new_job("b", lane="lane"))

    assert (again.position, again.depth) == (None, None)
    assert (await bench.lane("lane")).depth == 2


# E3
@guarantee(Guarantee.ONE_PER_ID)
async def test_the_first_job_of_a_group_takes_the_id(bench: Bench) -> None:
    accepted = await bench.put(new_job("a", payload=b"first"), new_job("b"), new_job("a", payload=b"second"))

    assert [job.status for job in accepted] == [
        EnqueueStatus.CREATED,
        EnqueueStatus.CREATED,
        EnqueueStatus.DUPLICATE,
    ]
    assert (await bench.get()).payload == b"first"
    assert await bench.take_ids() == ["a", "b"]


# E3
@guarantee(Guarantee.ONE_PER_ID)
async def test_a_duplicate_does_not_stop_the_rest_of_its_group(bench: Bench) -> None:
    """E-S5"""
    await bench.put(new_job("b"))

    accepted = await bench.put(*jobs("a", "b", "c"))

    assert [job.status for job in accepted] == [
        EnqueueStatus.CREATED,
        EnqueueStatus.DUPLICATE,
        EnqueueStatus.CREATED,
    ]
    assert await bench.take_ids() == ["b", "a", "c"]


# S1
@guarantee(Guarantee.ONE_PER_ID)
async def test_an_id_belongs_to_its_queue(bench: Bench) -> None:
    await bench.put(new_job("a", queue="red"))

    assert (await bench.put_one(new_job("a", queue="blue"))).status is EnqueueStatus.CREATED


@guarantee(Guarantee.ONE_PER_ID)
async def test_exactly_one_of_racing_callers_creates_the_job(bench: Bench) -> None:
    """E-P22, E-F9"""
    answers = await asyncio.gather(*(bench.put_one(new_job(payload=bytes([n]))) for n in range(32)))

    assert [answer.status for answer in answers].count(EnqueueStatus.CREATED) == 1
    assert [answer.status for answer in answers].count(EnqueueStatus.DUPLICATE) == 31
    assert len({answer.arrival for answer in answers}) == 1
    assert await bench.take_ids() == ["a"]


# D5
@guarantee(Guarantee.ONE_PER_ID)
async def test_enqueueing_the_id_of_a_succeeded_job_returns_its_result(bench: Bench) -> None:
    first = await bench.put_one(new_job(codec="raw"))
    await bench.settle(succeed(await bench.take_one(), b"42"))

    again = await bench.put_one(new_job(codec="json"))

    assert (again.status, again.state) == (EnqueueStatus.COMPLETED, JobState.SUCCEEDED)
    assert (again.result, again.codec) == (b"42", "raw")
    assert (again.arrival, again.generation) == (first.arrival, 0)
    assert await bench.take() == ()


# D7
@guarantee(Guarantee.ONE_PER_ID)
async def test_an_id_is_free_once_the_result_has_lapsed(bench: Bench) -> None:
    """E-P4"""
    await bench.finish(new_job(), result_ttl=10 * MINUTE)

    bench.clock.advance(minutes=9)
    assert (await bench.put_one(new_job())).status is EnqueueStatus.COMPLETED
    bench.clock.advance(minutes=2)
    again = await bench.put_one(new_job())

    assert (again.status, again.generation, again.state) == (EnqueueStatus.CREATED, 1, JobState.QUEUED)
    assert await bench.take_ids() == ["a"]


@guarantee(Guarantee.ONE_PER_ID)
async def test_by_default_a_result_is_returned_for_an_hour(bench: Bench) -> None:
    await bench.finish(new_job())

    bench.clock.advance(minutes=59)
    assert (await bench.put_one(new_job())).status is EnqueueStatus.COMPLETED
    bench.clock.advance(minutes=2)
    assert (await bench.put_one(new_job())).status is EnqueueStatus.CREATED


@guarantee(Guarantee.ONE_PER_ID)
async def test_a_duplicate_does_not_change_the_lifetimes(bench: Bench) -> None:
    """E-P22"""
    await bench.put(new_job(given=Given(result_ttl=10 * MINUTE)))
    await bench.put(new_job(given=Given(result_ttl=HOUR)))
    await bench.settle(succeed(await bench.take_one()))
    await bench.put(new_job(given=Given(result_ttl=HOUR)))

    bench.clock.advance(minutes=11)

    assert (await bench.put_one(new_job())).status is EnqueueStatus.CREATED


# D4
@guarantee(Guarantee.ONE_PER_ID)
@pytest.mark.parametrize("end", [JobState.FAILED, JobState.CANCELLED])
async def test_the_id_of_a_job_that_did_not_succeed_is_free_at_once(bench: Bench, end: JobState) -> None:
    """E-P4, E-P22"""
    first = await bench.put_one(new_job(payload=b"old", metadata={"old": "yes"}, reply="old"))
    await bench.settle(settlement(await bench.take_one(), end, error=BOOM))

    again = await bench.put_one(new_job(payload=b"new"))

    assert (again.status, again.state, again.generation) == (EnqueueStatus.CREATED, JobState.QUEUED, 1)
    assert again.arrival > first.arrival
    job = await bench.get()
    assert (job.payload, job.metadata, job.reply) == (b"new", {}, ())
    assert (job.attempt, job.losses, job.started, job.finished) == (0, 0, None, None)
    assert (job.history, job.last_error, job.reason) == ((), None, None)


@guarantee(Guarantee.FENCING)
async def test_an_old_lease_cannot_change_the_job_that_replaced_its_own(bench: Bench) -> None:
    await bench.put(new_job())
    old = await bench.take_one()
    await bench.engine.clear(QUEUE)
    await bench.put(new_job())

    assert await bench.settle(succeed(old)) is SettleStatus.LOST
    new = await bench.take_one()

    assert await bench.settle(succeed(old)) is SettleStatus.LOST
    assert new.token != old.token
    assert new.fence > old.fence
    assert await bench.state() is JobState.RUNNING


# D11
@guarantee(Guarantee.ONE_PER_ID)
async def test_the_scope_incomplete_frees_the_id_when_the_job_ends(bench: Bench) -> None:
    await bench.finish(new_job(key_scope=KeyScope.INCOMPLETE))

    again = await bench.put_one(new_job(key_scope=KeyScope.INCOMPLETE))

    assert (again.status, again.generation) == (EnqueueStatus.CREATED, 1)


# D11
@guarantee(Guarantee.ONE_PER_ID)
async def test_a_window_counts_from_creation_and_outlives_the_result(bench: Bench) -> None:
    """E-P22, E-X5"""
    job = new_job(key_scope=KeyScope.WINDOW, key_window=2 * HOUR)
    await bench.put(job)
    bench.clock.advance(hours=1)
    await bench.settle(succeed(await bench.take_one(), result_ttl=MINUTE))

    bench.clock.advance(minutes=50)
    within = await bench.put_one(job)
    bench.clock.advance(minutes=11)
    after_it = await bench.put_one(job)

    assert (within.status, within.state, within.result) == (EnqueueStatus.DUPLICATE, JobState.SUCCEEDED, None)
    assert (after_it.status, after_it.generation) == (EnqueueStatus.CREATED, 1)


@guarantee(Guarantee.ONE_PER_ID)
async def test_a_window_that_has_passed_never_frees_the_id_of_a_live_job(bench: Bench) -> None:
    job = new_job(key_scope=KeyScope.WINDOW, key_window=SECOND)
    await bench.put(job)

    bench.clock.advance(minutes=1)

    assert (await bench.put_one(job)).status is EnqueueStatus.DUPLICATE


@guarantee(Guarantee.ONE_PER_ID)
async def test_within_a_window_the_result_is_returned_while_it_is_kept(bench: Bench) -> None:
    job = new_job(key_scope=KeyScope.WINDOW, key_window=2 * HOUR)
    await bench.finish(job, result=b"42", result_ttl=HOUR)

    bench.clock.advance(minutes=30)
    again = await bench.put_one(job)

    assert (again.status, again.result) == (EnqueueStatus.COMPLETED, b"42")


# D6, D11
@guarantee(Guarantee.ONE_PER_ID)
async def test_the_scope_forever_never_frees_the_id_of_a_succeeded_job(bench: Bench) -> None:
    """E-F9"""
    job = new_job(key_scope=KeyScope.FOREVER)
    await bench.finish(job)

    bench.clock.advance(days=1_000)
    await bench.engine.prune()
    again = await bench.put_one(job)

    assert (again.status, again.state, again.result) == (EnqueueStatus.DUPLICATE, JobState.SUCCEEDED, None)
    assert await bench.take() == ()


@guarantee(Guarantee.ONE_PER_ID)
async def test_the_scope_forever_frees_the_id_of_a_failed_job(bench: Bench) -> None:
    job = new_job(key_scope=KeyScope.FOREVER)
    await bench.put(job)
    await bench.settle(fail(await bench.take_one()))

    assert (await bench.put_one(job)).status is EnqueueStatus.CREATED


# D9
@guarantee(Guarantee.ONE_PER_ID)
@pytest.mark.parametrize("finished", [False, True])
async def test_the_same_id_with_another_task_is_a_conflict(bench: Bench, finished: bool) -> None:
    """E-F9, E-Q15"""
    if finished:
        await bench.finish(new_job())
    else:
        await bench.put(new_job())

    assert await bench.offer(new_job("b"), new_job(task="other")) == GroupConflict(JobKey(QUEUE, "a"))
    assert await bench.get_or_none("b") is None


# D9
@guarantee(Guarantee.ONE_PER_ID)
@pytest.mark.parametrize("finished", [False, True])
async def test_the_same_id_with_other_arguments_is_a_conflict(bench: Bench, finished: bool) -> None:
    """E-F9"""
    if finished:
        await bench.finish(new_job(payload_hash=b"one"))
    else:
        await bench.put(new_job(payload_hash=b"one"))

    assert await bench.offer(new_job(payload_hash=b"two")) == GroupConflict(JobKey(QUEUE, "a"))
    assert (await bench.put_one(new_job(payload_hash=b"one"))).status is not EnqueueStatus.CREATED


@guarantee(Guarantee.ONE_PER_ID)
async def test_arguments_are_compared_only_if_both_jobs_have_a_hash(bench: Bench) -> None:
    await bench.put(new_job("with", payload_hash=b"one"), new_job("without"))

    again = await bench.put(new_job("with"), new_job("without", payload_hash=b"two"))

    assert {job.status for job in again} == {EnqueueStatus.DUPLICATE}


@guarantee(Guarantee.ONE_PER_ID)
async def test_two_jobs_of_one_group_can_be_in_conflict(bench: Bench) -> None:
    """E-Q15"""
    answer = await bench.offer(new_job(payload_hash=b"one"), new_job(payload_hash=b"two"))

    assert answer == GroupConflict(JobKey(QUEUE, "a"))
    assert await bench.get_or_none("a") is None


@guarantee(Guarantee.ONE_PER_ID)
async def test_a_failed_job_causes_no_conflict(bench: Bench) -> None:
    await bench.put(new_job(payload_hash=b"one"))
    await bench.settle(fail(await bench.take_one()))

    again = await bench.put_one(new_job(task="other", payload_hash=b"two"))

    assert (again.status, again.generation) == (EnqueueStatus.CREATED, 1)
    assert await bench.take_ids(tasks=("other",)) == ["a"]


# D12
@guarantee(Guarantee.ONE_PER_ID)
async def test_the_reply_of_a_duplicate_is_added_to_the_live_job(bench: Bench) -> None:
    """E-P22"""
    await bench.put(new_job(reply="process-1"))
    await bench.put(new_job(reply="process-2"))
    await bench.put(new_job())

    assert (await bench.get()).reply == ("process-1", "process-2")


@guarantee(Guarantee.ONE_PER_ID)
async def test_a_duplicate_adds_no_parents(bench: Bench) -> None:
    await bench.put(new_job("parent", delay=HOUR), new_job("child"))

    again = await bench.put_one(new_job("child", parents=after("parent")))

    assert again.status is EnqueueStatus.DUPLICATE
    assert await bench.take_ids() == ["child"]


# L6
@guarantee(Guarantee.LANES)
async def test_a_job_that_replaces_another_goes_to_the_tail_of_its_lane(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c", lane="lane"))
    await bench.settle(fail(await bench.take_one()))

    again = await bench.put_one(new_job("a", lane="lane"))

    assert (again.position, again.depth, again.state) == (2, 3, JobState.BLOCKED)
    for id in ("b", "c", "a"):
        lease = await bench.take_one()
        assert lease.id == id
        await bench.settle(succeed(lease))
