"""Claim: which jobs, in which order, how many; and what a lease contains."""

import asyncio

from holdfast.model.instants import HOUR, MINUTE, SECOND
from holdfast.model.job import Given
from holdfast.model.states import JobState
from holdfast.model.work import QueueClaim
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import (
    LEASE,
    QUEUE,
    TASK,
    WORKER,
    jobs,
    new_job,
    release,
    retry,
    snooze,
    succeed,
    task_claim,
)
from holdfast.testing.contract.guarantees import Guarantee, guarantee


@guarantee(Guarantee.READING)
async def test_a_lease_carries_what_a_worker_needs(bench: Bench) -> None:
    given = Given(timeout=MINUTE)
    await bench.put(new_job(payload=b"load", codec="raw", metadata={"k": "v"}, priority=3, lane="lane", given=given))
    stored = await bench.get()
    claim = bench.claim(max_attempts=4, max_losses=3)

    answer = await bench.engine.claim(claim)

    (lease,) = answer.leases
    assert (lease.queue, lease.id, lease.task, lease.generation) == (QUEUE, "a", TASK, 0)
    assert (lease.payload, lease.codec, lease.metadata) == (b"load", "raw", {"k": "v"})
    assert (lease.priority, lease.lane, lease.given) == (3, "lane", given)
    assert (lease.arrival, lease.created, lease.due) == (stored.arrival, stored.created, stored.due)
    assert (lease.state, lease.attempt, lease.losses) == (JobState.RUNNING, 1, 0)
    assert lease.token == f"{claim.claim_id}.0"
    assert lease.fence >= answer.at.wall
    assert (lease.lease_len, lease.lease_expires) == (LEASE, answer.at.lease + LEASE)
    assert (lease.max_attempts, lease.max_losses) == (4, 3)
    assert (lease.expires, lease.started) == (None, answer.at.wall)


@guarantee(Guarantee.ONE_LEASE)
async def test_a_claimed_job_is_written_as_running(bench: Bench) -> None:
    """E-D16: the attempt is counted before it starts."""
    await bench.put(new_job())

    answer = await bench.engine.claim(bench.claim(max_attempts=4, max_losses=3))

    job = await bench.get()
    assert (job.state, job.attempt, job.owner) == (JobState.RUNNING, 1, WORKER)
    assert (job.token, job.fence) == (answer.leases[0].token, answer.leases[0].fence)
    assert job.lease_expires == answer.at.lease + LEASE
    assert (job.lease_len, job.max_attempts, job.max_losses) == (LEASE, 4, 3)
    assert (job.started, job.last_started) == (answer.at.wall, answer.at.wall)


@guarantee(Guarantee.ONE_LEASE)
async def test_a_leased_job_is_not_claimed_again(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.take_one()

    bench.clock.advance(days=1)

    assert await bench.take() == (), "only a reaper recovers an expired lease, never a claim"


@guarantee(Guarantee.ORDER)
async def test_jobs_of_equal_rank_come_in_order_of_arrival(bench: Bench) -> None:
    """E-S7"""
    ids = [f"job-{number}" for number in range(20)]
    for id in ids:
        await bench.put(new_job(id))

    assert await bench.take_ids(7) + await bench.take_ids(20) == ids


# S2
@guarantee(Guarantee.ORDER)
async def test_a_higher_priority_goes_first(bench: Bench) -> None:
    await bench.put(new_job("low", priority=-1), new_job("mid"), new_job("high", priority=5), new_job("mid-2"))

    assert await bench.take_ids() == ["high", "mid", "mid-2", "low"]


# S2
@guarantee(Guarantee.ORDER)
async def test_at_equal_priority_the_earlier_due_time_goes_first(bench: Bench) -> None:
    await bench.put(new_job("due-in-30", delay=30 * SECOND), new_job("due-in-20", delay=20 * SECOND))
    bench.clock.advance(10)
    await bench.put(new_job("due-at-10"))
    bench.clock.advance(30)
    await bench.put(new_job("due-at-40"), new_job("urgent", priority=1))

    assert await bench.take_ids() == ["urgent", "due-at-10", "due-in-20", "due-in-30", "due-at-40"]


@guarantee(Guarantee.ORDER)
async def test_at_equal_due_times_arrival_decides(bench: Bench) -> None:
    due = (await bench.engine.now()).wall + MINUTE
    await bench.put(*jobs("c", "a", "b", due=due))
    bench.clock.advance(minutes=2)

    assert await bench.take_ids() == ["c", "a", "b"]


# S2, R1
@guarantee(Guarantee.ORDER)
async def test_the_order_holds_across_tasks(bench: Bench) -> None:
    await bench.put(
        new_job("1", task="x"), new_job("2", task="y"), new_job("3", task="x"), new_job("4", task="y", priority=1)
    )

    assert await bench.take_ids(tasks=("x", "y")) == ["4", "1", "2", "3"]


@guarantee(Guarantee.ORDER)
async def test_a_released_job_keeps_its_place(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"))
    lease = await bench.take_one()
    bench.clock.advance(5)

    await bench.settle(release(lease))

    assert await bench.take_ids() == ["a", "b", "c"]


# R1
@guarantee(Guarantee.ORDER)
async def test_a_claim_takes_only_tasks_it_names(bench: Bench) -> None:
    await bench.put(new_job("a", task="x"), new_job("b", task="y"), new_job("c", task=""))

    assert await bench.take_ids(tasks=("y", "absent")) == ["b"]
    assert await bench.take_ids(tasks=()) == []
    assert await bench.take_ids(tasks=("x", "")) == ["a", "c"]


@guarantee(Guarantee.ONE_LEASE)
async def test_a_claim_never_exceeds_its_limit(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c", "d", "e"))

    assert [await bench.take_ids(limit) for limit in (2, 0, 1, 10)] == [["a", "b"], [], ["c"], ["d", "e"]]


# S3
@guarantee(Guarantee.ORDER)
async def test_queues_are_visited_in_the_order_given(bench: Bench) -> None:
    await bench.put(*jobs("1", "2", queue="red"), *jobs("3", "4", queue="blue", priority=9))
    red, blue = QueueClaim("red", (task_claim(),)), QueueClaim("blue", (task_claim(),))

    first = await bench.take(3, queues=(red, blue))
    second = await bench.take(3, queues=(blue, red))

    assert [(lease.queue, lease.id) for lease in first] == [("red", "1"), ("red", "2"), ("blue", "3")]
    assert [(lease.queue, lease.id) for lease in second] == [("blue", "4")]


@guarantee(Guarantee.ONE_LEASE)
async def test_a_limit_on_a_queue_caps_that_queue(bench: Bench) -> None:
    await bench.put(*jobs("1", "2", "3", queue="red"), *jobs("4", "5", queue="blue"))
    queues = (QueueClaim("red", (task_claim(),), limit=2), QueueClaim("blue", (task_claim(),)))

    leases = await bench.take(10, queues=queues)

    assert [lease.id for lease in leases] == ["1", "2", "4", "5"]


@guarantee(Guarantee.ONE_LEASE)
async def test_a_limit_on_a_task_caps_that_task(bench: Bench) -> None:
    await bench.put(*jobs("1", "2", "3", task="x"), *jobs("4", "5", task="y"))
    queues = (QueueClaim(QUEUE, (task_claim("x", limit=1), task_claim("y"))),)

    leases = await bench.take(10, queues=queues)

    assert [lease.id for lease in leases] == ["1", "4", "5"]


@guarantee(Guarantee.ONE_LEASE)
async def test_a_limit_of_zero_takes_nothing(bench: Bench) -> None:
    await bench.put(*jobs("1", task="x"), *jobs("2", task="y"))
    no_queue = (QueueClaim(QUEUE, (task_claim("x"), task_claim("y")), limit=0),)
    no_task = (QueueClaim(QUEUE, (task_claim("x", limit=0), task_claim("y"))),)

    assert await bench.take(10, queues=no_queue) == ()
    assert [lease.id for lease in await bench.take(10, queues=no_task)] == ["2"]


# C2
@guarantee(Guarantee.PREFETCH)
async def test_limits_on_queue_and_task_count_prefetched_jobs_too(bench: Bench) -> None:
    await bench.put(*jobs("1", "2", "3", task="x"), *jobs("4", "5", "6", task="y"))
    queues = (QueueClaim(QUEUE, (task_claim("x", limit=2), task_claim("y")), limit=4),)

    leases = await bench.take(1, prefetch=10, queues=queues)

    assert [(lease.id, lease.state) for lease in leases] == [
        ("1", JobState.RUNNING),
        ("2", JobState.ASSIGNED),
        ("4", JobState.ASSIGNED),
        ("5", JobState.ASSIGNED),
    ]


@guarantee(Guarantee.DUE_TIMES)
async def test_nothing_is_claimed_before_it_is_due(bench: Bench) -> None:
    await bench.put(new_job(delay=10 * MINUTE))

    assert await bench.take() == ()
    bench.clock.advance(minutes=9)
    assert await bench.take() == ()
    bench.clock.advance(minutes=1)
    assert await bench.take_ids() == ["a"]


# C1
@guarantee(Guarantee.DUE_TIMES)
async def test_a_claim_that_takes_nothing_still_promotes_due_jobs(bench: Bench) -> None:
    await bench.put(new_job("due", delay=MINUTE), new_job("not", delay=HOUR))
    bench.clock.advance(minutes=2)
    assert await bench.state("due") is JobState.SCHEDULED, "readers see the stored state"

    answer = await bench.engine.claim(bench.claim(limit=0))

    assert answer.leases == ()
    assert answer.next_due == (await bench.get("not")).due
    assert await bench.states("due", "not") == [JobState.QUEUED, JobState.SCHEDULED]


# C1
@guarantee(Guarantee.DUE_TIMES)
async def test_a_claim_promotes_at_most_a_thousand_jobs_the_earliest_first(bench: Bench) -> None:
    now = (await bench.engine.now()).wall
    ids = [f"job-{number:04}" for number in range(1_003)]
    made = [new_job(id, due=now + HOUR - number) for number, id in enumerate(ids)]
    await bench.put(*made[:600])
    await bench.put(*made[600:])
    bench.clock.advance(hours=2)

    await bench.take(0)

    assert (await bench.stats()).counts == {JobState.QUEUED: 1_000, JobState.SCHEDULED: 3}
    assert await bench.states(*ids[:4]) == [JobState.SCHEDULED] * 3 + [JobState.QUEUED]
    await bench.take(0)
    assert (await bench.stats()).counts == {JobState.QUEUED: 1_003}


@guarantee(Guarantee.DUE_TIMES)
async def test_jobs_due_at_the_same_time_are_promoted_in_order_of_arrival(bench: Bench) -> None:
    due = (await bench.engine.now()).wall + MINUTE
    await bench.put(*jobs(*(f"job-{number:03}" for number in range(600)), due=due))
    await bench.put(*jobs(*(f"job-{number:03}" for number in range(600, 1_001)), due=due))
    bench.clock.advance(minutes=2)

    await bench.take(0)

    assert await bench.states("job-000", "job-999", "job-1000") == [
        JobState.QUEUED,
        JobState.QUEUED,
        JobState.SCHEDULED,
    ]


# C4
@guarantee(Guarantee.DUE_TIMES)
async def test_next_due_is_the_earliest_due_time_of_a_waiting_job(bench: Bench) -> None:
    await bench.put(new_job("ready"), new_job("later", delay=HOUR), new_job("sooner", delay=10 * MINUTE))

    answer = await bench.engine.claim(bench.claim(limit=5))

    assert answer.next_due == (await bench.get("sooner")).due
    assert [lease.id for lease in answer.leases] == ["ready"]


@guarantee(Guarantee.DUE_TIMES)
async def test_next_due_counts_retrying_and_snoozed_jobs(bench: Bench) -> None:
    await bench.put(*jobs("retrying", "snoozed"))
    first, second = await bench.take(2)

    settled = await bench.engine.exchange([retry(first, MINUTE), snooze(second, HOUR)], claim=bench.claim())
    assert settled.next_due == settled.at.wall + MINUTE
    await bench.engine.cancel(QUEUE, "retrying")
    answer = await bench.engine.claim(bench.claim())

    assert answer.next_due == (await bench.get("snoozed")).due


@guarantee(Guarantee.DUE_TIMES)
async def test_next_due_is_none_if_no_job_waits_for_a_due_time(bench: Bench) -> None:
    await bench.put(new_job("elsewhere", queue="other", delay=HOUR), *jobs("a", "b"))

    assert (await bench.engine.claim(bench.claim())).next_due is None


# C5
@guarantee(Guarantee.DUE_TIMES)
async def test_next_due_ignores_paused_queues_and_jobs_behind_a_head(bench: Bench) -> None:
    await bench.put(new_job("paused", queue="paused", delay=MINUTE))
    await bench.engine.pause("paused")
    await bench.put(new_job("head", lane="lane"), new_job("behind", lane="lane", delay=2 * MINUTE))
    await bench.put(new_job("free", delay=HOUR))
    queues = (QueueClaim("paused", (task_claim(),)), QueueClaim(QUEUE, (task_claim(),)))

    answer = await bench.engine.claim(bench.claim(queues=queues))

    assert answer.next_due == (await bench.get("free")).due


# C4
@guarantee(Guarantee.DUE_TIMES)
async def test_next_due_covers_all_queues_of_the_claim(bench: Bench) -> None:
    await bench.put(new_job("a", queue="red", delay=HOUR), new_job("b", queue="blue", delay=MINUTE))
    red, blue, empty = (QueueClaim(queue, (task_claim(),)) for queue in ("red", "blue", "empty"))
    due = (await bench.get("b", "blue")).due

    for queues in ((red, blue, empty), (empty, blue, red)):
        assert (await bench.engine.claim(bench.claim(queues=queues))).next_due == due


@guarantee(Guarantee.ONE_LEASE)
async def test_sixty_four_claimers_at_once_share_the_jobs_without_overlap(bench: Bench) -> None:
    """E-Q24, E-P1"""
    ids = [f"job-{number:03}" for number in range(500)]
    await bench.put(*jobs(*ids))

    async def work(worker: str) -> list[str]:
        ids_of_worker: list[str] = []
        while leases := await bench.take(3, worker=worker):
            ids_of_worker += [lease.id for lease in leases]
            await bench.engine.settle(*(succeed(lease) for lease in leases))
        return ids_of_worker

    shares = await asyncio.gather(*(work(f"worker-{number}") for number in range(64)))

    assert sorted(id for share in shares for id in share) == ids
    assert (await bench.stats()).counts == {JobState.SUCCEEDED: 500}


@guarantee(Guarantee.ONE_LEASE)
async def test_sixty_four_claimers_for_ten_jobs_get_ten_leases(bench: Bench) -> None:
    await bench.put(*jobs(*(f"job-{number}" for number in range(10))))

    answers = await asyncio.gather(*(bench.take(2, worker=f"worker-{number}") for number in range(64)))

    leases = [lease for leases in answers for lease in leases]
    assert len(leases) == 10
    assert len({lease.id for lease in leases}) == 10
    assert len({lease.token for lease in leases}) == 10
