"""Handles: results as the declared type, ends as errors, looks and cancels; nothing is remembered but the name."""

import asyncio
import dataclasses
import math

import pytest
from manual_worker import fail_now, settle_now, succeed_now, take, take_now

from holdfast import (
    AmbiguousId,
    App,
    InvalidOption,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobState,
    ResultExpired,
    Task,
    WaitTimeout,
    events,
)
from holdfast.core.enqueue import enqueue
from holdfast.model.job import AttemptOutcome, ProgressRecord
from holdfast.model.produce import NewJob
from holdfast.model.states import Reason
from holdfast.model.text import ErrorInfo
from holdfast.model.work import Renewal
from holdfast.testing.clock import FakeClock


@dataclasses.dataclass(frozen=True)
class Image:
    name: str
    width: int


@pytest.fixture
def jobs() -> App[object]:
    return App("memory://")


@pytest.fixture
def resize(jobs: App[object]) -> Task[[str], Image]:
    @jobs.task
    def resize(name: str) -> Image:
        return Image(name, 1)

    return resize


# Results


def test_a_result_comes_as_the_declared_type(jobs: App[object], resize: Task[[str], Image]) -> None:
    handle = resize.enqueue("cat")
    succeed_now(jobs, resize, Image("cat", 320))
    assert handle.result() == Image("cat", 320)
    assert resize.handle(handle.id).result(timeout=0) == Image("cat", 320)
    assert jobs.client.handle(handle.id).result() == {"name": "cat", "width": 320}


def test_none_is_a_result(jobs: App[object]) -> None:
    @jobs.task
    def quiet() -> None: ...

    first, second = quiet.enqueue(), quiet.enqueue()
    succeed_now(jobs, quiet, None)
    lease = take_now(jobs, quiet)
    settle_now(jobs, lease, JobState.SUCCEEDED)
    assert [first.result(timeout=1), second.result(timeout=1)] == [None, None]


def test_a_large_result_comes_whole(jobs: App[object]) -> None:
    @jobs.task
    def large() -> str:
        return ""

    handle = large.enqueue()
    succeed_now(jobs, large, "x" * 100_000)
    assert len(handle.result()) == 100_000


# How a job can end instead


def test_a_failed_job_raises_how_it_failed(jobs: App[object], resize: Task[[str], Image]) -> None:
    handle = resize.enqueue("cat")
    fail_now(jobs, resize)
    with pytest.raises(JobFailed) as failed:
        handle.result()
    error = failed.value
    assert (error.job_id, error.task, error.attempts, error.reason) == (handle.id, "resize", 1, "exhausted")
    assert error.error == ErrorInfo("builtins.ValueError", "no funds", "Traceback ...")
    assert error.caused_by(ValueError)
    assert "no funds" in str(error)


def test_a_job_that_gave_up_says_why(jobs: App[object], resize: Task[[str], Image]) -> None:
    handle = resize.enqueue("cat")
    fail_now(jobs, resize, Reason.GAVE_UP, "card expired")
    with pytest.raises(JobFailed, match=r"gave_up \(card expired\)") as failed:
        handle.result()
    assert failed.value.reason == "gave_up"


def test_a_cancelled_job_raises_that_it_was(resize: Task[[str], Image]) -> None:
    handle = resize.enqueue("cat")
    assert handle.cancel("order withdrawn").answer == "cancelled"
    with pytest.raises(JobCancelled) as cancelled:
        handle.result()
    assert (cancelled.value.reason, cancelled.value.attempts) == ("order withdrawn", 0)
    silent = resize.enqueue("dog")
    silent.cancel()
    with pytest.raises(JobCancelled, match="asked"):
        silent.result()


def test_a_result_past_its_time_has_expired(jobs: App[object], resize: Task[[str], Image]) -> None:
    handle = resize.using(result_ttl=60).enqueue("cat")
    succeed_now(jobs, resize, Image("cat", 1))
    FakeClock(jobs.engine).advance(61)
    with pytest.raises(ResultExpired) as expired:
        handle.result()
    assert expired.value.job_id == handle.id
    assert handle.refresh().state is JobState.SUCCEEDED


def test_a_job_that_was_deleted_before_it_ran_is_not_found(jobs: App[object], resize: Task[[str], Image]) -> None:
    handle = resize.enqueue("cat")
    handle.cancel()
    jobs.control.delete(handle.id)
    for ask in (handle.result, handle.report, handle.refresh):
        with pytest.raises(JobNotFound, match="Nothing says whether it ran"):
            ask()


def test_a_job_of_which_nothing_was_to_be_kept_is_not_found(jobs: App[object], resize: Task[[str], Image]) -> None:
    handle = resize.using(result_ttl=0, retention=0).enqueue("cat")
    succeed_now(jobs, resize, Image("cat", 1))
    with pytest.raises(JobNotFound, match="Nothing says whether it ran"):
        handle.result()
    with pytest.raises(JobNotFound):
        resize.handle(handle.id).result()


def test_an_unknown_id_is_not_found(jobs: App[object], resize: Task[[str], Image]) -> None:
    handle = resize.handle("nobody", queue="other")
    assert (handle.receipt, handle.created) == (None, False)
    for ask in (handle.result, handle.refresh, handle.report):
        with pytest.raises(JobNotFound) as refused:
            ask()
        assert (refused.value.job_id, refused.value.queue) == ("nobody", "other")
    assert handle.cancel().answer == "not_found"
    with pytest.raises(JobNotFound):
        jobs.client.handle("nobody").result()


def test_a_wait_that_runs_out_leaves_the_job_alone(jobs: App[object], resize: Task[[str], Image]) -> None:
    handle = resize.enqueue("cat")
    with pytest.raises(WaitTimeout) as late:
        handle.result(timeout=0.01)
    assert (late.value.job_id, late.value.waited) == (handle.id, 0.01)
    assert isinstance(late.value, TimeoutError)
    succeed_now(jobs, resize, Image("cat", 1))
    assert handle.result(timeout=0) == Image("cat", 1)


@pytest.mark.parametrize("timeout", [math.nan, -1, "soon"])
def test_a_timeout_that_is_none_is_refused(resize: Task[[str], Image], timeout: float) -> None:
    with pytest.raises(InvalidOption):
        resize.enqueue("cat").result(timeout=timeout)


@pytest.mark.parametrize("job_id", ["", "x" * 201, "nul\0"])
def test_an_id_that_no_job_can_have_is_refused(resize: Task[[str], Image], job_id: str) -> None:
    with pytest.raises(InvalidOption):
        resize.handle(job_id)


# Looking


def test_refresh_shows_the_job_as_it_is(jobs: App[object], resize: Task[[str], Image]) -> None:
    handle = resize.using(priority=3, metadata={"by": "me"}, max_attempts=2, expires=600).enqueue("cat")
    job = handle.refresh()
    assert (job.id, job.task, job.queue, job.state) == (handle.id, "resize", "default", JobState.QUEUED)
    assert (job.priority, job.metadata, job.max_attempts, job.attempt) == (3, {"by": "me"}, 2, 0)
    assert job.enqueued_at.tzinfo is not None
    assert job.expires_at is not None
    assert (job.finished, job.started_at, job.attempts, job.progress) == (False, None, (), None)

    async def run_a_while() -> None:
        lease = await take(jobs, resize)
        await jobs.engine.renew(Renewal(lease.queue, lease.id, lease.token, ProgressRecord(0.5, "half")))

    asyncio.run(run_a_while())
    job = handle.refresh()
    assert (job.state, job.attempt, job.worker) == (JobState.RUNNING, 1, "test")
    assert job.progress is not None
    assert (job.progress.fraction, job.progress.note) == (0.5, "half")
    assert job.started_at == job.last_started_at


def test_arguments_that_cannot_be_read_here_are_none(jobs: App[object]) -> None:
    odd = NewJob(queue="default", id="odd", task="t", payload=b"\xff", codec="unheard of")
    bare = NewJob(queue="default", id="bare", task="", payload=b"3")
    asyncio.run(enqueue(jobs._store, (odd, bare)))
    assert jobs.client.handle("odd").refresh().arguments is None
    assert jobs.client.handle("bare", queue="default").refresh().arguments is None


def test_a_bare_id_in_two_queues_is_ambiguous(jobs: App[object], resize: Task[[str], Image]) -> None:
    resize.using(id="x").enqueue("cat")
    resize.using(id="x", queue="second").enqueue("cat")
    with pytest.raises(AmbiguousId) as refused:
        jobs.client.handle("x").refresh()
    assert refused.value.queues == ("default", "second")
    assert jobs.client.handle("x", queue="second").refresh().queue == "second"


# Cancelling


def test_cancelling_answers_what_became_of_it(jobs: App[object], resize: Task[[str], Image]) -> None:
    heard: list[events.Cancelled] = []
    jobs.on(events.Cancelled)(heard.append)
    waiting = resize.enqueue("cat")
    assert repr(waiting.cancel()) == "CancelAnswer(answer='cancelled', state='cancelled')"
    running = resize.enqueue("dog")
    take_now(jobs, resize)
    assert running.cancel("stop").answer == "requested"
    finished = resize.enqueue("cow")
    succeed_now(jobs, resize, Image("cow", 1))
    assert (finished.cancel().answer, finished.cancel().state) == ("finished", JobState.SUCCEEDED)
    assert [(event.job_id, event.task) for event in heard] == [(waiting.id, "resize")]


# Reports


def test_a_job_that_failed_twice_and_then_succeeded_has_a_report(jobs: App[object], resize: Task[[str], Image]) -> None:
    handle = resize.enqueue("cat")
    clock = FakeClock(jobs.engine)
    error = ErrorInfo("builtins.OSError", "busy", "")
    for _ in range(2):
        clock.advance(2)
        lease = take_now(jobs, resize)
        clock.advance(3)
        settle_now(jobs, lease, JobState.RETRYING, error=error, reason=Reason.ERROR)
    clock.advance(1)
    lease = take_now(jobs, resize)
    clock.advance(4)
    settle_now(jobs, lease, JobState.SUCCEEDED, result=b'{"name":"cat","width":1}')
    report = handle.report()
    assert report.outcome is JobState.SUCCEEDED
    assert [attempt.outcome for attempt in report.job.attempts] == ["failed", "failed", "succeeded"]
    assert [attempt.number for attempt in report.job.attempts] == [1, 2, 3]
    assert [type(event).__name__ for event in report.events] == [
        "Queued",
        "Started",
        "Retrying",
        "Started",
        "Retrying",
        "Started",
        "Succeeded",
    ]
    assert [event.at for event in report.events] == sorted(event.at for event in report.events)
    assert report.waited == pytest.approx(2, abs=0.5)
    assert report.ran == pytest.approx(10, abs=0.5)
    assert report.job.last_error is None


def test_reports_of_failed_cancelled_and_running_jobs(jobs: App[object], resize: Task[[str], Image]) -> None:
    failed = resize.enqueue("cat")
    fail_now(jobs, resize, Reason.GAVE_UP, "no")
    report = failed.report()
    assert (report.outcome, report.reason) == (JobState.FAILED, Reason.GAVE_UP)
    assert [type(event).__name__ for event in report.events] == ["Queued", "Started", "Failed"]
    assert report.job.attempts[0].outcome is AttemptOutcome.FAILED

    cancelled = resize.enqueue("dog")
    cancelled.cancel("why not")
    report = cancelled.report()
    assert (report.outcome, report.waited, report.ran) == (JobState.CANCELLED, None, 0)
    assert [type(event).__name__ for event in report.events] == ["Queued", "Cancelled"]

    running = resize.enqueue("cow")
    take_now(jobs, resize)
    report = jobs.control.report(running.id)
    assert report.outcome is None
    assert [type(event).__name__ for event in report.events] == ["Queued", "Started"]
    with pytest.raises(WaitTimeout):
        running.report(timeout=0)


def test_a_report_says_that_a_job_was_scheduled_and_how_long_it_waited(
    jobs: App[object], resize: Task[[str], Image]
) -> None:
    clock = FakeClock(jobs.engine)
    handle = resize.using(delay=60).enqueue("cat")

    def told() -> list[tuple[str, object]]:
        events_of = jobs.control.report(handle.id).events
        return [(type(event).__name__, getattr(event, "state", getattr(event, "waited", None))) for event in events_of]

    assert told() == [("Queued", JobState.SCHEDULED)]
    clock.advance(65)
    lease = take_now(jobs, resize)
    ((_, state), (_, waited)) = told()
    assert state is JobState.SCHEDULED
    assert waited == pytest.approx(5_000_000, abs=500_000)
    clock.advance(1)
    settle_now(jobs, lease, JobState.SUCCEEDED, result=b"null")
    assert told() == [("Queued", state), ("Started", waited), ("Succeeded", None)]


def test_a_report_says_nothing_of_due_times_that_the_record_has_forgotten(
    jobs: App[object], resize: Task[[str], Image]
) -> None:
    clock = FakeClock(jobs.engine)
    handle = resize.enqueue("cat")
    clock.advance(3)
    lease = take_now(jobs, resize)
    settle_now(jobs, lease, JobState.RETRYING, reason=Reason.ERROR, delay=10_000_000)
    clock.advance(12)
    take_now(jobs, resize)
    queued, first, _, second = jobs.control.report(handle.id).events
    assert isinstance(queued, events.Queued)
    assert isinstance(first, events.Started)
    assert isinstance(second, events.Started)
    assert (queued.state, first.waited) == (JobState.QUEUED, 0)
    assert second.waited == pytest.approx(2_000_000, abs=500_000)
