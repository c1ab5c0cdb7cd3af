"""Depth limits: exact, checked in the same write as the group that would exceed them."""

import asyncio

from holdfast.model.instants import HOUR
from holdfast.model.produce import DepthLimit, EnqueueStatus, Group, GroupAccepted, GroupFull
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, after, at_most, fail, jobs, new_job, retry, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


# E6
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_queue_takes_exactly_as_many_as_its_limit(bench: Bench) -> None:
    await bench.put(*jobs("a", "b"), limits=at_most(3))
    await bench.put(new_job("c"), limits=at_most(3))

    refused = await bench.offer(new_job("d"), limits=at_most(3))

    assert refused == GroupFull(QUEUE, None, 3, 3)
    assert (await bench.stats()).depth == 3


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_group_that_fits_in_part_is_refused_whole(bench: Bench) -> None:
    await bench.put(*jobs("a", "b"))

    refused = await bench.offer(*jobs("c", "d"), limits=at_most(3))

    assert refused == GroupFull(QUEUE, None, 2, 3)
    assert await bench.take_ids() == ["a", "b"]


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_limit_of_zero_refuses_the_first_job(bench: Bench) -> None:
    assert await bench.offer(new_job(), limits=at_most(0)) == GroupFull(QUEUE, None, 0, 0)


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_lane_takes_exactly_as_many_as_its_limit(bench: Bench) -> None:
    limits = at_most(2, lane="lane")
    await bench.put(new_job("elsewhere"), new_job("other", lane="other"))
    await bench.put(*jobs("a", "b", lane="lane"), limits=limits)

    assert await bench.offer(new_job("c", lane="lane"), limits=limits) == GroupFull(QUEUE, "lane", 2, 2)
    assert isinstance(await bench.offer(new_job("d", lane="other"), limits=limits), GroupAccepted)
    assert isinstance(await bench.offer(new_job("e"), limits=limits), GroupAccepted)


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_every_limit_of_a_group_is_checked(bench: Bench) -> None:
    limits = (DepthLimit(QUEUE, 10), DepthLimit(QUEUE, 1, "lane"))
    await bench.put(new_job("a", lane="lane"), limits=limits)

    refused = await bench.offer(new_job("b", lane="lane"), limits=limits)
    accepted = await bench.offer(new_job("c"), limits=limits)

    assert refused == GroupFull(QUEUE, "lane", 1, 1)
    assert isinstance(accepted, GroupAccepted)


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_limit_counts_only_its_own_queue(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c", queue="other"))

    assert isinstance(await bench.offer(new_job("d"), limits=at_most(1)), GroupAccepted)
    assert isinstance(await bench.offer(new_job("d", queue="other"), limits=at_most(1)), GroupAccepted)


# E6
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_live_job_counts_in_every_state(bench: Bench) -> None:
    await bench.put(*jobs("running", "retrying"))
    _, failed_once = await bench.take(2)
    await bench.settle(retry(failed_once, HOUR))
    await bench.put(new_job("scheduled", delay=HOUR), *jobs("head", "blocked", lane="lane"), new_job("queued"))
    await bench.put(new_job("child", parents=after("queued")))

    assert await bench.offer(new_job("x"), limits=at_most(7)) == GroupFull(QUEUE, None, 7, 7)
    assert isinstance(await bench.offer(new_job("x"), limits=at_most(8)), GroupAccepted)


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_finished_job_no_longer_counts(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"), limits=at_most(3))
    one, two, three = await bench.take(3)
    await bench.engine.settle(succeed(one), fail(two))
    await bench.settle(retry(three))

    refused = await bench.offer(*jobs("d", "e", "f"), limits=at_most(3))
    assert refused == GroupFull(QUEUE, None, 1, 3)
    await bench.put(*jobs("d", "e"), limits=at_most(3))

    await bench.engine.cancel(QUEUE, "d")
    await bench.put(new_job("f"), limits=at_most(3))
    assert await bench.offer(new_job("g"), limits=at_most(3)) == GroupFull(QUEUE, None, 3, 3)


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_duplicates_do_not_count(bench: Bench) -> None:
    await bench.put(*jobs("a", "b"), limits=at_most(3))

    only_duplicates = await bench.put(*jobs("a", "b"), limits=at_most(2))
    one_is_new = await bench.put(*jobs("a", "c", "c"), limits=at_most(3))

    assert {job.status for job in only_duplicates} == {EnqueueStatus.DUPLICATE}
    assert [job.status for job in one_is_new] == [
        EnqueueStatus.DUPLICATE,
        EnqueueStatus.CREATED,
        EnqueueStatus.DUPLICATE,
    ]


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_job_that_replaces_a_failed_one_counts(bench: Bench) -> None:
    await bench.put(new_job("a"))
    await bench.settle(fail(await bench.take_one()))
    await bench.put(new_job("b"))

    assert await bench.offer(new_job("a"), limits=at_most(1)) == GroupFull(QUEUE, None, 1, 1)
    assert (await bench.get("a")).generation == 0
    await bench.put(new_job("a"), limits=at_most(2))


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_groups_of_one_call_share_the_limit(bench: Bench) -> None:
    groups = [Group(jobs(id), at_most(2)) for id in ("a", "b", "c")]

    answer = await bench.engine.enqueue(*groups)

    assert [type(group) for group in answer.groups] == [GroupAccepted, GroupAccepted, GroupFull]
    assert answer.groups[2] == GroupFull(QUEUE, None, 2, 2)


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_limit_applies_only_to_the_call_that_contains_it(bench: Bench) -> None:
    await bench.put(*jobs("a", "b"), limits=at_most(2))

    await bench.put(new_job("c"))

    assert await bench.offer(new_job("d"), limits=at_most(2)) == GroupFull(QUEUE, None, 3, 2)


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_racing_callers_never_exceed_the_limit(bench: Bench) -> None:
    answers = await asyncio.gather(*(bench.offer(new_job(f"job-{n}"), limits=at_most(10)) for n in range(40)))

    assert sum(isinstance(answer, GroupAccepted) for answer in answers) == 10
    assert (await bench.stats()).depth == 10
    assert len(await bench.take_ids()) == 10


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_racing_callers_never_exceed_the_limit_of_a_lane(bench: Bench) -> None:
    limits = at_most(10, lane="lane")

    answers = await asyncio.gather(*(bench.offer(new_job(f"job-{n}", lane="lane"), limits=limits) for n in range(40)))

    accepted = [answer.jobs[0] for answer in answers if isinstance(answer, GroupAccepted)]
    assert sorted(job.position for job in accepted if job.position is not None) == list(range(10))
    assert (await bench.lane("lane")).depth == 10
