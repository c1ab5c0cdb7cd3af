"""Clear: every live job of a queue or lane ends as cancelled, including running jobs."""

import pytest

from holdfast.model.instants import HOUR
from holdfast.model.job import AttemptOutcome, JobKey, KeyScope
from holdfast.model.produce import EnqueueStatus
from holdfast.model.states import Hold, JobState, Reason
from holdfast.model.work import RenewStatus, SettleStatus, StartStatus
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import (
    QUEUE,
    after,
    at_most,
    fail,
    jobs,
    new_job,
    renewal,
    retry,
    start,
    succeed,
)
from holdfast.testing.contract.guarantees import Guarantee, guarantee


# CL1
@guarantee(Guarantee.CLEAR)
async def test_a_live_job_is_cancelled_in_every_state(bench: Bench) -> None:
    await bench.put(*jobs("running", "retrying", "assigned"))
    _, failed_once, _ = await bench.take(2, prefetch=1)
    await bench.settle(retry(failed_once, HOUR))
    await bench.put(new_job("scheduled", delay=HOUR), *jobs("head", "behind", lane="lane"))
    await bench.put(new_job("child", parents=after("head")), new_job("queued"))
    ids = ("running", "retrying", "assigned", "scheduled", "head", "behind", "child", "queued")

    answer = await bench.engine.clear(QUEUE)

    assert answer.count == 8
    for key in ids:
        job = await bench.get(key)
        assert (job.state, job.reason, job.hold) == (JobState.CANCELLED, Reason.CLEARED, Hold.NONE), key
        assert (job.token, job.lease_expires, job.finished) == (None, None, answer.at.wall)
    stats = await bench.stats()
    assert (stats.depth, stats.due, stats.next_due) == (0, 0, None)
    assert stats.totals.cancelled == 8
    bench.clock.advance(hours=2)
    assert await bench.take(10) == ()


@guarantee(Guarantee.CLEAR)
async def test_finished_jobs_and_other_queues_stay_as_they_are(bench: Bench) -> None:
    await bench.finish(new_job("done"))
    await bench.put(new_job("dead"))
    await bench.settle(fail(await bench.take_one()))
    await bench.put(new_job("elsewhere", queue="other"), new_job("here"))
    before = await bench.engine.get(JobKey(QUEUE, "done"), JobKey(QUEUE, "dead"), JobKey("other", "elsewhere"))

    assert (await bench.engine.clear(QUEUE)).count == 1

    later = await bench.engine.get(JobKey(QUEUE, "done"), JobKey(QUEUE, "dead"), JobKey("other", "elsewhere"))
    assert later.jobs == before.jobs
    totals = (await bench.stats()).totals
    assert (totals.succeeded, totals.failed, totals.cancelled) == (1, 1, 1)


# CL1
@guarantee(Guarantee.FENCING)
async def test_the_leases_of_cleared_jobs_are_void(bench: Bench) -> None:
    await bench.put(*jobs("running", "assigned"))
    running, assigned = await bench.take(1, prefetch=1)
    await bench.engine.clear(QUEUE)
    before = [await bench.get(id) for id in ("running", "assigned")]

    answer = await bench.engine.exchange([succeed(running)], [start(assigned)])
    renewed = await bench.engine.renew(renewal(running), renewal(assigned))

    assert (answer.settled, answer.started) == ((SettleStatus.LOST,), (StartStatus.LOST,))
    assert [job.status for job in renewed.jobs] == [RenewStatus.LOST, RenewStatus.LOST]
    assert [await bench.get(id) for id in ("running", "assigned")] == before
    bench.clock.advance(minutes=5)
    assert await bench.expired() == ()


# H1
@guarantee(Guarantee.HISTORY)
async def test_a_cleared_attempt_is_recorded_if_it_had_started(bench: Bench) -> None:
    await bench.put(*jobs("running", "assigned", "queued"))
    await bench.take(1, prefetch=1)

    answer = await bench.engine.clear(QUEUE)

    (entry,) = (await bench.get("running")).history
    assert (entry.number, entry.outcome, entry.ended) == (1, AttemptOutcome.CANCELLED, answer.at.wall)
    assert (await bench.get("assigned")).history == ()
    assert (await bench.get("queued")).history == ()


@guarantee(Guarantee.CLEAR)
async def test_clearing_a_lane_leaves_the_rest_of_the_queue(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c", lane="lane"), *jobs("d", "e", lane="other"), new_job("f"))
    head = await bench.take_one()

    answer = await bench.engine.clear(QUEUE, "lane")

    assert answer.count == 3
    assert await bench.states("a", "b", "c") == [JobState.CANCELLED] * 3
    assert await bench.settle(succeed(head)) is SettleStatus.LOST
    lane, other = await bench.lane("lane"), await bench.lane("other")
    assert (lane.head, lane.depth, lane.totals.cancelled) == (None, 0, 3)
    assert (other.head, other.depth) == ("d", 2)
    assert await bench.take_ids() == ["d", "f"]


@guarantee(Guarantee.CLEAR)
async def test_a_cleared_lane_starts_empty(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="lane"))
    old = await bench.take_one()
    await bench.engine.clear(QUEUE)

    accepted = await bench.put_one(new_job("c", lane="lane"))

    assert (accepted.position, accepted.depth, accepted.state) == (0, 1, JobState.QUEUED)
    assert (await bench.take_one()).fence > old.fence


@guarantee(Guarantee.CLEAR)
@pytest.mark.parametrize("lane", [None, "lane"])
async def test_clearing_without_live_jobs_changes_nothing(bench: Bench, lane: str | None) -> None:
    await bench.finish(new_job(lane="lane"))

    assert (await bench.engine.clear(QUEUE, lane)).count == 0
    assert (await bench.engine.clear("absent", lane)).count == 0
    assert await bench.state() is JobState.SUCCEEDED


# CL1
@guarantee(Guarantee.CLEAR)
async def test_a_clear_frees_keys_ids_and_depth(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"), new_job("d", unique_key="key", key_scope=KeyScope.FOREVER))
    await bench.take(2)

    await bench.engine.clear(QUEUE)

    again = await bench.put(new_job("a"), new_job("e", unique_key="key"), limits=at_most(2))
    assert [(job.status, job.id) for job in again] == [(EnqueueStatus.CREATED, "a"), (EnqueueStatus.CREATED, "e")]
    assert await bench.take_ids() == ["a", "e"]


@guarantee(Guarantee.PAUSE)
async def test_a_pause_outlives_a_clear(bench: Bench) -> None:
    await bench.put(new_job("a", lane="lane"))
    await bench.engine.pause(QUEUE)
    await bench.engine.pause(QUEUE, "lane")

    await bench.engine.clear(QUEUE)

    await bench.put(new_job("b", lane="lane"))
    assert (await bench.stats()).paused is True
    assert (await bench.lane("lane")).paused is True
    assert await bench.take(10) == ()


@guarantee(Guarantee.PARENTS)
async def test_children_outside_a_cleared_lane_end_with_their_parents(bench: Bench) -> None:
    await bench.put(new_job("parent", lane="lane"), new_job("child", parents=after("parent")))
    await bench.put(new_job("any", parents=after("parent", any_end=True)))

    assert (await bench.engine.clear(QUEUE, "lane")).count == 1

    assert (await bench.get("child")).reason is Reason.PARENT_FAILED
    assert await bench.take_ids() == ["any"]


@guarantee(Guarantee.CLEAR)
async def test_a_cleared_job_can_be_requeued(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.engine.clear(QUEUE)

    await bench.engine.requeue(QUEUE, "a")

    assert await bench.take_ids() == ["a"]


# CL2
@guarantee(Guarantee.CLEAR)
async def test_thousands_of_jobs_are_cleared_in_one_call(bench: Bench) -> None:
    for batch in range(3):
        await bench.put(*jobs(*(f"{batch}-{number}" for number in range(700))))
    await bench.take(100)

    assert (await bench.engine.clear(QUEUE)).count == 2_100

    assert (await bench.stats()).counts == {JobState.CANCELLED: 2_100}
    assert await bench.take(10) == ()
