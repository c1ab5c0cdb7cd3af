"""Stats: counts by state, due jobs, and totals that are kept when their jobs are deleted."""

from holdfast.model.instants import HOUR, MINUTE
from holdfast.model.records import Totals
from holdfast.model.states import JobState
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import (
    QUEUE,
    confirm_cancel,
    fail,
    jobs,
    new_job,
    release,
    retry,
    snooze,
    succeed,
)
from holdfast.testing.contract.guarantees import Guarantee, guarantee


@guarantee(Guarantee.COUNTERS)
async def test_every_state_is_counted(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c", "d", "e", "f", "g"))
    _, again, good, bad, to_cancel, good_too, _ = await bench.take(6, prefetch=1)
    await bench.engine.settle(
        retry(again, HOUR), succeed(good), fail(bad), confirm_cancel(to_cancel), succeed(good_too)
    )
    await bench.put(new_job("h", delay=HOUR), *jobs("i", "j", "k", lane="lane"))

    stats = await bench.stats()

    assert stats.counts == {
        JobState.RUNNING: 1,
        JobState.RETRYING: 1,
        JobState.SUCCEEDED: 2,
        JobState.FAILED: 1,
        JobState.CANCELLED: 1,
        JobState.ASSIGNED: 1,
        JobState.SCHEDULED: 1,
        JobState.QUEUED: 1,
        JobState.BLOCKED: 2,
    }
    assert (stats.queue, stats.depth) == (QUEUE, 7)
    assert stats.totals == Totals(succeeded=2, failed=1, cancelled=1)


@guarantee(Guarantee.COUNTERS)
async def test_counts_follow_a_job_through_its_states(bench: Bench) -> None:
    counts = []

    async def add_counts() -> None:
        counts.append((await bench.stats()).counts)

    await bench.put(new_job())
    await add_counts()
    lease = await bench.take_one()
    await add_counts()
    await bench.settle(retry(lease, MINUTE))
    await add_counts()
    bench.clock.advance(minutes=2)
    await bench.settle(snooze(await bench.take_one(), MINUTE))
    await add_counts()
    bench.clock.advance(minutes=2)
    await bench.settle(release(await bench.take_one()))
    await add_counts()
    await bench.settle(fail(await bench.take_one()))
    await add_counts()
    await bench.engine.requeue(QUEUE, "a")
    await add_counts()
    await bench.settle(succeed(await bench.take_one()))
    await add_counts()
    await bench.engine.delete(QUEUE, "a")
    await add_counts()

    assert counts == [
        {JobState.QUEUED: 1},
        {JobState.RUNNING: 1},
        {JobState.RETRYING: 1},
        {JobState.SCHEDULED: 1},
        {JobState.QUEUED: 1},
        {JobState.FAILED: 1},
        {JobState.QUEUED: 1},
        {JobState.SUCCEEDED: 1},
        {},
    ]


# RD2
@guarantee(Guarantee.COUNTERS)
async def test_due_counts_ready_jobs_promoted_or_not(bench: Bench) -> None:
    await bench.put(*jobs("again", "running"))
    again, _ = await bench.take(2)
    await bench.settle(retry(again, 2 * MINUTE))
    await bench.put(new_job("queued"), new_job("soon", delay=MINUTE), new_job("later", delay=HOUR))
    await bench.put(*jobs("head", "behind", lane="lane"))
    assert (await bench.stats()).due == 2
    bench.clock.advance(minutes=3)

    assert (await bench.stats()).due == 4
    await bench.take(0)
    assert (await bench.stats()).due == 4


@guarantee(Guarantee.COUNTERS)
async def test_next_due_is_the_earliest_due_time_of_a_scheduled_job(bench: Bench) -> None:
    await bench.put(new_job("queued"), new_job("later", delay=HOUR), new_job("soon", delay=MINUTE))

    assert (await bench.stats()).next_due == (await bench.get("soon")).due
    await bench.engine.cancel(QUEUE, "soon")
    assert (await bench.stats()).next_due == (await bench.get("later")).due
    await bench.engine.cancel(QUEUE, "later")
    assert (await bench.stats()).next_due is None


@guarantee(Guarantee.COUNTERS)
async def test_oldest_due_is_the_due_time_of_the_longest_waiting_ready_job(bench: Bench) -> None:
    await bench.put(new_job("first"))
    due = (await bench.get("first")).due
    bench.clock.advance(minutes=1)
    await bench.put(new_job("second"), new_job("later", delay=HOUR))

    assert (await bench.stats()).oldest_due == due
    await bench.take(2)
    await bench.engine.cancel(QUEUE, "later")
    assert (await bench.stats()).oldest_due is None


@guarantee(Guarantee.COUNTERS)
async def test_queues_are_answered_in_the_order_of_the_request_or_all_by_name(bench: Bench) -> None:
    await bench.put(new_job("a", queue="c"), new_job("a", queue="a"), new_job("a", queue="b"), new_job("b", queue="b"))

    two_queues = (await bench.engine.stats("b", "c")).queues
    all_queues = (await bench.engine.stats()).queues

    assert [(stats.queue, stats.depth) for stats in two_queues] == [("b", 2), ("c", 1)]
    assert [(stats.queue, stats.depth) for stats in all_queues] == [("a", 1), ("b", 2), ("c", 1)]


@guarantee(Guarantee.COUNTERS)
async def test_totals_outlive_the_records_they_counted(bench: Bench) -> None:
    await bench.finish(new_job("kept"))
    await bench.finish(new_job("not kept"), retention=0, result_ttl=0)
    await bench.finish(new_job("pruned"), retention=0, result_ttl=MINUTE)
    bench.clock.advance(days=2)
    await bench.engine.prune()

    stats = await bench.stats()

    assert (stats.counts, stats.totals) == ({}, Totals(succeeded=3))


@guarantee(Guarantee.COUNTERS)
async def test_duplicates_are_not_counted(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "a"))
    await bench.put(*jobs("a", "b"))

    assert (await bench.stats()).counts == {JobState.QUEUED: 2}


@guarantee(Guarantee.COUNTERS)
async def test_a_job_that_replaces_another_replaces_it_in_the_counts(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.settle(fail(await bench.take_one()))

    await bench.put(new_job(delay=HOUR))

    stats = await bench.stats()
    assert (stats.counts, stats.totals) == ({JobState.SCHEDULED: 1}, Totals(failed=1))


# RD4
@guarantee(Guarantee.COUNTERS)
async def test_the_tasks_that_have_queued_jobs_are_named(bench: Bench) -> None:
    await bench.put(new_job("a", task="mail"), new_job("b", task="bill", delay=HOUR), new_job("c", task="mail"))
    assert (await bench.stats()).ready_tasks == ("mail",)

    bench.clock.advance(hours=2)
    assert (await bench.stats()).ready_tasks == ("mail",)  # due, and not promoted yet
    await bench.take(1, tasks=("mail",))
    assert (await bench.stats()).ready_tasks == ("bill", "mail")
    await bench.take(1, tasks=("mail",))
    assert (await bench.stats()).ready_tasks == ("bill",)

    await bench.engine.clear(QUEUE)
    stats = await bench.stats()
    assert (stats.ready_tasks, stats.clearing) == ((), False)
