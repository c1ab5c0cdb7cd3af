"""Disown: the leases of a dead worker expire now. If it is still alive, its jobs may run twice but end once."""

import pytest

from holdfast.model.instants import MINUTE
from holdfast.model.job import AttemptOutcome, JobKey
from holdfast.model.states import JobState
from holdfast.model.text import ErrorInfo
from holdfast.model.work import RenewStatus, SettleStatus
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import (
    BOOM,
    QUEUE,
    fail,
    jobs,
    new_job,
    reap,
    release,
    renewal,
    retry,
    succeed,
)
from holdfast.testing.contract.guarantees import Guarantee, guarantee

DEATH = ErrorInfo("example.Died", "killed by SIGKILL; peak memory 812 MiB – größer als sonst", "")


# T8
@guarantee(Guarantee.RECOVERY)
async def test_the_leases_of_a_dead_worker_can_be_reaped_at_once(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"))
    await bench.take(2, worker="dead")
    await bench.take(1, worker="alive")

    answer = await bench.engine.disown("dead")

    assert sorted(answer.leases) == [JobKey(QUEUE, "a"), JobKey(QUEUE, "b")]
    listed = await bench.expired()
    assert sorted((lost.id, lost.owner, lost.lease_expires) for lost in listed) == [
        ("a", "dead", answer.at.lease),
        ("b", "dead", answer.at.lease),
    ]
    settled = await bench.engine.settle(*(reap(lost) for lost in listed))
    assert settled.settled == (SettleStatus.APPLIED, SettleStatus.APPLIED)
    assert [(await bench.get(id)).losses for id in "abc"] == [1, 1, 0]


@guarantee(Guarantee.RECOVERY)
async def test_assigned_jobs_are_disowned_too(bench: Bench) -> None:
    await bench.put(*jobs("a", "b"))
    await bench.take(1, prefetch=1, worker="dead")

    answer = await bench.engine.disown("dead")

    assert sorted(answer.leases) == [JobKey(QUEUE, "a"), JobKey(QUEUE, "b")]
    assert await bench.states("a", "b") == [JobState.RUNNING, JobState.ASSIGNED]


@guarantee(Guarantee.RECOVERY)
async def test_several_workers_can_be_disowned_at_once(bench: Bench) -> None:
    await bench.put(new_job("a"), new_job("b", queue="other"), new_job("c"))
    await bench.take_one(worker="one")
    await bench.take_one(worker="two", queue="other")
    await bench.take_one(worker="three")

    answer = await bench.engine.disown("one", "two", "absent")

    assert sorted(answer.leases) == [JobKey("other", "b"), JobKey(QUEUE, "a")]


@guarantee(Guarantee.RECOVERY)
async def test_jobs_that_a_worker_has_settled_are_not_changed(bench: Bench) -> None:
    await bench.put(*jobs("done", "again", "taken-over"))
    done, again, other = await bench.take(3, worker="dead")
    await bench.engine.settle(succeed(done), retry(again), retry(other))
    await bench.take_one(worker="alive")
    before = [await bench.get(id) for id in ("done", "again", "taken-over")]

    answer = await bench.engine.disown("dead")

    assert answer.leases == ()
    assert [await bench.get(id) for id in ("done", "again", "taken-over")] == before
    assert await bench.expired() == ()


@guarantee(Guarantee.RECOVERY)
async def test_a_lease_that_ran_out_earlier_keeps_its_expiry(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one(worker="dead")
    bench.clock.advance(minutes=5)

    await bench.engine.disown("dead")

    assert (await bench.get()).lease_expires == lease.lease_expires


@guarantee(Guarantee.RECOVERY)
async def test_a_disowned_lease_can_be_reaped_in_the_same_instant(bench: Bench) -> None:
    bench.freeze()
    await bench.put(new_job())
    await bench.take_one(worker="dead")
    await bench.engine.disown("dead")

    (listed,) = await bench.expired()

    assert await bench.settle(reap(listed)) is SettleStatus.APPLIED


# T8
@guarantee(Guarantee.FENCING)
async def test_a_live_worker_that_was_disowned_can_still_settle(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one(worker="alive")
    await bench.engine.disown("alive")
    (listed,) = await bench.expired()

    assert await bench.settle(succeed(lease)) is SettleStatus.APPLIED
    assert await bench.settle(reap(listed)) is SettleStatus.LOST
    assert await bench.state() is JobState.SUCCEEDED


@guarantee(Guarantee.LEASES)
async def test_a_live_worker_that_was_disowned_can_still_renew(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one(worker="alive")
    await bench.engine.disown("alive")
    (listed,) = await bench.expired()

    answer = await bench.engine.renew(renewal(lease))

    assert answer.jobs[0].status is RenewStatus.HELD
    assert await bench.expired() == ()
    assert await bench.settle(reap(listed)) is SettleStatus.LOST


@guarantee(Guarantee.FENCING)
async def test_a_live_worker_that_was_disowned_cannot_settle_after_the_reaping(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one(worker="alive")
    await bench.engine.disown("alive")
    (listed,) = await bench.expired()
    await bench.settle(reap(listed))

    assert await bench.settle(succeed(lease)) is SettleStatus.LOST
    assert (await bench.take_one()).attempt == 2


# A13
@guarantee(Guarantee.RECOVERY)
async def test_how_a_worker_has_ended_is_listed_with_each_of_its_leases(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"))
    await bench.take(1, prefetch=1, worker="dead")
    await bench.take_one(worker="alive")

    answer = await bench.engine.disown("dead", error=DEATH)

    assert sorted(answer.leases) == [JobKey(QUEUE, "a"), JobKey(QUEUE, "b")]
    listed = {lost.id: lost.loss_error for lost in await bench.expired()}
    assert listed == {"a": DEATH, "b": DEATH}
    assert [(await bench.get(id)).loss_error for id in "abc"] == [DEATH, DEATH, None]
    assert (await bench.get("a")).last_error is None, "its owner may still live"


# A13
@guarantee(Guarantee.RECOVERY)
async def test_a_reap_that_has_the_error_of_the_death_writes_it_into_the_history(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.take_one(worker="dead")
    await bench.engine.disown("dead", error=DEATH)
    (listed,) = await bench.expired()

    assert await bench.settle(reap(listed, JobState.FAILED, error=listed.loss_error)) is SettleStatus.APPLIED

    job = await bench.get()
    assert (job.losses, job.last_error, job.loss_error) == (1, DEATH, None)
    assert [(run.outcome, run.worker, run.error) for run in job.history] == [
        (AttemptOutcome.WORKER_LOST, "dead", DEATH)
    ]


# A13
@guarantee(Guarantee.RECOVERY)
async def test_a_later_disown_without_an_error_leaves_the_one_that_is_known(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.take_one(worker="dead")

    await bench.engine.disown("dead")
    await bench.engine.disown("dead", error=BOOM)  # the lease has expired already
    await bench.engine.disown("dead")
    assert [lost.loss_error for lost in await bench.expired()] == [BOOM]
    expiry = (await bench.get()).lease_expires
    await bench.engine.disown("dead", error=DEATH)

    assert [lost.loss_error for lost in await bench.expired()] == [DEATH]
    assert (await bench.get()).lease_expires == expiry


# A13
@guarantee(Guarantee.RECOVERY)
async def test_a_renewal_removes_the_error_of_a_death_that_was_none(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one(worker="alive")
    await bench.engine.disown("alive", error=DEATH)

    await bench.engine.renew(renewal(lease))

    assert (await bench.get()).loss_error is None
    assert (await bench.expire(lease)).loss_error is None


# A13
@guarantee(Guarantee.RECOVERY)
@pytest.mark.parametrize("what", ["succeed", "fail", "retry", "release", "reap", "clear", "cleared start"])
async def test_the_error_of_a_death_ends_with_the_lease(bench: Bench, what: str) -> None:
    await bench.put(new_job())
    (lease,) = await bench.take(0, prefetch=1, worker="w") if what == "cleared start" else await bench.take(worker="w")
    await bench.engine.disown("w", error=DEATH)

    match what:
        case "succeed":
            await bench.settle(succeed(lease))
        case "fail":
            await bench.settle(fail(lease))
        case "retry":
            await bench.settle(retry(lease, delay=MINUTE))
        case "release":
            await bench.settle(release(lease))
        case "reap":
            (listed,) = await bench.expired()
            await bench.settle(reap(listed))
        case "clear" | "cleared start":
            await bench.engine.clear(QUEUE)

    job = await bench.get()
    assert (job.token, job.loss_error) == (None, None)
    assert job.last_error != DEATH
