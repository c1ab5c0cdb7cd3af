"""Prune: deletes records whose lifetimes have passed, in batches of bounded size, and no others."""

from holdfast.model.instants import HOUR, MINUTE
from holdfast.model.job import Given, JobKey
from holdfast.model.states import JobState
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, confirm_cancel, fail, jobs, new_job, retry, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


@guarantee(Guarantee.RETENTION)
async def test_a_job_is_deleted_when_its_retention_has_passed(bench: Bench) -> None:
    await bench.put(*jobs("good", "bad", "cancelled"))
    good, bad, to_cancel = await bench.take(3)
    await bench.engine.settle(succeed(good), fail(bad), confirm_cancel(to_cancel))

    bench.clock.advance(hours=23)
    early = await bench.engine.prune()
    bench.clock.advance(hours=2)
    later = await bench.engine.prune()
    bench.clock.advance(days=28)
    still = await bench.engine.prune()
    bench.clock.advance(days=2)
    last = await bench.engine.prune()

    assert (early.deleted, still.deleted) == ((), ())
    assert sorted(later.deleted) == [JobKey(QUEUE, "cancelled"), JobKey(QUEUE, "good")]
    assert last.deleted == (JobKey(QUEUE, "bad"),)
    assert await bench.get_or_none("bad") is None
    assert (await bench.stats()).counts == {}


@guarantee(Guarantee.RETENTION)
async def test_live_jobs_are_never_pruned(bench: Bench) -> None:
    no_lifetimes = Given(retention=0, result_ttl=0)
    await bench.put(*jobs("running", "again", given=no_lifetimes))
    _, again = await bench.take(2)
    await bench.settle(retry(again, HOUR))
    await bench.put(
        new_job("scheduled", delay=HOUR, given=no_lifetimes), *jobs("head", "behind", lane="l", given=no_lifetimes)
    )
    bench.clock.advance(days=4_000)

    answer = await bench.engine.prune()

    assert (answer.deleted, answer.expired, answer.more) == ((), (), False)
    assert (await bench.stats()).depth == 5


# PR1
@guarantee(Guarantee.RETENTION)
async def test_prune_works_in_batches_and_answers_whether_there_is_more(bench: Bench) -> None:
    await bench.put(*jobs(*(f"job-{number}" for number in range(7))))
    await bench.engine.settle(*(succeed(lease, retention=MINUTE, result_ttl=MINUTE) for lease in await bench.take(7)))
    bench.clock.advance(minutes=2)

    first = await bench.engine.prune(limit=3)
    second = await bench.engine.prune(limit=3)
    third = await bench.engine.prune(limit=3)

    assert [len(answer.deleted) for answer in (first, second, third)] == [3, 3, 1]
    assert (first.more, third.more) == (True, False)
    deleted = {key.id for answer in (first, second, third) for key in answer.deleted}
    assert len(deleted) == 7


@guarantee(Guarantee.DUE_TIMES)
async def test_prune_cancels_expired_jobs_in_batches_too(bench: Bench) -> None:
    expires = (await bench.engine.now()).wall + MINUTE
    await bench.put(*jobs(*(f"job-{number}" for number in range(5)), delay=HOUR, expires=expires))
    bench.clock.advance(minutes=2)

    first = await bench.engine.prune(limit=4)
    second = await bench.engine.prune(limit=4)

    assert ([len(answer.expired) for answer in (first, second)], first.more) == ([4, 1], True)
    assert (await bench.stats()).counts == {JobState.CANCELLED: 5}


@guarantee(Guarantee.RETENTION)
async def test_prune_without_work_has_an_empty_answer(bench: Bench) -> None:
    answer = await bench.engine.prune()

    assert (answer.deleted, answer.expired, answer.workers, answer.more) == ((), (), (), False)


@guarantee(Guarantee.RETENTION)
async def test_a_requeued_or_replaced_job_is_not_pruned(bench: Bench) -> None:
    """E-F6"""
    await bench.put(new_job("requeued"), new_job("replaced"))
    await bench.engine.settle(*(fail(lease, retention=MINUTE, result_ttl=MINUTE) for lease in await bench.take(2)))
    await bench.engine.requeue(QUEUE, "requeued")
    await bench.put(new_job("replaced"))
    bench.clock.advance(days=1)

    assert (await bench.engine.prune()).deleted == ()
    assert await bench.states("requeued", "replaced") == [JobState.QUEUED, JobState.QUEUED]


@guarantee(Guarantee.RETENTION)
async def test_all_queues_are_pruned(bench: Bench) -> None:
    for queue in ("red", "blue"):
        await bench.finish(new_job(queue=queue))
    bench.clock.advance(days=2)

    assert sorted((await bench.engine.prune()).deleted) == [JobKey("blue", "a"), JobKey("red", "a")]


# PR2
@guarantee(Guarantee.LANES)
async def test_an_idle_lane_is_deleted_after_a_day_and_its_totals_stay(bench: Bench) -> None:
    await bench.finish(new_job("a", lane="idle"))
    await bench.put(new_job("b", lane="busy"))
    await bench.engine.pause(QUEUE, "paused")
    bench.clock.advance(hours=23)
    await bench.engine.prune()
    before = [lane.lane for lane in (await bench.engine.lanes(QUEUE)).lanes]
    bench.clock.advance(hours=2)

    await bench.engine.prune()

    assert before == ["busy", "idle", "paused"]
    assert [lane.lane for lane in (await bench.engine.lanes(QUEUE)).lanes] == ["busy", "paused"]
    assert (await bench.stats()).totals.succeeded == 1


@guarantee(Guarantee.LANES)
async def test_a_deleted_lane_can_be_used_again(bench: Bench) -> None:
    await bench.finish(new_job("a", lane="lane"))
    bench.clock.advance(days=2)
    await bench.engine.prune()

    accepted = await bench.put_one(new_job("b", lane="lane"))

    assert (accepted.position, accepted.depth) == (0, 1)
    assert await bench.take_ids() == ["b"]
