"""A lease in the hands of a user's own code: the verbs, and the block."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from scan_queue import Scan, lease_one

from holdfast import (
    AbortReason,
    App,
    BlockingCall,
    Cancel,
    Context,
    GiveUp,
    InvalidArguments,
    InvalidOption,
    Job,
    JobState,
    Retry,
    UsageError,
    events,
)
from holdfast.model.states import Reason
from holdfast.queue import Queue

SECOND = 1_000_000


def look(jobs: App[object], id: str = "a") -> Job:
    return jobs.control.get(id, queue="scans")


# The verbs


def test_a_lease_says_what_it_is(scans: Queue[Scan]) -> None:
    lease = lease_one(scans)
    assert (lease.job.id, lease.job.queue, lease.job.state, lease.attempt) == ("a", "scans", JobState.RUNNING, 1)
    assert lease.payload == Scan("x")
    assert lease.fence > 0
    assert timedelta(seconds=20) < lease.expires_at - datetime.now(UTC) <= timedelta(seconds=30)
    assert not lease.settled
    assert "'a' of queue 'scans'" in repr(lease)


def test_complete_keeps_the_result(jobs: App[object], scans: Queue[Scan]) -> None:
    handle = scans.enqueue(Scan("x"), id="a")
    (lease,) = scans.claim()
    lease.complete({"lines": 3})
    assert lease.settled
    assert handle.result() == {"lines": 3}
    assert look(jobs).state is JobState.SUCCEEDED


def test_a_result_that_cannot_be_stored_leaves_the_lease_open(jobs: App[object], scans: Queue[Scan]) -> None:
    lease = lease_one(scans)
    with pytest.raises(InvalidArguments):
        lease.complete(object())
    lease.complete("text")
    assert look(jobs).state is JobState.SUCCEEDED


def test_retry_costs_an_attempt_and_keeps_the_error(jobs: App[object], scans: Queue[Scan]) -> None:
    lease = lease_one(scans)
    lease.retry("disk is busy")
    job = look(jobs)
    assert (job.state, job.attempt, job.reason, job.note) == (
        JobState.RETRYING,
        1,
        Reason.RETRY_ASKED,
        "disk is busy",
    )
    assert job.last_error is not None
    assert job.last_error.message == "disk is busy"
    assert 0.9 <= (job.due_at - job.attempts[0].ended_at).total_seconds() <= 1.1  # the default back-off


def test_retry_may_say_when_and_what(jobs: App[object], scans: Queue[Scan]) -> None:
    lease_one(scans, "a").retry("later", delay=60)
    lease_one(scans, "b").retry(ValueError("bad"), delay=timedelta(minutes=2))
    lease_one(scans, "c").retry(ValueError("worse"))
    for id, delay in (("a", 60), ("b", 120), ("c", 1)):
        job = look(jobs, id)
        assert abs((job.due_at - job.attempts[0].ended_at).total_seconds() - delay) < 0.2
    b, c = look(jobs, "b"), look(jobs, "c")
    assert b.last_error is not None
    assert c.last_error is not None
    assert (b.last_error.type, b.last_error.message) == ("builtins.ValueError", "bad")
    assert (c.last_error.message, c.reason) == ("worse", Reason.ERROR)


def test_retries_end_where_the_policy_says(monkeypatch: pytest.MonkeyPatch, jobs: App[object]) -> None:
    monkeypatch.setenv("HOLDFAST_TASK_MAX_ATTEMPTS", "2")
    scans = jobs.queue("scans", Scan)
    with jobs:
        lease_one(scans).retry(ValueError("one"), delay=0)
        (second,) = scans.claim()
        second.retry("two")
        job = look(jobs)
        assert (job.state, job.reason, job.attempt) == (JobState.FAILED, Reason.EXHAUSTED, 2)
        assert [attempt.outcome for attempt in job.attempts] == ["failed", "failed"]


def test_snooze_costs_no_attempt(jobs: App[object], scans: Queue[Scan]) -> None:
    lease_one(scans, "a").snooze(delay=60)
    lease_one(scans, "b").snooze(at=datetime(2100, 1, 1, tzinfo=UTC))
    for id in ("a", "b"):
        job = look(jobs, id)
        assert (job.state, job.attempt, job.reason) == (JobState.SCHEDULED, 0, Reason.SNOOZED)
    assert look(jobs, "b").due_at == datetime(2100, 1, 1, tzinfo=UTC)
    lease = lease_one(scans, "c")
    with pytest.raises(InvalidOption):
        lease.snooze()
    lease.release()


def test_give_up_is_a_dead_letter_and_cancel_is_none(jobs: App[object], scans: Queue[Scan]) -> None:
    lease_one(scans, "a").give_up("file is gone")
    lease_one(scans, "b").cancel("not wanted")
    a, b = look(jobs, "a"), look(jobs, "b")
    assert (a.state, a.reason, a.note) == (JobState.FAILED, Reason.GAVE_UP, "file is gone")
    assert (b.state, b.reason, b.note) == (JobState.CANCELLED, Reason.ASKED, "not wanted")
    assert jobs.control.requeue("a", queue="scans") == 1
    (again,) = scans.claim()
    assert (again.job.id, again.attempt) == ("a", 1)


def test_release_gives_it_back_untouched(jobs: App[object], scans: Queue[Scan]) -> None:
    lease_one(scans).release()
    job = look(jobs)
    assert (job.state, job.attempt, job.attempts) == (JobState.QUEUED, 0, ())


def test_a_renewed_lease_is_as_long_as_it_was(jobs: App[object], scans: Queue[Scan]) -> None:
    with jobs:
        lease = lease_one(scans)
        before = lease.expires_at
        jobs.engine.clock_offset += 20 * SECOND
        lease.renew()
        assert 19.9 < (lease.expires_at - before).total_seconds() < 25
        assert not lease.aborted
        jobs.engine.clock_offset += 20 * SECOND
        assert not lease.aborted
        jobs.engine.clock_offset += 6 * SECOND
        assert lease.abort_reason is AbortReason.OWNERSHIP_LOST  # before it has run out
        lease.complete()  # and nobody has taken it


def test_a_settled_lease_cannot_be_settled_again(scans: Queue[Scan]) -> None:
    lease = lease_one(scans)
    lease.complete()
    for verb in (lease.complete, lease.retry, lease.release, lease.cancel, lease.renew):
        with pytest.raises(UsageError, match="was completed already"):
            verb()
    with pytest.raises(UsageError):
        lease.give_up("no")
    with pytest.raises(UsageError):
        lease.snooze(delay=1)


async def test_every_verb_is_sync_and_async(jobs: App[object], scans: Queue[Scan]) -> None:
    async with jobs:
        states = []
        for id in ("complete", "retry", "snooze", "give_up", "cancel", "release"):
            await scans.aenqueue(Scan("x"), id=id, priority=1)
            (lease,) = await scans.aclaim()
            assert lease.job.id == id
            await lease.arenew()
            match id:
                case "complete":
                    await lease.acomplete(1)
                case "retry":
                    await lease.aretry("again")
                case "snooze":
                    await lease.asnooze(delay=60)
                case "give_up":
                    await lease.agive_up("no")
                case "cancel":
                    await lease.acancel()
                case _:
                    await lease.arelease()
            states.append((await jobs.control.aget(id, queue="scans")).state.value)
        assert states == ["succeeded", "retrying", "scheduled", "failed", "cancelled", "queued"]
        (lease,) = await scans.aclaim()
        with pytest.raises(BlockingCall, match="acomplete"):
            lease.complete()
        with pytest.raises(BlockingCall, match="async with"), lease:
            pass
        await lease.arelease()


# The block


def test_a_block_that_is_left_cleanly_completes_the_job(jobs: App[object], scans: Queue[Scan]) -> None:
    with lease_one(scans):
        pass
    assert look(jobs).state is JobState.SUCCEEDED


def test_a_block_that_is_left_by_an_error_lets_the_job_be_tried_again(jobs: App[object], scans: Queue[Scan]) -> None:
    with pytest.raises(ValueError, match="bad"), lease_one(scans):
        raise ValueError("bad")
    job = look(jobs)
    assert (job.state, job.attempt, job.reason) == (JobState.RETRYING, 1, Reason.ERROR)
    assert job.last_error is not None
    assert "raise ValueError" in job.last_error.traceback


def test_a_block_whose_lease_is_settled_already_does_nothing(jobs: App[object], scans: Queue[Scan]) -> None:
    with lease_one(scans, "a") as lease:
        lease.give_up("no")
    assert look(jobs, "a").state is JobState.FAILED

    def fails_after_all() -> None:
        with lease_one(scans, "b") as lease:
            lease.complete()
            raise ValueError("after")

    with pytest.raises(ValueError, match="after"):
        fails_after_all()
    assert look(jobs, "b").state is JobState.SUCCEEDED


@pytest.mark.parametrize(
    ("error", "state", "attempt"),
    [
        (GiveUp("no"), JobState.FAILED, 1),
        (Cancel("no"), JobState.CANCELLED, 1),
        (Retry("later", delay=60), JobState.RETRYING, 1),
        (KeyboardInterrupt(), JobState.QUEUED, 0),
        (SystemExit(1), JobState.QUEUED, 0),
        (ExceptionGroup("several", [ValueError("bad")]), JobState.RETRYING, 1),
        (BaseExceptionGroup("one", [GiveUp("no")]), JobState.FAILED, 1),
    ],
)
def test_what_a_handler_may_raise_means_the_same_in_a_block_and_goes_on(
    jobs: App[object], scans: Queue[Scan], error: BaseException, state: JobState, attempt: int
) -> None:
    with pytest.raises(type(error)), lease_one(scans):
        raise error
    job = look(jobs)
    assert (job.state, job.attempt) == (state, attempt)


async def test_a_block_in_an_async_function_does_the_same(jobs: App[object], scans: Queue[Scan]) -> None:
    async with jobs:
        for id in ("clean", "failed", "cut"):
            await scans.aenqueue(Scan("x"), id=id)
        clean, failed, cut = await scans.aclaim(3)
        async with clean:
            pass
        with pytest.raises(ValueError, match="bad"):
            async with failed:
                raise ValueError("bad")
        inside = asyncio.Event()

        async def work() -> None:
            async with cut:
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        found = [await jobs.control.aget(id, queue="scans") for id in ("clean", "failed", "cut")]
        assert [job.state.value for job in found] == ["succeeded", "retrying", "queued"]


def test_inside_a_block_the_attempt_is_the_current_one(jobs: App[object], scans: Queue[Scan]) -> None:
    with lease_one(scans) as lease:
        assert Context.current().job.id == "a"
        assert Context.current().fence == lease.fence
        Context.current().progress(0.5, "half")
        lease.renew()
        progress = look(jobs).progress
        assert progress is not None
        assert (progress.fraction, progress.note) == (0.5, "half")
    with pytest.raises(UsageError):
        Context.current()


def test_the_end_of_a_lease_is_published(jobs: App[object], scans: Queue[Scan]) -> None:
    told: list[str] = []
    jobs.on(events.JobEvent)(lambda event: told.append(f"{type(event).__name__} {event.job_id} {event.worker[-5:-3]}"))
    lease_one(scans, "a").complete()
    lease_one(scans, "b").retry("x", delay=60)
    lease_one(scans, "c").give_up("x")
    lease_one(scans, "d").cancel()
    kinds = [line.rsplit(" ", 1)[0] for line in told]
    assert kinds == [
        *("Queued a", "Started a", "Succeeded a"),
        *("Queued b", "Started b", "Retrying b"),
        *("Queued c", "Started c", "Failed c"),
        *("Queued d", "Started d", "Cancelled d"),
    ]


# The settings of a queue


def test_a_queue_has_its_own_lease_attempts_and_back_off(
    monkeypatch: pytest.MonkeyPatch, jobs: App[object], scans: Queue[Scan]
) -> None:
    monkeypatch.setenv("HOLDFAST_QUEUES_SCANS_LEASE", "90")
    monkeypatch.setenv("HOLDFAST_QUEUES_SCANS_BACKOFF", "[7]")
    monkeypatch.setenv("HOLDFAST_QUEUES_SCANS_MAX_ATTEMPTS", "2")

    first = lease_one(scans)
    assert timedelta(seconds=80) < first.expires_at - datetime.now(UTC) <= timedelta(seconds=90)
    first.retry("disk is busy")
    retried = look(jobs)
    assert retried.last_started_at is not None
    assert timedelta(seconds=5) < retried.due_at - retried.last_started_at < timedelta(seconds=17)

    jobs.control.trigger("a", queue="scans")
    (second,) = scans.claim(lease=20)
    assert second.expires_at - datetime.now(UTC) <= timedelta(seconds=20)
    second.retry("disk is busy")
    assert look(jobs).state is JobState.FAILED


def test_a_queue_without_settings_has_those_of_tasks(
    monkeypatch: pytest.MonkeyPatch, jobs: App[object], scans: Queue[Scan]
) -> None:
    monkeypatch.setenv("HOLDFAST_TASK_LEASE", "90")
    monkeypatch.setenv("HOLDFAST_TASK_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("HOLDFAST_QUEUES_OTHER_LEASE", "20")

    lease = lease_one(scans)

    assert timedelta(seconds=80) < lease.expires_at - datetime.now(UTC) <= timedelta(seconds=90)
    lease.retry("disk is busy")
    assert look(jobs).state is JobState.FAILED
