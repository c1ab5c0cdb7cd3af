"""Exchange: settlements, starts and a claim in one step; prefetched jobs and their starts."""

import pytest

from holdfast.model.instants import MINUTE
from holdfast.model.states import Hold, JobState, Reason
from holdfast.model.work import QueueClaim, SettleStatus, Start, StartStatus
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import (
    BOOM,
    LEASE,
    QUEUE,
    WORKER,
    confirm_cancel,
    fail,
    jobs,
    new_job,
    reap,
    release,
    retry,
    snooze,
    start,
    succeed,
    task_claim,
)
from holdfast.testing.contract.guarantees import Guarantee, guarantee


@guarantee(Guarantee.ORDER)
async def test_an_empty_exchange_has_an_empty_answer(bench: Bench) -> None:
    answer = await bench.engine.exchange()

    assert (answer.settled, answer.started, answer.emptied, answer.leases, answer.next_due) == ((), (), (), (), None)


# W1, W2
@guarantee(Guarantee.ORDER)
async def test_an_exchange_can_claim_the_jobs_that_it_gives_back(bench: Bench) -> None:
    await bench.put(*jobs("retry", "snooze", "release", "later"))
    one, two, three, four = await bench.take(4)

    answer = await bench.engine.exchange(
        [retry(one), snooze(two), release(three), retry(four, MINUTE)], claim=bench.claim(limit=10)
    )

    assert answer.settled == (SettleStatus.APPLIED,) * 4
    assert [(lease.id, lease.attempt) for lease in answer.leases] == [("release", 1), ("retry", 2), ("snooze", 1)]
    assert await bench.state("later") is JobState.RETRYING
    assert answer.next_due == answer.at.wall + MINUTE


# W2
@guarantee(Guarantee.LANES)
async def test_an_exchange_can_claim_the_next_of_a_lane_whose_head_it_settles(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c", lane="lane"))

    answer = await bench.engine.exchange([succeed(await bench.take_one())], claim=bench.claim(limit=5))

    assert [lease.id for lease in answer.leases] == ["b"]
    assert answer.emptied == ()


# W2
@guarantee(Guarantee.ORDER)
async def test_settlements_take_effect_in_the_order_given(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()

    await bench.engine.settle(succeed(lease, b"first"), fail(lease))

    job = await bench.get()
    assert (job.state, job.result) == (JobState.SUCCEEDED, b"first")


@guarantee(Guarantee.ORDER)
async def test_one_exchange_settles_in_several_queues(bench: Bench) -> None:
    await bench.put(new_job("a", queue="red"), new_job("b", queue="blue"))
    queues = (QueueClaim("red", (task_claim(),)), QueueClaim("blue", (task_claim(),)))
    red, blue = await bench.take(2, queues=queues)

    answer = await bench.engine.settle(succeed(blue), fail(red))

    assert answer.settled == (SettleStatus.APPLIED, SettleStatus.APPLIED)
    assert await bench.state("a", "red") is JobState.FAILED
    assert await bench.state("b", "blue") is JobState.SUCCEEDED


@guarantee(Guarantee.PREFETCH)
async def test_a_claim_runs_as_many_as_its_limit_and_assigns_the_rest(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c", "d", "e"))

    leases = await bench.take(2, prefetch=2)

    assert [(lease.id, lease.state) for lease in leases] == [
        ("a", JobState.RUNNING),
        ("b", JobState.RUNNING),
        ("c", JobState.ASSIGNED),
        ("d", JobState.ASSIGNED),
    ]
    assert await bench.state("e") is JobState.QUEUED


@guarantee(Guarantee.PREFETCH)
async def test_a_claim_may_prefetch_only(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"))

    leases = await bench.take(0, prefetch=2)

    assert [(lease.id, lease.state) for lease in leases] == [("a", JobState.ASSIGNED), ("b", JobState.ASSIGNED)]


# C2
@guarantee(Guarantee.PREFETCH)
async def test_the_limit_is_filled_before_the_prefetch_over_all_queues(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", queue="red"), *jobs("c", "d", queue="blue"))
    queues = (QueueClaim("red", (task_claim(),)), QueueClaim("blue", (task_claim(),)))

    leases = await bench.take(3, prefetch=5, queues=queues)

    assert [(lease.id, lease.state) for lease in leases] == [
        ("a", JobState.RUNNING),
        ("b", JobState.RUNNING),
        ("c", JobState.RUNNING),
        ("d", JobState.ASSIGNED),
    ]


# A1
@guarantee(Guarantee.PREFETCH)
async def test_an_assigned_job_is_leased_and_counted_but_not_started(bench: Bench) -> None:
    await bench.put(new_job())

    answer = await bench.engine.claim(bench.claim(limit=0, prefetch=1))

    (lease,) = answer.leases
    job = await bench.get()
    assert (lease.started, lease.attempt, lease.lease_expires) == (None, 1, answer.at.lease + LEASE)
    assert (job.state, job.attempt, job.owner, job.token) == (JobState.ASSIGNED, 1, WORKER, lease.token)
    assert (job.started, job.last_started) == (None, None)


# A2
@guarantee(Guarantee.PREFETCH)
async def test_a_start_turns_assigned_into_running(bench: Bench) -> None:
    await bench.put(new_job())
    (lease,) = await bench.take(0, prefetch=1)

    answer = await bench.engine.exchange(starts=[start(lease)])

    assert answer.started == (StartStatus.STARTED,)
    job = await bench.get()
    assert (job.state, job.attempt, job.token) == (JobState.RUNNING, 1, lease.token)
    assert (job.started, job.last_started) == (answer.at.wall, answer.at.wall)


@guarantee(Guarantee.PREFETCH)
async def test_a_start_after_an_earlier_attempt_keeps_the_first_start(bench: Bench) -> None:
    await bench.put(new_job())
    first = await bench.engine.claim(bench.claim())
    await bench.settle(retry(first.leases[0]))
    bench.clock.advance(10)
    (lease,) = await bench.take(0, prefetch=1)
    assert (lease.started, (await bench.get()).last_started) == (first.at.wall, first.at.wall)

    second = await bench.engine.exchange(starts=[start(lease)])

    job = await bench.get()
    assert (job.started, job.last_started) == (first.at.wall, second.at.wall)


@guarantee(Guarantee.PREFETCH)
async def test_a_start_sent_again_changes_nothing(bench: Bench) -> None:
    await bench.put(new_job())
    (lease,) = await bench.take(0, prefetch=1)
    await bench.engine.exchange(starts=[start(lease)])
    before = await bench.get()
    bench.clock.advance(5)

    answer = await bench.engine.exchange(starts=[start(lease)])

    assert answer.started == (StartStatus.STARTED,)
    assert await bench.get() == before


# A2
@guarantee(Guarantee.PREFETCH)
async def test_a_start_without_the_current_token_is_lost(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"))
    a, b = await bench.take(0, prefetch=2)
    await bench.settle(release(b))
    foreign = Start(QUEUE, "a", b.token)

    answer = await bench.engine.exchange(starts=[foreign, start(b), Start(QUEUE, "absent", a.token)])

    assert answer.started == (StartStatus.LOST, StartStatus.LOST, StartStatus.LOST)
    assert await bench.states("a", "b") == [JobState.ASSIGNED, JobState.QUEUED]


@guarantee(Guarantee.PREFETCH)
async def test_a_job_that_ended_cannot_be_started(bench: Bench) -> None:
    await bench.put(new_job())
    (lease,) = await bench.take(0, prefetch=1)
    await bench.settle(succeed(lease))

    assert (await bench.engine.exchange(starts=[start(lease)])).started == (StartStatus.LOST,)
    assert await bench.state() is JobState.SUCCEEDED


@guarantee(Guarantee.CANCEL)
async def test_a_start_is_answered_cancel_after_a_cancel_request(bench: Bench) -> None:
    """E-P12"""
    await bench.put(new_job())
    (lease,) = await bench.take(0, prefetch=1)
    await bench.engine.cancel(QUEUE, "a")

    answer = await bench.engine.exchange(starts=[start(lease)])

    assert answer.started == (StartStatus.CANCEL,)
    job = await bench.get()
    assert (job.state, job.started) == (JobState.ASSIGNED, None)


# A2
@guarantee(Guarantee.PAUSE)
@pytest.mark.parametrize("lane", [None, "lane"])
async def test_a_start_is_answered_hold_while_its_queue_or_lane_is_paused(bench: Bench, lane: str | None) -> None:
    await bench.put(new_job(lane="lane"))
    (lease,) = await bench.take(0, prefetch=1)
    await bench.engine.pause(QUEUE, lane)

    answer = await bench.engine.exchange(starts=[start(lease)])

    assert answer.started == (StartStatus.HOLD,)
    job = await bench.get()
    assert (job.state, job.started, job.token) == (JobState.ASSIGNED, None, lease.token)
    await bench.engine.resume(QUEUE, lane)
    assert (await bench.engine.exchange(starts=[start(lease)])).started == (StartStatus.STARTED,)


@guarantee(Guarantee.PREFETCH)
async def test_a_start_with_the_current_token_is_accepted_even_after_the_lease_expired(bench: Bench) -> None:
    await bench.put(new_job())
    (lease,) = await bench.take(0, prefetch=1)
    bench.clock.advance(minutes=5)

    assert (await bench.engine.exchange(starts=[start(lease)])).started == (StartStatus.STARTED,)


@guarantee(Guarantee.PREFETCH)
async def test_starts_and_settlements_share_an_exchange(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c", "d"))
    a, b, c = await bench.take(1, prefetch=2)

    answer = await bench.engine.exchange([succeed(a)], [start(c), start(b)], bench.claim(prefetch=1))

    assert answer.settled == (SettleStatus.APPLIED,)
    assert answer.started == (StartStatus.STARTED, StartStatus.STARTED)
    assert [lease.id for lease in answer.leases] == ["d"]
    assert await bench.states("a", "b", "c", "d") == [JobState.SUCCEEDED] + [JobState.RUNNING] * 3


# A3
@guarantee(Guarantee.PREFETCH)
async def test_settling_an_assigned_job_implies_its_start(bench: Bench) -> None:
    await bench.put(*jobs("good", "bad", "again", "cancelled"))
    good, bad, again, to_cancel = await bench.take(0, prefetch=4)

    answer = await bench.engine.settle(succeed(good), fail(bad), retry(again), confirm_cancel(to_cancel))

    assert answer.settled == (SettleStatus.APPLIED,) * 4
    for id in ("good", "bad", "again", "cancelled"):
        job = await bench.get(id)
        assert (job.attempt, job.started, job.last_started) == (1, answer.at.wall, answer.at.wall)
        assert len(job.history) == (0 if id == "good" else 1)


# A3
@guarantee(Guarantee.PREFETCH)
async def test_an_assigned_job_that_is_released_never_started(bench: Bench) -> None:
    await bench.put(new_job())
    (lease,) = await bench.take(0, prefetch=1)

    assert await bench.settle(release(lease)) is SettleStatus.APPLIED

    job = await bench.get()
    assert (job.state, job.attempt, job.hold) == (JobState.QUEUED, 0, Hold.NONE)
    assert (job.started, job.last_started, job.history) == (None, None, ())


@guarantee(Guarantee.RECOVERY)
async def test_reaping_an_assigned_job_costs_a_loss_but_no_attempt(bench: Bench) -> None:
    await bench.put(new_job())
    (lease,) = await bench.take(0, prefetch=1)
    lost = await bench.expire(lease)

    assert lost.state is JobState.ASSIGNED
    assert await bench.settle(reap(lost)) is SettleStatus.APPLIED

    job = await bench.get()
    assert (job.state, job.attempt, job.losses, job.reason) == (JobState.RETRYING, 0, 1, Reason.WORKER_LOST)
    assert (job.started, job.last_started, job.history) == (None, None, ())
    assert (await bench.take_one()).attempt == 1


@guarantee(Guarantee.HISTORY)
async def test_a_loss_before_the_start_leaves_no_history_entry_even_without_refund(bench: Bench) -> None:
    await bench.put(new_job())
    (lease,) = await bench.take(0, prefetch=1)

    await bench.lose(lease, refund=False)

    job = await bench.get()
    assert (job.attempt, job.losses, job.history) == (1, 1, ())


@guarantee(Guarantee.PREFETCH)
async def test_an_error_of_an_assigned_job_is_recorded(bench: Bench) -> None:
    await bench.put(new_job())
    (lease,) = await bench.take(0, prefetch=1)

    answer = await bench.engine.settle(retry(lease))

    job = await bench.get()
    (entry,) = job.history
    assert (job.state, job.last_error) == (JobState.RETRYING, BOOM)
    assert (entry.number, entry.started, entry.ended) == (1, answer.at.wall, answer.at.wall)


@guarantee(Guarantee.LANES)
async def test_a_prefetch_takes_only_the_head_of_a_lane(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", lane="one"), *jobs("c", "d", lane="two"))

    leases = await bench.take(1, prefetch=10)

    assert [(lease.id, lease.state) for lease in leases] == [("a", JobState.RUNNING), ("c", JobState.ASSIGNED)]


@guarantee(Guarantee.PREFETCH)
async def test_five_hundred_settlements_fit_in_one_exchange(bench: Bench) -> None:
    await bench.put(*jobs(*(f"job-{number}" for number in range(500))))
    leases = await bench.take(500)

    answer = await bench.engine.settle(*(succeed(lease) for lease in leases))

    assert answer.settled == (SettleStatus.APPLIED,) * 500
    assert (await bench.stats()).counts == {JobState.SUCCEEDED: 500}
