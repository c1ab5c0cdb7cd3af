"""Lock order: a call that holds the lock of a lane never waits for a call that may wait for the same lock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from postgres_stock import Store
from postgres_stories import Stores, opened

from holdfast.engine import Engine
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.produce import EnqueueStatus, Group, GroupAccepted, NewJob, Parent
from holdfast.model.states import JobState
from holdfast.model.work import Claim, ExchangeAnswer, QueueClaim, Settlement, SettleStatus, TaskClaim

TIMEOUT_S = 30.0  # a call that waits for no lock is answered in milliseconds


@pytest.fixture
def store(postgres_store: Stores) -> Store:
    return postgres_store()


@asynccontextmanager
async def locked(store: Store, id: str) -> AsyncIterator[None]:
    """Another session holds the lock of this job."""
    connection: Any = await asyncpg.connect(store.url)
    try:
        async with connection.transaction():
            await connection.execute(f"SELECT FROM {store.namespace}.job WHERE id = $1 FOR UPDATE", id)
            yield
    finally:
        await connection.close()


async def claim_all(engine: Engine) -> ExchangeAnswer:
    queues = (QueueClaim("q", (TaskClaim(task="t", lease_len=60 * SECOND),)),)
    return await engine.exchange(claim=Claim(claim_id="c", worker="w", queues=queues, limit=9))


def in_lane(id: str) -> Group:
    return Group((NewJob(queue="q", id=id, task="t", lane="x"),))


async def test_a_late_settlement_does_not_wait_for_a_lock_on_its_job(store: Store) -> None:
    """The lock may belong to an enqueue that replaces the job and waits for the lane."""
    async with opened(store, notify=False) as engine:
        await engine.enqueue(in_lane("a"))
        (lease,) = (await claim_all(engine)).leases
        end = Settlement(queue="q", id="a", token=lease.token, target=JobState.FAILED, lane="x")
        late = Settlement(queue="q", id="a", token="another.0", target=JobState.FAILED, lane="x")
        await engine.exchange(settlements=[end])
        async with locked(store, "a"), asyncio.timeout(TIMEOUT_S):
            answer = await engine.exchange(settlements=[end, late])
        assert answer.settled == (SettleStatus.APPLIED, SettleStatus.LOST)


async def test_an_enqueue_does_not_wait_for_a_lock_on_the_live_job_of_its_id(store: Store) -> None:
    """The lock may belong to the job's worker, which holds the lane that the rest of the group goes to."""
    async with opened(store, notify=False) as engine:
        await engine.enqueue(in_lane("a"))
        await claim_all(engine)
        async with locked(store, "a"), asyncio.timeout(TIMEOUT_S):
            (group,) = (await engine.enqueue(in_lane("a"))).groups
        assert isinstance(group, GroupAccepted)
        assert group.jobs[0].status is EnqueueStatus.DUPLICATE


async def test_a_parent_that_ends_does_not_wait_for_a_lock_on_its_child(store: Store) -> None:
    """The next call updates the child."""
    async with opened(store, notify=False) as engine:
        child = NewJob(queue="q", id="b", task="t", parents=(Parent(JobKey("q", "a")),))
        await engine.enqueue(Group((NewJob(queue="q", id="a", task="t"), child)))
        (lease,) = (await claim_all(engine)).leases
        end = Settlement(queue="q", id="a", token=lease.token, target=JobState.SUCCEEDED)
        async with locked(store, "b"), asyncio.timeout(TIMEOUT_S):
            await engine.exchange(settlements=[end])
            assert await engine.audit() == ()
        assert [lease.id for lease in (await claim_all(engine)).leases] == ["b"]
        assert await engine.audit() == ()
