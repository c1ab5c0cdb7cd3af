"""Enqueue: what is stored and answered; a group is stored whole or not at all."""

import asyncio

import pytest

from holdfast.errors import Unsupported
from holdfast.model.instants import HOUR, MINUTE, SECOND
from holdfast.model.job import Given, JobKey, KeyScope
from holdfast.model.produce import EnqueueStatus, Group, GroupAccepted, GroupConflict, GroupFull, GroupOrphan, PoolPlace
from holdfast.model.states import Hold, JobState
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, TASK, after, at_most, jobs, new_job
from holdfast.testing.contract.guarantees import Guarantee, guarantee


# D2
@guarantee(Guarantee.READING)
async def test_a_new_job_is_stored_as_it_was_given(bench: Bench) -> None:
    given = Given(max_attempts=7, max_losses=2, timeout=MINUTE, lease_len=HOUR, result_ttl=3 * HOUR, retention=4 * HOUR)
    job = new_job(
        payload=b"\x00\xffbytes",
        codec="raw",
        metadata={"customer": "né 7"},
        payload_hash=b"\x01\x02",
        priority=-3,
        unique_key="key-1",
        key_scope=KeyScope.WINDOW,
        key_window=5 * MINUTE,
        reply="process-1",
        given=given,
    )

    answer = await bench.engine.enqueue(Group((job,)))

    stored = await bench.get()
    assert (stored.queue, stored.id, stored.task) == (QUEUE, "a", TASK)
    assert stored.payload == b"\x00\xffbytes"
    assert stored.codec == "raw"
    assert stored.metadata == {"customer": "né 7"}
    assert stored.payload_hash == b"\x01\x02"
    assert stored.priority == -3
    assert (stored.unique_key, stored.key_scope, stored.key_window) == ("key-1", KeyScope.WINDOW, 5 * MINUTE)
    assert stored.reply == ("process-1",)
    assert stored.given == given
    assert stored.created == answer.at.wall


@guarantee(Guarantee.READING)
async def test_a_new_job_has_no_attempt_and_no_lease(bench: Bench) -> None:
    await bench.put(new_job())

    job = await bench.get()

    assert (job.state, job.hold) == (JobState.QUEUED, Hold.NONE)
    assert (job.generation, job.attempt, job.losses, job.parents_left) == (0, 0, 0, 0)
    assert (job.token, job.lease_expires, job.owner, job.settled_token) == (None, None, "", None)
    assert (job.started, job.last_started, job.finished, job.progress) == (None, None, None, None)
    assert (job.reason, job.result, job.last_error, job.history) == (None, None, None, ())
    assert job.cancel_asked is False


# E4
@guarantee(Guarantee.READING)
async def test_a_job_that_is_due_is_queued_and_due_now(bench: Bench) -> None:
    answer = await bench.engine.enqueue(Group((new_job(),)))

    job = await bench.get()

    assert job.state is JobState.QUEUED
    assert job.due == answer.at.wall


# E4
@guarantee(Guarantee.DUE_TIMES)
async def test_a_delay_counts_on_the_engines_clock(bench: Bench) -> None:
    bench.clock.advance(days=2)

    answer = await bench.engine.enqueue(Group((new_job(delay=10 * MINUTE),)))

    job = await bench.get()
    assert job.state is JobState.SCHEDULED
    assert job.due == answer.at.wall + 10 * MINUTE


@guarantee(Guarantee.DUE_TIMES)
async def test_a_due_time_in_the_future_is_kept_to_the_microsecond(bench: Bench) -> None:
    due = (await bench.engine.now()).wall + HOUR + 7

    accepted = await bench.put_one(new_job(due=due))

    job = await bench.get()
    assert accepted.state is JobState.SCHEDULED
    assert (job.state, job.due) == (JobState.SCHEDULED, due)


# E4
@guarantee(Guarantee.DUE_TIMES)
async def test_a_due_time_in_the_past_means_now(bench: Bench) -> None:
    """E-F13"""
    past = (await bench.engine.now()).wall - HOUR

    answer = await bench.engine.enqueue(Group((new_job(due=past),)))

    job = await bench.get()
    assert (job.state, job.due) == (JobState.QUEUED, answer.at.wall)


@guarantee(Guarantee.WHOLE_GROUPS)
async def test_the_answer_names_each_job_in_the_order_given(bench: Bench) -> None:
    accepted = await bench.put(*jobs("c", "a", "b"))

    assert [job.id for job in accepted] == ["c", "a", "b"]
    assert {job.status for job in accepted} == {EnqueueStatus.CREATED}
    assert {job.state for job in accepted} == {JobState.QUEUED}
    assert {job.generation for job in accepted} == {0}
    assert {job.result for job in accepted} == {None}


@guarantee(Guarantee.ORDER)
async def test_arrival_grows_within_a_group_and_from_call_to_call(bench: Bench) -> None:
    first = await bench.put(*jobs("a", "b", "c"))
    second = await bench.put(*jobs("d", "e"))

    arrivals = [job.arrival for job in first + second]
    assert arrivals == sorted(set(arrivals))
    assert [(await bench.get(id)).arrival for id in "abcde"] == arrivals


@guarantee(Guarantee.WHOLE_GROUPS)
async def test_an_empty_group_is_accepted_and_writes_nothing(bench: Bench) -> None:
    answer = await bench.engine.enqueue(Group(()), Group(jobs("a")))

    assert answer.groups[0] == GroupAccepted(())
    assert isinstance(answer.groups[1], GroupAccepted)
    assert await bench.take_ids() == ["a"]


@guarantee(Guarantee.WHOLE_GROUPS)
async def test_a_thousand_jobs_go_in_one_group(bench: Bench) -> None:
    ids = [f"job-{number:04}" for number in range(1_000)]

    accepted = await bench.put(*jobs(*ids))

    assert [job.id for job in accepted] == ids
    assert (await bench.stats()).counts == {JobState.QUEUED: 1_000}
    assert await bench.take_ids(1_000) == ids


# S4
@guarantee(Guarantee.WHOLE_GROUPS)
async def test_a_group_with_jobs_of_several_queues_works_or_is_refused_as_unsupported(bench: Bench) -> None:
    group = (new_job("a", queue="red"), new_job("b", queue="blue"), new_job("a", queue="blue"))

    if not bench.engine.capabilities.cross_queue_atomic:
        with pytest.raises(Unsupported, match=r"red.*blue"):
            await bench.offer(*group)
        assert (await bench.engine.stats()).queues == ()
        return
    await bench.put(*group)
    assert await bench.take_ids(queue="red") == ["a"]
    assert await bench.take_ids(queue="blue") == ["b", "a"]


# E1, E2
@guarantee(Guarantee.WHOLE_GROUPS)
@pytest.mark.parametrize("cause", ["full", "conflict", "orphan"])
async def test_a_refused_group_writes_nothing(bench: Bench, cause: str) -> None:
    await bench.put(new_job("taken", payload_hash=b"one"))
    group = {
        "full": Group(jobs("x", "y"), at_most(2)),
        "conflict": Group((new_job("x"), new_job("taken", payload_hash=b"two"))),
        "orphan": Group((new_job("x"), new_job("y", parents=after("absent")))),
    }[cause]

    (answer,) = (await bench.engine.enqueue(group)).groups

    expected = {
        "full": GroupFull(QUEUE, None, 1, 2),
        "conflict": GroupConflict(JobKey(QUEUE, "taken")),
        "orphan": GroupOrphan(JobKey(QUEUE, "absent")),
    }[cause]
    assert answer == expected
    assert await bench.get_or_none("x") is None
    assert await bench.get_or_none("y") is None
    assert (await bench.stats()).counts == {JobState.QUEUED: 1}


# E1
@guarantee(Guarantee.WHOLE_GROUPS)
async def test_a_refused_group_does_not_affect_the_other_groups_of_its_call(bench: Bench) -> None:
    before, refused, later = Group(jobs("a")), Group(jobs("b", "c"), at_most(2)), Group(jobs("d"))

    answer = await bench.engine.enqueue(before, refused, later)

    assert [type(group) for group in answer.groups] == [GroupAccepted, GroupFull, GroupAccepted]
    assert await bench.take_ids() == ["a", "d"]


# E1
@guarantee(Guarantee.WHOLE_GROUPS)
async def test_a_group_sees_the_jobs_of_the_group_before_it(bench: Bench) -> None:
    answer = await bench.engine.enqueue(Group(jobs("a")), Group(jobs("a", "b")))

    second = answer.groups[1]
    assert isinstance(second, GroupAccepted)
    assert [job.status for job in second.jobs] == [EnqueueStatus.DUPLICATE, EnqueueStatus.CREATED]
    assert await bench.take_ids() == ["a", "b"]


@guarantee(Guarantee.WHOLE_GROUPS)
async def test_no_job_of_many_concurrent_callers_is_lost(bench: Bench) -> None:
    """E-D18"""
    names = [[f"{caller:02}-{number}" for number in range(5)] for caller in range(64)]

    await asyncio.gather(*(bench.put(*jobs(*ids)) for ids in names))

    claimed_ids = await bench.take_ids(1_000)
    assert sorted(claimed_ids) == sorted(id for ids in names for id in ids)
    assert all([id for id in claimed_ids if id in ids] == ids for ids in names), "a group keeps its own order"


# E5
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_the_answer_contains_position_and_depth_in_a_lane(bench: Bench) -> None:
    first, second = await bench.put(*jobs("a", "b", lane="lane"))
    third = await bench.put_one(new_job("c", lane="lane"))
    other = await bench.put_one(new_job("d", lane="other"))

    assert [(job.position, job.depth) for job in (first, second, third)] == [(0, 1), (1, 2), (2, 3)]
    assert (other.position, other.depth) == (0, 1)
    assert [first.state, second.state, third.state] == [JobState.QUEUED, JobState.BLOCKED, JobState.BLOCKED]


# E5
@guarantee(Guarantee.POOLS)
async def test_the_answer_contains_the_lane_of_the_job(bench: Bench) -> None:
    in_pool = [new_job("b", pool=PoolPlace(8, "alice")), new_job("c", pool=PoolPlace(8))]

    accepted = await bench.put(new_job("a", lane="lane"), *in_pool, new_job("d"), new_job("b", pool=PoolPlace(8)))

    assert [job.lane for job in accepted] == ["lane", "1", "0", None, "1"]


# E5
@guarantee(Guarantee.DEPTH_LIMITS)
async def test_the_answer_contains_the_depth_of_a_queue_with_a_limit(bench: Bench) -> None:
    unlimited = await bench.put_one(new_job("a"))
    limited = await bench.put(*jobs("b", "c"), limits=at_most(10))

    assert (unlimited.position, unlimited.depth) == (None, None)
    assert [(job.position, job.depth) for job in limited] == [(None, 2), (None, 3)]


@guarantee(Guarantee.DEPTH_LIMITS)
async def test_in_a_queue_with_a_limit_the_answer_contains_the_depth_of_the_lane(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"))

    accepted = await bench.put_one(new_job("d", lane="lane"), limits=at_most(10))

    assert (accepted.position, accepted.depth) == (0, 1)


# R1
@guarantee(Guarantee.READING)
async def test_a_bare_payload_has_no_task(bench: Bench) -> None:
    await bench.put(new_job(task="", payload=b"bare"))

    lease = await bench.take_one(tasks=("",))

    assert (lease.task, lease.payload) == ("", b"bare")


@guarantee(Guarantee.READING)
async def test_names_are_compared_as_they_are(bench: Bench) -> None:
    ids = ["Job", "job", "job ", "jöb", "jo\u0308b", "작업", "a/b:c%d{e}", "'; --"]

    await bench.put(*jobs(*ids, lane=None))

    assert await bench.take_ids() == ids


@guarantee(Guarantee.READING)
async def test_the_longest_names_fit(bench: Bench) -> None:
    long = "\N{GRINNING FACE}" * 200

    await bench.put(new_job(long, queue=long, task=long, lane=long, unique_key=long))

    lease = await bench.take_one(queue=long, tasks=(long,))
    assert (lease.id, lease.queue, lease.task, lease.lane) == (long, long, long, long)
    again = await bench.put_one(new_job("other", queue=long, task=long, unique_key=long))
    assert (again.status, again.id) == (EnqueueStatus.DUPLICATE, long)


@guarantee(Guarantee.READING)
async def test_the_largest_and_smallest_numbers_fit(bench: Bench) -> None:
    await bench.put(new_job("high", priority=32_767), new_job("low", priority=-32_768))
    await bench.put(new_job("far", delay=100 * 366 * 24 * HOUR), new_job("near", delay=SECOND))

    assert await bench.take_ids() == ["high", "low"]
    assert (await bench.get("far")).due > (await bench.get("near")).due
