"""The manager with real processes: it follows a backlog while its children are killed, and no job is lost."""

import asyncio
import os
import random
import signal
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
from holdfast.model.states import JobState

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
    """The lease is 30 seconds. The manager waits for its child, so it knows."""
    engine = open_engine(store.url, **store.options)
    await engine.open()
    with ManagerProcess(store.url, tmp_path, "--min", "2", "--max", "2", "-c", "5") as manager:
        await manager.wait_for_children(engine, 2)
        await enqueue(engine, "hold", ["held"])
        await eventually(manager.runs, "the job to start")
        os.kill(manager.runs()[0].pid, signal.SIGKILL)
        killed_at = asyncio.get_running_loop().time()
        await eventually(lambda: len(manager.runs()) > 1, "the second run", limit_s=25)
        print(f"runs again {asyncio.get_running_loop().time() - killed_at:.2f} s after the kill")
        await manager.wait_for_children(engine, 2)
        (record,) = await records_of(engine, QUEUE, ["held"])
        assert (record.attempt, record.losses) == (2, 1)
        own = await manager.record(engine)
        assert own is not None
        await engine.stop_worker(own.worker)  # as `holdfast workers stop` does
        assert await manager.wait_ended() == 0
    assert (await engine.workers()).workers == ()
    await engine.close()
