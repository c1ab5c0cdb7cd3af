"""Every settlement needs the current token. A late, repeated or forged settlement changes nothing."""

import asyncio

import pytest

from holdfast.model.instants import HOUR
from holdfast.model.states import JobState
from holdfast.model.work import Settlement, SettleStatus
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import (
    QUEUE,
    confirm_cancel,
    fail,
    jobs,
    new_job,
    reap,
    release,
    retry,
    settlement,
    snooze,
    succeed,
)
from holdfast.testing.contract.guarantees import Guarantee, guarantee


# G1
@guarantee(Guarantee.FENCING)
async def test_a_settlement_of_an_absent_job_is_answered_gone(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()

    def to(queue: str, id: str) -> Settlement:
        return Settlement(queue=queue, id=id, token=lease.token, target=JobState.SUCCEEDED)

    assert await bench.settle(to(QUEUE, "absent")) is SettleStatus.GONE
    assert await bench.settle(to("absent", "a")) is SettleStatus.GONE
    assert await bench.state() is JobState.RUNNING


# G2
@guarantee(Guarantee.FENCING)
@pytest.mark.parametrize("target", ["succeeded", "failed", "cancelled", "retrying", "scheduled", "queued"])
async def test_a_token_that_is_not_the_current_one_changes_nothing(bench: Bench, target: str) -> None:
    """E-F6, E-S8"""
    await bench.put(new_job("waiting", delay=HOUR), new_job("leased"))
    await bench.take_one()
    before = [await bench.get(id) for id in ("waiting", "leased")]

    for id in ("waiting", "leased"):
        forged = Settlement(queue=QUEUE, id=id, token="forged.0", target=JobState(target), result=b"forged")
        assert await bench.settle(forged) is SettleStatus.LOST

    assert [await bench.get(id) for id in ("waiting", "leased")] == before


@guarantee(Guarantee.FENCING)
@pytest.mark.parametrize("late", [succeed, fail, confirm_cancel, retry, snooze, release])
async def test_a_late_owner_cannot_overwrite_the_next_owner(bench: Bench, late: object) -> None:
    """E-P9, E-F6"""
    await bench.put(new_job())
    first = await bench.take_one(worker="first")
    await bench.lose(first)
    second = await bench.take_one(worker="second")
    before = await bench.get()
    assert callable(late)

    assert await bench.settle(late(first)) is SettleStatus.LOST

    assert await bench.get() == before
    assert await bench.settle(succeed(second, b"second")) is SettleStatus.APPLIED
    assert await bench.settle(late(first)) is SettleStatus.LOST
    assert (await bench.get()).result == b"second"


@guarantee(Guarantee.FENCING)
async def test_an_owner_can_settle_after_its_lease_expired_until_the_job_is_reaped(bench: Bench) -> None:
    """E-Q16: an expired lease is still a lease."""
    await bench.put(new_job())
    lease = await bench.take_one()
    bench.clock.advance(days=1)

    assert await bench.settle(succeed(lease)) is SettleStatus.APPLIED
    assert await bench.state() is JobState.SUCCEEDED
    assert await bench.expired() == ()


# G2
@guarantee(Guarantee.FENCING)
@pytest.mark.parametrize("first", [succeed, fail, confirm_cancel, retry, snooze, release])
async def test_a_settlement_sent_again_is_applied_and_changes_nothing(bench: Bench, first: object) -> None:
    """E-D4; case 3 of the contract"""
    await bench.put(new_job())
    lease = await bench.take_one()
    assert callable(first)
    assert await bench.settle(first(lease)) is SettleStatus.APPLIED
    before, totals = await bench.get(), (await bench.stats()).totals

    bench.clock.advance(minutes=1)

    assert await bench.settle(first(lease)) is SettleStatus.APPLIED
    assert await bench.settle(fail(lease, note="something else")) is SettleStatus.APPLIED
    assert await bench.get() == before
    assert (await bench.stats()).totals == totals


@guarantee(Guarantee.FENCING)
async def test_a_settlement_sent_again_does_not_disturb_the_next_lease(bench: Bench) -> None:
    await bench.put(new_job())
    first = await bench.take_one()
    await bench.settle(retry(first))
    second = await bench.take_one()
    before = await bench.get()

    assert await bench.settle(retry(first)) is SettleStatus.APPLIED
    assert await bench.get() == before
    assert await bench.settle(succeed(second)) is SettleStatus.APPLIED


@guarantee(Guarantee.FENCING)
async def test_only_the_last_settled_lease_is_remembered(bench: Bench) -> None:
    await bench.put(new_job())
    first = await bench.take_one()
    await bench.settle(retry(first))
    second = await bench.take_one()
    await bench.settle(retry(second))

    assert await bench.settle(retry(first)) is SettleStatus.LOST
    assert await bench.settle(retry(second)) is SettleStatus.APPLIED
    assert (await bench.get()).attempt == 2


# G1
@guarantee(Guarantee.FENCING)
async def test_a_settlement_sent_again_after_the_record_was_deleted_is_answered_gone(bench: Bench) -> None:
    lease = await bench.finish(new_job(), retention=0, result_ttl=0)

    assert await bench.get_or_none("a") is None
    assert await bench.settle(succeed(lease)) is SettleStatus.GONE


@guarantee(Guarantee.LANES)
async def test_a_success_sent_twice_does_not_end_the_next_of_its_lane(bench: Bench) -> None:
    """E-D4"""
    await bench.put(*jobs("a", "b", "c", lane="lane"))
    first = await bench.take_one()

    await bench.settle(succeed(first))
    await bench.settle(succeed(first))

    assert await bench.states("a", "b", "c") == [JobState.SUCCEEDED, JobState.QUEUED, JobState.BLOCKED]
    lane = await bench.lane("lane")
    assert (lane.head, lane.depth, lane.totals.succeeded) == ("b", 2, 1)


@guarantee(Guarantee.FENCING)
async def test_only_one_outcome_of_racing_settlements_is_stored(bench: Bench) -> None:
    """E-S8"""
    await bench.put(new_job())
    first = await bench.take_one(worker="first")
    await bench.lose(first)
    second = await bench.take_one(worker="second")

    answers = await asyncio.gather(
        bench.settle(succeed(first, b"first")), bench.settle(succeed(second, b"second")), bench.settle(fail(first))
    )

    assert list(answers) == [SettleStatus.LOST, SettleStatus.APPLIED, SettleStatus.LOST]
    assert (await bench.get()).result == b"second"
    assert (await bench.stats()).totals.finished == 1


@guarantee(Guarantee.FENCING)
async def test_settlements_of_an_exchange_are_answered_in_their_order(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"))
    a, b, c = await bench.take(3)
    await bench.settle(succeed(a))
    foreign = Settlement(queue=QUEUE, id="c", token=b.token, target=JobState.SUCCEEDED)
    missing = Settlement(queue=QUEUE, id="d", token=b.token, target=JobState.SUCCEEDED)

    answer = await bench.engine.settle(foreign, succeed(a), missing, succeed(b), retry(c))

    assert answer.settled == (
        SettleStatus.LOST,
        SettleStatus.APPLIED,
        SettleStatus.GONE,
        SettleStatus.APPLIED,
        SettleStatus.APPLIED,
    )
    assert await bench.states("a", "b", "c") == [JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.RETRYING]


@guarantee(Guarantee.FENCING)
async def test_the_same_settlement_twice_in_one_exchange_applies_once(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()

    answer = await bench.engine.settle(retry(lease), retry(lease))

    assert answer.settled == (SettleStatus.APPLIED, SettleStatus.APPLIED)
    job = await bench.get()
    assert (job.attempt, len(job.history)) == (1, 1)


# T3
@guarantee(Guarantee.FENCING)
async def test_the_fence_grows_with_every_lease_of_a_job(bench: Bench) -> None:
    await bench.put(new_job())
    fences = []
    for give_back in (retry, release, snooze, retry):
        lease = await bench.take_one()
        fences.append(lease.fence)
        await bench.settle(give_back(lease))
    lost = await bench.take_one()
    fences.append(lost.fence)
    await bench.lose(lost)
    fences.append((await bench.take_one()).fence)

    assert fences == sorted(set(fences))


@guarantee(Guarantee.FENCING)
async def test_the_fence_grows_even_when_the_clock_is_set_back(bench: Bench) -> None:
    await bench.put(new_job())
    fences = []
    for _ in range(5):
        lease = await bench.take_one()
        fences.append(lease.fence)
        bench.clock.set_back(seconds=3)
        await bench.settle(release(lease))
        bench.clock.advance(seconds=3)

    assert fences == sorted(set(fences))


# T3
@guarantee(Guarantee.FENCING)
async def test_the_fence_grows_along_a_lane(bench: Bench) -> None:
    await bench.put(*jobs(*(f"job-{number}" for number in range(6)), lane="lane"))
    fences = []
    bench.freeze()
    for _ in range(6):
        lease = await bench.take_one()
        fences.append(lease.fence)
        await bench.settle(succeed(lease))

    assert fences == sorted(set(fences))
    assert (await bench.lane("lane")).fence == fences[-1]


# G7
@guarantee(Guarantee.FENCING)
async def test_a_reap_is_not_remembered_as_a_settlement_of_the_owner(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    lost = await bench.expire(lease)
    assert await bench.settle(reap(lost)) is SettleStatus.APPLIED
    before = await bench.get()

    assert before.settled_token is None
    assert await bench.settle(reap(lost)) is SettleStatus.LOST
    assert await bench.settle(settlement(lease, JobState.SUCCEEDED)) is SettleStatus.LOST
    assert await bench.get() == before


@guarantee(Guarantee.FENCING)
async def test_a_job_that_its_owner_has_settled_is_not_reaped(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    lost = await bench.expire(lease)
    await bench.settle(retry(lease))
    before = await bench.get()

    assert await bench.settle(reap(lost)) is SettleStatus.LOST
    assert await bench.get() == before
