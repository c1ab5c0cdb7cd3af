"""Expired and reaping: expired leases are listed, and the first reaper that settles one recovers its job."""

import asyncio

from holdfast.model.instants import HOUR, MINUTE, SECOND
from holdfast.model.job import AttemptOutcome, Given
from holdfast.model.states import JobState, Reason
from holdfast.model.work import ExpiredLease, Settlement, SettleStatus
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import (
    LEASE,
    QUEUE,
    REAPER,
    TASK,
    WORKER,
    jobs,
    new_job,
    reap,
    renewal,
    retry,
    succeed,
)
from holdfast.testing.contract.guarantees import Guarantee, guarantee


@guarantee(Guarantee.RECOVERY)
async def test_a_lease_is_listed_only_once_it_has_run_out(bench: Bench) -> None:
    await bench.put(*jobs("a", "b"))
    await bench.take_one()

    assert await bench.expired() == ()
    bench.clock.advance(20)
    await bench.take_one()
    assert await bench.expired() == ()
    bench.clock.advance(11)

    assert [lost.id for lost in await bench.expired()] == ["a"]


@guarantee(Guarantee.RECOVERY)
async def test_a_listing_contains_the_fields_that_a_reaper_needs(bench: Bench) -> None:
    await bench.put(new_job(given=Given(max_losses=2)))
    await bench.settle(retry(await bench.take_one()))
    lease = await bench.take_one(max_attempts=4)
    await bench.engine.cancel(QUEUE, "a")
    bench.clock.advance(31)

    assert await bench.expired() == (
        ExpiredLease(
            queue=QUEUE,
            id="a",
            task=TASK,
            token=lease.token,
            owner=WORKER,
            lease_expires=lease.lease_expires,
            state=JobState.RUNNING,
            attempt=2,
            losses=0,
            max_attempts=4,
            max_losses=2,
            cancel_asked=True,
        ),
    )


# T6
@guarantee(Guarantee.RECOVERY)
async def test_listing_changes_nothing(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.take_one()
    bench.clock.advance(31)
    before = await bench.get()

    first, second = await bench.expired(), await bench.expired()

    assert first == second
    assert await bench.get() == before


# TM1
@guarantee(Guarantee.RECOVERY)
async def test_time_in_the_queue_does_not_count_towards_a_lease(bench: Bench) -> None:
    """E-S2"""
    await bench.put(new_job())
    bench.clock.advance(days=3)
    await bench.take_one()

    assert await bench.expired() == ()


@guarantee(Guarantee.RECOVERY)
async def test_a_worker_sees_its_own_leases_in_the_list(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.take_one(worker="me")
    bench.clock.advance(31)

    assert [lost.owner for lost in (await bench.engine.expired("me")).leases] == ["me"]


@guarantee(Guarantee.RECOVERY)
async def test_the_listing_respects_its_limit(bench: Bench) -> None:
    await bench.put(*jobs(*(f"job-{number}" for number in range(10))))
    await bench.take(10)
    bench.clock.advance(31)

    assert len(await bench.expired(limit=3)) == 3
    assert len({lost.id for lost in await bench.expired(limit=10)}) == 10


# T7
@guarantee(Guarantee.RECOVERY)
async def test_reapers_that_work_through_their_lists_reap_every_lease(bench: Bench) -> None:
    await bench.put(*jobs(*(f"job-{number}" for number in range(30))))
    await bench.take(30)
    bench.clock.advance(31)

    async def sweep(reaper: str) -> int:
        count = 0
        while listed := (await bench.engine.expired(reaper, limit=4)).leases:
            answer = await bench.engine.settle(*(reap(lost) for lost in listed))
            count += answer.settled.count(SettleStatus.APPLIED)
        return count

    counts = await asyncio.gather(*(sweep(f"reaper-{number}") for number in range(5)))

    assert sum(counts) == 30, "each lease is reaped once"
    leases = await bench.take(30)
    assert [(lease.attempt, lease.losses) for lease in leases] == [(2, 1)] * 30


# T6
@guarantee(Guarantee.RECOVERY)
async def test_only_leases_of_the_reapers_tasks_are_listed(bench: Bench) -> None:
    await bench.put(new_job("x", task="x"), new_job("y", task="y"), new_job("bare", task=""))
    await bench.take(3, tasks=("x", "y", ""))
    bench.clock.advance(31)

    assert [lost.id for lost in await bench.expired(tasks=("x",))] == ["x"]
    assert sorted(lost.id for lost in await bench.expired(tasks=("", "y"))) == ["bare", "y"]
    assert await bench.expired(tasks=()) == ()
    assert len(await bench.expired()) == 3


# T6
@guarantee(Guarantee.RECOVERY)
async def test_a_lease_of_any_task_is_listed_for_all_reapers_after_ten_lease_lengths(bench: Bench) -> None:
    await bench.put(new_job("short", task="x"), new_job("long", task="x", given=Given(lease_len=2 * LEASE)))
    await bench.take(2, tasks=("x",))

    bench.clock.advance((LEASE + 10 * LEASE) / SECOND - 10)
    assert await bench.expired(tasks=("y",)) == ()
    bench.clock.advance(20)
    assert [lost.id for lost in await bench.expired(tasks=("y",))] == ["short"]
    bench.clock.advance(11 * LEASE / SECOND)

    assert sorted(lost.id for lost in await bench.expired(tasks=("y",))) == ["long", "short"]


# A6
@guarantee(Guarantee.ATTEMPTS)
async def test_reaping_a_running_job_costs_the_attempt_and_counts_a_loss(bench: Bench) -> None:
    """E-F11, E-P8"""
    await bench.put(new_job())
    lease = await bench.take_one()
    lost = await bench.expire(lease)

    answer = await bench.engine.settle(reap(lost, delay=MINUTE))

    assert answer.settled == (SettleStatus.APPLIED,)
    job = await bench.get()
    assert (job.state, job.attempt, job.losses) == (JobState.RETRYING, 1, 1)
    assert (job.reason, job.due) == (Reason.WORKER_LOST, answer.at.wall + MINUTE)
    assert (job.token, job.lease_expires, job.owner) == (None, None, WORKER)
    (entry,) = job.history
    assert (entry.number, entry.outcome, entry.worker) == (1, AttemptOutcome.WORKER_LOST, WORKER)


@guarantee(Guarantee.RECOVERY)
async def test_a_reaped_job_waits_for_its_back_off(bench: Bench) -> None:
    """E-Q13"""
    await bench.put(new_job("poison"))
    lease = await bench.take_one()
    await bench.settle(reap(await bench.expire(lease), delay=10 * MINUTE))
    await bench.put(new_job("innocent"))

    assert await bench.take_ids() == ["innocent"]
    bench.clock.advance(minutes=11)
    again = await bench.take_one()

    assert (again.id, again.attempt, again.losses) == ("poison", 2, 1)


@guarantee(Guarantee.ATTEMPTS)
async def test_losses_add_up_until_the_reaper_gives_up(bench: Bench) -> None:
    """E-X2, E-D16"""
    await bench.put(new_job(given=Given(max_attempts=0, max_losses=3)))
    for losses in range(2):
        lost = await bench.expire(await bench.take_one())
        assert (lost.attempt, lost.losses, lost.max_losses) == (losses + 1, losses, 3)
        await bench.settle(reap(lost))
    lost = await bench.expire(await bench.take_one())

    answer = await bench.engine.settle(reap(lost, JobState.FAILED))

    assert answer.settled == (SettleStatus.APPLIED,)
    job = await bench.get()
    assert (job.state, job.reason, job.losses, job.attempt) == (JobState.FAILED, Reason.WORKER_LOST, 3, 3)
    assert job.finished == answer.at.wall
    assert [entry.outcome for entry in job.history] == [AttemptOutcome.WORKER_LOST] * 3
    assert await bench.take() == ()


# G3
@guarantee(Guarantee.FENCING)
async def test_a_lease_that_has_time_left_cannot_be_reaped(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    before = await bench.get()
    early = Settlement(
        queue=QUEUE,
        id="a",
        token=lease.token,
        target=JobState.RETRYING,
        reason=Reason.WORKER_LOST,
        listed_expiry=lease.lease_expires,
    )

    assert await bench.settle(early) is SettleStatus.LOST
    assert await bench.get() == before
    bench.clock.advance(31)
    assert await bench.settle(early) is SettleStatus.APPLIED


@guarantee(Guarantee.FENCING)
async def test_a_reaper_must_name_the_expiry_it_saw(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    lost = await bench.expire(lease)
    before = await bench.get()
    for wrong in (lost.lease_expires - 1, lost.lease_expires + 1, 0):
        guess = reap(lost)
        forged = Settlement(queue=guess.queue, id=guess.id, token=guess.token, target=guess.target, listed_expiry=wrong)
        assert await bench.settle(forged) is SettleStatus.LOST

    assert await bench.get() == before


@guarantee(Guarantee.FENCING)
async def test_only_one_of_several_reapers_reaps_a_lease(bench: Bench) -> None:
    await bench.put(new_job())
    lost = await bench.expire(await bench.take_one())

    answers = await asyncio.gather(*(bench.settle(reap(lost)) for _ in range(8)))

    assert answers.count(SettleStatus.APPLIED) == 1
    assert answers.count(SettleStatus.LOST) == 7
    assert (await bench.get()).losses == 1


@guarantee(Guarantee.RECOVERY)
async def test_a_settled_or_reaped_job_leaves_the_list(bench: Bench) -> None:
    await bench.put(*jobs("done", "reaped", "renewed", "cleared", lane=None))
    done, reaped, renewed, cleared = await bench.take(4)
    bench.clock.advance(31)
    listed = {lost.id: lost for lost in await bench.expired()}
    assert set(listed) == {"done", "reaped", "renewed", "cleared"}

    await bench.engine.settle(succeed(done), reap(listed["reaped"]))
    await bench.engine.renew(renewal(renewed))
    assert [lost.id for lost in await bench.expired()] == [cleared.id]
    await bench.engine.clear(QUEUE)

    assert await bench.expired() == ()
    assert reaped.id == "reaped"


@guarantee(Guarantee.RECOVERY)
async def test_reapers_list_expired_leases_in_different_orders(bench: Bench) -> None:
    await bench.put(*jobs(*(f"job-{number:02}" for number in range(40))))
    await bench.take(40)
    bench.clock.advance(31)

    lists = [
        tuple(lost.id for lost in (await bench.engine.expired(f"{REAPER}-{number}")).leases) for number in range(20)
    ]

    assert {frozenset(ids) for ids in lists} == {frozenset(lists[0])}
    assert len(lists[0]) == 40
    assert len(set(lists)) > 1, "twenty reapers that all begin with the same lease would compete for it"


@guarantee(Guarantee.RECOVERY)
async def test_leases_of_all_queues_are_listed(bench: Bench) -> None:
    await bench.put(new_job("a", queue="red"), new_job("b", queue="blue"))
    await bench.take_one(queue="red")
    await bench.take_one(queue="blue", lease_len=HOUR)
    bench.clock.advance(31)
    assert [(lost.queue, lost.id) for lost in await bench.expired()] == [("red", "a")]
    bench.clock.advance(hours=1)

    assert sorted((lost.queue, lost.id) for lost in await bench.expired()) == [("blue", "b"), ("red", "a")]
