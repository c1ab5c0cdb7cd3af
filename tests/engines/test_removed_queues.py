"""Two engines on one store: one has used a queue, the other removes it. No job is lost or gets into another queue."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from postgres_stories import Stores, made

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.operate import RemoveStatus
from holdfast.model.produce import Group, GroupAccepted, NewJob, PoolPlace
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Lease, QueueClaim, Settlement, TaskClaim

Open = Callable[[], Engine]


@pytest.fixture(params=["sqlite", "sqlite-general", "postgres"])
def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Makes engines on one store."""
    if request.param == "postgres":
        stores: Stores = request.getfixturevalue("postgres_store")
        store = stores()
        return lambda: made(store)
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
    if leases:
        ends = (Settlement(queue=j.queue, id=j.id, token=j.token, target=JobState.SUCCEEDED) for j in leases)
        await engine.settle(*ends)
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
