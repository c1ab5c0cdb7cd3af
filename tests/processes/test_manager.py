"""The manager with real processes: it follows a backlog while its children are killed, and no job is lost."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from eventually import eventually
from manager_process import ManagerProcess
from stored_records import records_of

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import JobState, Reason
from holdfast.process_death import death_of

QUEUE = "default"


class Store(NamedTuple):
    url: str
    options: dict[str, Any]


@pytest.fixture(params=["sqlite", "file", "postgres", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store; the processes learn its namespace from the environment."""
    match request.param:
        case "sqlite":
            return Store(f"sqlite:///{tmp_path}/jobs.db", {})
        case "file":
            return Store(f"file://{tmp_path}/jobs", {})
        case server:
            url, namespace = request.getfixturevalue(f"{server}_store")()
            monkeypatch.setenv("HOLDFAST_NAMESPACE", namespace)
            return Store(url, {"namespace": namespace} | ({"durability": "none"} if server == "redis" else {}))


async def enqueue(engine: Engine, task: str, ids: list[str], payload: bytes = b"[[],{}]") -> None:
    for start in range(0, len(ids), 1_000):
        jobs = [NewJob(queue=QUEUE, id=name, task=task, payload=payload) for name in ids[start : start + 1_000]]
        await engine.enqueue(Group(tuple(jobs)))


async def burst(store: Store, folder: Path, *, jobs: int, seconds: float, low: int, high: int, kills: int) -> None:
    """Slow jobs take a manager from `low` to `high` children and back, while children are killed at random."""
    engine = open_engine(store.url, **store.options)
    await engine.open()
    ids = [f"job-{number}" for number in range(jobs)]
    choice = random.Random(kills)
    most = killed = 0
    options = ("--min", str(low), "--max", str(high), "-c", "10", "--interval", "0.3", "--idle-before-down", "1")
    with ManagerProcess(store.url, folder, *options) as manager:
        await manager.wait_for_children(engine, low)
        await enqueue(engine, "slow", ids, b"[[%g],{}]" % seconds)
        while (done := (await engine.stats(QUEUE)).queues[0].totals.finished) < jobs:
            pids = manager.child_pids()
            most = max(most, len(pids))
            if killed < kills and done > jobs * (killed + 1) / (kills + 2) and pids:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(choice.choice(pids), signal.SIGKILL)
                    killed += 1
            await asyncio.sleep(0.05)
        await manager.wait_for_children(engine, low)
        manager.send(signal.SIGTERM)
        assert await manager.wait_ended() == 0
        runs = manager.runs()
    records = await records_of(engine, QUEUE, ids)
    stats = (await engine.stats(QUEUE)).queues[0]
    workers, problems = (await engine.workers()).workers, await engine.audit()
    await engine.close()

    assert killed == kills
    assert most == high  # it was reached, and there were never more
    assert {record.state for record in records} == {JobState.SUCCEEDED}
    assert (stats.totals.succeeded, stats.totals.finished) == (jobs, jobs)  # each outcome was accepted once
    assert workers == ()
    assert problems == ()
    starts = Counter(run.job for run in runs if run.what == "start")
    for record in records:
        assert 1 <= starts[record.id] <= record.losses + 1
    fences: dict[str, list[int]] = {}
    for run in sorted(runs):
        if run.what == "start":
            fences.setdefault(run.job, []).append(run.fence)
    assert all(seen == sorted(set(seen)) for seen in fences.values())
    losses = sum(record.losses for record in records)
    print(f"{jobs} jobs, {kills} kills, at most {most} children, {sum(starts.values())} runs, {losses} losses")


async def test_a_burst_takes_the_manager_up_and_down_while_children_are_killed(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/jobs.db", {})
    await burst(store, tmp_path, jobs=120, seconds=0.3, low=1, high=3, kills=2)


@pytest.mark.chaos
async def test_five_thousand_jobs_from_two_to_eight_children_with_thirty_kills(store: Store, tmp_path: Path) -> None:
    await burst(store, tmp_path, jobs=5_000, seconds=0.5, low=2, high=8, kills=30)


async def test_the_jobs_of_a_killed_child_run_again_at_once(store: Store, tmp_path: Path) -> None:
    """Neither the lease, 30 s, has expired, nor does a worker poll: the manager knows, and its other child is notified.

    No child starts meanwhile: it would claim the job.
    """
    engine = open_engine(store.url, **store.options)
    await engine.open()
    no_start = tmp_path / "no-start"
    environment = {"HOLDFAST_WORKER_POLL_INTERVAL": "600", "KILL_NO_START": str(no_start)}
    options = ("--min", "2", "--max", "2", "-c", "5")
    with ManagerProcess(store.url, tmp_path, *options, environment=environment) as manager:
        pids = {worker.pid for worker in await manager.wait_for_children(engine, 2)}
        await enqueue(engine, "hold", ["held"])
        await eventually(manager.runs, "the job to start")
        first = manager.runs()[0].pid
        no_start.touch()
        os.kill(first, signal.SIGKILL)
        killed_at = asyncio.get_running_loop().time()
        await eventually(lambda: len(manager.runs()) > 1, "the second run", limit_s=60)
        print(f"runs again {asyncio.get_running_loop().time() - killed_at:.2f} s after the kill")
        assert {manager.runs()[1].pid} == pids - {first}
        no_start.unlink()
        await manager.wait_for_children(engine, 2)
        (record,) = await records_of(engine, QUEUE, ["held"])
        assert (record.attempt, record.losses) == (2, 1)
        (death,) = [death_of(run.error) for run in record.history]
        assert death is not None
        assert death.cause == "SIGKILL"
        assert death.peak_mib
        own = await manager.record(engine)
        assert own is not None
        await engine.stop_worker(own.worker)  # as `holdfast workers stop` does
        assert await manager.wait_ended() == 0
    assert (await engine.workers()).workers == ()
    await engine.close()


@pytest.mark.chaos
async def test_a_job_that_kills_its_workers_ends_with_the_cause_and_the_peak_memory(
    store: Store, tmp_path: Path
) -> None:
    engine = open_engine(store.url, **store.options)
    await engine.open()
    with ManagerProcess(store.url, tmp_path, "--min", "2", "--max", "2", "-c", "5") as manager:
        await manager.wait_for_children(engine, 2)
        await enqueue(engine, "poison", ["poison"])

        async def has_failed() -> bool:
            (record,) = await records_of(engine, QUEUE, ["poison"])
            return record.state is JobState.FAILED

        await eventually(has_failed, "the end of the job", limit_s=60)
        (record,) = await records_of(engine, QUEUE, ["poison"])
        command = [sys.executable, "-m", "holdfast", "jobs", "show", "poison"]
        environment = {**os.environ, "HOLDFAST_URL": store.url}
        shown = await asyncio.to_thread(
            subprocess.run, command, env=environment, capture_output=True, text=True, check=True
        )
        manager.send(signal.SIGTERM)
        assert await manager.wait_ended() == 0
    await engine.close()

    assert (record.reason, record.losses) == (Reason.WORKER_LOST, 2)
    deaths = [death_of(run.error) for run in record.history]
    assert [death.cause for death in deaths if death is not None] == ["SIGKILL", "SIGKILL"]
    peak_mib = max(death.peak_mib or 0 for death in deaths if death is not None)
    assert peak_mib > 10
    text = " ".join(shown.stdout.split())
    assert f"losses 2: its worker died 2 times of SIGKILL, peak memory {peak_mib} MiB" in text
