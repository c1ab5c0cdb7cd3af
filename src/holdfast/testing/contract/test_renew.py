"""Renew: extends a lease by its own length; the answer reports losses, cancel requests and pauses."""

import pytest

from holdfast.model.instants import HOUR, MINUTE, SECOND
from holdfast.model.job import Given, ProgressRecord
from holdfast.model.states import JobState
from holdfast.model.work import Renewal, RenewResult, RenewStatus, SettleStatus
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import LEASE, QUEUE, fail, jobs, new_job, reap, release, renewal, retry, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee

LOST = RenewResult(RenewStatus.LOST, None)


# T4, PF4
@guarantee(Guarantee.LEASES)
async def test_a_renewal_counts_from_now(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    bench.clock.advance(10)

    answer = await bench.engine.renew(renewal(lease))

    assert answer.jobs == (RenewResult(RenewStatus.HELD, answer.at.lease + LEASE),)
    job = await bench.get()
    assert job.lease_expires == answer.at.lease + LEASE
    assert (job.state, job.token, job.attempt) == (JobState.RUNNING, lease.token, 1)


@guarantee(Guarantee.LEASES)
async def test_a_renewed_lease_outlives_its_first_length(bench: Bench) -> None:
    """E-X1"""
    await bench.put(new_job())
    lease = await bench.take_one()
    for _ in range(10):
        bench.clock.advance(20)
        assert await bench.expired() == ()
        assert (await bench.engine.renew(renewal(lease))).jobs[0].status is RenewStatus.HELD

    assert await bench.settle(succeed(lease)) is SettleStatus.APPLIED
    assert (await bench.get()).attempt == 1


@guarantee(Guarantee.LEASES)
async def test_a_renewal_uses_the_length_given_at_enqueue(bench: Bench) -> None:
    await bench.put(new_job(given=Given(lease_len=HOUR)))
    lease = await bench.take_one()
    bench.clock.advance(minutes=30)

    answer = await bench.engine.renew(renewal(lease))

    assert answer.jobs[0].lease_expires == answer.at.lease + HOUR


# T4
@guarantee(Guarantee.LEASES)
async def test_an_expired_lease_can_be_renewed_until_it_is_reaped(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    await bench.expire(lease)

    answer = await bench.engine.renew(renewal(lease))

    assert answer.jobs == (RenewResult(RenewStatus.HELD, answer.at.lease + LEASE),)
    assert await bench.expired() == ()


# T4
@guarantee(Guarantee.LEASES)
async def test_a_renewal_never_shortens_a_lease(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    bench.clock.set_back(hours=1)

    (renewed,) = (await bench.engine.renew(renewal(lease))).jobs

    assert renewed.status is RenewStatus.HELD
    assert renewed.lease_expires is not None
    assert renewed.lease_expires >= lease.lease_expires


@guarantee(Guarantee.FENCING)
async def test_a_late_owner_cannot_renew_the_lease_of_the_next_owner(bench: Bench) -> None:
    """E-P9"""
    await bench.put(new_job())
    first = await bench.take_one(worker="first")
    await bench.lose(first)
    await bench.take_one(worker="second")
    before = await bench.get()
    bench.clock.advance(10)

    answer = await bench.engine.renew(Renewal(QUEUE, "a", first.token, ProgressRecord(0.9, "mine")))

    assert answer.jobs == (LOST,)
    assert await bench.get() == before


@guarantee(Guarantee.FENCING)
@pytest.mark.parametrize("end", [succeed, fail, retry, release])
async def test_a_settled_job_cannot_be_renewed(bench: Bench, end: object) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    assert callable(end)
    await bench.settle(end(lease))
    before = await bench.get()

    assert (await bench.engine.renew(renewal(lease))).jobs == (LOST,)
    assert await bench.get() == before


@guarantee(Guarantee.FENCING)
async def test_the_lease_of_an_absent_job_cannot_be_renewed(bench: Bench) -> None:
    """E-Q22"""
    await bench.put(new_job())
    lease = await bench.take_one()

    answer = await bench.engine.renew(Renewal(QUEUE, "absent", lease.token), Renewal("absent", "a", lease.token))

    assert answer.jobs == (LOST, LOST)


@guarantee(Guarantee.LEASES)
async def test_renewals_are_answered_in_their_order(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"))
    a, b, c = await bench.take(3)
    await bench.engine.settle(succeed(b))
    await bench.engine.cancel(QUEUE, "c")

    answer = await bench.engine.renew(renewal(c), renewal(b), renewal(a))

    assert [job.status for job in answer.jobs] == [RenewStatus.CANCEL, RenewStatus.LOST, RenewStatus.HELD]


# T5
@guarantee(Guarantee.CANCEL)
async def test_a_renewal_reports_a_cancel_request_and_still_extends_the_lease(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    await bench.engine.cancel(QUEUE, "a")
    bench.clock.advance(10)

    answer = await bench.engine.renew(renewal(lease))

    assert answer.jobs == (RenewResult(RenewStatus.CANCEL, answer.at.lease + LEASE),)
    assert (await bench.get()).lease_expires == answer.at.lease + LEASE


# T5
@guarantee(Guarantee.PAUSE)
@pytest.mark.parametrize("lane", [None, "lane"])
async def test_the_renewal_of_an_assigned_job_reports_a_pause_and_still_extends_the_lease(
    bench: Bench, lane: str | None
) -> None:
    await bench.put(new_job("assigned", lane="lane"))
    (lease,) = await bench.take(0, prefetch=1)
    await bench.engine.pause(QUEUE, lane)
    bench.clock.advance(10)

    answer = await bench.engine.renew(renewal(lease))

    assert answer.jobs == (RenewResult(RenewStatus.HOLD, answer.at.lease + LEASE),)
    assert (await bench.get("assigned")).lease_expires == answer.at.lease + LEASE


@guarantee(Guarantee.PAUSE)
@pytest.mark.parametrize("lane", [None, "lane"])
async def test_the_renewal_of_a_running_job_does_not_report_a_pause(bench: Bench, lane: str | None) -> None:
    await bench.put(new_job(lane="lane"))
    lease = await bench.take_one()
    await bench.engine.pause(QUEUE, lane)

    answer = await bench.engine.renew(renewal(lease))

    assert answer.jobs[0].status is RenewStatus.HELD
    assert await bench.settle(succeed(lease)) is SettleStatus.APPLIED


@guarantee(Guarantee.PAUSE)
async def test_a_renewal_does_not_report_the_pause_of_another_lane(bench: Bench) -> None:
    await bench.put(new_job("a", lane="one"), new_job("b"))
    leases = await bench.take(0, prefetch=2)
    await bench.engine.pause(QUEUE, "two")

    answer = await bench.engine.renew(*(renewal(lease) for lease in leases))

    assert [job.status for job in answer.jobs] == [RenewStatus.HELD, RenewStatus.HELD]


@guarantee(Guarantee.CANCEL)
async def test_a_renewal_reports_a_cancel_request_rather_than_a_pause(bench: Bench) -> None:
    await bench.put(new_job())
    (lease,) = await bench.take(0, prefetch=1)
    await bench.engine.pause(QUEUE)
    await bench.engine.cancel(QUEUE, "a")

    assert (await bench.engine.renew(renewal(lease))).jobs[0].status is RenewStatus.CANCEL


# T4
@guarantee(Guarantee.LEASES)
async def test_the_progress_of_a_renewal_is_stored_and_kept(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    assert (await bench.get()).progress is None

    await bench.engine.renew(renewal(lease, progress=ProgressRecord(0.25, "a quarter")))
    first = (await bench.get()).progress
    await bench.engine.renew(renewal(lease))
    unchanged = (await bench.get()).progress
    await bench.engine.renew(renewal(lease, progress=ProgressRecord(0.5)))

    assert first == unchanged == ProgressRecord(0.25, "a quarter")
    assert (await bench.get()).progress == ProgressRecord(0.5, "")


@guarantee(Guarantee.LEASES)
async def test_a_new_attempt_starts_without_progress(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    await bench.engine.renew(renewal(lease, progress=ProgressRecord(0.9)))
    await bench.settle(retry(lease))

    await bench.take_one()

    assert (await bench.get()).progress is None


# G3
@guarantee(Guarantee.RECOVERY)
async def test_a_lease_renewed_after_it_was_listed_is_not_reaped(bench: Bench) -> None:
    """E-X1; case 1 of the contract"""
    await bench.put(new_job())
    lease = await bench.take_one()
    listed = await bench.expire(lease)

    await bench.engine.renew(renewal(lease))
    before = await bench.get()

    assert await bench.settle(reap(listed)) is SettleStatus.LOST
    assert await bench.get() == before
    assert await bench.settle(succeed(lease)) is SettleStatus.APPLIED
    assert (await bench.get()).losses == 0


@guarantee(Guarantee.RECOVERY)
async def test_a_listing_older_than_the_renewal_stays_void_when_the_lease_expires_again(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    listed = await bench.expire(lease)
    await bench.engine.renew(renewal(lease))
    bench.clock.advance((LEASE + MINUTE) / SECOND)

    assert await bench.settle(reap(listed)) is SettleStatus.LOST
    (again,) = await bench.expired()
    assert again.lease_expires > listed.lease_expires
    assert await bench.settle(reap(again)) is SettleStatus.APPLIED
