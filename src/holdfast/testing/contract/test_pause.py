"""Pause and resume: no job of a paused queue or lane is claimed; every other verb works as before."""

import pytest

from holdfast.model.instants import HOUR, MINUTE
from holdfast.model.states import Hold, JobState
from holdfast.model.work import SettleStatus
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, at_most, jobs, new_job, release, retry, snooze, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


# U1
@guarantee(Guarantee.PAUSE)
async def test_nothing_is_claimed_from_a_queue_between_pause_and_resume(bench: Bench) -> None:
    await bench.put(*jobs("a", "b"), new_job("c", queue="other"))

    assert (await bench.engine.pause(QUEUE)).changed is True
    assert await bench.take(10) == ()
    assert await bench.take(0, prefetch=10) == ()
    assert await bench.take_ids(queue="other") == ["c"]
    assert await bench.states("a", "b") == [JobState.QUEUED, JobState.QUEUED]
    assert (await bench.stats()).paused is True

    assert (await bench.engine.resume(QUEUE)).changed is True
    assert (await bench.stats()).paused is False
    assert await bench.take_ids() == ["a", "b"]


# U4
@guarantee(Guarantee.PAUSE)
async def test_a_pause_or_resume_without_effect_is_answered_unchanged(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="lane"))

    for lane in (None, "lane"):
        answers = [
            await bench.engine.resume(QUEUE, lane),
            await bench.engine.pause(QUEUE, lane),
            await bench.engine.pause(QUEUE, lane),
            await bench.engine.resume(QUEUE, lane),
            await bench.engine.resume(QUEUE, lane),
        ]
        assert [answer.changed for answer in answers] == [False, True, False, True, False]
    assert await bench.take_ids() == ["a"]


# U3
@guarantee(Guarantee.PAUSE)
async def test_enqueue_works_while_a_queue_is_paused(bench: Bench) -> None:
    await bench.engine.pause(QUEUE)

    accepted = await bench.put(*jobs("a", "b"), limits=at_most(2))

    assert [job.state for job in accepted] == [JobState.QUEUED, JobState.QUEUED]
    assert await bench.take(10) == ()
    await bench.engine.resume(QUEUE)
    assert await bench.take_ids() == ["a", "b"]


@guarantee(Guarantee.PAUSE)
async def test_a_running_job_may_end_while_its_queue_is_paused(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"))
    a, b, c = await bench.take(3)
    await bench.engine.pause(QUEUE)

    answer = await bench.engine.exchange([succeed(a), release(b), retry(c)], claim=bench.claim(limit=5))

    assert answer.settled == (SettleStatus.APPLIED,) * 3
    assert answer.leases == ()
    assert await bench.states("a", "b", "c") == [JobState.SUCCEEDED, JobState.QUEUED, JobState.RETRYING]


@guarantee(Guarantee.PAUSE)
async def test_due_times_are_kept_during_a_pause(bench: Bench) -> None:
    await bench.put(new_job("soon", delay=MINUTE), new_job("later", delay=3 * HOUR))
    due = (await bench.get("soon")).due
    await bench.engine.pause(QUEUE)
    bench.clock.advance(hours=1)
    assert await bench.take(10) == ()

    await bench.engine.resume(QUEUE)

    assert (await bench.get("soon")).due == due
    assert await bench.take_ids() == ["soon"]


# U2
@guarantee(Guarantee.PAUSE)
async def test_a_paused_lane_blocks_its_head_and_no_other_lane(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="lane"), *jobs("c", "d", lane="other"), new_job("e"))

    assert (await bench.engine.pause(QUEUE, "lane")).changed is True

    head, behind = await bench.get("a"), await bench.get("b")
    assert (head.state, head.hold) == (JobState.BLOCKED, Hold.PAUSED)
    assert (behind.state, behind.hold) == (JobState.BLOCKED, Hold.LANE)
    assert (await bench.lane("lane")).paused is True
    assert (await bench.stats()).paused is False
    assert await bench.take_ids() == ["c", "e"]

    await bench.engine.resume(QUEUE, "lane")
    head = await bench.get("a")
    assert (head.state, head.hold) == (JobState.QUEUED, Hold.NONE)
    assert (await bench.lane("lane")).paused is False
    assert await bench.take_ids() == ["a"]


@guarantee(Guarantee.PAUSE)
async def test_a_lane_can_be_paused_before_it_has_a_job(bench: Bench) -> None:
    assert (await bench.engine.pause(QUEUE, "lane")).changed is True

    lane = await bench.lane("lane")
    accepted = await bench.put_one(new_job(lane="lane"))

    assert (lane.paused, lane.head, lane.depth) == (True, None, 0)
    assert (accepted.state, accepted.position) == (JobState.BLOCKED, 0)
    job = await bench.get()
    assert (job.state, job.hold) == (JobState.BLOCKED, Hold.PAUSED)
    assert await bench.take(10) == ()
    await bench.engine.resume(QUEUE, "lane")
    assert await bench.take_ids() == ["a"]


# U3
@guarantee(Guarantee.PAUSE)
async def test_a_queue_can_be_paused_before_it_has_a_job(bench: Bench) -> None:
    await bench.engine.pause("new")
    await bench.put(new_job(queue="new"))

    assert [stats.queue for stats in (await bench.engine.stats()).queues] == ["new"]
    assert await bench.take(queue="new") == ()


# U2
@guarantee(Guarantee.PAUSE)
async def test_a_head_that_becomes_due_in_a_paused_lane_is_blocked(bench: Bench) -> None:
    await bench.put(new_job(lane="lane", delay=MINUTE))
    await bench.engine.pause(QUEUE, "lane")
    assert await bench.state() is JobState.SCHEDULED
    bench.clock.advance(minutes=2)

    assert await bench.take(10) == ()

    job = await bench.get()
    assert (job.state, job.hold) == (JobState.BLOCKED, Hold.PAUSED)
    await bench.engine.resume(QUEUE, "lane")
    assert await bench.take_ids() == ["a"]


@guarantee(Guarantee.PAUSE)
async def test_a_head_that_is_not_due_is_still_scheduled_after_a_resume(bench: Bench) -> None:
    await bench.put(new_job(lane="lane", delay=HOUR))
    await bench.engine.pause(QUEUE, "lane")
    await bench.engine.resume(QUEUE, "lane")

    assert await bench.state() is JobState.SCHEDULED
    assert await bench.take(10) == ()


# W3
@guarantee(Guarantee.PAUSE)
async def test_a_job_released_into_a_paused_lane_is_blocked_and_keeps_the_lane(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="lane"))
    lease = await bench.take_one()
    await bench.engine.pause(QUEUE, "lane")

    assert await bench.settle(release(lease)) is SettleStatus.APPLIED

    job = await bench.get("a")
    assert (job.state, job.hold, job.attempt) == (JobState.BLOCKED, Hold.PAUSED, 0)
    assert (await bench.lane("lane")).head == "a"
    await bench.engine.resume(QUEUE, "lane")
    assert await bench.take_ids() == ["a"]


@guarantee(Guarantee.PAUSE)
@pytest.mark.parametrize("give_back", [retry, snooze])
async def test_a_job_postponed_in_a_paused_lane_is_blocked_when_it_becomes_due(bench: Bench, give_back: object) -> None:
    await bench.put(new_job(lane="lane"))
    lease = await bench.take_one()
    await bench.engine.pause(QUEUE, "lane")
    assert callable(give_back)

    await bench.settle(give_back(lease, MINUTE))
    bench.clock.advance(minutes=2)
    assert await bench.take(10) == ()

    job = await bench.get()
    assert (job.state, job.hold) == (JobState.BLOCKED, Hold.PAUSED)
    await bench.engine.resume(QUEUE, "lane")
    assert await bench.take_ids() == ["a"]


@guarantee(Guarantee.PAUSE)
async def test_the_next_head_of_a_paused_lane_is_blocked_too(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="lane"))
    lease = await bench.take_one()
    await bench.engine.pause(QUEUE, "lane")

    answer = await bench.engine.exchange([succeed(lease)], claim=bench.claim(limit=5))

    assert answer.leases == ()
    job = await bench.get("b")
    assert (job.state, job.hold) == (JobState.BLOCKED, Hold.PAUSED)
    assert (await bench.lane("lane")).head == "b"


@guarantee(Guarantee.PAUSE)
async def test_queue_and_lane_are_paused_separately(bench: Bench) -> None:
    await bench.put(new_job("a", lane="lane"), new_job("b"))
    await bench.engine.pause(QUEUE)
    await bench.engine.pause(QUEUE, "lane")

    await bench.engine.resume(QUEUE)
    assert await bench.take_ids() == ["b"]
    await bench.engine.pause(QUEUE)
    await bench.engine.resume(QUEUE, "lane")
    assert await bench.take(10) == ()
    await bench.engine.resume(QUEUE)

    assert await bench.take_ids() == ["a"]


# U3
@guarantee(Guarantee.PAUSE)
async def test_a_pause_makes_an_unknown_queue_or_lane_known_and_a_resume_does_not(bench: Bench) -> None:
    assert (await bench.engine.resume(QUEUE)).changed is False
    assert (await bench.engine.resume(QUEUE, "lane")).changed is False
    assert (await bench.engine.stats()).queues == ()

    await bench.engine.pause(QUEUE)
    assert (await bench.engine.resume(QUEUE, "lane")).changed is False
    assert (await bench.engine.lanes(QUEUE)).lanes == ()
    assert [stats.queue for stats in (await bench.engine.stats()).queues] == [QUEUE]
