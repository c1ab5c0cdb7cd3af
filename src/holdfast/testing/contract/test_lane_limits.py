"""A depth limit for each lane. For a pool it is checked in the same write that chooses the lane."""

import asyncio

from holdfast.model.operate import OperateStatus
from holdfast.model.produce import DepthLimit, Group, GroupAccepted, GroupFull, NewJob, PoolPlace
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, at_most, jobs, new_job, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee

POOL = "mail"
ALICE, BOB = "1", "2"
"""The lanes of these two keys in a pool of eight."""


def each_lane(limit: int, queue: str = QUEUE) -> tuple[DepthLimit, ...]:
    return (DepthLimit(queue, limit, each_lane=True),)


def pooled(id: str, key: str | None = None, lanes: int = 8) -> NewJob:
    return new_job(id, queue=POOL, pool=PoolPlace(lanes, key))


# E6
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_every_lane_takes_exactly_as_many_jobs_as_the_limit_for_each_lane(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="x"), limits=each_lane(2))
    await bench.put(*jobs("c", "d", lane="y"), limits=each_lane(2))

    assert await bench.offer(new_job("e", lane="x"), limits=each_lane(2)) == GroupFull(QUEUE, "x", 2, 2)
    assert await bench.offer(new_job("e", lane="y"), limits=each_lane(2)) == GroupFull(QUEUE, "y", 2, 2)
    assert isinstance(await bench.offer(new_job("e", lane="z"), limits=each_lane(2)), GroupAccepted)


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_limit_for_each_lane_does_not_count_jobs_without_a_lane(bench: Bench) -> None:
    accepted = await bench.put(*jobs("a", "b", "c"), limits=each_lane(0))

    assert [job.depth for job in accepted] == [None, None, None]


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_limit_for_each_lane_counts_only_its_own_queue(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="x", queue="other"))

    assert isinstance(await bench.offer(new_job("c", lane="x"), limits=each_lane(1)), GroupAccepted)
    assert isinstance(await bench.offer(new_job("c", lane="x", queue="other"), limits=each_lane(1)), GroupAccepted)


# E7
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_the_answer_names_the_first_full_lane_of_the_group(bench: Bench) -> None:
    group = (new_job("a", lane="z"), *jobs("b", "c", lane="y"), *jobs("d", "e", lane="x"), new_job("f", lane="y"))

    assert await bench.offer(*group, limits=each_lane(1)) == GroupFull(QUEUE, "y", 0, 1)
    assert (await bench.stats()).depth == 0


# E7
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_limits_are_checked_in_the_order_given(bench: Bench) -> None:
    await bench.put(new_job("a", lane="x"))
    queue, lane, each = at_most(1)[0], at_most(1, lane="x")[0], each_lane(1)[0]

    answers = [await bench.offer(new_job("b", lane="x"), limits=order) for order in ((queue, each), (each, queue))]

    assert answers == [GroupFull(QUEUE, None, 1, 1), GroupFull(QUEUE, "x", 1, 1)]
    other = (new_job("b", lane="y"), new_job("c", lane="y"), new_job("d", lane="x"))
    assert await bench.offer(*other, limits=(lane, each)) == GroupFull(QUEUE, "x", 1, 1)
    assert await bench.offer(*other, limits=(each, lane)) == GroupFull(QUEUE, "y", 0, 1)


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_duplicates_do_not_count_towards_the_limit_of_their_lane(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="x"), limits=each_lane(2))

    await bench.put(*jobs("a", "b", lane="x"), new_job("c", lane="y"), new_job("c", lane="y"), limits=each_lane(1))

    assert (await bench.lane("y")).depth == 1


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_finished_job_no_longer_counts_towards_the_limit_of_its_lane(bench: Bench) -> None:
    await bench.put(new_job("a", lane="x"), limits=each_lane(1))
    assert await bench.offer(new_job("b", lane="x"), limits=each_lane(1)) == GroupFull(QUEUE, "x", 1, 1)

    await bench.settle(succeed(await bench.take_one()))

    await bench.put(new_job("b", lane="x"), limits=each_lane(1))


# E8
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_keyed_job_counts_in_the_lane_that_the_pool_chooses(bench: Bench) -> None:
    limits = each_lane(2, POOL)
    await bench.put(pooled("a", "alice"), pooled("b", "alice"), limits=limits)

    assert await bench.offer(pooled("c", "alice"), limits=limits) == GroupFull(POOL, ALICE, 2, 2)
    await bench.put(pooled("c", "bob"), limits=limits)
    assert (await bench.lane(BOB, POOL)).depth == 1


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_the_stored_number_of_lanes_decides_the_lane_of_a_key(bench: Bench) -> None:
    await bench.engine.put_pool(POOL, 1)
    await bench.put(pooled("a", "alice"))

    assert await bench.offer(pooled("b", "bob"), limits=each_lane(1, POOL)) == GroupFull(POOL, "0", 1, 1)


# E8
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_jobs_without_a_key_count_in_the_lanes_that_the_pool_chooses(bench: Bench) -> None:
    limits = each_lane(1, POOL)
    await bench.put(pooled("a", lanes=3))
    await bench.put(pooled("b", lanes=3), limits=limits)
    await bench.put(new_job("full", queue=POOL, lane="0"))

    assert await bench.offer(*(pooled(id, lanes=3) for id in "cde"), limits=limits) == GroupFull(POOL, "0", 2, 1)
    await bench.put(pooled("c", lanes=3), limits=limits)
    assert (await bench.get("c", POOL)).lane == "2"


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_refused_group_does_not_advance_the_round_robin(bench: Bench) -> None:
    await bench.put(pooled("a", lanes=2))

    assert await bench.offer(pooled("b"), pooled("c"), limits=each_lane(1, POOL)) == GroupFull(POOL, "0", 1, 1)

    await bench.put(pooled("b"))
    assert (await bench.get("b", POOL)).lane == "1"


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_keyed_jobs_and_duplicates_do_not_advance_the_round_robin(bench: Bench) -> None:
    await bench.put(pooled("a", lanes=3))
    group = (pooled("a"), pooled("k", "alice"), pooled("b"), pooled("b"), pooled("c"))

    await bench.put(*group, limits=at_most(9, lane="2", queue=POOL))
    assert [(await bench.get(id, POOL)).lane for id in "bc"] == ["1", "2"]


# O2
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_job_without_a_key_takes_the_next_lane_that_has_room(bench: Bench) -> None:
    limits = each_lane(1, POOL)
    await bench.put(new_job("full-0", queue=POOL, lane="0"), new_job("full-1", queue=POOL, lane="1"))

    for id in "ab":
        await bench.put(pooled(id, lanes=4), limits=limits)

    assert [(await bench.get(id, POOL)).lane for id in "ab"] == ["2", "3"]
    assert (await bench.engine.pools()).pools[0].turn == 4
    assert await bench.offer(pooled("c"), limits=limits) == GroupFull(POOL, "0", 1, 1)
    assert (await bench.engine.pools()).pools[0].turn == 4


# O2
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_the_jobs_of_a_group_are_spread_over_the_lanes_that_have_room(bench: Bench) -> None:
    await bench.put(*jobs("x", "y", queue=POOL, lane="1"), new_job("z", queue=POOL, lane="2"))

    await bench.put(*(pooled(id, lanes=4) for id in "abcde"), limits=each_lane(2, POOL))

    assert [(await bench.get(id, POOL)).lane for id in "abcde"] == ["0", "2", "3", "0", "3"]
    assert (await bench.engine.pools()).pools[0].turn == 8


# E8
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_jobs_without_a_key_leave_the_others_of_their_group_their_room(bench: Bench) -> None:
    group = (pooled("a", lanes=3), pooled("b", lanes=3), new_job("c", queue=POOL, lane="0"))

    assert isinstance(await bench.offer(*group, limits=each_lane(1, POOL)), GroupAccepted)

    assert [(await bench.get(id, POOL)).lane for id in "abc"] == ["1", "2", "0"]


# O2
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_lane_without_a_limit_has_room(bench: Bench) -> None:
    await bench.put(pooled("a", lanes=2), limits=at_most(0, lane="0", queue=POOL))

    assert (await bench.get("a", POOL)).lane == "1"


# E8
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_group_looks_for_room_in_the_next_1_000_lanes(bench: Bench) -> None:
    limits = each_lane(1, POOL)
    await bench.put(*(pooled(f"job-{n}", lanes=1_001) for n in range(1_001)), limits=limits)

    await bench.engine.cancel(POOL, "job-1000")
    assert await bench.offer(pooled("a"), limits=limits) == GroupFull(POOL, "0", 1, 1)
    await bench.engine.cancel(POOL, "job-999")
    await bench.put(pooled("a"), limits=limits)

    assert (await bench.get("a", POOL)).lane == "999"


# E8
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_new_pool_has_the_number_of_lanes_of_its_first_job(bench: Bench) -> None:
    group = (pooled("a", lanes=2), pooled("b", lanes=50), pooled("c", lanes=50))

    assert await bench.offer(*group, limits=each_lane(1, POOL)) == GroupFull(POOL, "0", 0, 1)
    assert (await bench.engine.pools()).pools == ()
    await bench.put(*group[:2], limits=each_lane(1, POOL))
    assert [(await bench.get(id, POOL)).lane for id in "ab"] == ["0", "1"]


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_jobs_that_name_a_lane_and_jobs_that_a_pool_places_there_share_its_limit(bench: Bench) -> None:
    named = new_job("a", queue=POOL, lane=ALICE)

    assert await bench.offer(named, pooled("b", "alice"), limits=each_lane(1, POOL)) == GroupFull(POOL, ALICE, 0, 1)


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_the_limit_of_one_lane_counts_jobs_that_a_pool_places_there(bench: Bench) -> None:
    limits = at_most(1, lane=ALICE, queue=POOL)
    await bench.put(pooled("a", "alice"), pooled("b", "bob"), pooled("c", "bob"), limits=limits)

    assert await bench.offer(pooled("d", "alice"), limits=limits) == GroupFull(POOL, ALICE, 1, 1)
    await bench.put(pooled("d", "bob"), limits=limits)


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_groups_of_one_call_share_the_limit_of_a_lane(bench: Bench) -> None:
    groups = [Group((pooled(id, "alice"),), each_lane(2, POOL)) for id in "abc"]

    answer = await bench.engine.enqueue(*groups)

    assert [type(group) for group in answer.groups] == [GroupAccepted, GroupAccepted, GroupFull]
    assert answer.groups[2] == GroupFull(POOL, ALICE, 2, 2)


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_requeue_respects_a_limit_for_each_lane(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="x"), *jobs("c", "d"), new_job("e", lane="y"))
    await bench.engine.cancel(QUEUE, "a", "c", "e")

    answer = await bench.engine.requeue(QUEUE, "a", "c", "e", limits=each_lane(1))

    assert [job.status for job in answer.jobs] == [OperateStatus.QUEUE_FULL, OperateStatus.DONE, OperateStatus.DONE]


# RQ1
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_requeue_checks_the_lane_that_the_job_will_go_to(bench: Bench) -> None:
    await bench.put(pooled("a", "alice"), pooled("b", "bob"))
    await bench.engine.cancel(POOL, "a", "b")
    await bench.engine.resize(POOL, 1)
    await bench.put(new_job("c", queue=POOL, lane="0"))

    refused = [
        await bench.engine.requeue(POOL, "a", limits=limits)
        for limits in (each_lane(1, POOL), at_most(1, lane="0", queue=POOL))
    ]
    fine = await bench.engine.requeue(POOL, "a", limits=at_most(0, lane=ALICE, queue=POOL))

    assert [answer.jobs[0].status for answer in refused] == [OperateStatus.QUEUE_FULL] * 2
    assert fine.jobs[0].status is OperateStatus.DONE
    assert (await bench.get("a", POOL)).lane == "0"


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_a_requeued_job_without_a_key_takes_the_next_lane_that_has_room(bench: Bench) -> None:
    await bench.put(pooled("a", lanes=2), pooled("b", lanes=2), pooled("c", lanes=2))
    await bench.engine.cancel(POOL, "a", "c")

    answer = await bench.engine.requeue(POOL, "a", "c", limits=each_lane(1, POOL))

    assert [job.status for job in answer.jobs] == [OperateStatus.DONE, OperateStatus.QUEUE_FULL]
    assert (await bench.get("a", POOL)).lane == "0"
    await bench.engine.cancel(POOL, "b")
    await bench.engine.requeue(POOL, "c", limits=each_lane(1, POOL))
    assert (await bench.get("c", POOL)).lane == "1"


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_racing_callers_never_exceed_the_limit_of_a_lane_that_a_pool_chooses(bench: Bench) -> None:
    limits = each_lane(3, POOL)

    answers = await asyncio.gather(*(bench.offer(pooled(f"job-{n}", lanes=4), limits=limits) for n in range(40)))

    assert sum(isinstance(answer, GroupAccepted) for answer in answers) == 12
    assert [(await bench.lane(str(lane), POOL)).depth for lane in range(4)] == [3, 3, 3, 3]
