"""Calls meet a job, a lane or a record that another session has locked: they pass it by, or wait for a limited time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from eventually import eventually
from postgres import PostgresServer
from postgres_stock import Store
from postgres_stories import Stores, opened

from holdfast.engine import Engine
from holdfast.errors import Busy
from holdfast.model.instants import HOUR, SECOND
from holdfast.model.outcome import decide_loss
from holdfast.model.produce import Accepted, Enqueue, EnqueueStatus, Group, GroupAccepted, NewJob
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState
from holdfast.model.work import (
    Claim,
    Exchange,
    Lease,
    QueueClaim,
    Renewal,
    RenewStatus,
    Settlement,
    SettleStatus,
    TaskClaim,
)

QUEUE = "q"
WAITING = (
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'"
    " AND wait_event_type = 'Lock'"
)
"""Sessions of engines in this database that wait for a lock."""


@pytest.fixture
def store(postgres_store: Stores) -> Store:
    return postgres_store()


@asynccontextmanager
async def session(store: Store) -> AsyncIterator[Any]:
    """Another session, inside a transaction, that finds the tables without a schema."""
    connection: Any = await asyncpg.connect(store.url, server_settings={"search_path": store.namespace})
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def locked(store: Store, what: str) -> AsyncIterator[None]:
    """Another session holds the lock of these rows."""
    async with session(store) as connection:
        await connection.execute(f"SELECT FROM {what} FOR UPDATE")
        yield


def job(id: str, **fields: Any) -> NewJob:
    return NewJob(queue=QUEUE, id=id, task="t", **fields)


async def put(engine: Engine, *jobs: NewJob) -> list[Accepted]:
    (answer,) = (await engine.enqueue(Group(jobs))).groups
    assert isinstance(answer, GroupAccepted)
    return list(answer.jobs)


async def take(engine: Engine, name: str = "c") -> list[Lease]:
    queues = (QueueClaim(QUEUE, (TaskClaim(task="t", lease_len=60 * SECOND),)),)
    return list((await engine.claim(Claim(claim_id=name, worker="w", queues=queues, limit=9))).leases)


async def taken(engine: Engine, name: str = "c") -> list[str]:
    return [lease.id for lease in await take(engine, name)]


def succeed(lease: Lease, **fields: Any) -> Settlement:
    return Settlement(queue=QUEUE, id=lease.id, token=lease.token, target=JobState.SUCCEEDED, **fields)


# Passed by


async def test_a_claim_passes_a_locked_job_by(store: Store) -> None:
    async with opened(store, notify=False) as engine:
        await put(engine, job("a"), job("b"))
        async with locked(store, "job WHERE id = 'a'"):
            assert await taken(engine) == ["b"]


async def test_a_due_job_that_is_locked_is_promoted_later(store: Store) -> None:
    async with opened(store, notify=False) as engine:
        await put(engine, job("a", delay=SECOND), job("b", delay=SECOND))
        engine.clock_offset += 10 * SECOND
        async with locked(store, "job WHERE id = 'a'"):
            assert await taken(engine) == ["b"]


async def test_a_due_job_of_a_locked_lane_is_promoted_later(store: Store) -> None:
    async with opened(store, notify=False) as engine:
        await put(engine, job("a", delay=SECOND, lane="x"), job("b", delay=SECOND))
        engine.clock_offset += 10 * SECOND
        async with locked(store, "lane"):
            assert await taken(engine) == ["b"]


async def test_a_renewal_passes_a_locked_job_by(store: Store) -> None:
    async with opened(store, notify=False) as engine:
        await put(engine, job("a"), job("b"))
        leases = await take(engine)
        engine.clock_offset += 10 * SECOND
        async with locked(store, "job WHERE id = 'a'"):
            answer = await engine.renew(*(Renewal(QUEUE, lease.id, lease.token) for lease in leases))
        assert answer.jobs[1].status is RenewStatus.HELD
        assert answer.jobs[1].lease_expires is not None
        assert answer.jobs[1].lease_expires > leases[1].lease_expires


async def test_a_reaper_passes_a_locked_job_by(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(store, notify=False) as engine:
        await put(engine, job("a"), job("b"))
        await take(engine)
        engine.clock_offset += 120 * SECOND
        lost = sorted((await engine.expired("reaper")).leases, key=lambda lease: lease.id)
        reaps = [decide_loss(lease, None, draw=0.0) for lease in lost]
        async with locked(store, "job WHERE id = 'a'"):
            statuses = (await engine.settle(*reaps)).settled
        assert statuses[0] is not SettleStatus.APPLIED
        assert statuses[1] is SettleStatus.APPLIED
        assert "sent again" not in caplog.text  # which would mean that the first call has waited


async def test_a_dead_worker_is_disowned_except_for_a_locked_job(store: Store) -> None:
    async with opened(store, notify=False) as engine:
        await put(engine, job("a"), job("b"))
        await take(engine)
        async with locked(store, "job WHERE id = 'a'"):
            assert [lease.id for lease in (await engine.disown("w")).leases] == ["b"]


async def test_a_prune_passes_everything_by_that_is_locked(store: Store) -> None:
    async with opened(store, notify=False) as engine:
        await put(engine, job("a"), job("b"))
        for lease in await take(engine):
            await engine.settle(succeed(lease, retention=SECOND, result_ttl=SECOND))
        async with locked(store, "job WHERE id = 'a'"):
            engine.clock_offset += 10 * SECOND
            assert [key.id for key in (await engine.prune(10)).deleted] == ["b"]


async def test_a_prune_leaves_a_job_of_a_locked_lane_for_later(store: Store) -> None:
    async with opened(store, notify=False) as engine:
        expires = (await engine.now()).wall + SECOND
        await put(engine, job("a", lane="x", expires=expires), job("b", expires=expires))
        engine.clock_offset += 10 * SECOND
        async with locked(store, "lane"):
            assert [key.id for key in (await engine.prune(10)).expired] == ["b"]


@pytest.mark.parametrize("what", ["worker WHERE worker = 'first'", "lane_cursor"])
async def test_a_prune_does_not_wait_for_another_one(store: Store, what: str) -> None:
    async with opened(store, notify=False) as engine:
        for name in ("first", "second"):
            await engine.heartbeat(WorkerRecord(worker=name, interval=SECOND))
        engine.clock_offset += 2 * HOUR
        async with locked(store, what):
            assert "second" in (await engine.prune(10)).workers


# Waited for, with a limit


async def test_an_enqueue_waits_for_the_key_of_an_open_transaction_and_then_gives_up(store: Store) -> None:
    async with opened(store, notify=False) as engine:
        keyed = Group((job("a", unique_key="k"),))

        async def refused(call: Any) -> None:
            with pytest.raises((Busy, asyncpg.LockNotAvailableError)):
                await call

        async with session(store) as ours, session(store) as another:
            await ours.execute("INSERT INTO unique_key VALUES ('q', 't', 'k', '')")
            await asyncio.gather(
                refused(engine.enqueue(keyed)), refused(engine.in_transaction(Enqueue(groups=(keyed,)), another))
            )


async def test_of_two_callers_at_once_one_learns_that_a_queue_ran_empty(
    store: Store, postgres_server: PostgresServer
) -> None:
    async with opened(store, notify=False) as engine:
        await put(engine, job("a"))
        for lease in await take(engine):
            await engine.settle(succeed(lease))
        async with session(store) as first:
            request = '{"queue": "q"}'
            answer = await first.fetchval(f"SELECT {engine._schema.rules}.emptied($1, 0, 0)", request)
            assert '"emptied":true' in answer
            second = asyncio.ensure_future(engine.emptied(QUEUE))
            await eventually(lambda: postgres_server.execute(WAITING))
        assert not (await second).emptied


# Prune: what is kept


async def test_an_end_that_its_lane_has_not_processed_is_kept(store: Store) -> None:
    async with opened(store, notify=False) as engine:
        await put(engine, job("a", lane="x"), job("b", lane="x"))
        (lease,) = await take(engine)
        async with session(store) as user:
            end = succeed(lease, retention=0, result_ttl=0)
            await engine.in_transaction(Exchange(settlements=(end,)), user)
        async with session(store) as other:  # it is about to process the end
            await other.execute(f"SELECT pg_advisory_xact_lock(hashtextextended('{store.namespace} deferred q', 0))")
            engine.clock_offset += HOUR
            assert (await engine.prune(10)).deleted == ()
        assert await taken(engine, "next") == ["b"]
        assert await engine.audit() == ()


async def test_the_prune_of_a_job_leaves_its_key_to_the_job_that_has_taken_it(store: Store) -> None:
    async with opened(store, notify=False) as engine:
        await put(engine, job("old", unique_key="k"))
        for lease in await take(engine):
            await engine.settle(succeed(lease, retention=SECOND, result_ttl=SECOND))
        await put(engine, job("new", unique_key="k"))
        engine.clock_offset += HOUR
        assert [key.id for key in (await engine.prune(10)).deleted] == ["old"]
        (answer,) = await put(engine, job("third", unique_key="k"))
        assert (answer.status, answer.id) == (EnqueueStatus.DUPLICATE, "new")


async def test_a_prune_folds_the_tally(store: Store, postgres_server: PostgresServer) -> None:
    async with opened(store, notify=False) as engine:
        await put(engine, job("a"))
        await engine.prune(10)
        assert postgres_server.execute(f"SELECT count(*) FROM {store.namespace}.tally") == [(0,)]
        assert (await engine.stats(QUEUE)).queues[0].depth == 1


async def test_prunes_go_through_all_lanes_in_turn(store: Store, postgres_server: PostgresServer) -> None:
    async with opened(store, notify=False) as engine:
        await put(engine, job("a"))
        values = "SELECT 'q', to_char(n, '0000'), n <= 1000, 0 FROM generate_series(1, 1005) AS n"
        postgres_server.execute(f"INSERT INTO {store.namespace}.lane (queue, lane, paused, emptied) {values}")
        for _ in range(2):
            await engine.prune(10)
        assert len((await engine.lanes(QUEUE)).lanes) == 1000
