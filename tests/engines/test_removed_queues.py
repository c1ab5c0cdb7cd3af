"""Two engines on one store: one has used a queue, the other removes it. No job is lost or gets into another queue."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from postgres import PostgresServer
from postgres_stock import Store
from postgres_stories import Stores, made, until_one_waits

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.model.command import Command
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.observe import Audit, Stats
from holdfast.model.operate import Cancel, Delete, RemoveQueue, RemoveStatus
from holdfast.model.produce import Enqueue, Group, GroupAccepted, NewJob, PoolPlace
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Lease, QueueClaim, Settlement, SettleStatus, TaskClaim

Open = Callable[[], Engine]


@pytest.fixture(params=["sqlite", "sqlite-general", "file", "postgres", "redis"])
def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Makes engines on one store."""
    if request.param == "postgres":
        stores: Stores = request.getfixturevalue("postgres_store")
        store = stores()
        return lambda: made(store)
    if request.param == "redis":
        url, namespace = request.getfixturevalue("redis_store")()
        return lambda: open_engine(url, namespace=namespace, durability="none")
    if request.param == "file":
        return lambda: open_engine(f"file://{tmp_path}/jobs", durability="none")
    fast = request.param == "sqlite"
    return lambda: open_engine(f"sqlite:///{tmp_path}/jobs.db", durability="none", fast_paths=fast)


@asynccontextmanager
async def opened(open_one: Open) -> AsyncIterator[tuple[Engine, Engine]]:
    first, second = open_one(), open_one()
    await first.migrate()
    await first.open()
    await second.open()
    try:
        yield first, second
        assert await first.audit() == ()
    finally:
        await second.close()
        await first.close()


async def put(engine: Engine, queue: str, *ids: str, lane: str | None = None, pool: PoolPlace | None = None) -> None:
    jobs = tuple(NewJob(queue=queue, id=id, task="t", lane=lane, pool=pool) for id in ids)
    (answer,) = (await engine.enqueue(Group(jobs))).groups
    assert isinstance(answer, GroupAccepted)


async def take(engine: Engine, name: str, queue: str) -> tuple[Lease, ...]:
    queues = (QueueClaim(queue, (TaskClaim(task="t", lease_len=60 * SECOND),)),)
    return (await engine.claim(Claim(claim_id=name, worker="w", queues=queues, limit=100))).leases


async def use_up(engine: Engine, name: str, queue: str) -> list[str]:
    """Run and delete all jobs of a queue; their ids."""
    leases = await take(engine, name, queue)
    ids = [lease.id for lease in leases]
    for lease in leases:
        end = Settlement(queue=queue, id=lease.id, token=lease.token, target=JobState.SUCCEEDED)
        while (await engine.settle(end)).settled == (SettleStatus.BUSY,):
            pass  # another call has locked its lane: it is sent again, as workers do
    if ids:
        await engine.delete(queue, *ids)
    return ids


async def test_a_queue_that_another_process_removed_is_not_taken_for_a_new_one(open_one: Open) -> None:
    async with opened(open_one) as (first, second):
        await put(first, "old", "a")
        await put(second, "old", "b")
        assert await use_up(first, "c1", "old") == ["a", "b"]
        assert (await second.remove_queue("old")).status is RemoveStatus.REMOVED
        await put(second, "new", "n")

        await put(first, "old", "c")

        assert [queue.queue for queue in (await second.stats()).queues] == ["new", "old"]
        assert [lease.id for lease in await take(second, "c2", "new")] == ["n"]
        assert [lease.id for lease in await take(second, "c3", "old")] == ["c"]


async def test_a_removed_queue_reads_as_empty_in_a_process_that_has_used_it(open_one: Open) -> None:
    async with opened(open_one) as (first, second):
        await put(first, "old", "a")
        await use_up(first, "c1", "old")
        await second.remove_queue("old")
        await put(second, "new", "n")
        assert await take(first, "c2", "old") == ()
        assert (await first.get(JobKey("old", "n"))).jobs == (None,)
        (stats,) = (await first.stats("old")).queues
        assert (stats.depth, stats.totals.succeeded) == (0, 0)
        assert (await first.remove_queue("old")).status is RemoveStatus.NOT_FOUND


# RM3
async def test_enqueues_that_race_with_removals_lose_no_job(open_one: Open) -> None:
    async with opened(open_one) as (first, second):
        await first.put_pool("q", 2)
        ran: list[str] = []
        statuses: set[RemoveStatus] = set()

        async def produce(engine: Engine, name: str) -> None:
            for number in range(25):
                await put(engine, "q", f"{name}-{number}-plain")
                await put(engine, "q", f"{name}-{number}-lane", lane="left")
                await put(engine, "q", f"{name}-{number}-pool", pool=PoolPlace(2, "key"))

        async def consume() -> None:
            for number in range(60):
                ran.extend(await use_up(first, f"c{number}", "q"))
                statuses.add((await second.remove_queue("q")).status)

        await asyncio.gather(produce(first, "first"), produce(second, "second"), consume(), consume_again(second, ran))
        for number in range(200):
            more = await use_up(first, f"end{number}", "q")
            ran.extend(more)
            if not more:
                break
        assert len(ran) == len(set(ran)) == 2 * 25 * 3
        assert statuses <= {RemoveStatus.REMOVED, RemoveStatus.NOT_FOUND, RemoveStatus.HAS_JOBS}
        assert (await first.remove_queue("q")).status in (RemoveStatus.REMOVED, RemoveStatus.NOT_FOUND)
        assert (await first.stats()).queues == ()


async def consume_again(engine: Engine, ran: list[str]) -> None:
    for number in range(30):
        ran.extend(await use_up(engine, f"again{number}", "q"))


async def test_a_removal_on_postgresql_is_taken_back_when_a_job_comes_meanwhile(
    postgres_server: PostgresServer, postgres_store: Stores
) -> None:
    store = postgres_store()
    async with opened(lambda: made(store)) as (first, second):
        await first.put_pool("q", 2)
        await put(first, "q", "a", pool=PoolPlace(2))
        await use_up(first, "c1", "q")
        async with session(store) as other:
            await other.execute(f"SELECT pg_advisory_lock(hashtextextended('{store.namespace} fold', 0))")
            removal = asyncio.ensure_future(second.remove_queue("q"))
            await until_one_waits(postgres_server)  # it has seen no job, and has deleted nothing yet
            await put(first, "q", "b")
        answer = await removal
        assert (answer.status, answer.jobs) == (RemoveStatus.HAS_JOBS, 1)
        assert [pool.lanes for pool in (await first.pools()).pools] == [2]
        assert [lane.lane for lane in (await first.lanes("q")).lanes] == ["0"]
        (stats,) = (await first.stats()).queues
        assert (stats.depth, stats.totals.succeeded) == (1, 1)


@asynccontextmanager
async def session(store: Store) -> AsyncIterator[Any]:
    """A session of its own. Its end releases its locks."""
    connection = await asyncpg.connect(store.url)
    try:
        yield connection
    finally:
        await connection.close()


async def test_sqlite_never_uses_the_number_of_a_removed_queue_again(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/jobs.db", durability="none")
    await engine.open()
    for name in ("a", "b"):
        await engine.pause(name)
    await engine.resume("b")
    await engine.remove_queue("b")
    await engine.pause("c")
    await engine.close()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        assert db.execute("SELECT q, name FROM holdfast_queue ORDER BY q").fetchall() == [(1, "a"), (3, "c")]


def test_the_last_job_is_deleted_and_its_queue_removed_in_one_transaction(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/jobs.db", durability="none")
    assert isinstance(engine, SqliteEngine)
    engine.open_now()
    assert engine._writer is not None
    assert engine._writer.runner is not None
    engine.perform_now(Enqueue(groups=(Group((NewJob(queue="q", id="a", task="t"),)),)))
    commands: list[Command[Any]] = [
        Cancel(queue="q", ids=("a",)),
        Delete(queue="q", ids=("a",)),
        RemoveQueue(queue="q"),
    ]
    results = engine._writer.runner.run(commands)
    assert [result.error for result in results] == [None] * 3
    assert results[-1].answer.status is RemoveStatus.REMOVED
    assert engine.perform_now(Stats()).queues == ()
    assert engine.perform_now(Audit()).problems == ()
    engine.close_now()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        assert db.execute("SELECT name FROM holdfast_queue").fetchall() == []
        assert db.execute("SELECT * FROM holdfast_count").fetchall() == []
