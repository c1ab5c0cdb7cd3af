"""Worker processes on PostgreSQL and Redis that are killed, or stopped for longer than their lease.

A death is seen at once, because the processes are on one host. A process that is stopped has not died: there only the
lease tells, so the jobs have short ones.
"""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from stored_records import records_of
from worker_processes import Run, WorkerProcesses

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.model.instants import SECOND
from holdfast.model.job import Given, JobRecord
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import JobState
from holdfast.model.work import Settlement, SettleStatus

QUEUE = "default"
LEASE = 3 * SECOND


class Store(NamedTuple):
    url: str
    options: dict[str, Any]


@pytest.fixture(params=["postgres", "redis"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store; the worker processes learn its namespace from the environment."""
    url, namespace = request.getfixturevalue(f"{request.param}_store")()
    monkeypatch.setenv("HOLDFAST_NAMESPACE", namespace)
    return Store(url, {"namespace": namespace} | ({"durability": "none"} if request.param == "redis" else {}))


async def enqueue(engine: Engine, task: str, ids: list[str], payload: bytes, priority: int = 0) -> None:
    given = Given(lease_len=LEASE)
    for start in range(0, len(ids), 1_000):
        jobs = [
            NewJob(queue=QUEUE, id=name, task=task, payload=payload, given=given, priority=priority)
            for name in ids[start : start + 1_000]
        ]
        await engine.enqueue(Group(tuple(jobs)))


def check_runs(records: list[JobRecord], runs: list[Run]) -> None:
    """A job runs once, and once more for each time that its worker was lost; fences only rise."""
    starts = Counter(run.job for run in runs if run.what == "start")
    for record in records:
        assert 1 <= starts[record.id] <= record.losses + 1
    fences: dict[str, list[int]] = {}
    for run in sorted(runs):
        if run.what == "start":
            fences.setdefault(run.job, []).append(run.fence)
    assert all(seen == sorted(set(seen)) for seen in fences.values())


async def storm(store: Store, log: Path, *, jobs: int, kills: int, processes: int) -> None:
    """Kill workers while they work through jobs.

    For each kill there is one more job, whose first run never ends. Its worker is killed, so each kill meets a job.
    """
    engine = open_engine(store.url, **store.options)
    await engine.open()
    ids = [f"job-{number}" for number in range(jobs)]
    held: list[str] = []
    with (
        engine.subscribe(f"room:{QUEUE}") as ended,
        WorkerProcesses(store.url, log, size=processes, reap_s=0.5) as workers,
    ):
        await enqueue(engine, "work", ids, b"[[1],{}]")
        while (done := (await engine.stats(QUEUE)).queues[0].totals.finished) < jobs + kills:
            if len(held) < kills and done > jobs * (len(held) + 1) / (kills + 2):
                held.append(f"held-{len(held)}")
                await enqueue(engine, "hold", held[-1:], b"[[],{}]", priority=1)
                await workers.kill_runner_of(held[-1])
            else:
                await ended.wait(10)
        runs = workers.runs()
    records, lost = await records_of(engine, QUEUE, ids), await records_of(engine, QUEUE, held)
    stats = (await engine.stats(QUEUE)).queues[0]
    problems = await engine.audit()
    await engine.close()
    assert {record.state for record in (*records, *lost)} == {JobState.SUCCEEDED}
    assert {record.result for record in records} == {b"2"}
    assert all(record.losses and record.attempt == record.losses + 1 for record in lost)
    assert (stats.totals.succeeded, stats.totals.finished) == (jobs + kills,) * 2  # each outcome was accepted once
    assert problems == ()
    check_runs([*records, *lost], runs)
    losses = sum(record.losses for record in records)
    starts = sum(run.what == "start" for run in runs)
    print(f"{jobs} jobs, {kills} kills, {losses} losses beside those of the {kills} jobs held, {starts} runs")


async def test_no_job_is_lost_and_none_ends_twice_when_workers_are_killed(store: Store, tmp_path: Path) -> None:
    await storm(store, tmp_path / "runs", jobs=1_000, kills=3, processes=3)


@pytest.mark.chaos
async def test_twenty_thousand_jobs_survive_twenty_kills(store: Store, tmp_path: Path) -> None:
    await storm(store, tmp_path / "runs", jobs=20_000, kills=20, processes=4)


async def pause(store: Store, log: Path, *, times: int) -> int:
    """Stop the process that holds a job for longer than its lease, and let it go on; answers the late settlements
    that were refused."""
    engine = open_engine(store.url, **store.options)
    await engine.open()
    refused = 0
    with (
        engine.subscribe(f"room:{QUEUE}") as ended,
        WorkerProcesses(store.url, log, size=2, concurrency=2, reap_s=0.5) as workers,
    ):
        for number in range(times):
            name = f"held-{number}"
            await enqueue(engine, "hold", [name], b"[[],{}]")
            holder = await workers.first_run(name)
            (record,) = await records_of(engine, QUEUE, [name])
            assert record.token is not None
            os.kill(holder.pid, signal.SIGSTOP)
            try:
                async with asyncio.timeout(60):
                    while (await engine.stats(QUEUE)).queues[0].totals.finished <= number:
                        await ended.wait(0.5)
                late = Settlement(queue=QUEUE, id=name, token=record.token, target=JobState.SUCCEEDED, result=b"0")
                refused += (await engine.settle(late)).settled == (SettleStatus.LOST,)
            finally:
                os.kill(holder.pid, signal.SIGCONT)
        for worker in workers.processes:
            assert await workers.stop_at_once(worker) == 0  # it has noticed, and ends as ever
    records = await records_of(engine, QUEUE, [f"held-{number}" for number in range(times)])
    for record in records:
        assert (record.state, record.attempt, record.losses, record.result) == (JobState.SUCCEEDED, 2, 1, b"2")
    totals = (await engine.stats(QUEUE)).queues[0].totals
    assert (totals.finished, totals.succeeded) == (times, times)
    assert await engine.audit() == ()
    await engine.close()
    return refused


async def test_a_worker_stopped_past_its_lease_is_refused_and_the_job_ends_once(store: Store, tmp_path: Path) -> None:
    assert (await pause(store, tmp_path / "runs", times=1)) == 1


@pytest.mark.chaos
async def test_twenty_workers_stopped_past_their_leases_are_refused(store: Store, tmp_path: Path) -> None:
    assert (await pause(store, tmp_path / "runs", times=20)) == 20
