"""Jobs that kill their worker each time, beside jobs that do no harm: only the guilty ones end as dead letters.

Each job that kills its worker is somewhere between the others, so that it dies together with them at first.
"""

import asyncio
import time
from pathlib import Path

import pytest
from eventually import eventually
from manager_process import ManagerProcess
from steady_workers import Store
from stored_records import records_of
from worker_processes import WorkerProcesses

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.model.job import JobRecord
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import JobState, Reason

QUEUE = "default"
HEALTHY_WITHIN_S = 120.0


async def enqueue(engine: Engine, *, healthy: int, poison: int) -> list[str]:
    every = healthy // poison
    jobs = []
    for number in range(healthy):
        if number % every == every // 2 and number // every < poison:
            jobs.append(NewJob(queue=QUEUE, id=f"poison-{number // every}", task="segfault", payload=b"[[],{}]"))
        jobs.append(NewJob(queue=QUEUE, id=f"healthy-{number}", task="healthy", payload=b"[[],{}]"))
    await engine.enqueue(Group(tuple(jobs)))
    return [job.id for job in jobs]


async def wait_for_healthy(engine: Engine, count: int) -> None:
    async def have_ended() -> bool:
        return (await engine.stats(QUEUE)).queues[0].totals.succeeded == count

    began = time.monotonic()
    await eventually(have_ended, "the healthy jobs", limit_s=HEALTHY_WITHIN_S)
    print(f"the {count} healthy jobs have ended after {time.monotonic() - began:.1f} s")


async def wait_for_poison(engine: Engine, count: int) -> None:
    async def have_ended() -> bool:
        return (await engine.stats(QUEUE)).queues[0].totals.failed == count

    began = time.monotonic()
    await eventually(have_ended, "the jobs that kill", limit_s=300)
    print(f"and the {count} jobs that kill {time.monotonic() - began:.1f} s later")


def check(records: list[JobRecord]) -> None:
    healthy = [record for record in records if record.task == "healthy"]
    poison = [record for record in records if record.task == "segfault"]
    print(f"losses of a healthy job: {max(record.losses for record in healthy)} at most")
    assert {record.state for record in healthy} == {JobState.SUCCEEDED}
    assert {(record.state, record.reason, record.losses) for record in poison} == {
        (JobState.FAILED, Reason.WORKER_LOST, 5)
    }


async def play_workers(store: Store, folder: Path, *, healthy: int, poison: int, processes: int) -> None:
    """Workers that a supervisor starts again at once."""
    engine = open_engine(store.url, **store.options)
    await engine.open()
    ids = await enqueue(engine, healthy=healthy, poison=poison)
    with WorkerProcesses(store.url, folder / "runs", size=processes, concurrency=10) as workers:

        async def supervise() -> None:
            deaths = 0
            try:
                while True:
                    deaths += workers.replace_ended()
                    await asyncio.sleep(0.05)
            finally:
                print(f"{deaths} workers have died")

        async with asyncio.TaskGroup() as group:
            supervisor = group.create_task(supervise())
            await wait_for_healthy(engine, healthy)
            await wait_for_poison(engine, poison)
            supervisor.cancel()
    check(await records_of(engine, QUEUE, ids))
    await engine.close()


async def play_manager(store: Store, folder: Path, *, healthy: int, poison: int) -> None:
    engine = open_engine(store.url, **store.options)
    await engine.open()
    ids = await enqueue(engine, healthy=healthy, poison=poison)
    options = ("--min", "2", "--max", "2", "-c", "10")
    with ManagerProcess(store.url, folder, *options) as manager:
        await wait_for_healthy(engine, healthy)
        await wait_for_poison(engine, poison)
        print(f"{manager.errors.count('SIGSEGV. Another one')} workers have died")
    records = await records_of(engine, QUEUE, ids)
    check(records)
    for record in records:
        if record.task == "segfault":
            assert record.last_error is not None
            assert "SIGSEGV" in record.last_error.message
    await engine.close()


async def test_a_job_that_kills_its_worker_fails_no_other(steady_store: Store, tmp_path: Path) -> None:
    await play_workers(steady_store, tmp_path, healthy=40, poison=1, processes=1)


@pytest.mark.chaos
@pytest.mark.parametrize("poison", [1, 20])
async def test_jobs_that_kill_their_workers_fail_no_other(steady_store: Store, tmp_path: Path, poison: int) -> None:
    await play_workers(steady_store, tmp_path, healthy=200, poison=poison, processes=2)


@pytest.mark.chaos
@pytest.mark.parametrize("poison", [1, 20])
async def test_jobs_that_kill_their_workers_fail_no_other_under_a_manager(
    steady_store: Store, tmp_path: Path, poison: int
) -> None:
    await play_manager(steady_store, tmp_path, healthy=200, poison=poison)
