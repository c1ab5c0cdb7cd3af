"""The worker's side of the channel to its manager, with real processes: the test is the manager."""

import os
import signal
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from eventually import eventually_now
from managed_worker import ManagedWorker

from holdfast import App, JobState
from holdfast.errors import UsageError
from holdfast.runtime import SystemRuntime
from holdfast.worker.manager_channel import ManagerChannel

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")

PROGRAM = """
    import asyncio, os, subprocess, time
    from contextlib import asynccontextmanager
    from holdfast import App

    def pause_while(path):
        while os.path.exists(path):
            time.sleep(0.01)

    open("imported", "w").close()
    pause_while("hold-import")

    @asynccontextmanager
    async def lifespan():
        open("lifespan", "w").close()
        while os.path.exists("hold-lifespan"):
            await asyncio.sleep(0.01)
        yield None

    jobs = App("sqlite:///jobs.db", lifespan=lifespan)

    @jobs.task
    async def waits(number: int) -> None:
        open(f"running-{number}", "w").close()
        while not os.path.exists(f"gate-{number}"):
            await asyncio.sleep(0.01)

    @jobs.task
    async def blocks() -> None:
        open("running-0", "w").close()
        while not os.path.exists("gate-0"):
            time.sleep(0.01)

    @jobs.task
    async def starts_a_program() -> None:
        subprocess.Popen(["sleep", "60"])
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "60"])
        open("running-0", "w").close()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(dedent(PROGRAM), encoding="utf-8")
    return tmp_path


@pytest.fixture
def jobs(folder: Path) -> App:
    return App(f"sqlite:///{folder}/jobs.db")


def enqueue(jobs: App, task: str, *args: object) -> str:
    return jobs.client.task(task).enqueue(*args).id


def wait_for(path: Path) -> None:
    eventually_now(path.exists, str(path), limit_s=60)


def test_a_worker_reports_its_start_and_its_end(folder: Path, jobs: App) -> None:
    with ManagedWorker(folder, "shop") as worker:
        started = worker.read()
        assert [record.name for record in jobs.control.workers()] == [started["started"]]
        worker.send({"later": True})
        worker.send({"stop": 30, "more": 1})
        assert worker.read_all() == [{"stopping": "manager"}, {"stopped": True}]
        assert worker.wait() == 0
    assert jobs.control.workers() == []


def test_a_manager_s_request_lets_jobs_finish_and_a_second_one_ends_them_at_once(folder: Path, jobs: App) -> None:
    first, second = enqueue(jobs, "waits", 1), enqueue(jobs, "waits", 2)
    with ManagedWorker(folder, "shop") as worker:
        wait_for(folder / "running-1")
        wait_for(folder / "running-2")
        worker.send({"stop": 3600})
        third = enqueue(jobs, "waits", 3)
        (folder / "gate-1").touch()
        eventually_now(lambda: jobs.control.get(first).state is JobState.SUCCEEDED, "the first job to finish")
        worker.send({"stop": 0})
        assert worker.wait() == 0
        assert worker.read_all()[1:] == [{"stopping": "manager"}, {"stopped": True}]
    job = jobs.control.get(second)
    assert (job.state, job.attempt, job.attempts) == (JobState.QUEUED, 0, ())
    assert jobs.control.get(third).attempt == 0


def test_a_worker_whose_manager_is_gone_claims_no_more_finishes_and_ends(folder: Path, jobs: App) -> None:
    first = enqueue(jobs, "waits", 1)
    with ManagedWorker(folder, "shop") as worker:
        assert worker.read()
        wait_for(folder / "running-1")
        worker.leave()
        eventually_now(lambda: "has ended, so the worker stops" in worker.text(), "the worker to notice it")
        second = enqueue(jobs, "waits", 2)
        (folder / "gate-1").touch()
        assert worker.wait() == 0
    assert jobs.control.get(first).state is JobState.SUCCEEDED
    assert (jobs.control.get(second).state, jobs.control.get(second).attempt) == (JobState.QUEUED, 0)


def test_a_worker_whose_manager_is_gone_gives_back_what_does_not_finish_in_its_grace(folder: Path, jobs: App) -> None:
    id = enqueue(jobs, "waits", 1)
    with ManagedWorker(folder, "shop", "--grace", "0.2s") as worker:
        wait_for(folder / "running-1")
        worker.leave()
        assert worker.wait() == 0
    job = jobs.control.get(id)
    assert (job.state, job.attempt, job.attempts) == (JobState.QUEUED, 0, ())
    assert jobs.control.workers() == []


def test_a_blocked_event_loop_does_not_outlive_the_manager(folder: Path, jobs: App) -> None:
    id = enqueue(jobs, "blocks")
    with ManagedWorker(folder, "shop", "--grace", "0.2s", margin_s=0.2) as worker:
        wait_for(folder / "running-0")
        worker.leave()
        assert worker.wait() == 1
        assert "has not stopped in time" in worker.text()
        assert "in blocks" in worker.text()  # the stack names the code
        (folder / "gate-0").touch()
    with ManagedWorker(folder, "shop") as worker:  # the process record shows the death: no wait for the lease of 30 s
        eventually_now(lambda: jobs.control.get(id).state is JobState.SUCCEEDED, "the job to run again", limit_s=20)
    assert [attempt.outcome for attempt in jobs.control.get(id).attempts] == ["worker_lost", "succeeded"]


def test_a_group_wide_term_beside_the_manager_s_request_is_not_the_second_signal(folder: Path, jobs: App) -> None:
    id = enqueue(jobs, "waits", 1)
    with ManagedWorker(folder, "shop") as worker:
        wait_for(folder / "running-1")
        worker.send({"stop": 3600})
        assert [worker.read(), worker.read()][1] == {"stopping": "manager"}
        worker.signal_group(signal.SIGTERM)
        worker.send({"stop": 3600})
        worker.signal_group(signal.SIGHUP)  # a manager rolls its workers over; a worker does nothing by itself
        other = enqueue(jobs, "waits", 2)
        (folder / "gate-1").touch()
        assert worker.wait() == 0
    assert jobs.control.get(id).state is JobState.SUCCEEDED
    assert jobs.control.get(other).attempt == 0


def test_a_worker_that_gets_a_signal_tells_its_manager(folder: Path, jobs: App) -> None:
    with ManagedWorker(folder, "shop") as worker:
        worker.read()
        worker.signal_group(signal.SIGHUP)
        worker.signal_group(signal.SIGTERM)
        assert worker.read_all() == [{"stopping": "signal"}, {"stopped": True}]
        assert worker.wait() == 0


def test_a_worker_stopped_over_the_store_tells_its_manager(folder: Path, jobs: App) -> None:
    with ManagedWorker(folder, "shop") as worker:
        jobs.control.stop_worker(worker.read()["started"])
        assert worker.read_all() == [{"stopping": "store"}, {"stopped": True}]


@pytest.mark.parametrize("held", ["hold-import", "hold-lifespan"])
def test_a_worker_that_is_stopped_while_it_starts_does_not_start(folder: Path, jobs: App, held: str) -> None:
    enqueue(jobs, "waits", 1)
    (folder / held).touch()
    with ManagedWorker(folder, "shop") as worker:
        wait_for(folder / ("imported" if held == "hold-import" else "lifespan"))
        worker.send({"stop": 3600})
        if held == "hold-lifespan":
            assert worker.read() == {"stopping": "manager"}
        (folder / held).unlink()
        assert worker.wait() == 0
        assert worker.read_all()[-1] == {"stopped": True}
    assert not (folder / "running-1").exists()


def test_programs_that_a_handler_starts_do_not_hold_the_channel(folder: Path, jobs: App) -> None:
    enqueue(jobs, "starts_a_program")
    with ManagedWorker(folder, "shop") as worker:
        wait_for(folder / "running-0")
        os.kill(worker.process.pid, signal.SIGKILL)
        assert worker.read_all()  # ends, although the other programs still run
        worker.signal_group(signal.SIGKILL)


def test_only_a_socket_is_a_channel(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(UsageError, match="is no socket"):
        ManagerChannel(SystemRuntime(), file.fileno())
