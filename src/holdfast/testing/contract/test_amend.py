"""Amend: lifetimes of any job, priority of a live job, due time of a waiting job; all of the fields or none."""

from typing import Any

import pytest

from holdfast.model.instants import DAY, HOUR, MINUTE
from holdfast.model.job import Given, KeyScope
from holdfast.model.operate import OperateResult, OperateStatus
from holdfast.model.produce import EnqueueStatus
from holdfast.model.states import Hold, JobState
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, after, fail, jobs, new_job, retry, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


async def amend(bench: Bench, id: str = "a", **what: Any) -> OperateResult:
    return (await bench.engine.amend(QUEUE, id, **what)).jobs[0]


# AM1
@guarantee(Guarantee.OPERATING)
async def test_the_lifetimes_of_a_finished_job_count_from_its_end(bench: Bench) -> None:
    await bench.finish(new_job())
    finished = (await bench.get()).finished
    assert finished is not None
    bench.clock.advance(minutes=10)

    assert await amend(bench, result_ttl=5 * HOUR) == OperateResult(OperateStatus.DONE, JobState.SUCCEEDED)
    job = await bench.get()
    assert (job.result_until, job.visible_until) == (finished + 5 * HOUR, finished + DAY)
    assert job.key_until == finished + 5 * HOUR, "the id stays taken as long as the result is kept"
    assert await amend(bench, retention=7 * DAY) == OperateResult(OperateStatus.DONE, JobState.SUCCEEDED)

    job = await bench.get()
    assert (job.result_until, job.visible_until) == (finished + 5 * HOUR, finished + 7 * DAY)


@guarantee(Guarantee.OPERATING)
async def test_a_longer_lifetime_takes_effect(bench: Bench) -> None:
    await bench.finish(new_job(), result=b"42")
    await amend(bench, result_ttl=10 * HOUR)
    bench.clock.advance(hours=9)

    again = await bench.put_one(new_job())

    assert (again.status, again.result) == (EnqueueStatus.COMPLETED, b"42")


@guarantee(Guarantee.OPERATING)
async def test_a_shorter_lifetime_takes_effect(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.settle(fail(await bench.take_one()))
    await amend(bench, retention=HOUR, result_ttl=MINUTE)
    bench.clock.advance(hours=2)

    pruned = await bench.engine.prune()

    assert [key.id for key in pruned.deleted] == ["a"]


# AM1
@guarantee(Guarantee.OPERATING)
async def test_the_lifetimes_of_a_live_job_are_kept_for_its_end(bench: Bench) -> None:
    await bench.put(new_job(given=Given(max_attempts=3)))
    lease = await bench.take_one()

    assert await amend(bench, result_ttl=2 * HOUR, retention=3 * HOUR) == OperateResult(
        OperateStatus.DONE, JobState.RUNNING
    )
    assert (await bench.get()).given == Given(max_attempts=3, result_ttl=2 * HOUR, retention=3 * HOUR)
    answer = await bench.engine.settle(succeed(lease, result_ttl=MINUTE, retention=MINUTE))

    job = await bench.get()
    assert (job.result_until, job.visible_until) == (answer.at.wall + 2 * HOUR, answer.at.wall + 3 * HOUR)


@guarantee(Guarantee.OPERATING)
async def test_a_field_that_is_not_amended_stays_unchanged(bench: Bench) -> None:
    await bench.put(new_job("a", given=Given(retention=7 * HOUR)), new_job("b", given=Given(result_ttl=7 * HOUR)))

    await amend(bench, "a", result_ttl=HOUR)
    await amend(bench, "b", retention=HOUR)

    assert (await bench.get("a")).given == Given(result_ttl=HOUR, retention=7 * HOUR)
    assert (await bench.get("b")).given == Given(result_ttl=7 * HOUR, retention=HOUR)


# AM1
@guarantee(Guarantee.ONE_PER_KEY)
async def test_a_longer_lifetime_does_not_take_back_a_key_that_has_lapsed(bench: Bench) -> None:
    await bench.finish(new_job("a", unique_key="key", key_scope=KeyScope.RESULT), result_ttl=MINUTE)
    bench.clock.advance(minutes=2)
    await bench.put(new_job("b", unique_key="key"))

    await amend(bench, "a", result_ttl=10 * HOUR)

    while_taken = await bench.put_one(new_job("c", unique_key="key"))
    await bench.engine.cancel(QUEUE, "b")
    when_free = await bench.put_one(new_job("c", unique_key="key"))
    assert [(while_taken.status, while_taken.id), (when_free.status, when_free.id)] == [
        (EnqueueStatus.DUPLICATE, "b"),
        (EnqueueStatus.CREATED, "c"),
    ]


@guarantee(Guarantee.ORDER)
async def test_priority_moves_a_waiting_job(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"))

    assert await amend(bench, "c", priority=5) == OperateResult(OperateStatus.DONE, JobState.QUEUED)
    assert await amend(bench, "a", priority=-5) == OperateResult(OperateStatus.DONE, JobState.QUEUED)

    assert [(await bench.get(id)).priority for id in "abc"] == [-5, 0, 5]
    assert await bench.take_ids() == ["c", "b", "a"]


# AM2
@guarantee(Guarantee.OPERATING)
async def test_priority_can_be_set_on_any_live_job_and_on_no_other(bench: Bench) -> None:
    await bench.finish(new_job("succeeded"))
    await bench.put(*jobs("running", "retrying"))
    _, failed_once = await bench.take(2)
    await bench.settle(retry(failed_once, HOUR))
    await bench.put(new_job("scheduled", delay=HOUR), *jobs("head", "blocked", lane="lane"))
    ids = ("running", "retrying", "scheduled", "head", "blocked", "succeeded", "absent")

    answer = await bench.engine.amend(QUEUE, *ids, priority=4)

    assert [job.status for job in answer.jobs] == [OperateStatus.DONE] * 5 + [
        OperateStatus.WRONG_STATE,
        OperateStatus.NOT_FOUND,
    ]
    assert [(await bench.get(id)).priority for id in ids[:-1]] == [4, 4, 4, 4, 4, 0]


@guarantee(Guarantee.LANES)
async def test_priority_reorders_a_lane_behind_its_head(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c", lane="lane"))

    await amend(bench, "c", priority=9)

    order = []
    for _ in range(3):
        lease = await bench.take_one()
        order.append(lease.id)
        await bench.settle(succeed(lease))
    assert order == ["a", "c", "b"]


@guarantee(Guarantee.DUE_TIMES)
async def test_a_due_time_can_be_moved_later_and_earlier(bench: Bench) -> None:
    await bench.put(new_job(delay=10 * MINUTE))
    now = (await bench.engine.now()).wall

    assert await amend(bench, due=now + HOUR) == OperateResult(OperateStatus.DONE, JobState.SCHEDULED)
    assert (await bench.get()).due == now + HOUR
    bench.clock.advance(minutes=11)
    assert await bench.take() == ()
    await amend(bench, due=now + 20 * MINUTE)
    bench.clock.advance(minutes=10)

    assert await bench.take_ids() == ["a"]


@guarantee(Guarantee.DUE_TIMES)
async def test_a_due_time_in_the_past_means_now_and_the_next_claim_promotes(bench: Bench) -> None:
    await bench.put(new_job(delay=HOUR))
    now = (await bench.engine.now()).wall

    answer = await bench.engine.amend(QUEUE, "a", due=now - HOUR)

    job = await bench.get()
    assert (job.state, job.due) == (JobState.SCHEDULED, answer.at.wall)
    assert await bench.take_ids() == ["a"]


@guarantee(Guarantee.DUE_TIMES)
async def test_a_retry_can_be_postponed(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.settle(retry(await bench.take_one(), MINUTE))
    now = (await bench.engine.now()).wall

    assert await amend(bench, due=now + HOUR) == OperateResult(OperateStatus.DONE, JobState.RETRYING)

    bench.clock.advance(minutes=2)
    assert await bench.take() == ()
    bench.clock.advance(hours=1)
    assert await bench.take_ids() == ["a"]


# AM2
@guarantee(Guarantee.DUE_TIMES)
async def test_a_blocked_job_takes_a_due_time_and_stays_blocked(bench: Bench) -> None:
    await bench.put(*jobs("head", "behind", lane="lane"), new_job("child", parents=after("head")))
    now = (await bench.engine.now()).wall

    for id, hold in (("behind", Hold.LANE), ("child", Hold.PARENTS)):
        assert await amend(bench, id, due=now + HOUR) == OperateResult(OperateStatus.DONE, JobState.BLOCKED)
        job = await bench.get(id)
        assert (job.state, job.hold, job.due) == (JobState.BLOCKED, hold, now + HOUR)
    await bench.settle(succeed(await bench.take_one()))

    assert await bench.states("behind", "child") == [JobState.SCHEDULED, JobState.SCHEDULED]
    bench.clock.advance(hours=2)
    assert await bench.take_ids() == ["behind", "child"]


@guarantee(Guarantee.OPERATING)
async def test_the_due_time_of_a_queued_leased_or_finished_job_cannot_be_changed(bench: Bench) -> None:
    await bench.finish(new_job("succeeded"))
    await bench.put(*jobs("running", "assigned"))
    await bench.take(1, prefetch=1)
    await bench.put(new_job("queued"))
    ids = ("succeeded", "running", "assigned", "queued")
    before = [await bench.get(id) for id in ids]
    due = (await bench.engine.now()).wall + HOUR

    answer = await bench.engine.amend(QUEUE, *ids, due=due)

    assert answer.jobs == tuple(OperateResult(OperateStatus.WRONG_STATE, JobState(id)) for id in ids)
    assert [await bench.get(id) for id in ids] == before


# AM3
@guarantee(Guarantee.OPERATING)
async def test_a_reply_is_added_to_a_live_job(bench: Bench) -> None:
    await bench.put(new_job("waiting", reply="process-1"), new_job("plain"))

    await amend(bench, "waiting", reply="process-2")
    await amend(bench, "plain", reply="process-3")

    assert (await bench.get("waiting")).reply == ("process-1", "process-2")
    assert (await bench.get("plain")).reply == ("process-3",)


# AM3
@guarantee(Guarantee.OPERATING)
async def test_a_reply_added_to_a_finished_job_changes_nothing(bench: Bench) -> None:
    await bench.finish(new_job())
    before = await bench.get()

    assert await amend(bench, reply="process-1") == OperateResult(OperateStatus.DONE, JobState.SUCCEEDED)
    assert await bench.get() == before


# AM4
@guarantee(Guarantee.OPERATING)
@pytest.mark.parametrize("what", ["priority", "due"])
async def test_an_amend_with_one_wrong_field_changes_nothing(bench: Bench, what: str) -> None:
    await bench.finish(new_job())
    before = await bench.get()
    wrong: dict[str, Any] = {what: 7}

    answer = await amend(bench, result_ttl=5 * HOUR, retention=5 * DAY, **wrong)

    assert answer == OperateResult(OperateStatus.WRONG_STATE, JobState.SUCCEEDED)
    assert await bench.get() == before


@guarantee(Guarantee.OPERATING)
async def test_each_job_is_amended_separately(bench: Bench) -> None:
    await bench.put(new_job("a", delay=HOUR), new_job("b"), new_job("c", delay=HOUR))
    due = (await bench.engine.now()).wall + 2 * HOUR

    answer = await bench.engine.amend(QUEUE, "a", "b", "c", due=due, priority=3)

    assert [job.status for job in answer.jobs] == [OperateStatus.DONE, OperateStatus.WRONG_STATE, OperateStatus.DONE]
    assert [(await bench.get(id)).priority for id in "abc"] == [3, 0, 3]
    assert [(await bench.get(id)).due == due for id in "abc"] == [True, False, True]
