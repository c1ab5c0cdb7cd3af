"""A worker that is sick and lives (no descriptors left, a slow disk, a pause past the lease) fails no healthy job."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from eventually import eventually
from pause_process import pause_process

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import TERMINAL, JobState

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis_stores
    from postgres import PostgresServer
    from postgres_stock import Store

SUPPORT = Path(__file__).parents[1] / "support"
QUEUE = "default"


@contextmanager
def sick_worker(
    url: str, folder: Path, fault: str, value: object, **settings: str
) -> "Iterator[subprocess.Popen[bytes]]":
    environment = {**os.environ, "SICK_URL": url, "SICK_FOLDER": str(folder), "HOLDFAST_WORKER_REAP_INTERVAL": "0.5"}
    program = [sys.executable, str(SUPPORT / "sick_app.py"), fault, str(value)]
    process = subprocess.Popen(program, env=environment | settings)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(timeout=30)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Engine]:
    engine = open_engine(url, **options)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


def environment(options: dict[str, Any]) -> dict[str, str]:
    return {f"HOLDFAST_{name.upper()}": value for name, value in options.items()}


async def enqueue(engine: Engine, task: str, *ids: str, payload: bytes = b"[[],{}]") -> None:
    await engine.enqueue(Group(tuple(NewJob(queue=QUEUE, id=id, task=task, payload=payload) for id in ids)))


async def records(engine: Engine, *ids: str) -> list[JobRecord]:
    answer = await engine.get(*(JobKey(QUEUE, id) for id in ids))
    return [record for record in answer.jobs if record is not None]


async def ended(engine: Engine, *ids: str) -> list[JobRecord]:
    with engine.subscribe(f"room:{QUEUE}") as subscription:
        while not all(record.state in TERMINAL for record in await records(engine, *ids)):
            await subscription.wait(0.5)
    return await records(engine, *ids)


def assert_ran_once(found: list[JobRecord]) -> None:
    assert [(job.id, job.state, job.attempt, job.losses) for job in found] == [
        (job.id, JobState.SUCCEEDED, 1, 0) for job in found
    ]


async def use_up_descriptors(url: str, folder: Path, **options: Any) -> None:
    async with opened(url, **options) as engine:
        await enqueue(engine, "greedy", "greedy", payload=b"[[5],{}]")
        await enqueue(engine, "steady", "a", "b", payload=b"[[6],{}]")
        # Renewals come after a third of the lease: a busy machine may need two seconds for one.
        with sick_worker(url, folder, "descriptors", 64, SICK_LEASE_S="4", **environment(options)):
            await eventually(lambda: len(list(folder.glob("[ab]-1-*"))) == 2, "the other jobs to start", limit_s=60)
            (folder / "greedy-may-begin").touch()
            assert_ran_once(await ended(engine, "greedy", "a", "b"))


async def test_no_lease_is_lost_when_the_descriptors_of_a_worker_are_used_up(tmp_path: Path) -> None:
    await use_up_descriptors(f"sqlite:///{tmp_path}/jobs.db", tmp_path)


async def test_no_lease_is_lost_on_postgresql_when_the_descriptors_of_a_worker_are_used_up(
    tmp_path: Path, postgres_store: "Callable[[], Store]"
) -> None:
    store = postgres_store()
    await use_up_descriptors(store.url, tmp_path, namespace=store.namespace)


async def test_no_lease_is_lost_on_redis_when_the_descriptors_of_a_worker_are_used_up(
    tmp_path: Path, redis_store: "Callable[[], redis_stores.Store]"
) -> None:
    store = redis_store()
    await use_up_descriptors(store.url, tmp_path, namespace=store.namespace, durability="none")


# A8
async def test_a_worker_that_was_stopped_past_its_lease_takes_the_loss_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    await stop_past_lease(url, tmp_path, lambda pid: pause_process(pid, tmp_path / "jobs.db"))


async def test_a_worker_on_redis_that_was_stopped_past_its_lease_takes_the_loss_back(
    tmp_path: Path, redis_store: "Callable[[], redis_stores.Store]"
) -> None:
    url, namespace = redis_store()
    options = {"namespace": namespace, "durability": "none"}
    await stop_past_lease(url, tmp_path, lambda pid: os.kill(pid, signal.SIGSTOP), **options)


async def stop_past_lease(url: str, tmp_path: Path, stop: "Callable[[int], None]", **options: Any) -> None:
    names = environment(options)
    async with opened(url, **options) as engine:
        await enqueue(engine, "waiting", "a")
        with sick_worker(url, tmp_path, "none", 0, **names) as first:
            await eventually((tmp_path / f"a-1-{first.pid}").exists, "the first attempt", limit_s=60)
            stop(first.pid)
            with sick_worker(url, tmp_path, "none", 0, **names) as second:
                await eventually((tmp_path / f"a-2-{second.pid}").exists, "the second attempt", limit_s=60)
                assert [job.losses for job in await records(engine, "a")] == [1]
                (tmp_path / "end-1").touch()
                first.send_signal(signal.SIGCONT)
                with engine.subscribe("nothing") as pause:
                    while [job.losses for job in await records(engine, "a")] != [0]:
                        await pause.wait(0.1)
                (tmp_path / "end-2").touch()
                (job,) = await ended(engine, "a")
                assert (job.state, job.attempt, job.losses) == (JobState.SUCCEEDED, 2, 0)


@pytest.mark.chaos
async def test_no_lease_is_lost_on_a_disk_that_takes_seconds_for_a_sync(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    ids = [f"job-{number}" for number in range(6)]
    async with opened(url) as engine:
        await enqueue(engine, "steady", *ids, payload=b"[[25],{}]")
        with sick_worker(url, tmp_path, "slow-sync", 2, SICK_LEASE_S="10"):
            assert_ran_once(await ended(engine, *ids))


@pytest.mark.chaos
async def test_no_lease_is_lost_while_commits_of_the_server_do_not_return(tmp_path: Path) -> None:
    """A standby that does not exist: every commit that waits for it waits until the setting is taken back."""
    from postgres import private_server
    from postgres_stock import fresh_namespace

    def set_standby(server: "PostgresServer", name: str) -> None:
        server.execute("SET synchronous_commit = local")
        server.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        server.execute("SELECT pg_reload_conf()")

    ids = [f"job-{number}" for number in range(6)]
    with private_server() as server:
        store = fresh_namespace(server)
        async with opened(store.url, namespace=store.namespace) as engine:
            await enqueue(engine, "steady", *ids, payload=b"[[25],{}]")
            names = environment({"namespace": store.namespace})
            with sick_worker(store.url, tmp_path, "none", 0, SICK_LEASE_S="6", **names):
                await eventually(lambda: len(list(tmp_path.glob("job-*"))) == 6, "all jobs to start", limit_s=60)
                set_standby(server, "nobody")
                await asyncio.to_thread(threading.Event().wait, 15)
                set_standby(server, "")
                assert_ran_once(await ended(engine, *ids))
