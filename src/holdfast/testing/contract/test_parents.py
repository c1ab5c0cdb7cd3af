"""Parents: a child waits until all its parents have ended, and is cancelled if one of them fails."""

import asyncio

import pytest

from holdfast.errors import Unsupported
from holdfast.model.instants import HOUR, MINUTE
from holdfast.model.job import Given, JobKey
from holdfast.model.produce import EnqueueStatus, GroupOrphan
from holdfast.model.states import Hold, JobState, Reason
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import (
    QUEUE,
    after,
    fail,
    jobs,
    new_job,
    release,
    retry,
    settlement,
    succeed,
)
from holdfast.testing.contract.guarantees import Guarantee, guarantee


@guarantee(Guarantee.PARENTS)
async def test_a_child_waits_until_its_parent_has_succeeded(bench: Bench) -> None:
    await bench.put(new_job("parent"))
    accepted = await bench.put_one(new_job("child", parents=after("parent")))
    before = await bench.get("child")
    (lease,) = await bench.take(10)

    await bench.settle(succeed(lease))

    assert accepted.state is JobState.BLOCKED
    assert (before.state, before.hold, before.parents_left) == (JobState.BLOCKED, Hold.PARENTS, 1)
    later = await bench.get("child")
    assert (later.state, later.hold, later.parents_left) == (JobState.QUEUED, Hold.NONE, 0)
    assert await bench.take_ids() == ["child"]


# P4
@guarantee(Guarantee.PARENTS)
async def test_a_child_waits_for_all_of_its_parents(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"))
    await bench.put(new_job("child", parents=after("a", "b", "c")))
    first, second, third = await bench.take(3)

    await bench.engine.settle(succeed(first), succeed(second))
    after_two = await bench.get("child")
    await bench.settle(succeed(third))

    assert (after_two.state, after_two.parents_left) == (JobState.BLOCKED, 1)
    assert await bench.take_ids() == ["child"]


@guarantee(Guarantee.PARENTS)
async def test_the_end_of_a_parent_unblocks_all_of_its_children(bench: Bench) -> None:
    await bench.put(new_job("parent"), *jobs("x", "y", "z", parents=after("parent")))

    answer = await bench.engine.exchange([succeed(await bench.take_one())], claim=bench.claim(limit=10))

    assert [lease.id for lease in answer.leases] == ["x", "y", "z"], (
        "one exchange can settle the parent and claim its children"
    )


# P1
@guarantee(Guarantee.PARENTS)
async def test_a_parent_may_come_earlier_in_the_same_group(bench: Bench) -> None:
    accepted = await bench.put(new_job("parent"), new_job("child", parents=after("parent")))

    assert [job.state for job in accepted] == [JobState.QUEUED, JobState.BLOCKED]
    assert await bench.take_ids() == ["parent"]


# P5
@guarantee(Guarantee.PARENTS)
@pytest.mark.parametrize("end", [JobState.FAILED, JobState.CANCELLED])
async def test_a_parent_that_does_not_succeed_cancels_its_children_and_theirs(bench: Bench, end: JobState) -> None:
    await bench.put(new_job("parent"))
    await bench.put(new_job("child", parents=after("parent")), new_job("grandchild", parents=after("child")))
    await bench.put(new_job("unrelated", delay=HOUR))

    answer = await bench.engine.settle(settlement(await bench.take_one(), end))

    for id in ("child", "grandchild"):
        job = await bench.get(id)
        assert (job.state, job.reason) == (JobState.CANCELLED, Reason.PARENT_FAILED)
        assert (job.hold, job.finished) == (Hold.NONE, answer.at.wall)
        assert job.attempt == 0
    assert await bench.state("unrelated") is JobState.SCHEDULED
    assert (await bench.stats()).depth == 1


@guarantee(Guarantee.PARENTS)
async def test_one_failed_parent_of_several_is_enough(bench: Bench) -> None:
    await bench.put(*jobs("a", "b"))
    await bench.put(new_job("child", parents=after("a", "b")))
    first, second = await bench.take(2)

    await bench.settle(fail(first))
    assert await bench.state("child") is JobState.CANCELLED
    await bench.settle(succeed(second))

    assert await bench.state("child") is JobState.CANCELLED
    assert await bench.take() == ()


# P2
@guarantee(Guarantee.PARENTS)
@pytest.mark.parametrize("end", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
async def test_with_any_end_a_child_runs_after_every_kind_of_end(bench: Bench, end: JobState) -> None:
    await bench.put(new_job("parent"), new_job("child", parents=after("parent", any_end=True)))

    await bench.settle(settlement(await bench.take_one(), end))

    assert await bench.take_ids() == ["child"]


@guarantee(Guarantee.PARENTS)
async def test_a_child_with_any_end_runs_after_a_child_that_was_cancelled_with_its_parent(bench: Bench) -> None:
    await bench.put(new_job("parent"), new_job("child", parents=after("parent")))
    await bench.put(new_job("clean-up", parents=after("child", any_end=True)))

    await bench.settle(fail(await bench.take_one()))

    assert await bench.take_ids() == ["clean-up"]


@guarantee(Guarantee.PARENTS)
@pytest.mark.parametrize("give_back", [retry, release])
async def test_a_parent_that_will_run_again_keeps_its_children_blocked(bench: Bench, give_back: object) -> None:
    await bench.put(new_job("parent"), new_job("child", parents=after("parent")))
    assert callable(give_back)

    await bench.settle(give_back(await bench.take_one()))

    assert await bench.take_ids() == ["parent"]
    assert await bench.state("child") is JobState.BLOCKED


# P2
@guarantee(Guarantee.PARENTS)
async def test_a_parent_that_has_already_succeeded_blocks_no_child(bench: Bench) -> None:
    await bench.finish(new_job("parent"))

    accepted = await bench.put_one(new_job("child", parents=after("parent")))

    assert (accepted.status, accepted.state) == (EnqueueStatus.CREATED, JobState.QUEUED)
    assert (await bench.get("child")).parents_left == 0
    assert await bench.take_ids() == ["child"]


# P3
@guarantee(Guarantee.PARENTS)
async def test_a_parent_that_has_already_failed_cancels_the_child_at_once(bench: Bench) -> None:
    await bench.put(new_job("parent"))
    await bench.settle(fail(await bench.take_one()))

    child, second = await bench.put(
        new_job("child", parents=after("parent")), new_job("second", parents=after("parent", any_end=True))
    )

    assert (child.status, child.state) == (EnqueueStatus.CREATED, JobState.CANCELLED)
    assert (await bench.get("child")).reason is Reason.PARENT_FAILED
    assert second.state is JobState.QUEUED
    assert (await bench.stats()).depth == 1
    assert await bench.take_ids() == ["second"]


# P1
@guarantee(Guarantee.PARENTS)
async def test_an_absent_parent_refuses_the_group(bench: Bench) -> None:
    await bench.put(new_job("parent"))

    answer = await bench.offer(new_job("x"), new_job("child", parents=after("parent", "absent")))

    assert answer == GroupOrphan(JobKey(QUEUE, "absent"))
    assert await bench.get_or_none("x") is None
    assert await bench.take_ids() == ["parent"]


# S4
@guarantee(Guarantee.PARENTS)
async def test_a_parent_in_another_queue_works_or_is_refused_as_unsupported(bench: Bench) -> None:
    await bench.put(new_job("parent", queue="other"))
    child = new_job("child", parents=after("parent", queue="other"))

    if not bench.engine.capabilities.cross_queue_atomic:
        with pytest.raises(Unsupported):
            await bench.offer(child)
        return
    await bench.put(child)
    assert await bench.take() == ()
    await bench.settle(succeed(await bench.take_one(queue="other")))
    assert await bench.take_ids() == ["child"]


@guarantee(Guarantee.PARENTS)
async def test_a_child_with_a_due_time_waits_for_both(bench: Bench) -> None:
    await bench.put(new_job("parent"), new_job("child", parents=after("parent"), delay=10 * MINUTE))
    due = (await bench.get("child")).due

    await bench.settle(succeed(await bench.take_one()))

    job = await bench.get("child")
    assert (job.state, job.due) == (JobState.SCHEDULED, due)
    assert await bench.take() == ()
    bench.clock.advance(minutes=11)
    assert await bench.take_ids() == ["child"]


@guarantee(Guarantee.PARENTS)
async def test_a_child_whose_due_time_has_passed_is_queued_with_its_parents_end(bench: Bench) -> None:
    await bench.put(new_job("parent"), new_job("child", parents=after("parent"), delay=MINUTE))
    bench.clock.advance(minutes=2)

    await bench.settle(succeed(await bench.take_one()))

    assert await bench.state("child") is JobState.QUEUED


@guarantee(Guarantee.PARENTS)
async def test_a_cancelled_child_stays_cancelled_when_its_parent_succeeds(bench: Bench) -> None:
    await bench.put(new_job("parent"), new_job("child", parents=after("parent")))
    await bench.engine.cancel(QUEUE, "child")

    await bench.settle(succeed(await bench.take_one()))

    job = await bench.get("child")
    assert (job.state, job.reason) == (JobState.CANCELLED, Reason.ASKED)
    assert await bench.take() == ()


@guarantee(Guarantee.PARENTS)
async def test_cancelling_a_waiting_parent_cancels_the_child(bench: Bench) -> None:
    await bench.put(new_job("parent", delay=HOUR), new_job("child", parents=after("parent")))

    await bench.engine.cancel(QUEUE, "parent")

    job = await bench.get("child")
    assert (job.state, job.reason) == (JobState.CANCELLED, Reason.PARENT_FAILED)


# P9
@guarantee(Guarantee.PARENTS)
async def test_a_requeued_child_does_not_wait_for_its_parents(bench: Bench) -> None:
    await bench.put(new_job("parent"), new_job("child", parents=after("parent")))
    await bench.settle(fail(await bench.take_one()))

    await bench.engine.requeue(QUEUE, "child")

    job = await bench.get("child")
    assert (job.state, job.parents_left) == (JobState.QUEUED, 0)
    assert await bench.take_ids() == ["child"]


# P8
@guarantee(Guarantee.PARENTS)
async def test_a_parent_that_leaves_no_record_still_unblocks_its_child(bench: Bench) -> None:
    await bench.put(new_job("parent", given=Given(retention=0, result_ttl=0)))
    await bench.put(new_job("child", parents=after("parent")))

    await bench.settle(succeed(await bench.take_one()))

    assert await bench.take_ids() == ["child"]
    assert await bench.get_or_none("parent") is None


@guarantee(Guarantee.PARENTS)
async def test_a_child_may_have_a_lane_as_well(bench: Bench) -> None:
    await bench.put(new_job("parent"), new_job("head", lane="lane"))
    await bench.put(new_job("child", lane="lane", parents=after("parent")))
    parent, head = await bench.take(2)

    await bench.settle(succeed(parent))
    after_parent = await bench.get("child")
    await bench.settle(succeed(head))

    assert (after_parent.state, after_parent.hold) == (JobState.BLOCKED, Hold.LANE)
    assert await bench.take_ids() == ["child"]


@guarantee(Guarantee.PARENTS)
async def test_a_parent_named_twice_counts_once(bench: Bench) -> None:
    await bench.put(new_job("parent"), new_job("child", parents=after("parent", "parent")))
    assert (await bench.get("child")).parents_left == 1

    await bench.settle(succeed(await bench.take_one()))

    assert await bench.take_ids() == ["child"]


@guarantee(Guarantee.PARENTS)
async def test_a_deleted_child_does_not_disturb_the_end_of_its_parent(bench: Bench) -> None:
    await bench.put(new_job("parent"), *jobs("gone", "there", parents=after("parent")))
    await bench.engine.cancel(QUEUE, "gone")
    await bench.engine.delete(QUEUE, "gone")

    await bench.settle(succeed(await bench.take_one()))

    assert await bench.get_or_none("gone") is None
    assert await bench.take_ids() == ["there"]


@guarantee(Guarantee.PARENTS)
@pytest.mark.parametrize("end", [JobState.SUCCEEDED, JobState.FAILED])
async def test_an_earlier_parent_does_not_affect_a_job_that_replaced_its_child(bench: Bench, end: JobState) -> None:
    await bench.put(new_job("old"), new_job("child", parents=after("old")))
    await bench.engine.cancel(QUEUE, "child")
    await bench.put(new_job("new", delay=HOUR))
    await bench.put(new_job("child", parents=after("new")))

    await bench.settle(settlement(await bench.take_one(), end))

    job = await bench.get("child")
    assert (job.state, job.hold, job.parents_left) == (JobState.BLOCKED, Hold.PARENTS, 1)
    assert await bench.take() == ()


# P6
@guarantee(Guarantee.PARENTS)
@pytest.mark.parametrize("given", [Given(), Given(retention=0, result_ttl=0)], ids=["kept", "not kept"])
async def test_a_parent_of_very_many_children_unblocks_every_child(bench: Bench, given: Given) -> None:
    await bench.put(new_job("parent", given=given))
    ids = [f"child-{number:04}" for number in range(1_500)]
    await bench.put(*jobs(*ids[:750], parents=after("parent")))
    await bench.put(*jobs(*ids[750:], parents=after("parent")))

    await bench.settle(succeed(await bench.take_one()))

    claimed_ids: list[str] = []
    for _ in range(10):
        await bench.engine.prune()
        claimed_ids += await bench.take_ids(500)
    assert sorted(claimed_ids) == ids
    assert (await bench.get_or_none("parent") is None) is (given.retention == 0)


# P7, DL1
@guarantee(Guarantee.PARENTS)
@pytest.mark.parametrize("end", [JobState.SUCCEEDED, JobState.FAILED])
async def test_the_end_of_a_deleted_parent_still_reaches_its_children(bench: Bench, end: JobState) -> None:
    await bench.put(new_job("parent"))
    ids = [f"child-{number:04}" for number in range(1_500)]
    await bench.put(*jobs(*ids[:750], parents=after("parent")))
    await bench.put(*jobs(*ids[750:], parents=after("parent")))
    await bench.settle(settlement(await bench.take_one(), end))

    await bench.engine.delete(QUEUE, "parent")

    for _ in range(5):
        await bench.engine.prune()
        await bench.take(0)
    counts = (await bench.stats()).counts
    expected = JobState.QUEUED if end is JobState.SUCCEEDED else JobState.CANCELLED
    assert (counts[expected], counts.get(JobState.BLOCKED)) == (1_500, None)


# P7
@guarantee(Guarantee.PARENTS)
@pytest.mark.parametrize("how", ["enqueue", "requeue"])
async def test_the_end_of_a_parent_that_is_live_again_still_reaches_its_children(bench: Bench, how: str) -> None:
    await bench.put(new_job("parent"))
    ids = [f"child-{number:04}" for number in range(1_500)]
    await bench.put(*jobs(*ids[:750], parents=after("parent")))
    await bench.put(*jobs(*ids[750:], parents=after("parent")))
    await bench.settle(fail(await bench.take_one()))

    await (bench.put(new_job("parent")) if how == "enqueue" else bench.engine.requeue(QUEUE, "parent"))
    await bench.settle(succeed(await bench.take_one()))

    for _ in range(5):
        await bench.engine.prune()
        assert await bench.take() == ()
    assert (await bench.stats()).counts == {JobState.SUCCEEDED: 1, JobState.CANCELLED: 1_500}


@guarantee(Guarantee.PARENTS)
async def test_a_child_that_arrives_while_its_parent_ends_is_never_left_blocked(bench: Bench) -> None:
    """E-Q7"""
    for round in range(20):
        parent = f"parent-{round}"
        await bench.put(new_job(parent))
        lease = await bench.take_one()
        children = [new_job(f"child-{round}-{n}", parents=after(parent)) for n in range(3)]
        calls = [bench.put(child) for child in children]
        order = (bench.settle(succeed(lease)), *calls) if round % 2 else (*calls, bench.settle(succeed(lease)))

        await asyncio.gather(*order)

        assert sorted(await bench.take_ids()) == [child.id for child in children]
