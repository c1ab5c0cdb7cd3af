"""Who waits for whom: whoever has a lane in hand waits for nobody that may wait for the lane."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.produce import EnqueueStatus, Group, GroupAccepted, NewJob, Parent
from holdfast.model.states import JobState
from holdfast.model.work import Claim, ExchangeAnswer, QueueClaim, Settlement, SettleStatus, TaskClaim

if TYPE_CHECKING:
    from postgres_stock import Store

SOON = 30.0
"""Far longer than an answer takes that waits for nobody."""


@asynccontextmanager
async def opened(store: "Store") -> AsyncIterator[Engine]:
    engine = open_engine(store.url, namespace=store.namespace, notify=False)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def in_hand(store: "Store", id: str) -> AsyncIterator[None]:
    """Somebody has this job locked."""
    connection: Any = await asyncpg.connect(store.url)
    try:
        async with connection.transaction():
            await connection.execute(f"SELECT FROM {store.namespace}.job WHERE id = $1 FOR UPDATE", id)
            yield
    finally:
        await connection.close()


async def claimed(engine: Engine) -> ExchangeAnswer:
    queues = (QueueClaim("q", (TaskClaim(task="t", lease_len=60 * SECOND),)),)
    return await engine.exchange(claim=Claim(claim_id="c", worker="w", queues=queues, limit=9))


def in_lane(id: str) -> Group:
    return Group((NewJob(queue="q", id=id, task="t", lane="x"),))


def test_a_late_settlement_does_not_wait_for_who_has_the_job(postgres_store: "Callable[[], Store]") -> None:
    """It may be an arrival that replaces it, and waits for the lane."""

    async def scenario() -> None:
        store = postgres_store()
        async with opened(store) as engine:
            await engine.enqueue(in_lane("a"))
            (lease,) = (await claimed(engine)).leases
            end = Settlement(queue="q", id="a", token=lease.token, target=JobState.FAILED, lane="x")
            late = Settlement(queue="q", id="a", token="another.0", target=JobState.FAILED, lane="x")
            await engine.exchange(settlements=[end])
            async with in_hand(store, "a"), asyncio.timeout(SOON):
                told = await engine.exchange(settlements=[end, late])
            assert told.settled == (SettleStatus.APPLIED, SettleStatus.LOST)

    asyncio.run(scenario())


def test_an_enqueue_does_not_wait_for_who_has_the_job_that_lives(postgres_store: "Callable[[], Store]") -> None:
    """It may be its worker, which has the lane that the rest of the group is to go to."""

    async def scenario() -> None:
        store = postgres_store()
        async with opened(store) as engine:
            await engine.enqueue(in_lane("a"))
            await claimed(engine)
            async with in_hand(store, "a"), asyncio.timeout(SOON):
                (said,) = (await engine.enqueue(in_lane("a"))).groups
            assert isinstance(said, GroupAccepted)
            assert said.jobs[0].status is EnqueueStatus.DUPLICATE

    asyncio.run(scenario())


def test_a_parent_that_ends_does_not_wait_for_who_has_its_child(postgres_store: "Callable[[], Store]") -> None:
    """The child hears of it from whoever comes next."""

    async def scenario() -> None:
        store = postgres_store()
        async with opened(store) as engine:
            child = NewJob(queue="q", id="b", task="t", parents=(Parent(JobKey("q", "a")),))
            await engine.enqueue(Group((NewJob(queue="q", id="a", task="t"), child)))
            (lease,) = (await claimed(engine)).leases
            end = Settlement(queue="q", id="a", token=lease.token, target=JobState.SUCCEEDED)
            async with in_hand(store, "b"), asyncio.timeout(SOON):
                await engine.exchange(settlements=[end])
                assert await engine.audit() == ()
            assert [one.id for one in (await claimed(engine)).leases] == ["b"]
            assert await engine.audit() == ()

    asyncio.run(scenario())
