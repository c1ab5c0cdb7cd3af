"""A wait that runs out says what the job waits for, and one that nobody can end says so on the log, once."""

import asyncio
from typing import Any

import pytest
from eventually import eventually, idle
from manual_worker import report_in, report_in_now, settle, take, take_now

from holdfast import App, JobState, Task, WaitTimeout
from holdfast.core.job_end import _target
from holdfast.core.wait_reason import UnfinishedJob, warning
from holdfast.model.job import JobRecord
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
    assert why(handle) == "1 worker is alive, it does not know task 'double': they know dubble, flaky."
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

    async def fail_once() -> None:
        lease = await take(jobs, double)
        error = ErrorInfo("builtins.OSError", "busy", "")
        await settle(jobs, lease, JobState.RETRYING, error=error, delay=60_000_000)

    asyncio.run(fail_once())
    assert why(handle).startswith("Attempt 1 failed with builtins.OSError: busy. The next one is due at ")


def test_a_job_in_a_lane_says_who_is_before_it(jobs: App[object], double: Task[[int], int]) -> None:
    lane = double.using(lane="alice")
    first = lane.using(id="first").enqueue(1)
    assert why(lane.enqueue(2)) == "It waits for its turn in lane alice. Job first is first."
    jobs.control.pause("default", lane="alice")
    assert why(first) == "Lane alice of queue default is paused."


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
    assert lines[0].endswith("(double). 1 worker is alive, it does not know task 'double': they know dubble.")
    assert lines[1:] == ["holdfast: still waiting for mine (double). Queue second is paused."]


@pytest.mark.usefixtures("at_once")
async def test_a_wait_that_a_worker_can_end_logs_nothing(
    jobs: App[object], double: Task[[int], int], caplog: pytest.LogCaptureFixture
) -> None:
    await report_in(jobs, "w1", "double")
    assert (await hinted(jobs, double, caplog)) == []


def test_the_hint_says_how_to_start_a_worker() -> None:
    job = JobRecord(queue="default", id="01JCQ7M3ZK2V0000000000ABCD", task="resize")
    scene = UnfinishedJob(job=job, now=0, store="/home/you/shop/jobs.db", target="jobs")
    assert warning(scene) == (
        "holdfast: still waiting for 01JCQ7M3 (resize). No live worker on /home/you/shop/jobs.db.\n"
        "          Start one in another terminal:  holdfast worker jobs"
    )
    assert _target("shop.jobs") == "shop.jobs"
    assert _target("__main__") != "__main__"
