"""Settle: what an end writes, and the state of a job after a retry, snooze or release."""

import pytest

from holdfast.model.instants import HOUR, MINUTE
from holdfast.model.job import ProgressRecord
from holdfast.model.states import Hold, JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.model.work import SettleStatus
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import (
    BOOM,
    WORKER,
    confirm_cancel,
    fail,
    jobs,
    new_job,
    release,
    renewal,
    retry,
    settlement,
    snooze,
    succeed,
)
from holdfast.testing.contract.guarantees import Guarantee, guarantee


@guarantee(Guarantee.READING)
async def test_success_is_stored_with_its_result(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()

    answer = await bench.engine.settle(succeed(lease, b"\x0042", note="as planned"))

    assert answer.settled == (SettleStatus.APPLIED,)
    job = await bench.get()
    assert (job.state, job.result, job.note) == (JobState.SUCCEEDED, b"\x0042", "as planned")
    assert (job.finished, job.attempt) == (answer.at.wall, 1)
    assert (job.last_error, job.history) == (None, ())


@guarantee(Guarantee.FENCING)
async def test_jobs_of_one_name_in_two_queues_are_settled_together(bench: Bench) -> None:
    await bench.put(new_job("a", queue="east"), new_job("a", queue="west"))
    leases = [await bench.take_one(queue=queue) for queue in ("east", "west")]

    answer = await bench.engine.settle(*map(succeed, leases))

    assert answer.settled == (SettleStatus.APPLIED, SettleStatus.APPLIED)
    assert [await bench.state("a", queue) for queue in ("east", "west")] == [JobState.SUCCEEDED] * 2


@guarantee(Guarantee.READING)
async def test_a_success_without_a_result_has_none(bench: Bench) -> None:
    await bench.finish(new_job("none"), result=None)
    await bench.finish(new_job("empty"), result=b"")

    assert (await bench.get("none")).result is None
    assert (await bench.get("empty")).result == b""


# W5
@guarantee(Guarantee.READING)
@pytest.mark.parametrize("end", [JobState.FAILED, JobState.CANCELLED])
async def test_an_end_without_success_keeps_reason_and_error_and_no_result(bench: Bench, end: JobState) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()

    answer = await bench.engine.settle(
        settlement(lease, end, reason=Reason.GAVE_UP, note="no use", error=BOOM, result=b"half")
    )

    job = await bench.get()
    assert (job.state, job.reason, job.note) == (end, Reason.GAVE_UP, "no use")
    assert (job.last_error, job.result, job.finished) == (BOOM, None, answer.at.wall)


# W4
@guarantee(Guarantee.FENCING)
@pytest.mark.parametrize("end", [succeed, fail, confirm_cancel])
async def test_an_ended_job_has_no_lease_but_keeps_its_owner(bench: Bench, end: object) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    assert callable(end)

    await bench.settle(end(lease))

    job = await bench.get()
    assert (job.token, job.lease_expires, job.hold) == (None, None, Hold.NONE)
    assert (job.owner, job.settled_token, job.fence) == (WORKER, lease.token, lease.fence)
    assert await bench.take() == ()


# W1
@guarantee(Guarantee.ATTEMPTS)
@pytest.mark.parametrize("delay", [0, 10 * MINUTE])
async def test_a_retry_waits_for_its_delay_with_the_attempt_spent(bench: Bench, delay: int) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()

    answer = await bench.engine.settle(retry(lease, delay))

    job = await bench.get()
    assert (job.state, job.due) == (JobState.RETRYING, answer.at.wall + delay)
    assert (job.attempt, job.losses, job.reason) == (1, 0, Reason.ERROR)
    assert (job.last_error, job.finished) == (BOOM, None)
    assert (job.token, job.lease_expires, job.settled_token) == (None, None, lease.token)


@guarantee(Guarantee.DUE_TIMES)
async def test_a_retry_is_claimed_when_its_delay_has_passed(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.settle(retry(await bench.take_one(), 10 * MINUTE))

    bench.clock.advance(minutes=9)
    assert await bench.take() == ()
    bench.clock.advance(minutes=2)
    lease = await bench.take_one()

    assert (lease.attempt, lease.losses) == (2, 0)


# A4
@guarantee(Guarantee.ATTEMPTS)
@pytest.mark.parametrize("delay", [0, 10 * MINUTE])
async def test_a_snooze_waits_for_its_delay_with_the_attempt_given_back(bench: Bench, delay: int) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()

    answer = await bench.engine.settle(snooze(lease, delay))

    job = await bench.get()
    assert (job.state, job.due) == (JobState.SCHEDULED, answer.at.wall + delay)
    assert (job.attempt, job.losses, job.reason) == (0, 0, Reason.SNOOZED)
    assert (job.token, job.lease_expires, job.settled_token) == (None, None, lease.token)
    assert job.history == ()


@guarantee(Guarantee.DUE_TIMES)
async def test_a_snooze_may_have_a_due_time(bench: Bench) -> None:
    await bench.put(*jobs("future", "past"))
    future, past = await bench.take(2)
    now = (await bench.engine.now()).wall

    answer = await bench.engine.settle(snooze(future, due=now + HOUR), snooze(past, due=now - HOUR))

    assert (await bench.get("future")).due == now + HOUR
    job = await bench.get("past")
    assert (job.state, job.due) == (JobState.SCHEDULED, answer.at.wall)
    assert await bench.take_ids() == ["past"]


@guarantee(Guarantee.ATTEMPTS)
async def test_a_snoozed_job_starts_again_with_the_same_number(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.settle(snooze(await bench.take_one(), MINUTE))
    bench.clock.advance(minutes=2)

    assert (await bench.take_one()).attempt == 1


# A4, W3
@guarantee(Guarantee.ATTEMPTS)
async def test_a_release_gives_the_attempt_back_and_keeps_the_due_time(bench: Bench) -> None:
    await bench.put(new_job())
    due = (await bench.get()).due
    lease = await bench.take_one()
    bench.clock.advance(5)

    assert await bench.settle(release(lease)) is SettleStatus.APPLIED

    job = await bench.get()
    assert (job.state, job.due, job.hold) == (JobState.QUEUED, due, Hold.NONE)
    assert (job.attempt, job.losses, job.history) == (0, 0, ())
    assert (job.token, job.lease_expires, job.settled_token) == (None, None, lease.token)
    assert (await bench.take_one()).attempt == 1


@guarantee(Guarantee.ATTEMPTS)
@pytest.mark.parametrize("give_back", [release, snooze])
async def test_without_a_refund_the_attempt_is_spent(bench: Bench, give_back: object) -> None:
    await bench.put(new_job())
    assert callable(give_back)

    await bench.settle(give_back(await bench.take_one(), refund=False))

    assert (await bench.get()).attempt == 1
    assert (await bench.take_one()).attempt == 2


@guarantee(Guarantee.HISTORY)
async def test_a_release_without_refund_leaves_no_history_entry(bench: Bench) -> None:
    await bench.put(new_job())

    await bench.settle(release(await bench.take_one(), refund=False))

    assert (await bench.get()).history == ()


@guarantee(Guarantee.READING)
@pytest.mark.parametrize("give_back", [retry, snooze, release])
async def test_a_job_that_will_run_again_stores_why_it_waits(bench: Bench, give_back: object) -> None:
    await bench.put(new_job())
    assert callable(give_back)
    sent = give_back(await bench.take_one(), note="the other side is busy")

    await bench.settle(sent)

    job = await bench.get()
    assert (job.reason, job.note) == (sent.reason, "the other side is busy")


@guarantee(Guarantee.ATTEMPTS)
async def test_a_retry_may_be_refunded(bench: Bench) -> None:
    await bench.put(new_job())

    await bench.settle(retry(await bench.take_one(), refund=True))

    job = await bench.get()
    assert (job.state, job.attempt, job.history) == (JobState.RETRYING, 0, ())


@guarantee(Guarantee.ATTEMPTS)
async def test_attempts_are_numbered_one_two_three(bench: Bench) -> None:
    """E-D13"""
    await bench.put(new_job())

    numbers = []
    for _ in range(3):
        lease = await bench.take_one()
        numbers.append(lease.attempt)
        await bench.settle(retry(lease))
    final = await bench.take_one()
    await bench.settle(succeed(final))

    assert numbers == [1, 2, 3]
    assert (await bench.get()).attempt == 4


# A1
@guarantee(Guarantee.READING)
async def test_the_first_and_the_last_start_are_both_stored(bench: Bench) -> None:
    await bench.put(new_job())
    first = await bench.engine.claim(bench.claim())
    await bench.settle(retry(first.leases[0]))
    bench.clock.advance(minutes=1)
    second = await bench.engine.claim(bench.claim())

    job = await bench.get()

    assert (job.started, job.last_started) == (first.at.wall, second.at.wall)
    assert second.leases[0].started == first.at.wall


# W6
@guarantee(Guarantee.READING)
async def test_the_progress_of_a_settlement_is_stored_and_without_one_it_stays(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.settle(retry(await bench.take_one(), progress=ProgressRecord(0.25, "a quarter")))
    assert (await bench.get()).progress == ProgressRecord(0.25, "a quarter")
    lease = await bench.take_one()
    await bench.engine.renew(renewal(lease, progress=ProgressRecord(0.5)))
    await bench.settle(release(lease))
    assert (await bench.get()).progress == ProgressRecord(0.5)

    await bench.settle(succeed(await bench.take_one(), progress=ProgressRecord(0.75, "nearly")))

    assert (await bench.get()).progress == ProgressRecord(0.75, "nearly")


# W5
@guarantee(Guarantee.HISTORY)
async def test_an_error_stays_until_success_clears_it(bench: Bench) -> None:
    """E-Q10"""
    await bench.put(new_job())
    await bench.settle(retry(await bench.take_one()))
    assert (await bench.get()).last_error == BOOM
    await bench.settle(release(await bench.take_one()))
    assert (await bench.get()).last_error == BOOM
    await bench.settle(snooze(await bench.take_one()))
    assert (await bench.get()).last_error == BOOM
    other = ErrorInfo("example.Other", "worse", "")
    await bench.settle(retry(await bench.take_one(), error=other))
    assert (await bench.get()).last_error == other

    await bench.settle(succeed(await bench.take_one()))

    assert (await bench.get()).last_error is None


@guarantee(Guarantee.READING)
async def test_the_record_of_a_job_that_failed_once_and_then_succeeded_is_complete(bench: Bench) -> None:
    """E-F4, E-P20"""
    await bench.put(new_job())
    created = (await bench.get()).created
    await bench.settle(retry(await bench.take_one()))
    bench.clock.advance(minutes=1)
    await bench.settle(succeed(await bench.take_one(), b"42"))

    job = await bench.get()

    assert (job.state, job.result, job.attempt) == (JobState.SUCCEEDED, b"42", 2)
    assert [attempt.number for attempt in job.history] == [1]
    assert job.created == created
    assert job.finished is not None
    assert job.finished >= created + MINUTE


@guarantee(Guarantee.COUNTERS)
async def test_each_end_has_its_own_counter(bench: Bench) -> None:
    """E-D9"""
    await bench.put(*jobs("a", "b", "c", "d", "e", "f"))
    a, b, c, d, e, _ = await bench.take(6)

    await bench.engine.settle(succeed(a), succeed(b), succeed(c), fail(d), fail(e))
    await bench.engine.clear("work")

    totals = (await bench.stats()).totals
    assert (totals.succeeded, totals.failed, totals.cancelled, totals.finished) == (3, 2, 1, 6)
