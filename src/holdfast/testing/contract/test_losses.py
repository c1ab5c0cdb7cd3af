"""Losses of an owner that lives: it takes a loss back, or adds one because the process of its handler died."""

from holdfast.model.instants import MINUTE
from holdfast.model.job import AttemptOutcome, Given
from holdfast.model.states import JobState, Reason
from holdfast.model.work import SettleStatus
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import BOOM, QUEUE, died, new_job, reap, retry, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


# A8
@guarantee(Guarantee.ATTEMPTS)
async def test_an_owner_that_reports_its_lost_lease_before_a_reaper_adds_no_loss(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    lost = await bench.expire(lease)

    assert await bench.settle(retry(lease, reason=Reason.WORKER_LOST)) is SettleStatus.APPLIED

    job = await bench.get()
    assert (job.state, job.attempt, job.losses) == (JobState.RETRYING, 1, 0)
    assert [entry.outcome for entry in job.history] == [AttemptOutcome.WORKER_LOST]
    assert await bench.settle(reap(lost)) is SettleStatus.LOST


# A8
@guarantee(Guarantee.ATTEMPTS)
async def test_an_owner_that_lives_takes_the_loss_back_once(bench: Bench) -> None:
    await bench.put(new_job())
    first = await bench.take_one()
    await bench.settle(reap(await bench.expire(first)))
    second = await bench.take_one()
    await bench.settle(reap(await bench.expire(second)))
    assert (await bench.get()).losses == 2
    report = retry(second, reason=Reason.WORKER_LOST)

    assert await bench.settle(retry(first, reason=Reason.WORKER_LOST)) is SettleStatus.LOST
    assert (await bench.get()).losses == 2, "only the lease that was reaped last"
    assert await bench.settle(succeed(second)) is SettleStatus.LOST
    assert (await bench.get()).losses == 2, "an outcome is no report"
    assert await bench.settle(report) is SettleStatus.LOST
    job = await bench.get()
    assert (job.state, job.losses, job.attempt, job.reaped_token) == (JobState.RETRYING, 1, 2, None)
    assert await bench.settle(report) is SettleStatus.LOST
    assert await bench.get() == job


# A8
@guarantee(Guarantee.ATTEMPTS)
async def test_the_next_owner_keeps_its_lease_when_the_loss_is_taken_back(bench: Bench) -> None:
    await bench.put(new_job())
    stalled = await bench.take_one()
    await bench.settle(reap(await bench.expire(stalled)))
    lease = await bench.take_one()

    assert await bench.settle(retry(stalled, reason=Reason.WORKER_LOST)) is SettleStatus.LOST

    job = await bench.get()
    assert (job.state, job.token, job.losses) == (JobState.RUNNING, lease.token, 0)
    assert await bench.settle(succeed(lease)) is SettleStatus.APPLIED


# A8
@guarantee(Guarantee.ATTEMPTS)
async def test_a_job_that_has_ended_does_not_get_its_loss_back(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    await bench.settle(reap(await bench.expire(lease), JobState.FAILED))
    before = await bench.get()

    assert await bench.settle(retry(lease, reason=Reason.WORKER_LOST)) is SettleStatus.LOST

    assert await bench.get() == before
    assert (before.state, before.losses) == (JobState.FAILED, 1)


# A8, RQ2
@guarantee(Guarantee.ATTEMPTS)
async def test_a_report_about_the_last_generation_changes_nothing(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    await bench.settle(reap(await bench.expire(lease), JobState.FAILED))
    await bench.engine.requeue(QUEUE, "a")

    assert await bench.settle(retry(lease, reason=Reason.WORKER_LOST)) is SettleStatus.LOST

    assert (await bench.get()).losses == 0


# A11
@guarantee(Guarantee.ATTEMPTS)
async def test_an_owner_whose_handler_died_in_its_process_adds_a_loss_once(bench: Bench) -> None:
    await bench.put(new_job(given=Given(max_attempts=0, max_losses=3)))
    lease = await bench.take_one()
    death = died(lease, error=BOOM, delay=MINUTE)

    answer = await bench.engine.settle(death)

    assert answer.settled == (SettleStatus.APPLIED,)
    job = await bench.get()
    assert (job.state, job.attempt, job.losses, job.reaped_token) == (JobState.RETRYING, 1, 1, None)
    assert (job.reason, job.due, job.last_error) == (Reason.WORKER_LOST, answer.at.wall + MINUTE, BOOM)
    assert [(run.outcome, run.error) for run in job.history] == [(AttemptOutcome.WORKER_LOST, BOOM)]
    assert await bench.settle(death) is SettleStatus.APPLIED
    assert await bench.get() == job, "sent again, it adds nothing"
    bench.clock.advance(minutes=2)
    again = await bench.take_one()
    assert (again.losses, again.max_losses) == (1, 3)
    assert await bench.settle(died(again, JobState.FAILED, error=BOOM)) is SettleStatus.APPLIED
    job = await bench.get()
    assert (job.state, job.reason, job.losses) == (JobState.FAILED, Reason.WORKER_LOST, 2)


# A11
@guarantee(Guarantee.ATTEMPTS)
async def test_a_loss_that_a_reaper_has_counted_stays_if_the_process_of_the_handler_died(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    await bench.settle(reap(await bench.expire(lease)))
    before = await bench.get()

    assert await bench.settle(died(lease)) is SettleStatus.LOST

    assert await bench.get() == before
    assert before.losses == 1


# A11, G4
@guarantee(Guarantee.ATTEMPTS)
async def test_a_loss_counts_also_if_a_cancel_request_ends_the_job(bench: Bench) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    await bench.engine.cancel(QUEUE, "a")

    assert await bench.settle(died(lease)) is SettleStatus.CANCELLED_INSTEAD

    job = await bench.get()
    assert (job.state, job.losses) == (JobState.CANCELLED, 1)
