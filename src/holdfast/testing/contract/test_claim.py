"""Claim: which jobs, in which order, how many; and what a lease says."""

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
    terms,
)
from holdfast.testing.contract.guarantees import Guarantee, guarantee


@guarantee(Guarantee.READING)
async def test_a_lease_carries_what_a_worker_needs(bench: Bench) -> None:
    given = Given(timeout=MINUTE)
    await bench.put(new_job(payload=b"load", codec="raw", metadata={"k": "v"}, priority=3, lane="lane", given=given))
    stored = await bench.look()
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
    """E-D16: the attempt is counted before it begins."""
    await bench.put(new_job())

    answer = await bench.engine.claim(bench.claim(max_attempts=4, max_losses=3))

    job = await bench.look()
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

    assert await bench.take() == (), "an expired lease is the reaper's business, not a claim's"


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
async def test_a_job_given_back_keeps_its_place(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"))
    lease = await bench.take_one()
    bench.clock.advance(5)

    await bench.settle(release(lease))

    assert await bench.take_ids() == ["a", "b", "c"]


# R1
@guarantee(Guarantee.ORDER)
async def test_a_claim_takes_only_tasks_it_names(bench: Bench) -> None:
    await bench.put(new_job("a", task="x"), new_job("b", task="y"), new_job("c", task=""))

    assert await bench.take_ids(tasks=("y", "nobody")) == ["b"]
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
    red, blue = QueueClaim("red", (terms(),)), QueueClaim("blue", (terms(),))

    first = await bench.take(3, queues=(red, blue))
    second = await bench.take(3, queues=(blue, red))

    assert [(lease.queue, lease.id) for lease in first] == [("red", "1"), ("red", "2"), ("blue", "3")]
    assert [(lease.queue, lease.id) for lease in second] == [("blue", "4")]


@guarantee(Guarantee.ONE_LEASE)
async def test_a_limit_on_a_queue_caps_that_queue(bench: Bench) -> None:
    await bench.put(*jobs("1", "2", "3", queue="red"), *jobs("4", "5", queue="blue"))
    queues = (QueueClaim("red", (terms(),), limit=2), QueueClaim("blue", (terms(),)))

    leases = await bench.take(10, queues=queues)

    assert [lease.id for lease in leases] == ["1", "2", "4", "5"]


@guarantee(Guarantee.ONE_LEASE)
async def test_a_limit_on_a_task_caps_that_task(bench: Bench) -> None:
    await bench.put(*jobs("1", "2", "3", task="x"), *jobs("4", "5", task="y"))
    queues = (QueueClaim(QUEUE, (terms("x", limit=1), terms("y"))),)

    leases = await bench.take(10, queues=queues)

    assert [lease.id for lease in leases] == ["1", "4", "5"]


@guarantee(Guarantee.ONE_LEASE)
async def test_limits_of_nothing_take_nothing(bench: Bench) -> None:
    await bench.put(*jobs("1", task="x"), *jobs("2", task="y"))
    no_queue = (QueueClaim(QUEUE, (terms("x"), terms("y")), limit=0),)
    no_task = (QueueClaim(QUEUE, (terms("x", limit=0), terms("y"))),)

    assert await bench.take(10, queues=no_queue) == ()
    assert [lease.id for lease in await bench.take(10, queues=no_task)] == ["2"]


# C2
@guarantee(Guarantee.PREFETCH)
async def test_limits_on_queue_and_task_count_prefetched_jobs_too(bench: Bench) -> None:
    await bench.put(*jobs("1", "2", "3", task="x"), *jobs("4", "5", "6", task="y"))
    queues = (QueueClaim(QUEUE, (terms("x", limit=2), terms("y")), limit=4),)

    leases = await bench.take(1, prefetch=10, queues=queues)

    assert [(lease.id, lease.state) for lease in leases] == [
        ("1", JobState.RUNNING),
        ("2", JobState.ASSIGNED),
        ("4", JobState.ASSIGNED),
        ("5", JobState.ASSIGNED),
    ]


@guarantee(Guarantee.ATTEMPTS)
async def test_what_was_given_at_enqueue_wins_over_the_terms_of_the_claim(bench: Bench) -> None:
    given = Given(max_attempts=7, max_losses=2, lease_len=HOUR)
    await bench.put(new_job("given", given=given), new_job("not"))

    answer = await bench.engine.claim(bench.claim(limit=2, max_attempts=3, max_losses=4))

    first, second = answer.leases
    assert (first.max_attempts, first.max_losses, first.lease_len) == (7, 2, HOUR)
    assert first.lease_expires == answer.at.lease + HOUR
    assert (second.max_attempts, second.max_losses, second.lease_len) == (3, 4, LEASE)
    stored = await bench.look("given")
    assert (stored.max_attempts, stored.max_losses, stored.lease_len) == (7, 2, HOUR)


@guarantee(Guarantee.ATTEMPTS)
async def test_for_ever_given_at_enqueue_wins_too(bench: Bench) -> None:
    await bench.put(new_job(given=Given(max_attempts=0)))

    assert (await bench.take_one(max_attempts=3)).max_attempts == 0


@guarantee(Guarantee.ATTEMPTS)
async def test_each_claim_brings_its_own_terms(bench: Bench) -> None:
    await bench.put(new_job())
    first = await bench.take_one(max_attempts=3, max_losses=2, lease_len=HOUR)
    await bench.settle(release(first))

    second = await bench.take_one(max_attempts=5, max_losses=6, lease_len=MINUTE)

    assert (second.max_attempts, second.max_losses, second.lease_len) == (5, 6, MINUTE)
    assert (await bench.look()).lease_len == MINUTE


@guarantee(Guarantee.ATTEMPTS)
async def test_a_job_past_its_attempts_is_still_handed_out(bench: Bench) -> None:
    """E-S3: the engine counts, the worker decides; nothing is stranded between them."""
    await bench.put(new_job(given=Given(max_attempts=1)))
    await bench.settle(retry(await bench.take_one()))

    lease = await bench.take_one()

    assert (lease.attempt, lease.max_attempts) == (2, 1)


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
async def test_a_claim_that_takes_nothing_still_promotes_what_is_due(bench: Bench) -> None:
    await bench.put(new_job("due", delay=MINUTE), new_job("not", delay=HOUR))
    bench.clock.advance(minutes=2)
    assert await bench.state("due") is JobState.SCHEDULED, "readers see the stored state"

    answer = await bench.engine.claim(bench.claim(limit=0))

    assert answer.leases == ()
    assert answer.next_due == (await bench.look("not")).due
    assert await bench.states("due", "not") == [JobState.QUEUED, JobState.SCHEDULED]


# C1
@guarantee(Guarantee.DUE_TIMES)
async def test_a_claim_promotes_a_thousand_at_most_the_earliest_first(bench: Bench) -> None:
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
async def test_of_jobs_due_at_the_same_time_the_first_to_arrive_is_promoted_first(bench: Bench) -> None:
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
async def test_next_due_is_the_earliest_that_still_waits(bench: Bench) -> None:
    await bench.put(new_job("ready"), new_job("later", delay=HOUR), new_job("sooner", delay=10 * MINUTE))

    answer = await bench.engine.claim(bench.claim(limit=5))

    assert answer.next_due == (await bench.look("sooner")).due
    assert [lease.id for lease in answer.leases] == ["ready"]


@guarantee(Guarantee.DUE_TIMES)
async def test_next_due_counts_retrying_and_snoozed_jobs(bench: Bench) -> None:
    await bench.put(*jobs("retrying", "snoozed"))
    first, second = await bench.take(2)

    settled = await bench.engine.exchange([retry(first, MINUTE), snooze(second, HOUR)], claim=bench.claim())
    assert settled.next_due == settled.at.wall + MINUTE
    await bench.engine.cancel(QUEUE, "retrying")
    answer = await bench.engine.claim(bench.claim())

    assert answer.next_due == (await bench.look("snoozed")).due


@guarantee(Guarantee.DUE_TIMES)
async def test_there_is_no_next_due_where_nothing_waits_for_a_time(bench: Bench) -> None:
    await bench.put(new_job("elsewhere", queue="other", delay=HOUR), *jobs("a", "b"))

    assert (await bench.engine.claim(bench.claim())).next_due is None


# C5
@guarantee(Guarantee.DUE_TIMES)
async def test_next_due_leaves_out_paused_queues_and_what_waits_behind_a_head(bench: Bench) -> None:
    await bench.put(new_job("paused", queue="paused", delay=MINUTE))
    await bench.engine.pause("paused")
    await bench.put(new_job("head", lane="lane"), new_job("behind", lane="lane", delay=2 * MINUTE))
    await bench.put(new_job("free", delay=HOUR))
    queues = (QueueClaim("paused", (terms(),)), QueueClaim(QUEUE, (terms(),)))

    answer = await bench.engine.claim(bench.claim(queues=queues))

    assert answer.next_due == (await bench.look("free")).due


# C4
@guarantee(Guarantee.DUE_TIMES)
async def test_next_due_looks_over_all_queues_of_the_claim(bench: Bench) -> None:
    await bench.put(new_job("a", queue="red", delay=HOUR), new_job("b", queue="blue", delay=MINUTE))
    red, blue, empty = (QueueClaim(queue, (terms(),)) for queue in ("red", "blue", "empty"))
    due = (await bench.look("b", "blue")).due

    for queues in ((red, blue, empty), (empty, blue, red)):
        assert (await bench.engine.claim(bench.claim(queues=queues))).next_due == due


@guarantee(Guarantee.ONE_LEASE)
async def test_sixty_four_claimers_at_once_share_the_jobs_without_overlap(bench: Bench) -> None:
    """E-Q24, E-P1"""
    ids = [f"job-{number:03}" for number in range(500)]
    await bench.put(*jobs(*ids))

    async def work(worker: str) -> list[str]:
        mine: list[str] = []
        while leases := await bench.take(3, worker=worker):
            mine += [lease.id for lease in leases]
            await bench.engine.settle(*(succeed(lease) for lease in leases))
        return mine

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
