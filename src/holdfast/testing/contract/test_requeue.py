"""Requeue: a failed or cancelled job becomes live again, at the tail, with its attempts counted from zero."""

import pytest

from holdfast.model.instants import HOUR
from holdfast.model.job import KeyScope
from holdfast.model.operate import OperateResult, OperateStatus
from holdfast.model.produce import EnqueueStatus
from holdfast.model.states import Hold, JobState
from holdfast.model.work import RenewStatus, SettleStatus
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import (
    BOOM,
    QUEUE,
    at_most,
    fail,
    jobs,
    new_job,
    renewal,
    retry,
    settlement,
    succeed,
)
from holdfast.testing.contract.guarantees import Guarantee, guarantee


# RQ2
@guarantee(Guarantee.OPERATING)
@pytest.mark.parametrize("end", [JobState.FAILED, JobState.CANCELLED])
async def test_a_requeued_job_is_reset_except_for_its_history(bench: Bench, end: JobState) -> None:
    await bench.put(new_job(payload=b"load", metadata={"k": "v"}, priority=2))
    await bench.lose(await bench.take_one())
    lease = await bench.take_one()
    await bench.engine.cancel(QUEUE, "a", note="stop")
    await bench.settle(settlement(lease, end, error=BOOM, note="broken"))
    before = await bench.get()
    bench.clock.advance(minutes=1)

    answer = await bench.engine.requeue(QUEUE, "a")

    assert answer.jobs == (OperateResult(OperateStatus.DONE, JobState.QUEUED),)
    job = await bench.get()
    assert (job.state, job.hold, job.generation) == (JobState.QUEUED, Hold.NONE, 1)
    assert (job.attempt, job.losses, job.cancel_asked) == (0, 0, False)
    assert (job.due, job.finished, job.reason, job.result) == (answer.at.wall, None, None, None)
    assert (job.started, job.last_started, job.token) == (None, None, None)
    assert (job.visible_until, job.result_until, job.key_until) == (0, 0, 0)
    assert job.arrival > before.arrival
    assert (job.history, job.last_error) == (before.history, BOOM)
    assert len(job.history) == 2
    assert (job.payload, job.metadata, job.priority, job.created) == (b"load", {"k": "v"}, 2, before.created)


@guarantee(Guarantee.OPERATING)
async def test_a_requeued_job_runs_again(bench: Bench) -> None:
    await bench.put(new_job())
    first = await bench.take_one()
    await bench.settle(fail(first))

    await bench.engine.requeue(QUEUE, "a")
    second = await bench.take_one()

    assert (second.attempt, second.losses, second.generation) == (1, 0, 1)
    assert second.fence > first.fence
    assert await bench.settle(succeed(second)) is SettleStatus.APPLIED
    assert (await bench.stats()).counts == {JobState.SUCCEEDED: 1}


@guarantee(Guarantee.FENCING)
async def test_an_old_lease_cannot_change_a_requeued_job(bench: Bench) -> None:
    await bench.put(new_job())
    old_lease = await bench.take_one()
    await bench.engine.clear(QUEUE)
    await bench.engine.requeue(QUEUE, "a")
    before = await bench.get()

    assert await bench.settle(succeed(old_lease)) is SettleStatus.LOST
    assert (await bench.engine.renew(renewal(old_lease))).jobs[0].status is RenewStatus.LOST
    assert await bench.get() == before


@guarantee(Guarantee.ORDER)
async def test_a_requeued_job_goes_to_the_tail(bench: Bench) -> None:
    await bench.put(new_job("a"))
    await bench.settle(fail(await bench.take_one()))
    await bench.put(*jobs("b", "c"))

    await bench.engine.requeue(QUEUE, "a")

    assert await bench.take_ids() == ["b", "c", "a"]


# L6
@guarantee(Guarantee.LANES)
async def test_in_a_lane_a_requeued_job_goes_to_the_tail_too(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c", lane="lane"))
    await bench.settle(fail(await bench.take_one()))

    answer = await bench.engine.requeue(QUEUE, "a")

    assert answer.jobs == (OperateResult(OperateStatus.DONE, JobState.BLOCKED),)
    assert ((await bench.get("a")).hold, (await bench.lane("lane")).depth) == (Hold.LANE, 3)
    for id in ("b", "c", "a"):
        lease = await bench.take_one()
        assert lease.id == id
        await bench.settle(succeed(lease))


@guarantee(Guarantee.LANES)
async def test_in_an_empty_lane_a_requeued_job_is_the_head(bench: Bench) -> None:
    await bench.put(new_job(lane="lane"))
    await bench.settle(fail(await bench.take_one()))

    await bench.engine.requeue(QUEUE, "a")

    assert (await bench.lane("lane")).head == "a"
    assert await bench.take_ids() == ["a"]


# RQ1
@guarantee(Guarantee.OPERATING)
async def test_only_failed_and_cancelled_jobs_can_be_requeued(bench: Bench) -> None:
    """E-F6"""
    await bench.finish(new_job("succeeded"))
    await bench.put(*jobs("running", "retrying"))
    _, failed_once = await bench.take(2)
    await bench.settle(retry(failed_once, HOUR))
    await bench.put(new_job("scheduled", delay=HOUR), new_job("queued"))
    ids = ("succeeded", "running", "retrying", "scheduled", "queued")
    before = [await bench.get(id) for id in ids]

    answer = await bench.engine.requeue(QUEUE, *ids, "absent")

    assert answer.jobs == (
        *(OperateResult(OperateStatus.WRONG_STATE, JobState(id)) for id in ids),
        OperateResult(OperateStatus.NOT_FOUND, None),
    )
    assert [await bench.get(id) for id in ids] == before


@guarantee(Guarantee.OPERATING)
async def test_a_job_named_twice_in_one_requeue_is_requeued_once(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.settle(fail(await bench.take_one()))

    answer = await bench.engine.requeue(QUEUE, "a", "a")

    assert [job.status for job in answer.jobs] == [OperateStatus.DONE, OperateStatus.WRONG_STATE]
    assert (await bench.get()).generation == 1


# RQ1
@guarantee(Guarantee.ONE_PER_KEY)
async def test_a_job_whose_key_is_taken_cannot_be_requeued(bench: Bench) -> None:
    await bench.put(new_job("a", unique_key="key"))
    await bench.settle(fail(await bench.take_one()))
    await bench.put(new_job("b", unique_key="key"))
    before = await bench.get("a")

    answer = await bench.engine.requeue(QUEUE, "a")

    assert answer.jobs == (OperateResult(OperateStatus.KEY_TAKEN, JobState.FAILED),)
    assert await bench.get("a") == before


@guarantee(Guarantee.ONE_PER_KEY)
async def test_a_key_held_by_a_succeeded_job_is_taken_as_well(bench: Bench) -> None:
    await bench.put(new_job("a", unique_key="key", key_scope=KeyScope.RESULT))
    await bench.settle(fail(await bench.take_one()))
    await bench.finish(new_job("b", unique_key="key", key_scope=KeyScope.RESULT))

    while_taken = await bench.engine.requeue(QUEUE, "a")
    bench.clock.advance(hours=2)
    when_free = await bench.engine.requeue(QUEUE, "a")

    assert [while_taken.jobs[0].status, when_free.jobs[0].status] == [OperateStatus.KEY_TAKEN, OperateStatus.DONE]


@guarantee(Guarantee.ONE_PER_KEY)
async def test_a_requeued_job_takes_its_key_again(bench: Bench) -> None:
    await bench.put(new_job("a", unique_key="key"))
    await bench.settle(fail(await bench.take_one()))

    await bench.engine.requeue(QUEUE, "a")

    again = await bench.put_one(new_job("b", unique_key="key"))
    assert (again.status, again.id) == (EnqueueStatus.DUPLICATE, "a")


@guarantee(Guarantee.ONE_PER_KEY)
async def test_only_one_of_two_failed_jobs_with_one_key_can_be_requeued(bench: Bench) -> None:
    for id in ("a", "b"):
        await bench.put(new_job(id, unique_key="key"))
        await bench.settle(fail(await bench.take_one()))

    answer = await bench.engine.requeue(QUEUE, "a", "b")

    assert [job.status for job in answer.jobs] == [OperateStatus.DONE, OperateStatus.KEY_TAKEN]


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_requeue_respects_the_limit_job_by_job(bench: Bench) -> None:
    await bench.put(*jobs("a", "b"))
    await bench.engine.settle(*(fail(lease) for lease in await bench.take(2)))
    await bench.put(*jobs("c", "d"))

    answer = await bench.engine.requeue(QUEUE, "a", "b", limits=at_most(3))

    assert answer.jobs == (
        OperateResult(OperateStatus.DONE, JobState.QUEUED),
        OperateResult(OperateStatus.QUEUE_FULL, JobState.FAILED),
    )
    assert (await bench.stats()).depth == 3


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_requeue_respects_the_limit_of_a_lane(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="lane"))
    await bench.settle(fail(await bench.take_one()))

    full = await bench.engine.requeue(QUEUE, "a", limits=at_most(1, lane="lane"))
    fine = await bench.engine.requeue(QUEUE, "a", limits=at_most(2, lane="lane"))

    assert [full.jobs[0].status, fine.jobs[0].status] == [OperateStatus.QUEUE_FULL, OperateStatus.DONE]


@guarantee(Guarantee.COUNTERS)
async def test_totals_count_every_end_also_of_a_requeued_job(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.settle(fail(await bench.take_one()))
    await bench.engine.requeue(QUEUE, "a")
    await bench.settle(fail(await bench.take_one()))
    await bench.engine.requeue(QUEUE, "a")
    await bench.settle(succeed(await bench.take_one()))

    totals = (await bench.stats()).totals
    assert (totals.failed, totals.succeeded) == (2, 1)
    assert (await bench.get()).generation == 2
