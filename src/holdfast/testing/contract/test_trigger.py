"""Trigger: a job that waits for its due time becomes due now. No other job changes."""

from holdfast.model.instants import HOUR
from holdfast.model.operate import OperateResult, OperateStatus
from holdfast.model.states import Hold, JobState
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, after, fail, jobs, new_job, retry, snooze
from holdfast.testing.contract.guarantees import Guarantee, guarantee


# TR1
@guarantee(Guarantee.OPERATING)
async def test_a_job_that_waits_for_a_time_is_queued_at_once(bench: Bench) -> None:
    await bench.put(*jobs("retrying", "snoozed"))
    one, two = await bench.take(2)
    await bench.engine.settle(retry(one, HOUR), snooze(two, HOUR))
    await bench.put(new_job("scheduled", delay=HOUR))
    ids = ("scheduled", "retrying", "snoozed")

    answer = await bench.engine.trigger(QUEUE, *ids)

    assert answer.jobs == (OperateResult(OperateStatus.DONE, JobState.QUEUED),) * 3
    for id in ids:
        job = await bench.get(id)
        assert (job.state, job.due) == (JobState.QUEUED, answer.at.wall)
    assert sorted(await bench.take_ids()) == sorted(ids)


@guarantee(Guarantee.OPERATING)
async def test_a_retry_that_is_triggered_keeps_its_attempts(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.settle(retry(await bench.take_one(), HOUR))

    await bench.engine.trigger(QUEUE, "a")

    assert (await bench.take_one()).attempt == 2


@guarantee(Guarantee.OPERATING)
async def test_triggering_a_queued_job_changes_nothing(bench: Bench) -> None:
    await bench.put(new_job())
    before = await bench.get()
    bench.clock.advance(minutes=1)

    answer = await bench.engine.trigger(QUEUE, "a")

    assert answer.jobs == (OperateResult(OperateStatus.DONE, JobState.QUEUED),)
    assert await bench.get() == before


# TR1
@guarantee(Guarantee.OPERATING)
async def test_no_other_job_can_be_triggered(bench: Bench) -> None:
    """E-Q5"""
    await bench.finish(new_job("succeeded"))
    await bench.put(new_job("failed"))
    await bench.settle(fail(await bench.take_one()))
    await bench.put(*jobs("running", "assigned"))
    await bench.take(1, prefetch=1)
    await bench.put(*jobs("head", "blocked", lane="lane"), new_job("child", parents=after("head"), delay=HOUR))
    states = {
        "succeeded": JobState.SUCCEEDED,
        "failed": JobState.FAILED,
        "running": JobState.RUNNING,
        "assigned": JobState.ASSIGNED,
        "blocked": JobState.BLOCKED,
        "child": JobState.BLOCKED,
    }
    before = [await bench.get(id) for id in states]

    answer = await bench.engine.trigger(QUEUE, *states, "absent")

    assert answer.jobs == (
        *(OperateResult(OperateStatus.WRONG_STATE, state) for state in states.values()),
        OperateResult(OperateStatus.NOT_FOUND, None),
    )
    assert [await bench.get(id) for id in states] == before


@guarantee(Guarantee.LANES)
async def test_the_head_of_a_lane_can_be_triggered(bench: Bench) -> None:
    await bench.put(new_job("head", lane="lane", delay=HOUR), new_job("behind", lane="lane"))

    await bench.engine.trigger(QUEUE, "head")

    assert await bench.take_ids() == ["head"]


@guarantee(Guarantee.PAUSE)
async def test_in_a_paused_lane_a_triggered_head_stays_blocked(bench: Bench) -> None:
    await bench.put(new_job(lane="lane", delay=HOUR))
    await bench.engine.pause(QUEUE, "lane")

    answer = await bench.engine.trigger(QUEUE, "a")

    assert answer.jobs == (OperateResult(OperateStatus.DONE, JobState.BLOCKED),)
    job = await bench.get()
    assert (job.state, job.hold, job.due) == (JobState.BLOCKED, Hold.PAUSED, answer.at.wall)
    assert await bench.take() == ()
    await bench.engine.resume(QUEUE, "lane")
    assert await bench.take_ids() == ["a"]


@guarantee(Guarantee.PAUSE)
async def test_in_a_paused_queue_a_triggered_job_still_waits_for_the_resume(bench: Bench) -> None:
    await bench.put(new_job(delay=HOUR))
    await bench.engine.pause(QUEUE)

    await bench.engine.trigger(QUEUE, "a")

    assert await bench.take() == ()
    await bench.engine.resume(QUEUE)
    assert await bench.take_ids() == ["a"]
