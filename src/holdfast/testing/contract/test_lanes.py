"""Lanes: one job at a time, in order; the head keeps its lane until it has ended."""

import asyncio

import pytest

from holdfast.model.instants import HOUR, MINUTE
from holdfast.model.records import LaneRecord, Totals
from holdfast.model.states import Hold, JobState
from holdfast.model.work import LaneName, QueueClaim
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import (
    QUEUE,
    after,
    confirm_cancel,
    fail,
    jobs,
    new_job,
    release,
    retry,
    snooze,
    succeed,
    task_claim,
)
from holdfast.testing.contract.guarantees import Guarantee, guarantee
from holdfast.testing.contract.interleave import pass_turns


async def run_through(bench: Bench, count: int) -> list[str]:
    """Claim and finish one job after the other; return their ids in this order."""
    order = []
    for _ in range(count):
        lease = await bench.take_one()
        order.append(lease.id)
        await bench.settle(succeed(lease))
    return order


# L1, L2
@guarantee(Guarantee.LANES)
async def test_the_first_job_is_the_head_and_the_others_wait_behind_it(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c", lane="lane"))

    head, *behind = [await bench.get(id) for id in "abc"]

    assert (head.state, head.hold) == (JobState.QUEUED, Hold.NONE)
    assert [(job.state, job.hold) for job in behind] == [(JobState.BLOCKED, Hold.LANE)] * 2
    lane = await bench.lane("lane")
    assert (lane.queue, lane.lane, lane.head, lane.depth, lane.paused) == (QUEUE, "lane", "a", 3, False)
    assert lane.totals == Totals()


@guarantee(Guarantee.LANES)
async def test_only_the_head_is_claimed_even_if_more_slots_are_free(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c", lane="lane"))

    assert await bench.take_ids(10) == ["a"]
    assert await bench.take_ids(10) == []


@guarantee(Guarantee.LANES)
@pytest.mark.parametrize("end", [succeed, fail, confirm_cancel])
async def test_the_next_job_becomes_the_head_after_every_kind_of_end(bench: Bench, end: object) -> None:
    await bench.put(*jobs("a", "b", "c", lane="lane"))
    assert callable(end)

    await bench.settle(end(await bench.take_one()))

    assert (await bench.lane("lane")).head == "b"
    assert await bench.states("b", "c") == [JobState.QUEUED, JobState.BLOCKED]
    assert await bench.take_ids(10) == ["b"]


@guarantee(Guarantee.LANES)
async def test_a_lane_runs_in_order_of_arrival(bench: Bench) -> None:
    ids = [f"job-{number}" for number in range(10)]
    for id in ids:
        await bench.put(new_job(id, lane="lane"))

    assert await run_through(bench, 10) == ids


# L4
@guarantee(Guarantee.LANES)
async def test_behind_the_head_priority_goes_before_arrival(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="lane"))
    await bench.put(new_job("c", lane="lane", priority=5), new_job("d", lane="lane", priority=-5))
    await bench.put(new_job("e", lane="lane", priority=5), new_job("f", lane="lane"))

    assert await run_through(bench, 6) == ["a", "c", "e", "b", "f", "d"]


# L4
@guarantee(Guarantee.LANES)
async def test_due_times_do_not_reorder_a_lane(bench: Bench) -> None:
    await bench.put(new_job("a", lane="lane"), new_job("b", lane="lane", delay=MINUTE), new_job("c", lane="lane"))
    await bench.settle(succeed(await bench.take_one()))

    assert await bench.states("b", "c") == [JobState.SCHEDULED, JobState.BLOCKED]
    assert await bench.take(10) == ()
    bench.clock.advance(minutes=2)

    assert await run_through(bench, 2) == ["b", "c"]


# L3
@guarantee(Guarantee.LANES)
@pytest.mark.parametrize("give_back", [retry, snooze])
async def test_the_head_keeps_its_lane_while_it_waits_for_its_next_attempt(bench: Bench, give_back: object) -> None:
    """Case 10 of the contract"""
    await bench.put(*jobs("a", "b", lane="lane"))
    assert callable(give_back)
    await bench.settle(give_back(await bench.take_one(), 10 * MINUTE))
    await bench.put(new_job("urgent", lane="lane", priority=100))

    assert await bench.take(10) == ()
    assert (await bench.lane("lane")).head == "a"
    bench.clock.advance(minutes=11)

    assert await run_through(bench, 3) == ["a", "urgent", "b"]


# L3
@guarantee(Guarantee.LANES)
async def test_the_head_keeps_its_lane_while_it_is_queued(bench: Bench) -> None:
    await bench.put(new_job("a", lane="lane"))
    await bench.put(new_job("urgent", lane="lane", priority=100))

    assert await run_through(bench, 2) == ["a", "urgent"]


@guarantee(Guarantee.LANES)
async def test_the_head_keeps_its_lane_after_a_release(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="lane"))
    lease = await bench.take_one()
    await bench.put(new_job("urgent", lane="lane", priority=100))

    answer = await bench.engine.exchange([release(lease)], claim=bench.claim(limit=5))

    assert [lease.id for lease in answer.leases] == ["a"]


@guarantee(Guarantee.LANES)
async def test_a_head_with_a_due_time_keeps_its_lane(bench: Bench) -> None:
    await bench.put(new_job("a", lane="lane", delay=HOUR))
    await bench.put(new_job("b", lane="lane"), new_job("urgent", lane="lane", priority=100))

    assert await bench.state("a") is JobState.SCHEDULED
    assert await bench.take(10) == ()
    bench.clock.advance(hours=2)

    assert await run_through(bench, 3) == ["a", "urgent", "b"]


@guarantee(Guarantee.LANES)
async def test_the_head_keeps_its_lane_after_a_loss(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="lane"))
    await bench.lose(await bench.take_one(), delay=10 * MINUTE)

    assert await bench.take(10) == ()
    bench.clock.advance(minutes=11)
    assert await bench.take_ids(10) == ["a"]


# L3
@guarantee(Guarantee.LANES)
async def test_a_head_that_waits_for_its_parents_keeps_its_lane(bench: Bench) -> None:
    await bench.put(new_job("parent"))
    await bench.put(new_job("head", lane="lane", parents=after("parent")), new_job("behind", lane="lane"))
    assert (await bench.get("head")).hold == Hold.PARENTS

    parent = await bench.take_one()
    assert await bench.take(10) == ()
    await bench.settle(succeed(parent))

    assert await run_through(bench, 2) == ["head", "behind"]


@guarantee(Guarantee.LANES)
async def test_lanes_do_not_wait_for_each_other(bench: Bench) -> None:
    for id in "abc":
        await bench.put(*jobs(f"{id}1", f"{id}2", lane=id))
    await bench.put(new_job("free"))

    first = await bench.take(10)
    await bench.settle(succeed(first[1]))

    assert [lease.id for lease in first] == ["a1", "b1", "c1", "free"]
    assert await bench.take_ids() == ["b2"]


@guarantee(Guarantee.LANES)
async def test_heads_are_claimed_in_the_order_of_the_queue(bench: Bench) -> None:
    await bench.put(new_job("a", lane="one"), new_job("b", lane="two", priority=1), new_job("c", priority=2))

    assert await bench.take_ids() == ["c", "b", "a"]


@guarantee(Guarantee.LANES)
async def test_a_lane_may_contain_jobs_of_several_tasks(bench: Bench) -> None:
    await bench.put(new_job("a", lane="lane", task="x"), new_job("b", lane="lane", task="y"))

    assert await bench.take_ids(tasks=("y",)) == []
    await bench.settle(succeed(await bench.take_one(tasks=("x", "y"))))
    assert await bench.take_ids(tasks=("x",)) == []
    assert await bench.take_ids(tasks=("y",)) == ["b"]


@guarantee(Guarantee.LANES)
async def test_lanes_of_one_name_in_two_queues_are_two_lanes(bench: Bench) -> None:
    await bench.put(new_job("a", queue="red", lane="lane"), new_job("b", queue="blue", lane="lane"))
    queues = (QueueClaim("red", (task_claim(),)), QueueClaim("blue", (task_claim(),)))

    assert [lease.id for lease in await bench.take(10, queues=queues)] == ["a", "b"]
    assert [lane.queue for lane in (await bench.engine.lanes("red")).lanes] == ["red"]


# L8
@guarantee(Guarantee.EMPTIED)
async def test_the_last_settlement_of_a_lane_reports_it_empty(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="lane"), new_job("c"))
    a, c = await bench.take(2)

    first = await bench.engine.settle(succeed(a), succeed(c))
    second = await bench.engine.settle(succeed(await bench.take_one()))
    again = await bench.engine.settle(succeed(a))

    assert (first.emptied, second.emptied, again.emptied) == ((), (LaneName(QUEUE, "lane"),), ())


@guarantee(Guarantee.EMPTIED)
@pytest.mark.parametrize("end", [succeed, fail, confirm_cancel])
async def test_a_lane_is_reported_empty_after_every_kind_of_end(bench: Bench, end: object) -> None:
    await bench.put(new_job(lane="lane"))
    assert callable(end)

    answer = await bench.engine.settle(end(await bench.take_one()))

    assert answer.emptied == (LaneName(QUEUE, "lane"),)


@guarantee(Guarantee.EMPTIED)
@pytest.mark.parametrize("give_back", [retry, snooze, release])
async def test_a_lane_whose_last_job_will_run_again_is_not_empty(bench: Bench, give_back: object) -> None:
    await bench.put(new_job(lane="lane"))
    assert callable(give_back)

    answer = await bench.engine.settle(give_back(await bench.take_one()))

    assert answer.emptied == ()
    assert (await bench.lane("lane")).depth == 1


@guarantee(Guarantee.EMPTIED)
async def test_each_lane_that_becomes_empty_is_reported_once(bench: Bench) -> None:
    await bench.put(new_job("a", lane="one"), new_job("b", lane="two"), *jobs("c", "d", lane="three"))

    answer = await bench.engine.settle(*(succeed(lease) for lease in await bench.take(10)))

    assert sorted(answer.emptied) == [LaneName(QUEUE, "one"), LaneName(QUEUE, "two")]


@guarantee(Guarantee.EMPTIED)
async def test_a_lane_that_gets_jobs_again_can_be_reported_empty_again(bench: Bench) -> None:
    for id in "ab":
        await bench.put(new_job(id, lane="lane"))
        answer = await bench.engine.settle(succeed(await bench.take_one()))
        assert answer.emptied == (LaneName(QUEUE, "lane"),)


@guarantee(Guarantee.EMPTIED)
async def test_a_last_job_cancelled_instead_of_retried_empties_its_lane(bench: Bench) -> None:
    await bench.put(new_job(lane="lane"))
    lease = await bench.take_one()
    await bench.engine.cancel(QUEUE, "a")

    assert (await bench.engine.settle(retry(lease))).emptied == (LaneName(QUEUE, "lane"),)


# L9
@guarantee(Guarantee.COUNTERS)
async def test_a_lane_counts_its_ends(bench: Bench) -> None:
    """E-D9"""
    await bench.put(*jobs("a", "b", "c", "d", "e", "f", lane="lane"))
    for end in (succeed, fail, fail, confirm_cancel):
        await bench.settle(end(await bench.take_one()))
    await bench.settle(retry(await bench.take_one()))

    lane = await bench.lane("lane")
    assert (lane.depth, lane.head) == (2, "e")
    assert lane.totals == Totals(succeeded=1, failed=2, cancelled=1)


@guarantee(Guarantee.READING)
async def test_lanes_are_listed_by_name(bench: Bench) -> None:
    for lane in ("b", "c", "a"):
        await bench.put(new_job(lane, lane=lane))
    await bench.put(new_job("x", queue="other", lane="x"))

    lanes = (await bench.engine.lanes(QUEUE)).lanes

    assert [lane.lane for lane in lanes] == ["a", "b", "c"]
    assert {lane.depth for lane in lanes} == {1}
    assert (await bench.engine.lanes("absent")).lanes == ()


# RD5
@guarantee(Guarantee.READING)
async def test_lanes_that_are_named_come_in_the_order_of_the_names(bench: Bench) -> None:
    for lane in ("a", "b", "c"):
        await bench.put(new_job(lane, lane=lane))
    await bench.put(new_job("x", queue="other", lane="x"))

    lanes = (await bench.engine.lanes(QUEUE, "c", "x", "a")).lanes

    assert [(lane.lane, lane.head, lane.depth) for lane in lanes] == [("c", "c", 1), ("a", "a", 1)]
    assert (await bench.engine.lanes(QUEUE, "absent")).lanes == ()


@guarantee(Guarantee.READING)
async def test_the_record_of_an_empty_lane_contains_when_it_became_empty(bench: Bench) -> None:
    await bench.put(new_job(lane="lane"))
    lease = await bench.take_one()
    bench.clock.advance(minutes=1)

    answer = await bench.engine.settle(succeed(lease))

    assert await bench.lane("lane") == LaneRecord(
        queue=QUEUE,
        lane="lane",
        head=None,
        depth=0,
        totals=Totals(succeeded=1),
        fence=lease.fence,
        emptied=answer.at.wall,
    )


@guarantee(Guarantee.LANES)
async def test_many_workers_on_many_lanes_keep_the_order_of_each(bench: Bench) -> None:
    lanes = [f"lane-{number}" for number in range(8)]
    for number in range(12):
        await bench.put(*(new_job(f"{lane}/{number:02}", lane=lane) for lane in lanes))
    ended: list[tuple[int, str]] = []
    running: set[str] = set()

    async def work(worker: str) -> None:
        for _ in range(200):
            for lease in await bench.take(2, worker=worker):
                assert lease.lane is not None
                assert lease.lane not in running, f"two jobs of {lease.lane} at a time"
                running.add(lease.lane)
                await pass_turns(3)
                again = lease.attempt == 1 and lease.id.endswith("5")
                running.remove(lease.lane)
                await bench.settle(retry(lease) if again else succeed(lease))
                if not again:
                    ended.append((lease.fence, lease.id))

    await asyncio.gather(*(work(f"worker-{number}") for number in range(6)))

    for lane in lanes:
        # By fence: on a busy machine the answer to a settlement may come after that of the next job's.
        order = [id for _, id in sorted(ended) if id.startswith(f"{lane}/")]
        assert order == [f"{lane}/{number:02}" for number in range(12)]
