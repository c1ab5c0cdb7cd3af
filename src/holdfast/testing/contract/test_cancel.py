"""Cancel: a waiting job ends at once, a leased job gets a cancel request; neither runs again after that."""

import asyncio

import pytest

from holdfast.model.instants import HOUR
from holdfast.model.job import Given
from holdfast.model.operate import CancelStatus
from holdfast.model.states import Hold, JobState, Reason
from holdfast.model.work import SettleStatus
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import (
    BOOM,
    QUEUE,
    after,
    confirm_cancel,
    fail,
    jobs,
    new_job,
    reap,
    release,
    retry,
    snooze,
    succeed,
)
from holdfast.testing.contract.guarantees import Guarantee, guarantee


async def cancel(bench: Bench, *ids: str, note: str = "") -> list[CancelStatus]:
    return [job.status for job in (await bench.engine.cancel(QUEUE, *ids, note=note)).jobs]


# X1
@guarantee(Guarantee.CANCEL)
async def test_a_waiting_job_is_cancelled_at_once(bench: Bench) -> None:
    await bench.put(new_job("again"))
    await bench.settle(retry(await bench.take_one(), HOUR))
    await bench.put(new_job("queued"), new_job("scheduled", delay=HOUR))
    await bench.put(*jobs("head", "behind", lane="lane"), new_job("child", parents=after("queued", any_end=True)))
    ids = ("child", "again", "behind", "scheduled", "queued", "head")

    answer = await bench.engine.cancel(QUEUE, *ids, note="not needed")

    assert [job.status for job in answer.jobs] == [CancelStatus.CANCELLED] * 6
    for id in ids:
        job = await bench.get(id)
        assert (job.state, job.reason, job.note) == (JobState.CANCELLED, Reason.ASKED, "not needed")
        assert (job.hold, job.finished, job.token) == (Hold.NONE, answer.at.wall, None)
    assert await bench.take(10) == ()
    bench.clock.advance(hours=2)
    assert await bench.take(10) == ()
    assert (await bench.stats()).depth == 0


# X2
@guarantee(Guarantee.CANCEL)
async def test_cancelling_a_leased_job_is_a_request(bench: Bench) -> None:
    await bench.put(*jobs("running", "assigned"))
    running, _ = await bench.take(1, prefetch=1)

    assert await cancel(bench, "running", "assigned", note="stop") == [CancelStatus.REQUESTED] * 2

    for id, state in (("running", JobState.RUNNING), ("assigned", JobState.ASSIGNED)):
        job = await bench.get(id)
        assert (job.state, job.cancel_asked, job.cancel_note) == (state, True, "stop")
    assert (await bench.get("running")).token == running.token


# X2
@guarantee(Guarantee.CANCEL)
async def test_a_second_cancel_request_changes_nothing(bench: Bench) -> None:
    """E-F12"""
    await bench.put(new_job())
    await bench.take_one()

    assert await cancel(bench, "a", note="first") == [CancelStatus.REQUESTED]
    assert await cancel(bench, "a", note="second") == [CancelStatus.REQUESTED]

    job = await bench.get()
    assert (job.state, job.cancel_note) == (JobState.RUNNING, "first")


# X3
@guarantee(Guarantee.CANCEL)
async def test_a_finished_job_stays_as_it_is(bench: Bench) -> None:
    """E-F12"""
    await bench.finish(new_job("succeeded"))
    await bench.put(*jobs("failed", "cancelled"))
    one, two = await bench.take(2)
    await bench.engine.settle(fail(one), confirm_cancel(two))
    ids = ("succeeded", "failed", "cancelled")
    before = [await bench.get(id) for id in ids]

    answer = await bench.engine.cancel(QUEUE, *ids, note="too late")

    assert [(job.status, job.state) for job in answer.jobs] == [(CancelStatus.FINISHED, JobState(id)) for id in ids]
    assert [await bench.get(id) for id in ids] == before


@guarantee(Guarantee.CANCEL)
async def test_an_absent_job_is_not_found(bench: Bench) -> None:
    await bench.put(new_job("a"), new_job("b", queue="other"))

    assert await cancel(bench, "absent", "a", "b") == [
        CancelStatus.NOT_FOUND,
        CancelStatus.CANCELLED,
        CancelStatus.NOT_FOUND,
    ]
    assert await bench.state("b", "other") is JobState.QUEUED


# G4
@guarantee(Guarantee.CANCEL)
@pytest.mark.parametrize("give_back", [retry, snooze, release])
@pytest.mark.parametrize("prefetched", [False, True])
async def test_after_a_cancel_request_no_settlement_lets_the_job_run_again(
    bench: Bench, give_back: object, prefetched: bool
) -> None:
    """E-F6; case 2 of the contract"""
    await bench.put(new_job())
    (lease,) = await bench.take(0, prefetch=1) if prefetched else await bench.take(1)
    await cancel(bench, "a", note="stop")
    assert callable(give_back)

    answer = await bench.engine.settle(give_back(lease))

    assert answer.settled == (SettleStatus.CANCELLED_INSTEAD,)
    job = await bench.get()
    assert (job.state, job.reason, job.note) == (JobState.CANCELLED, Reason.ASKED, "stop")
    assert (job.token, job.lease_expires, job.settled_token) == (None, None, lease.token)
    assert (job.finished, job.hold) == (answer.at.wall, Hold.NONE)
    assert await bench.take() == ()


@guarantee(Guarantee.CANCEL)
async def test_a_settlement_turned_into_cancelled_keeps_its_error_and_counts(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    await cancel(bench, "a")

    await bench.settle(retry(lease))

    job = await bench.get()
    assert (job.attempt, job.last_error, job.result) == (1, BOOM, None)
    assert [entry.number for entry in job.history] == [1]
    stats = await bench.stats()
    assert (stats.totals.cancelled, stats.totals.finished, stats.depth) == (1, 1, 0)


@guarantee(Guarantee.CANCEL)
async def test_a_settlement_turned_into_cancelled_can_be_sent_again(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    await cancel(bench, "a")
    await bench.settle(retry(lease))
    before = await bench.get()

    assert await bench.settle(retry(lease)) is SettleStatus.APPLIED
    assert await bench.get() == before


# G4
@guarantee(Guarantee.CANCEL)
@pytest.mark.parametrize("end", [succeed, fail, confirm_cancel])
async def test_an_end_is_stored_despite_a_cancel_request(bench: Bench, end: object) -> None:
    """E-F6"""
    await bench.put(new_job())
    lease = await bench.take_one()
    await cancel(bench, "a")
    assert callable(end)
    wanted = end(lease)

    assert await bench.settle(wanted) is SettleStatus.APPLIED
    assert await bench.state() is wanted.target


@guarantee(Guarantee.CANCEL)
@pytest.mark.parametrize("prefetched", [False, True])
async def test_a_lost_worker_with_a_request_to_cancel_ends_its_job(bench: Bench, prefetched: bool) -> None:
    await bench.put(new_job())
    (lease,) = await bench.take(0, prefetch=1) if prefetched else await bench.take(1)
    await cancel(bench, "a", note="stop")
    lost = await bench.expire(lease)
    assert lost.cancel_asked is True

    assert await bench.settle(reap(lost)) is SettleStatus.CANCELLED_INSTEAD

    job = await bench.get()
    assert (job.state, job.reason, job.losses) == (JobState.CANCELLED, Reason.ASKED, 1)
    assert job.settled_token is None
    assert await bench.settle(succeed(lease)) is SettleStatus.LOST


@guarantee(Guarantee.CANCEL)
async def test_a_cancelled_job_cannot_be_started_by_a_claim_at_the_same_time(bench: Bench) -> None:
    """E-P12"""
    for round in range(50):
        id = f"job-{round}"
        await bench.put(new_job(id))
        cancel_call, claim_call = bench.engine.cancel(QUEUE, id), bench.take(1)

        if round % 2:
            answer, leases = await asyncio.gather(cancel_call, claim_call)
        else:
            leases, answer = await asyncio.gather(claim_call, cancel_call)

        if leases:
            assert answer.jobs[0].status is CancelStatus.REQUESTED
            assert await bench.settle(retry(leases[0])) is SettleStatus.CANCELLED_INSTEAD
        else:
            assert answer.jobs[0].status is CancelStatus.CANCELLED
        assert await bench.state(id) is JobState.CANCELLED


# L7
@guarantee(Guarantee.LANES)
async def test_a_job_cancelled_in_the_middle_of_a_lane_leaves_no_gap(bench: Bench) -> None:
    """Case 11 of the contract"""
    await bench.put(*jobs("a", "b", "c", lane="lane"))

    await cancel(bench, "b")
    lane = await bench.lane("lane")
    accepted = await bench.put_one(new_job("d", lane="lane"))

    assert (lane.head, lane.depth, lane.totals.cancelled) == ("a", 2, 1)
    assert (accepted.position, accepted.depth) == (2, 3)
    for id in ("a", "c", "d"):
        lease = await bench.take_one()
        assert lease.id == id
        await bench.settle(succeed(lease))
    assert (await bench.lane("lane")).depth == 0


@guarantee(Guarantee.LANES)
async def test_cancelling_a_waiting_head_makes_the_next_job_the_head(bench: Bench) -> None:
    await bench.put(new_job("a", lane="lane", delay=HOUR), *jobs("b", "c", lane="lane"))
    assert await bench.take(10) == ()

    await cancel(bench, "a")

    assert await bench.take_ids() == ["b"]


@guarantee(Guarantee.RETENTION)
async def test_a_cancelled_job_without_lifetimes_is_deleted(bench: Bench) -> None:
    await bench.put(new_job(given=Given(retention=0, result_ttl=0)))

    assert await cancel(bench, "a") == [CancelStatus.CANCELLED]

    assert await bench.get_or_none("a") is None
    assert (await bench.stats()).totals.cancelled == 1


@guarantee(Guarantee.CANCEL)
async def test_characters_of_a_note_that_cannot_be_stored_are_replaced(bench: Bench) -> None:
    await bench.put(new_job())

    await cancel(bench, "a", note="a\0b\ud800c")

    assert (await bench.get()).note == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"
