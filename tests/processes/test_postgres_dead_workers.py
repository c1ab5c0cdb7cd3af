"""After the death of a worker its jobs run again without waiting for the lease; a worker that is cut off keeps them."""

import asyncio
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from eventually import eventually
from postgres import PostgresServer, private_server
from postgres_stock import Store, open_once, unused_name
from postgres_stories import Stores
from proxy import Proxy
from worker_processes import WorkerProcesses

from holdfast import App, Context
from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import JobState

QUEUE = "default"
LEASE_S = 30  # the default
HELD = 5  # jobs


@pytest.fixture
def store(postgres_store: Stores, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store; the worker processes learn its namespace from the environment."""
    made = postgres_store()
    monkeypatch.setenv("HOLDFAST_NAMESPACE", made.namespace)
    return made


def new_job(name: str) -> NewJob:
    return NewJob(queue=QUEUE, id=name, task="hold", payload=b"[[],{}]")


async def kill_and_measure(store: Store, log: Path, *, times: int, hosts: Path | None) -> list[float]:
    """Kill the worker that runs a job while another one is there; returns after how many seconds each job ran again."""
    engine = open_engine(store.url, namespace=store.namespace)
    await engine.open()
    took_s = []
    with WorkerProcesses(store.url, log, size=2, concurrency=2, hosts=hosts) as workers:

        def started(job: str, attempt: int) -> int | None:
            return next((run.pid for run in workers.runs() if (run.job, run.attempt) == (job, attempt)), None)

        for number in range(times):
            name = f"held-{number}"
            await until_workers(engine, 2)
            await engine.enqueue(Group((new_job(name),)))
            await eventually(lambda: started(name, 1), f"{name} to start", limit_s=60)  # noqa: B023
            workers.kill_one(started(name, 1))
            killed_s = time.monotonic()
            await eventually(lambda: started(name, 2), f"{name} to run again", limit_s=60)  # noqa: B023
            took_s.append(time.monotonic() - killed_s)
    await engine.close()
    return took_s


async def until_workers(engine: Engine, count: int) -> None:
    """There is no notification of a new worker, so the store is asked again and again."""
    for _ in range(600):
        if len((await engine.workers()).workers) == count:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"there are not {count} workers")


# WK3
async def test_on_one_host_a_killed_worker_s_job_runs_again_without_waiting_for_the_lease(
    store: Store, tmp_path: Path
) -> None:
    (took_s,) = await kill_and_measure(store, tmp_path / "runs", times=1, hosts=None)
    assert took_s < LEASE_S / 3


@pytest.mark.chaos
async def test_the_time_until_a_killed_worker_s_job_runs_again_on_one_host(store: Store, tmp_path: Path) -> None:
    took_s = await kill_and_measure(store, tmp_path / "runs", times=5, hosts=None)
    print(f"PostgreSQL, one host: kill -9 to the next run: {', '.join(f'{one:.1f} s' for one in sorted(took_s))}")
    assert max(took_s) < LEASE_S / 3


@pytest.mark.chaos
async def test_the_time_until_a_killed_worker_s_job_runs_again_without_host_records(
    store: Store, tmp_path: Path
) -> None:
    took_s = await kill_and_measure(store, tmp_path / "runs", times=5, hosts=tmp_path / "hosts")
    print(f"PostgreSQL, other host: kill -9 to the next run: {', '.join(f'{one:.1f} s' for one in sorted(took_s))}")
    assert max(took_s) < LEASE_S / 2


# Workers that live


@pytest.mark.chaos
async def test_after_an_outage_of_the_server_no_living_worker_is_disowned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All workers have then been silent for two heartbeats, and none has its session back yet."""
    name = unused_name()
    monkeypatch.setenv("HOLDFAST_NAMESPACE", name)
    jobs = [f"held-{number}" for number in range(HELD)]
    with private_server() as server:
        open_once(server.url(), name)
        with WorkerProcesses(server.url(), tmp_path / "runs", size=4, concurrency=2, hosts=tmp_path / "hosts"):
            engine = open_engine(server.url(), namespace=name)
            await engine.open()
            await until_workers(engine, 4)
            await engine.enqueue(Group(tuple(new_job(job) for job in jobs)))
            await until_state(engine, jobs, JobState.RUNNING)
            for _ in range(3):
                await asyncio.to_thread(server.stop)
                await asyncio.sleep(12)
                await asyncio.to_thread(server.start)
                await asyncio.sleep(15)  # a wrong check would come within this time
                records = await until_state(engine, jobs, JobState.RUNNING)
                assert [(record.attempt, record.losses) for record in records] == [(1, 0)] * HELD
            await engine.close()


def app_of(store: Store, url: str, finish: asyncio.Event) -> App[Any]:
    app: App[Any] = App(url, namespace=store.namespace)

    @app.task(name="hold")
    async def hold(ctx: Context) -> int:
        await finish.wait()
        return ctx.attempt

    return app


async def cut(server: PostgresServer, store: Store, *, cuts: int, longest_s: float) -> None:
    """Cut all connections of a worker again and again, each time for up to `longest_s`, while another one watches."""
    random, finish = Random(cuts), asyncio.Event()
    names = [f"held-{number}" for number in range(HELD)]
    with Proxy(server.port) as proxy:
        cut_off = app_of(store, server.url(port=proxy.port), finish)
        watching = app_of(store, store.url, finish)
        async with cut_off, watching, cut_off.worker(concurrency=HELD):
            engine = watching.engine
            await engine.enqueue(Group(tuple(new_job(name) for name in names)))
            await until_state(engine, names, JobState.RUNNING)
            async with watching.worker(concurrency=HELD):
                for _ in range(cuts):
                    proxy.refuse()
                    proxy.cut()
                    await asyncio.sleep(random.random() * longest_s)
                    proxy.accept()
                    await asyncio.sleep(random.random() * longest_s)
                finish.set()
                records = await until_state(engine, names, JobState.SUCCEEDED)
        assert [(record.attempt, record.losses) for record in records] == [(1, 0)] * HELD


async def until_state(engine: Engine, names: list[str], state: JobState) -> list[JobRecord]:
    for _ in range(600):
        records = [record for record in (await engine.get(*(JobKey(QUEUE, name) for name in names))).jobs if record]
        if [record.state for record in records] == [state] * len(names):
            return records
        await asyncio.sleep(0.1)
    raise TimeoutError(f"not all of {names} are {state}")


# asyncio forgets a connection that it accepts while its listener is being closed. To the client that connection hangs.
forgets_connections = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


# WK3
@forgets_connections
async def test_a_living_worker_whose_connections_are_cut_keeps_its_jobs(
    store: Store, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("keeper", "services"):
        monkeypatch.setattr(f"holdfast.worker.{module}.HEARTBEAT_US", 2 * SECOND)
    await cut(postgres_server, store, cuts=8, longest_s=1.0)


@forgets_connections
@pytest.mark.chaos
async def test_a_living_worker_keeps_its_jobs_through_two_hundred_cuts(
    store: Store, postgres_server: PostgresServer
) -> None:
    await cut(postgres_server, store, cuts=200, longest_s=2.0)
