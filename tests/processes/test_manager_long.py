"""A manager at length: its store goes away and comes back, its workers recycle themselves, and Django starts it."""

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest
from django_manage import ManageProject
from eventually import eventually
from manager_process import ManagerProcess

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.errors import EngineError
from holdfast.model.job import JobKey
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import JobState

QUEUE = "default"
pytestmark = pytest.mark.chaos


def slow_jobs(count: int, seconds: float) -> Group:
    return Group(
        tuple(
            NewJob(queue=QUEUE, id=f"job-{number}", task="slow", payload=b"[[%g],{}]" % seconds)
            for number in range(count)
        )
    )


async def test_a_manager_and_its_workers_survive_an_outage_of_the_store(tmp_path: Path) -> None:
    from redis_server import private_server

    with private_server({"appendonly": "yes", "appendfsync": "always"}) as server:
        engine = open_engine(server.url())
        await engine.open()
        options = ("--min", "2", "--max", "4", "-c", "5", "--interval", "0.5", "--idle-before-down", "2")
        with ManagerProcess(server.url(), tmp_path, *options) as manager:
            pids = {worker.pid for worker in await manager.wait_for_children(engine, 2)}
            server.kill()
            await manager.wait_for_text("holdfast.service: The store has a problem")
            await asyncio.sleep(5)
            assert set(manager.child_pids()) == pids  # none was started or stopped
            own = [line for line in manager.errors.splitlines() if not line.startswith("child")]
            assert sum("The store has a problem" in line for line in own) == 1
            server.start()
            await manager.wait_for_text("The store answers again")
            await eventually(lambda: _enqueued(engine), "the store", limit_s=60)
            await manager.wait_for_children(engine, 4)

            async def are_done() -> bool:
                return (await engine.stats(QUEUE)).queues[0].totals.succeeded == 60

            await eventually(are_done, "the jobs", limit_s=60)
            await manager.wait_for_children(engine, 2)
            manager.send(signal.SIGTERM)
            assert await manager.wait_ended() == 0
        await engine.close()


async def _enqueued(engine: Engine) -> bool:
    try:
        await engine.enqueue(slow_jobs(60, 1.0))
    except EngineError:
        return False
    return True


async def test_workers_that_recycle_themselves_are_replaced_and_no_job_is_lost(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/jobs.db")
    await engine.open()
    jobs = 300
    await engine.enqueue(slow_jobs(jobs, 0.05))
    options = ("--min", "2", "--max", "2", "-c", "5", "--max-jobs", "50")
    with ManagerProcess(f"sqlite:///{tmp_path}/jobs.db", tmp_path, *options) as manager:

        async def are_done() -> bool:
            return (await engine.stats(QUEUE)).queues[0].totals.succeeded == jobs

        await eventually(are_done, "the jobs", limit_s=60)
        await manager.wait_for_children(engine, 2)
        manager.send(signal.SIGTERM)
        assert await manager.wait_ended() == 0
        assert len({run.pid for run in manager.runs()}) >= 5
        assert "max_jobs" in manager.errors
        assert "WARNING" not in manager.errors
    records = (await engine.get(*(JobKey(QUEUE, f"job-{number}") for number in range(jobs)))).jobs
    assert {(record.state, record.attempt, record.losses) for record in records if record is not None} == {
        (JobState.SUCCEEDED, 1, 0)
    }
    await engine.close()


async def test_django_starts_a_manager_whose_workers_are_started_by_django(tmp_path: Path) -> None:
    project = ManageProject(tmp_path)
    assert project("migrate").returncode == 0
    process = project.start("holdfast", "manager", "--min", "2", "--max", "2")
    try:
        assert process.stderr is not None
        pids: list[int] = []
        while len(pids) < 2:
            line = await asyncio.to_thread(process.stderr.readline)
            assert line, "the manager has ended"
            if found := re.search(r"works, pid (\d+)", line):
                pids.append(int(found[1]))
        command = Path(f"/proc/{pids[0]}/cmdline").read_bytes().split(b"\0")
        assert b"manage.py" in b" ".join(command)
        assert b"worker" in command
    finally:
        os.kill(process.pid, signal.SIGTERM)
        await asyncio.to_thread(process.communicate)
    assert process.returncode == 0
