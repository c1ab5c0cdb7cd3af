"""A wait that runs out says what the job waits for, and one that nobody can end says so on the log, once."""

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from eventually import eventually, idle
from manual_worker import fail_now, report_in, report_in_now, settle_now, take_now

from holdfast import App, JobNotFound, JobState, Task, WaitTimeout
from holdfast.core.job_end import _target
from holdfast.core.obstacles import JobFacts
from holdfast.core.wait_reason import wait_reason, warning
from holdfast.model.job import JobRecord
from holdfast.model.observe import QueueStats
from holdfast.model.records import Totals, WorkerRecord
from holdfast.model.states import Hold
from holdfast.model.text import ErrorInfo
from holdfast.testing.clock import FakeClock


@pytest.fixture
def jobs() -> App[object]:
    return App("memory://")


@pytest.fixture
def double(jobs: App[object]) -> Task[[int], int]:
    @jobs.task
    def double(n: int) -> int:
        return 2 * n

    return double


def waited_for(jobs: App[Any]) -> int:
    return len(jobs._store.process.per_loop().end_listener._waiters)


# Why


def why(handle: Any) -> str:
    with pytest.raises(WaitTimeout) as late:
        handle.result(timeout=0)
    assert late.value.why in str(late.value)
    return late.value.why


def test_a_wait_that_runs_out_says_what_the_job_waits_for(jobs: App[object], double: Task[[int], int]) -> None:
    handle = double.enqueue(1)
    assert why(handle) == "No live worker on memory://."
    report_in_now(jobs, "w1", "dubble", "flaky")
    assert why(handle) == "1 worker is alive, it does not know task 'double': it knows dubble, flaky."
    report_in_now(jobs, "w2", "flaky")
    assert why(handle) == "2 workers are alive, none knows task 'double': they know dubble, flaky."
    report_in_now(jobs, "w2", "double", queues=("other",))
    assert why(handle) == "No live worker looks at queue default: those that know 'double' have other."
    report_in_now(jobs, "w2", "double", queues=("default",), busy=1)
    assert why(handle) == "It is due; all workers that know it are busy."
    report_in_now(jobs, "w2", "double", queues=("default",))
    assert why(handle) == "It is due and about to be taken."
    jobs.control.pause("default")
    assert why(handle) == "Queue default is paused."
    jobs.control.resume("default")
    take_now(jobs, double)
    assert why(handle).startswith("It has been running on test for 0.")
    FakeClock(jobs.engine).advance(hours=1)
    assert why(double.enqueue(2)) == "No live worker on memory://."


def test_a_job_that_is_not_due_says_when_it_will_be(jobs: App[object], double: Task[[int], int]) -> None:
    assert why(double.using(delay=3600).enqueue(1)).startswith("It is due at ")
    handle = double.enqueue(1)
    error = ErrorInfo("builtins.OSError", "busy", "")
    settle_now(jobs, take_now(jobs, double), JobState.RETRYING, error=error, delay=60_000_000)
    assert why(handle).startswith("Attempt 1 failed with builtins.OSError: busy. The next one is due at ")


def test_a_job_in_a_lane_says_who_is_before_it(jobs: App[object], double: Task[[int], int]) -> None:
    lane = double.using(lane="alice")
    first = lane.using(id="first").enqueue(1)
    assert why(lane.enqueue(2)) == (
        "It waits for its turn in lane alice. Job first is first, and is queued: no live worker on memory://."
    )
    jobs.control.pause("default", lane="alice")
    assert why(first) == "Lane alice of queue default is paused. No live worker on memory://."


def test_a_child_says_that_its_parents_have_not_ended() -> None:
    child = JobRecord(queue="q", id="child", state=JobState.BLOCKED, hold=Hold.PARENTS, parents_left=1)
    assert wait_reason(JobFacts(job=child, now=0)).startswith("It comes after 1 other job that has not ended.")


def test_a_job_of_a_pool_says_that_older_jobs_come_first(jobs: App[object]) -> None:
    pool = jobs.pool("ledger", int, lanes=1)
    pool.enqueue(1, key="alice", id="old")
    pool.resize(2)
    pool.enqueue(2, key="alice", id="new")
    reason = jobs.control.why("new").text
    assert reason.startswith("It waits until the jobs of the earlier size of pool ledger have ended (1 left).")
    pool.pause()
    assert jobs.control.why("old").text == "Pool ledger is paused. No live worker on memory://."


def test_a_job_of_a_queue_that_is_being_cleared_says_so() -> None:
    queue = QueueStats(
        queue="q", paused=False, counts={}, due=1, oldest_due=0, next_due=None, totals=Totals(), clearing=True
    )
    worker = WorkerRecord(worker="w1", tasks=("t",), queues=("q",), slots=1)
    job = JobRecord(queue="q", id="one", task="t", state=JobState.QUEUED)
    facts = JobFacts(job=job, now=0, queue=queue, workers=(worker,))
    assert wait_reason(facts) == "Queue q is being cleared; no job of it is claimed meanwhile."


def test_a_bare_payload_says_that_no_process_pulls_it(jobs: App[object]) -> None:
    jobs.queue("scans", int).enqueue(1, id="one")
    report_in_now(jobs, "w1", "double", queues=("default",))
    assert jobs.control.why("one").text == "No live process pulls from queue scans."


def test_a_job_that_only_stopping_workers_can_take_says_so(jobs: App[object], double: Task[[int], int]) -> None:
    handle = double.enqueue(1)
    report_in_now(jobs, "w1", "double")
    jobs.control.stop_worker("w1")
    assert jobs.control.why(handle.id).text == "Every live worker that can take it is stopping: w1."


def test_a_job_that_is_due_for_long_says_what_else_may_hold_it(jobs: App[object], double: Task[[int], int]) -> None:
    handle = double.enqueue(1)
    FakeClock(jobs.engine).advance(seconds=5)
    report_in_now(jobs, "w1", "double")
    reason = jobs.control.why(handle.id).text
    assert re.match(r"It has been due for \d+\.\d s", reason)
    assert "`concurrency`" in reason


def test_a_due_time_of_another_day_has_its_date(jobs: App[object], double: Task[[int], int]) -> None:
    reason = jobs.control.why(double.using(delay=72 * 3600).enqueue(1).id).text
    assert re.fullmatch(r"It is due at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\. No live worker on memory://\.", reason)


def test_a_job_that_has_ended_says_how(jobs: App[object], double: Task[[int], int]) -> None:
    handle = double.enqueue(1)
    handle.cancel()
    why = jobs.control.why(handle.id)
    assert why.obstacles == ()
    assert re.fullmatch(r"It was cancelled at [\d:]+ after 0 attempts \(asked\)\.", why.text)
    failed = double.enqueue(2)
    fail_now(jobs, double)
    text = jobs.control.why(failed.id).text
    assert re.fullmatch(r"It failed at [\d:]+ after 1 attempt \(exhausted\): builtins.ValueError: no funds\.", text)
    with pytest.raises(JobNotFound):
        jobs.control.why("unknown")


# The hint


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.job_end.WARN_AFTER_S", 0.0)


async def hinted(jobs: App[Any], task: Task[..., Any], caplog: pytest.LogCaptureFixture, **options: Any) -> list[str]:
    """What is said while two wait for jobs of one task."""
    asked = [asyncio.ensure_future(task.using(**options).arequest(n)) for n in range(2)]
    await eventually(lambda: waited_for(jobs) == 2)
    await idle()
    for each in asked:
        each.cancel()
    return [record.getMessage() for record in caplog.records]


@pytest.mark.usefixtures("at_once")
async def test_a_wait_that_no_worker_can_end_logs_a_hint_once(
    jobs: App[object], double: Task[[int], int], caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = await hinted(jobs, double, caplog)
    first, second = line.split("\n")
    assert first.startswith("holdfast: still waiting for 0")
    assert first.endswith(" (double). No live worker on memory://.")
    assert len(first.split()[4]) == 8
    assert second == "          Start one in this process:  async with jobs.worker():"


@pytest.mark.usefixtures("at_once")
async def test_the_hint_names_tasks_that_are_known_and_queues_that_are_paused(
    jobs: App[object], double: Task[[int], int], caplog: pytest.LogCaptureFixture
) -> None:
    await report_in(jobs, "w1", "dubble")
    await hinted(jobs, double, caplog)
    await jobs.control.apause("second")
    await report_in(jobs, "w1", "double")
    jobs._store.process.per_loop().end_listener.warned_tasks.clear()
    await hinted(jobs, double, caplog, queue="second", id="mine")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].endswith("(double). 1 worker is alive, it does not know task 'double': it knows dubble.")
    assert lines[1:] == ["holdfast: still waiting for mine (double). Queue second is paused."]


@pytest.mark.usefixtures("at_once")
async def test_a_wait_that_a_worker_can_end_logs_nothing(
    jobs: App[object], double: Task[[int], int], caplog: pytest.LogCaptureFixture
) -> None:
    await report_in(jobs, "w1", "double")
    assert (await hinted(jobs, double, caplog)) == []


def test_the_hint_says_how_to_start_a_worker() -> None:
    job = JobRecord(queue="default", id="01JCQ7M3ZK2V0000000000ABCD", task="resize")
    scene = JobFacts(job=job, now=0, store="/home/you/shop/jobs.db", target="jobs")
    assert warning(scene) == (
        "holdfast: still waiting for 01JCQ7M3 (resize). No live worker on /home/you/shop/jobs.db.\n"
        "          Start one in another terminal:  holdfast worker jobs"
    )
    assert _target("shop.jobs") == "shop.jobs"
    assert _target("__main__") != "__main__"


def test_damaged_bytes_are_an_obstacle() -> None:
    job = JobRecord(queue="q", id="one", task="t", state=JobState.QUEUED)
    worker = WorkerRecord(worker="w1", tasks=("t",), queues=("q",), slots=1)
    facts = JobFacts(job=job, now=0, workers=(worker,), undecodable=True)
    assert wait_reason(facts) == (
        "Its stored payload cannot be read (json); the worker that takes it fails it at once."
    )
    assert wait_reason(replace(facts, undecodable=False)) == "It is due and about to be taken."
    assert wait_reason(replace(facts, undecodable=False, blocked_by="a is locked.")) == (
        "No process can write to the store: a is locked."
    )


def test_a_lease_that_has_run_out_is_named(jobs: App[object], double: Task[[int], int]) -> None:
    handle = double.enqueue(1)
    take_now(jobs, double)
    assert "That worker sends no heartbeat" in jobs.control.why(handle.id).text
    report_in_now(jobs, "test", "double")
    assert "heartbeat" not in jobs.control.why(handle.id).text
    jobs.control.cancel(handle.id)
    FakeClock(jobs.engine).advance(seconds=40)
    why = jobs.control.why(handle.id)
    assert "Its lease ran out 10." in why.text
    assert "as soon as one is alive. A cancel was requested." in why.text
    assert why.cancel_requested
