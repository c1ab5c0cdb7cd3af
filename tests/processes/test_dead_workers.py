"""After the death of a worker its jobs run again without waiting for the lease; a worker that is cut off keeps them."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from eventually import eventually
from postgres import private_server
from postgres_stock import open_once, unused_name
from proxy import PostgresWire, Proxy, RedisWire
from redis_sentinel import SERVICE, private_sentinels
from redis_server import AOF_ALWAYS
from redis_server import private_server as private_redis
from worker_processes import WorkerProcesses

from holdfast import App, Context
from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.errors import HistoryLost
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import JobState

QUEUE = "default"
LEASE_S = 30  # the default
HELD = 5  # jobs


class Store(NamedTuple):
    """An empty store on a server."""

    kind: str
    server: Any
    url: str
    options: dict[str, Any]

    async def open(self) -> Engine:
        engine = open_engine(self.url, **self.options)
        await engine.open()
        return engine

    def proxy(self) -> Proxy:
        return Proxy(self.server.port, RedisWire if self.kind == "redis" else PostgresWire)


@pytest.fixture(params=["postgres", "redis"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The worker processes learn its namespace from the environment."""
    url, namespace = request.getfixturevalue(f"{request.param}_store")()
    monkeypatch.setenv("HOLDFAST_NAMESPACE", namespace)
    options = {"namespace": namespace} | ({"durability": "none"} if request.param == "redis" else {})
    return Store(request.param, request.getfixturevalue(f"{request.param}_server"), url, options)


redis_only = pytest.mark.parametrize("store", ["redis"], indirect=True)


def new_job(name: str) -> NewJob:
    return NewJob(queue=QUEUE, id=name, task="hold", payload=b"[[],{}]")


async def kill_and_measure(store: Store, log: Path, *, times: int, hosts: Path | None) -> list[float]:
    """Kill the worker that runs a job while another one is there; returns after how many seconds each job ran again."""
    engine = await store.open()
    took_s = []
    with WorkerProcesses(store.url, log, size=2, concurrency=2, hosts=hosts) as workers:

        def has_run_again(job: str) -> bool:
            return any((run.job, run.attempt) == (job, 2) for run in workers.runs())

        for number in range(times):
            name = f"held-{number}"
            await until_workers(engine, 2)
            await engine.enqueue(Group((new_job(name),)))
            await workers.kill_runner_of(name)
            killed_s = time.monotonic()
            await eventually(partial(has_run_again, name), f"{name} to run again", limit_s=60)
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
    print(f"{store.kind}, one host: kill -9 to the next run: {', '.join(f'{one:.1f} s' for one in sorted(took_s))}")
    assert max(took_s) < LEASE_S / 3


@redis_only
async def test_from_another_host_a_killed_worker_is_known_by_its_subscription(store: Store, tmp_path: Path) -> None:
    """About 3 s; longer if the server has just been started."""
    (took_s,) = await kill_and_measure(store, tmp_path / "runs", times=1, hosts=tmp_path / "hosts")
    assert took_s < LEASE_S / 2


@pytest.mark.chaos
async def test_the_time_until_a_killed_worker_s_job_runs_again_without_host_records(
    store: Store, tmp_path: Path
) -> None:
    took_s = await kill_and_measure(store, tmp_path / "runs", times=5, hosts=tmp_path / "hosts")
    print(f"{store.kind}, other host: kill -9 to the next run: {', '.join(f'{one:.1f} s' for one in sorted(took_s))}")
    assert max(took_s) < LEASE_S / 2


# Workers that live


@contextmanager
def private_store(kind: str, namespace: str) -> Iterator[tuple[Any, str]]:
    """A server that the test may stop, and the address of its store, which it keeps."""
    if kind == "redis":
        with private_redis(AOF_ALWAYS) as server:
            yield server, server.url()
        return
    with private_server() as server:
        open_once(server.url(), namespace)
        yield server, server.url()


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_after_an_outage_of_the_server_no_living_worker_is_disowned(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All workers have then been silent for two heartbeats, and none has its session back yet."""
    name = unused_name()
    monkeypatch.setenv("HOLDFAST_NAMESPACE", name)
    jobs = [f"held-{number}" for number in range(HELD)]
    with (
        private_store(kind, name) as (server, url),
        WorkerProcesses(url, tmp_path / "runs", size=4, concurrency=2, hosts=tmp_path / "hosts"),
    ):
        engine = open_engine(url, namespace=name)
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


@pytest.mark.chaos
@redis_only
async def test_after_a_server_did_not_answer_no_living_worker_is_disowned(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = store.options["namespace"]
    jobs = [f"held-{number}" for number in range(HELD)]
    with (
        private_store("redis", name) as (server, url),
        WorkerProcesses(url, tmp_path / "runs", size=4, concurrency=2, hosts=tmp_path / "hosts"),
    ):
        engine = open_engine(url, namespace=name)
        await engine.open()
        await until_workers(engine, 4)
        await engine.enqueue(Group(tuple(new_job(job) for job in jobs)))
        await until_state(engine, jobs, JobState.RUNNING)
        await asyncio.sleep(11)  # before that the server is too young for any worker to be disowned
        for blocked_s in (3, 8, 14, 20):  # less than the lease
            server.freeze()
            await asyncio.sleep(blocked_s)
            server.thaw()
            await asyncio.sleep(12)
            records = await until_state(engine, jobs, JobState.RUNNING)
            assert [(record.attempt, record.losses) for record in records] == [(1, 0)] * HELD
        await engine.close()


@pytest.mark.chaos
async def test_after_a_failover_no_living_worker_is_disowned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker is subscribed at the new primary at first, and the new primary has run for a long time."""
    name = unused_name()
    monkeypatch.setenv("HOLDFAST_NAMESPACE", name)
    monkeypatch.setenv("HOLDFAST_DURABILITY", "none")
    jobs = [f"held-{number}" for number in range(HELD)]
    with private_sentinels() as group:
        url = f"redis+sentinel://:{group.password}@{group.places}/{SERVICE}"
        with WorkerProcesses(url, tmp_path / "runs", size=4, concurrency=2, hosts=tmp_path / "hosts") as workers:
            engine = open_engine(url, namespace=name, durability="none")
            await engine.open()
            await until_workers(engine, 4)
            await engine.enqueue(Group(tuple(new_job(job) for job in jobs)))
            await until_state(engine, jobs, JobState.RUNNING)
            await asyncio.sleep(11)  # before that the servers are too young for any worker to be disowned
            for _ in range(2):
                old = group.primary
                await asyncio.to_thread(group.fail_over)
                await asyncio.to_thread(group.wait_for_other_primary, old)
                await asyncio.sleep(25)  # the old primary gives up after 10 s; then a wrong check would come
                with suppress(HistoryLost):  # heartbeats that the old primary had accepted meanwhile
                    await engine.workers()
                records = await until_state(engine, jobs, JobState.RUNNING)
                assert [(record.attempt, record.losses) for record in records] == [(1, 0)] * HELD
            await engine.close()
            assert len({run.pid for run in workers.runs()}) > 1


class Held:
    """Jobs that run until `finish` is set. `runs` has a line for each start."""

    def __init__(self) -> None:
        self.names = [f"held-{number}" for number in range(HELD)]
        self.runs: list[str] = []
        self.finish = asyncio.Event()

    def app(self, store: Store, url: str) -> App[Any]:
        app: App[Any] = App(url, **store.options)

        @app.task(name="hold", max_attempts=100)
        async def hold(ctx: Context) -> int:
            self.runs.append(ctx.job.id)
            await self.finish.wait()
            return ctx.attempt

        return app


async def cut(store: Store, *, cuts: int, shortest_s: float = 0, longest_s: float) -> tuple[list[JobRecord], Held]:
    """Cut all connections of a worker again and again, each time for up to `longest_s`, while another one watches."""
    random, held = Random(cuts), Held()
    with store.proxy() as proxy:
        cut_off = held.app(store, store.server.url(port=proxy.port))
        watching = held.app(store, store.url)
        async with cut_off, watching, cut_off.worker(concurrency=HELD):
            engine = watching.engine
            await engine.enqueue(Group(tuple(new_job(name) for name in held.names)))
            await until_state(engine, held.names, JobState.RUNNING)
            async with watching.worker(concurrency=HELD):
                for _ in range(cuts):
                    proxy.refuse()
                    proxy.cut()
                    await asyncio.sleep(shortest_s + random.random() * (longest_s - shortest_s))
                    proxy.accept()
                    await asyncio.sleep(random.random() * longest_s)
                held.finish.set()
                return await until_state(engine, held.names, JobState.SUCCEEDED), held


async def until_state(engine: Engine, names: list[str], state: JobState) -> list[JobRecord]:
    for _ in range(600):
        records = [record for record in (await engine.get(*(JobKey(QUEUE, name) for name in names))).jobs if record]
        if [record.state for record in records] == [state] * len(names):
            return records
        await asyncio.sleep(0.1)
    raise TimeoutError(f"not all of {names} are {state}")


# asyncio forgets a connection that it accepts while its listener is being closed. To the client that connection hangs.
forgets_connections = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

LONGEST_CUT_S = {"postgres": 2.0, "redis": 0.6}
"""On Redis a worker must be subscribed again within a second; the pause before its last try may take 0.25 s of it."""


# WK3
@forgets_connections
async def test_a_living_worker_whose_connections_are_cut_keeps_its_jobs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("keeper", "services"):
        monkeypatch.setattr(f"holdfast.worker.{module}.HEARTBEAT_US", 2 * SECOND)
    records, _ = await cut(store, cuts=8, longest_s=LONGEST_CUT_S[store.kind] / 2)
    assert [(record.attempt, record.losses) for record in records] == [(1, 0)] * HELD


@forgets_connections
@pytest.mark.chaos
@pytest.mark.time_limit(900)
async def test_a_living_worker_keeps_its_jobs_through_two_hundred_cuts(store: Store) -> None:
    records, _ = await cut(store, cuts=200, longest_s=LONGEST_CUT_S[store.kind])
    assert [(record.attempt, record.losses) for record in records] == [(1, 0)] * HELD


# WK3
@forgets_connections
@pytest.mark.chaos
@redis_only
async def test_a_longer_cut_costs_at_most_one_run_and_no_second_outcome(store: Store) -> None:
    records, held = await cut(store, cuts=3, shortest_s=4, longest_s=6)
    for record in records:
        assert held.runs.count(record.id) == record.attempt <= 4
    engine = await store.open()
    stats = (await engine.stats(QUEUE)).queues[0]
    assert (stats.totals.succeeded, stats.totals.finished) == (HELD, HELD)
    await engine.close()
