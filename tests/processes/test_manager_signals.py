"""A manager that gets signals, runs as process 1, is killed, loses its store, or shares it with another manager."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from eventually import eventually
from manager_process import ManagerProcess, is_zombie

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import JobState

QUEUE = "default"
VERSIONED_APP = """
import asyncio, os
from holdfast import App

jobs = App(os.environ["KILL_URL"])

@jobs.task(name="version")
async def version(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "VERSION"

@jobs.task(name="prints")
async def prints() -> int:
    print("begins", flush=True)
    while not os.path.exists("go"):
        await asyncio.sleep(0.02)
    return print("ends", flush=True) or 1

@jobs.task(name="blocks")
async def blocks() -> None:
    print("begins", flush=True)
    __import__("time").sleep(1_000)

@jobs.task(name="orphan")
def orphan() -> int:
    if os.fork() == 0:
        if os.fork() == 0:
            os.execvp("sh", ["sh", "-c", "sleep 0.2; touch orphan"])
        os._exit(0)
    return os.wait()[0]
"""


def write_app(folder: Path, version: str) -> None:
    (folder / "versioned.py").write_text(VERSIONED_APP.replace("VERSION", version))
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


async def opened(url: str) -> Engine:
    engine = open_engine(url)
    await engine.open()
    return engine


async def enqueue(engine: Engine, task: str, name: str, payload: bytes = b"[[],{}]") -> None:
    await engine.enqueue(Group((NewJob(queue=QUEUE, id=name, task=task, payload=payload),)))


async def record_of(engine: Engine, name: str) -> JobRecord:
    (record,) = (await engine.get(JobKey(QUEUE, name))).jobs
    assert record is not None
    return record


async def state_of(engine: Engine, name: str) -> JobState:
    return (await record_of(engine, name)).state


async def test_sighup_replaces_the_workers_with_new_code_and_drops_no_work(url: str, tmp_path: Path) -> None:
    write_app(tmp_path, "old")
    engine = await opened(url)
    options = ("--min", "2", "--max", "2", "-c", "1")
    with ManagerProcess(url, tmp_path, *options, target="versioned", cwd=tmp_path) as manager:
        before = {worker.worker for worker in await manager.wait_for_children(engine, 2)}
        await enqueue(engine, "version", "long", b"[[1.5],{}]")

        async def has_started() -> bool:  # on a busy machine it may have ended before this is read
            return await state_of(engine, "long") in (JobState.RUNNING, JobState.SUCCEEDED)

        await eventually(has_started, "the long job to start")
        write_app(tmp_path, "new")
        manager.send(signal.SIGHUP)

        async def are_replaced() -> bool:
            return before.isdisjoint(worker.worker for worker in await manager.wait_for_children(engine, 2))

        await eventually(are_replaced, "the roll over")
        await enqueue(engine, "version", "later", b"[[0],{}]")

        async def has_ended() -> bool:
            return await state_of(engine, "later") is JobState.SUCCEEDED

        await eventually(has_ended, "the later job")
        long, later = await record_of(engine, "long"), await record_of(engine, "later")
        assert (long.state, long.attempt, long.losses, long.result) == (JobState.SUCCEEDED, 1, 0, b'"old"')
        assert later.result == b'"new"'
        manager.send(signal.SIGTERM)
        assert await manager.wait_ended() == 0
    await engine.close()


async def test_a_second_signal_stops_at_once_and_the_job_is_released(url: str, tmp_path: Path) -> None:
    engine = await opened(url)
    options = ("--grace", "1h", "-c", "2", "--log-format", "json")
    with ManagerProcess(url, tmp_path, "--processes", "2", *options, command="worker") as manager:
        await manager.wait_for_children(engine, 2)
        await enqueue(engine, "hold", "held")
        await eventually(manager.runs, "the job to start")
        manager.send(signal.SIGTERM)
        await eventually(lambda: manager.errors.count("has stopped") == 2, "the end of the idle worker")  # both say it
        manager.send(signal.SIGTERM)
        assert await manager.wait_ended() == 0
        lines = [json.loads(line) for line in manager.errors.splitlines()]
    assert {line.get("child") for line in lines} == {None, 1, 2}
    record = await record_of(engine, "held")
    assert (record.state, record.attempt, record.losses) == (JobState.QUEUED, 0, 0)
    assert (await engine.workers()).workers == ()
    await engine.close()


@pytest.mark.chaos  # it waits twice for a reader that does not come
async def test_a_manager_whose_output_nobody_reads_stops(url: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, b"x"):
            pass
    os.set_blocking(writer, True)
    engine = await opened(url)
    with ManagerProcess(url, tmp_path, "--processes", "2", command="worker", output=writer) as manager:
        await manager.wait_for_children(engine, 2)
        manager.send(signal.SIGTERM)
        assert await manager.wait_ended() == 0
    assert (await engine.workers()).workers == ()
    await engine.close()
    os.close(reader)
    os.close(writer)


BLOCKED_MANAGER = """
import sys, time
from holdfast import App
from holdfast.manager import manager
from holdfast.worker import forced_exit

forced_exit.MARGIN_S = manager.STOP_MARGIN_S = 0.1

def block() -> None:
    print("blocks", flush=True)
    time.sleep(1_000)

App(sys.argv[1]).manager("shop:jobs", grace=0, signals=True).run(on_ready=block)
"""


def test_code_that_blocks_the_manager_does_not_keep_it_from_its_end(url: str) -> None:
    argv = [sys.executable, "-c", BLOCKED_MANAGER, url]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "blocks\n"
        process.terminate()
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "has not stopped in time" in errors


def has_pid_namespaces() -> bool:
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "--pid", "--fork", "true"], check=False).returncode == 0


async def test_as_process_1_it_removes_zombies_and_obeys_signals(url: str, tmp_path: Path) -> None:
    if not has_pid_namespaces():
        pytest.skip("this user cannot make a PID namespace")
    write_app(tmp_path, "one")
    engine = await opened(url)
    wrapper = ("unshare", "--pid", "--fork", "--kill-child")
    options = ("--min", "1", "--max", "1")
    with ManagerProcess(url, tmp_path, *options, target="versioned", cwd=tmp_path, wrapper=wrapper) as outer:
        await outer.wait_for_text("works, pid")
        (manager,) = outer.child_pids()
        await enqueue(engine, "orphan", "orphan")

        async def has_ended() -> bool:
            return await state_of(engine, "orphan") is JobState.SUCCEEDED

        await eventually(has_ended, "the job that leaves a process")
        children = Path(f"/proc/{manager}/task/{manager}/children")
        await eventually((tmp_path / "orphan").exists, "the end of the orphan")
        await eventually(lambda: len(children.read_text().split()) == 1, "that the orphan leaves no zombie")
        (worker,) = map(int, children.read_text().split())
        os.kill(worker, signal.SIGKILL)
        await outer.wait_for_text("was killed by SIGKILL")
        await eventually(lambda: outer.errors.count("works, pid") == 2, "another worker")
        os.kill(manager, signal.SIGTERM)
        assert await outer.wait_ended() == 0
    await engine.close()


@pytest.mark.chaos
async def test_a_manager_whose_workers_cannot_start_says_why(url: str, tmp_path: Path) -> None:
    broken = 'import sys\nassert "--manager-fd" not in sys.argv, "no licence for workers"\n'
    (tmp_path / "broken.py").write_text(broken + VERSIONED_APP)
    with ManagerProcess(url, tmp_path, "--min", "2", target="broken", cwd=tmp_path) as manager:
        assert await manager.wait_ended() == 6
        assert "holdfast: No child could start, in 3 tries." in manager.errors
        assert manager.errors.count("AssertionError: no licence for workers") >= 3


@pytest.mark.chaos
async def test_the_workers_of_a_killed_manager_stop_and_release_their_jobs(url: str, tmp_path: Path) -> None:
    engine = await opened(url)
    options = ("--min", "3", "--max", "3", "--grace", "2s", "-c", "2")
    with ManagerProcess(url, tmp_path, *options) as manager:
        pids = [worker.pid for worker in await manager.wait_for_children(engine, 3)]
        await enqueue(engine, "hold", "held")
        await eventually(manager.runs, "the job to start")
        manager.send(signal.SIGKILL)
        await manager.wait_ended()
        await eventually(lambda: all(map(is_zombie, pids)), "the end of the workers", limit_s=30)
        record = await record_of(engine, "held")
        assert (record.state, record.attempt, record.losses) == (JobState.QUEUED, 0, 0)
    await engine.close()


@pytest.mark.chaos
async def test_a_handler_may_print_after_its_manager_was_killed(url: str, tmp_path: Path) -> None:
    write_app(tmp_path, "one")
    engine = await opened(url)
    with ManagerProcess(url, tmp_path, target="versioned", cwd=tmp_path) as manager:
        await manager.wait_for_children(engine, 1)
        await enqueue(engine, "prints", "prints")
        await eventually(lambda: "child 1 | begins" in manager.output, "the first line")
        manager.send(signal.SIGKILL)
        await manager.wait_ended()
        await asyncio.sleep(1)
        (tmp_path / "go").touch()

        async def has_ended() -> bool:
            return await state_of(engine, "prints") not in (JobState.RUNNING, JobState.QUEUED)

        await eventually(has_ended, "the job")
        record = await record_of(engine, "prints")
        assert (record.state, record.attempt) == (JobState.SUCCEEDED, 1), record.history
    await engine.close()


@pytest.mark.chaos
async def test_the_jobs_of_a_worker_that_does_not_stop_are_free_when_the_manager_ends(url: str, tmp_path: Path) -> None:
    """The manager kills the worker 15 seconds after its grace."""
    write_app(tmp_path, "one")
    engine = await opened(url)
    with ManagerProcess(url, tmp_path, "--grace", "1s", target="versioned", cwd=tmp_path) as manager:
        await manager.wait_for_children(engine, 1)
        await enqueue(engine, "blocks", "blocks")
        await eventually(lambda: "child 1 | begins" in manager.output, "the first line")
        manager.send(signal.SIGTERM)
        assert await manager.wait_ended() == 7
        record = await record_of(engine, "blocks")
        assert (record.state, record.losses) == (JobState.RETRYING, 1)
        assert (await engine.workers()).workers == ()
    await engine.close()


@pytest.mark.chaos
async def test_two_managers_share_a_backlog_and_do_not_change_their_sizes_to_and_fro(url: str, tmp_path: Path) -> None:
    engine = await opened(url)
    options = ("--min", "1", "--max", "4", "-c", "5", "--interval", "0.5", "--idle-before-down", "2")
    for number in range(20):
        await enqueue(engine, "slow", f"job-{number}", b"[[8],{}]")
    with ManagerProcess(url, tmp_path, *options) as one, ManagerProcess(url, tmp_path, *options) as two:
        await one.wait_for_children(engine, 2)
        await two.wait_for_children(engine, 2)  # 20 jobs, 5 slots: four workers, two of each

        async def are_done() -> bool:
            return (await engine.stats(QUEUE)).queues[0].totals.finished == 20

        await eventually(are_done, "the jobs")
        await one.wait_for_children(engine, 1)
        await two.wait_for_children(engine, 1)
        for manager in (one, two):
            manager.send(signal.SIGTERM)
            assert await manager.wait_ended() == 0
            changes = [int(after) - int(before) for before, after in re.findall(r"From (\d+) to (\d+)", manager.errors)]
            assert changes == sorted(changes, key=lambda change: change < 0), manager.errors  # never up after down
    records = [await record_of(engine, f"job-{number}") for number in range(20)]
    assert {(record.state, record.attempt) for record in records} == {(JobState.SUCCEEDED, 1)}
    await engine.close()
