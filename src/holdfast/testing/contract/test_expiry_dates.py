"""`expires`: a job that has not started by then is cancelled, before its first attempt and before every later one."""

from holdfast.model.instants import HOUR, MINUTE
from holdfast.model.job import JobKey
from holdfast.model.states import Hold, JobState, Reason
from holdfast.model.work import SettleStatus
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, after, jobs, new_job, release, retry, snooze, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


async def in_ten_minutes(bench: Bench) -> int:
    return (await bench.engine.now()).wall + 10 * MINUTE


@guarantee(Guarantee.DUE_TIMES)
async def test_a_job_started_in_time_is_claimed_and_may_finish_late(bench: Bench) -> None:
    expires = await in_ten_minutes(bench)
    await bench.put(new_job(expires=expires))
    bench.clock.advance(minutes=9)

    lease = await bench.take_one(lease_len=HOUR)
    bench.clock.advance(minutes=5)
    await bench.engine.prune()

    assert lease.expires == expires
    assert await bench.settle(succeed(lease)) is SettleStatus.APPLIED
    assert await bench.state() is JobState.SUCCEEDED


# C3
@guarantee(Guarantee.DUE_TIMES)
async def test_a_claim_cancels_expired_jobs_and_takes_the_next(bench: Bench) -> None:
    expires = await in_ten_minutes(bench)
    await bench.put(new_job("late", expires=expires), new_job("late-2", expires=expires, priority=1), new_job("fine"))
    bench.clock.advance(minutes=10)

    answer = await bench.engine.claim(bench.claim())

    assert [lease.id for lease in answer.leases] == ["fine"]
    for id in ("late", "late-2"):
        job = await bench.get(id)
        assert (job.state, job.reason) == (JobState.CANCELLED, Reason.EXPIRED)
        assert (job.attempt, job.token, job.started) == (0, None, None)
        assert job.finished == answer.at.wall
        assert job.history == ()
    stats = await bench.stats()
    assert (stats.depth, stats.totals.cancelled) == (1, 2)


# C3
@guarantee(Guarantee.LANES)
async def test_the_next_of_a_lane_follows_an_expired_head_in_the_same_claim(bench: Bench) -> None:
    expires = await in_ten_minutes(bench)
    await bench.put(*jobs("a", "b", lane="lane", expires=expires), *jobs("c", "d", lane="lane"))
    bench.clock.advance(minutes=11)

    assert await bench.take_ids() == ["c"]
    assert (await bench.lane("lane")).depth == 2
    assert (await bench.lane("lane")).head == "c"


@guarantee(Guarantee.DUE_TIMES)
async def test_a_job_due_after_its_expiry_never_runs(bench: Bench) -> None:
    expires = await in_ten_minutes(bench)
    await bench.put(new_job(delay=HOUR, expires=expires))
    bench.clock.advance(hours=2)

    assert await bench.take() == ()
    assert (await bench.get()).reason is Reason.EXPIRED


@guarantee(Guarantee.DUE_TIMES)
async def test_a_job_whose_next_attempt_is_past_its_expiry_is_cancelled(bench: Bench) -> None:
    expires = await in_ten_minutes(bench)
    for id, give_back in (("retry", retry), ("snooze", snooze), ("release", release)):
        await bench.put(new_job(id, expires=expires))
        assert await bench.settle(give_back(await bench.take_one())) is SettleStatus.APPLIED
    bench.clock.advance(minutes=11)

    assert await bench.take(10) == ()
    for id in ("retry", "snooze", "release"):
        job = await bench.get(id)
        assert (job.state, job.reason) == (JobState.CANCELLED, Reason.EXPIRED)


# PR1
@guarantee(Guarantee.DUE_TIMES)
async def test_prune_cancels_every_waiting_job_past_its_expiry(bench: Bench) -> None:
    expires = await in_ten_minutes(bench)
    await bench.put(*jobs("retrying", "running", expires=expires))
    failed_once, _ = await bench.take(2, lease_len=HOUR)
    await bench.settle(retry(failed_once, HOUR))
    await bench.put(new_job("scheduled", delay=HOUR, expires=expires))
    await bench.put(new_job("head", lane="lane"), new_job("blocked", lane="lane", expires=expires))
    await bench.put(new_job("child", parents=after("head"), expires=expires), new_job("queued", expires=expires))
    await bench.put(new_job("unlimited"))
    bench.clock.advance(minutes=11)

    answer = await bench.engine.prune()

    late = ["blocked", "child", "queued", "retrying", "scheduled"]
    assert sorted(answer.expired) == [JobKey(QUEUE, id) for id in late]
    assert answer.deleted == ()
    assert answer.more is False
    for id in late:
        job = await bench.get(id)
        assert (job.state, job.reason, job.hold) == (JobState.CANCELLED, Reason.EXPIRED, Hold.NONE)
    assert await bench.states("running", "head", "unlimited") == [JobState.RUNNING, JobState.QUEUED, JobState.QUEUED]
    assert (await bench.lane("lane")).depth == 1


@guarantee(Guarantee.DUE_TIMES)
async def test_prune_does_not_cancel_a_job_before_its_expiry(bench: Bench) -> None:
    await bench.put(new_job(expires=await in_ten_minutes(bench), delay=HOUR))
    bench.clock.advance(minutes=9)

    assert (await bench.engine.prune()).expired == ()
    assert await bench.state() is JobState.SCHEDULED


@guarantee(Guarantee.PARENTS)
async def test_an_expired_parent_cancels_its_child(bench: Bench) -> None:
    await bench.put(new_job("parent", expires=await in_ten_minutes(bench)))
    await bench.put(new_job("child", parents=after("parent")))
    bench.clock.advance(minutes=11)

    await bench.take()

    assert (await bench.get("child")).reason is Reason.PARENT_FAILED


@guarantee(Guarantee.PARENTS)
async def test_prune_cancels_the_children_of_expired_jobs(bench: Bench) -> None:
    expires = await in_ten_minutes(bench)
    await bench.put(new_job("parent", delay=HOUR, expires=expires), new_job("child", parents=after("parent")))
    await bench.put(new_job("late-child", parents=after("parent"), expires=expires))
    bench.clock.advance(minutes=11)

    await bench.engine.prune()

    assert await bench.states("parent", "child", "late-child") == [JobState.CANCELLED] * 3
    assert (await bench.get("child")).reason is Reason.PARENT_FAILED
    assert (await bench.stats()).totals.cancelled == 3


@guarantee(Guarantee.DUE_TIMES)
async def test_a_job_is_expired_at_the_exact_instant_of_its_expiry(bench: Bench) -> None:
    bench.freeze()
    now = (await bench.engine.now()).wall
    await bench.put(new_job("claimed", expires=now), new_job("pruned", expires=now, delay=HOUR))

    assert await bench.take() == ()
    assert (await bench.engine.prune()).expired == (JobKey(QUEUE, "pruned"),)
    assert [(await bench.get(id)).reason for id in ("claimed", "pruned")] == [Reason.EXPIRED, Reason.EXPIRED]


@guarantee(Guarantee.DUE_TIMES)
async def test_a_job_that_expired_before_it_was_enqueued_never_runs(bench: Bench) -> None:
    await bench.put(new_job(expires=(await bench.engine.now()).wall - HOUR), new_job("b"))

    assert await bench.take_ids() == ["b"]
    assert (await bench.get()).reason is Reason.EXPIRED
