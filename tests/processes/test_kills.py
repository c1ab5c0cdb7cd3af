"""Workers that are killed in the middle of their jobs."""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from pause_process import pause_process
from worker_processes import WorkerProcesses

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.model.job import JobKey
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import JobState
from holdfast.model.work import Settlement, SettleStatus

QUEUE = "default"


async def enqueue(engine: Engine, task: str, ids: list[str], payload: bytes = b"[[1],{}]", priority: int = 0) -> None:
    for start in range(0, len(ids), 1_000):
        batch = [
            NewJob(queue=QUEUE, id=name, task=task, payload=payload, priority=priority)
            for name in ids[start : start + 1_000]
        ]
        await engine.enqueue(Group(tuple(batch)))


@pytest.fixture(params=["sqlite", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The stores whose processes share files of one host."""
    return f"sqlite:///{tmp_path}/jobs.db" if request.param == "sqlite" else f"file://{tmp_path}/jobs"


async def storm(url: str, tmp_path: Path, *, jobs: int, kills: int, processes: int) -> None:
    """Kill workers while they work through jobs.

    For each kill there is one more job, whose first run never ends. Its worker is killed, so each kill meets a job.
    """
    engine = open_engine(url)
    await engine.open()
    ids = [f"job-{number}" for number in range(jobs)]
    held: list[str] = []
    with (
        engine.subscribe(f"room:{QUEUE}") as ended,
        WorkerProcesses(url, tmp_path / "runs", size=processes, reap_s=0.5) as workers,
    ):
        await enqueue(engine, "work", ids)
        while (done := (await engine.stats(QUEUE)).queues[0].totals.finished) < jobs + kills:
            if len(held) < kills and done > jobs * (len(held) + 1) / (kills + 2):
                held.append(f"held-{len(held)}")
                await enqueue(engine, "hold", held[-1:], b"[[],{}]", priority=1)
                await workers.kill_runner_of(held[-1])
            else:
                await ended.wait(10)
        runs = workers.runs()
    records = [record for key in (*ids, *held) for record in (await engine.get(JobKey(QUEUE, key))).jobs]
    stats = (await engine.stats(QUEUE)).queues[0]
    problems = await engine.audit()
    await engine.close()

    assert Counter(record.state for record in records if record is not None) == {JobState.SUCCEEDED: jobs + kills}
    assert {record.result for record in records[:jobs] if record is not None} == {b"2"}
    assert all(record is not None and record.losses for record in records[jobs:])
    assert (stats.totals.succeeded, stats.totals.finished) == (jobs + kills,) * 2  # each outcome was accepted once
    assert problems == ()
    starts = Counter(run.job for run in runs if run.what == "start")
    assert set(starts) == {*ids, *held}
    for record in records:
        assert record is not None
        if not record.losses:
            assert starts[record.id] == 1, f"{record.id} ran {starts[record.id]} times without a loss"
        assert starts[record.id] <= record.losses + 1
    fences: dict[str, list[int]] = {}
    for run in sorted(runs):
        if run.what == "start":
            fences.setdefault(run.job, []).append(run.fence)
    assert all(seen == sorted(set(seen)) for seen in fences.values())
    losses = sum(record.losses for record in records[:jobs] if record is not None)
    print(f"{kills} kills, {sum(starts.values())} runs, {losses} losses beside those of the {kills} jobs held")


async def test_no_job_is_lost_and_none_ends_twice_when_workers_are_killed(url: str, tmp_path: Path) -> None:
    await storm(url, tmp_path, jobs=1_000, kills=5, processes=3)


@pytest.mark.long
async def test_twenty_thousand_jobs_survive_twenty_kills(url: str, tmp_path: Path) -> None:
    await storm(url, tmp_path, jobs=20_000, kills=20, processes=4)


async def test_a_job_of_a_killed_worker_runs_again_long_before_its_lease_is_over(url: str, tmp_path: Path) -> None:
    """The lease is 30 seconds; another worker sees that the process is gone."""

    engine = open_engine(url)
    await engine.open()
    with engine.subscribe(f"room:{QUEUE}") as ended, WorkerProcesses(url, tmp_path / "runs", size=2) as workers:
        await enqueue(engine, "hold", ["held"], b"[[],{}]")
        holder = (await workers.first_run()).pid
        record = (await engine.get(JobKey(QUEUE, "held"))).jobs[0]
        assert record is not None
        token = record.token
        assert token is not None
        os.kill(holder, signal.SIGKILL)
        killed = asyncio.get_running_loop().time()
        assert await ended.wait(25), "it took as long as the lease"
        print(f"ended {asyncio.get_running_loop().time() - killed:.2f} s after the kill")
        late = await engine.settle(Settlement(queue=QUEUE, id="held", token=token, target=JobState.SUCCEEDED))
        assert late.settled == (SettleStatus.LOST,)
    record = (await engine.get(JobKey(QUEUE, "held"))).jobs[0]
    assert record is not None
    assert (record.state, record.attempt, record.losses, record.result) == (JobState.SUCCEEDED, 2, 1, b"2")
    assert [attempt.outcome for attempt in record.history] == ["worker_lost"]
    await engine.close()


async def test_a_worker_that_slept_past_its_lease_is_refused(url: str, tmp_path: Path) -> None:
    """SIGSTOP: the process is there, so only the lease tells. Here another client's clock is past it."""

    engine = open_engine(url)
    await engine.open()
    with WorkerProcesses(url, tmp_path / "runs", size=1) as workers:
        await enqueue(engine, "hold", ["held"], b"[[],{}]")
        await workers.first_run()
        pause_process(workers.processes[0].pid, Path(engine.shown_address(url)))
        engine.clock_offset = 31_000_000
        (lost,) = (await engine.expired("me")).leases
        reap = Settlement(
            queue=QUEUE,
            id="held",
            token=lost.token,
            target=JobState.FAILED,
            listed_expiry=lost.lease_expires,
        )
        assert (await engine.settle(reap)).settled == (SettleStatus.APPLIED,)
        os.kill(workers.processes[0].pid, signal.SIGCONT)
        late = await engine.settle(Settlement(queue=QUEUE, id="held", token=lost.token, target=JobState.SUCCEEDED))
        assert late.settled == (SettleStatus.LOST,)
    await engine.close()


async def test_a_worker_asked_to_stop_releases_its_jobs_and_exits_cleanly(url: str, tmp_path: Path) -> None:
    engine = open_engine(url)
    await engine.open()
    with WorkerProcesses(url, tmp_path / "runs", size=1) as workers:
        await enqueue(engine, "hold", ["held"], b"[[],{}]")
        await workers.first_run()
        assert await workers.stop_at_once(workers.processes[0]) == 0
    record = (await engine.get(JobKey(QUEUE, "held"))).jobs[0]
    assert record is not None
    assert (record.state, record.attempt, record.token) == (JobState.QUEUED, 0, None)
    assert (await engine.workers()).workers == ()
    await engine.close()
