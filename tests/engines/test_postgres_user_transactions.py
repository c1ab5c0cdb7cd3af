"""Users' transactions on PostgreSQL that stay open, read an old snapshot, bring many jobs or are rolled back.

While one is open, every verb of another process is answered, and afterwards the store is sound.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest
from eventually import eventually
from every_verb import every_verb, group, new
from postgres import PostgresServer
from postgres_stock import Store
from postgres_stories import Stores, opened, until_one_waits

from holdfast.engine import Engine
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.produce import (
    DepthLimit,
    Enqueue,
    EnqueueStatus,
    Group,
    GroupAccepted,
    NewJob,
    Parent,
    PoolPlace,
)
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Exchange, Lease, QueueClaim, Settlement, TaskClaim

TIMEOUT_S = 20.0
"""A call that waits for no lock is answered in milliseconds."""
ISOLATIONS = ("read_committed", "repeatable_read")


class RolledBack(Exception):
    """Raised to roll a transaction back."""


@pytest.fixture
def store(postgres_store: Stores) -> Store:
    return postgres_store()


@asynccontextmanager
async def transaction(store: Store, isolation: str = "read_committed") -> AsyncIterator[Any]:
    """A transaction of a user, on a connection of its own."""
    connection: Any = await asyncpg.connect(store.url, server_settings={"application_name": "user"})
    try:
        async with connection.transaction(isolation=isolation):
            yield connection
    finally:
        await connection.close()


async def take(engine: Engine, queue: str, limit: int = 9) -> tuple[Lease, ...]:
    queues = (QueueClaim(queue, (TaskClaim(task="t", lease_len=60 * SECOND),)),)
    claim = Claim(claim_id=secrets.token_hex(16), worker="w", queues=queues, limit=limit)
    return (await engine.exchange(claim=claim)).leases


def end(lease: Lease, target: JobState) -> Exchange:
    return Exchange(settlements=(Settlement(queue=lease.queue, id=lease.id, token=lease.token, target=target),))


# PF5
@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_every_verb_is_answered_while_a_users_transaction_is_open(store: Store, isolation: str) -> None:
    async with opened(store, notify=False) as engine, opened(store, notify=False) as other:
        await prepare(engine, store)
        async with transaction(store, isolation) as user:
            await use_transaction(engine, user)
            verbs = every_verb(other)
            command = next(verbs)
            while command is not None:
                async with asyncio.timeout(TIMEOUT_S):
                    answer = await other.perform(command)
                try:
                    command = verbs.send(answer)
                except StopIteration:
                    break
            async with asyncio.timeout(TIMEOUT_S):
                assert [lease.id for lease in await take(other, "held")] == []
        assert await other.audit() == ()
        assert [lease.id for lease in await take(other, "q")] == ["replaced", "arrival-0", "limited", "keyed"]
        assert await other.audit() == ()


async def prepare(engine: Engine, store: Store) -> None:
    """A job that has ended in a transaction, whose lane has not counted that; and a leased job."""
    await engine.perform(group(new("replaced", lane="y", unique_key="old")))
    await engine.enqueue(Group(tuple(NewJob(queue="held", id=id, task="t", lane="x") for id in ("head", "next"))))
    (ended,) = await take(engine, "q")
    async with transaction(store) as user:
        await engine.in_transaction(end(ended, JobState.FAILED), user)


async def use_transaction(engine: Engine, user: Any) -> None:
    """Everything that an enqueue or a settlement in a user's transaction may touch."""
    (head,) = await take(engine, "held")
    await engine.in_transaction(end(head, JobState.SUCCEEDED), user)
    every_lane = (DepthLimit("q", 50, each_lane=True), DepthLimit("q", 50))
    for command in (
        group(new("replaced", lane="y", unique_key="new")),
        group(*(new(f"arrival-{number}", lane="x") for number in range(30))),
        group(new("limited"), new("in-lane", lane="x"), limits=every_lane),
        group(NewJob(queue="p", id="first", task="t", pool=PoolPlace(2, "key")), new("keyed", unique_key="key")),
        group(NewJob(queue="q2", id="child", task="t", parents=(Parent(JobKey("held", "next")),), lane="z")),
    ):
        answer = await engine.in_transaction(command, user)
        assert all(isinstance(one, GroupAccepted) for one in answer.groups)


# PF1
@pytest.mark.parametrize("fields", [{}, {"lane": "x"}, {"unique_key": "k"}], ids=["plain", "lane", "key"])
async def test_an_id_that_an_old_snapshot_does_not_see_is_refused_and_not_looked_up_for_ever(
    store: Store, fields: dict[str, Any]
) -> None:
    async with opened(store, notify=False) as engine:
        async with transaction(store, "repeatable_read") as user:
            await user.execute("SELECT 1")
            await engine.perform(group(new("a", **fields)))
            with pytest.raises(asyncpg.SerializationError):
                await asyncio.wait_for(engine.in_transaction(group(new("a", **fields)), user), TIMEOUT_S)
        async with transaction(store, "repeatable_read") as user:
            answer = await engine.in_transaction(group(new("a", **fields)), user)
        (accepted,) = answer.groups
        assert isinstance(accepted, GroupAccepted)
        assert accepted.jobs[0].status is EnqueueStatus.DUPLICATE


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "general"])
@pytest.mark.parametrize("lane", [None, "x"])
async def test_two_transactions_with_the_same_ids_do_not_wait_for_each_other(
    store: Store, postgres_server: PostgresServer, *, fast: bool, lane: str | None
) -> None:
    """Whatever the order is in which their groups name the ids. A third one makes both wait in the middle."""
    async with opened(store, notify=False, fast_paths=fast) as engine:

        async def bring(*ids: str) -> list[EnqueueStatus]:
            async with transaction(store) as user:
                answer = await engine.in_transaction(group(*(new(id, lane=lane) for id in ids)), user)
            return [job.status for one in answer.groups if isinstance(one, GroupAccepted) for job in one.jobs]

        with suppress(RolledBack):
            async with transaction(store) as third:
                await engine.in_transaction(group(new("m", lane=lane)), third)
                calls = [asyncio.create_task(bring("z", "m", "a")), asyncio.create_task(bring("a", "m", "z"))]
                await eventually(lambda: waiting_users(postgres_server) == len(calls))
                raise RolledBack
        async with asyncio.timeout(TIMEOUT_S):
            statuses = await asyncio.gather(*calls)
        assert sorted(statuses) == [[EnqueueStatus.CREATED] * 3, [EnqueueStatus.DUPLICATE] * 3]


def waiting_users(server: PostgresServer) -> int:
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'user' AND wait_event_type = 'Lock'"
    )
    return int(server.execute(query)[0][0])


async def test_a_group_keeps_the_order_in_which_its_jobs_were_given(store: Store) -> None:
    """Though they are inserted in the order of their ids."""
    ids = [f"{number % 7}-{number}" for number in range(20)]
    for fast in (True, False):
        async with opened(store, notify=False, fast_paths=fast) as engine:
            queue = f"q-{fast}"
            answer = await engine.enqueue(Group(tuple(NewJob(queue=queue, id=id, task="t") for id in ids)))
            assert [job.id for job in answer.groups[0].jobs] == ids  # type: ignore[union-attr]
            assert [lease.id for lease in await take(engine, queue, 20)] == ids


async def test_many_arrivals_are_admitted_while_another_transaction_stays_open(store: Store) -> None:
    async with opened(store, notify=False) as engine:
        jobs = tuple(new(f"job-{number}", lane=f"lane-{number % 50}") for number in range(3_000))
        async with transaction(store) as user:
            await engine.in_transaction(Enqueue(groups=(Group(jobs),)), user)
        async with transaction(store) as user:
            await engine.in_transaction(group(*(new(f"open-{lane}", lane=f"lane-{lane}") for lane in range(50))), user)
            async with asyncio.timeout(6 * TIMEOUT_S):
                ended: list[str] = []
                while leases := await take(engine, "q", 50):
                    settlements = [end(lease, JobState.SUCCEEDED).settlements[0] for lease in leases]
                    await engine.exchange(settlements=settlements)
                    ended += [lease.id for lease in leases]
                    if len(ended) >= 500:
                        break
        assert sorted(ended) == sorted(f"job-{number}" for number in range(500)), "each lane in its order"
        assert await engine.audit() == ()


async def test_jobs_of_users_transactions_are_admitted_to_lanes_in_the_order_of_all_lane_locks(
    store: Store, postgres_server: PostgresServer
) -> None:
    """A call that waits for a lane holds no later one: else it and a settlement of both would wait for each other."""
    async with opened(store, notify=False) as engine:
        await engine.perform(group(new("head-a", lane="a"), new("head-b", lane="b")))
        async with transaction(store) as user:
            await engine.in_transaction(group(new("first", lane="b"), new("second", lane="a")), user)
        async with transaction(store) as other, asyncio.timeout(TIMEOUT_S):
            await other.execute(f"SET LOCAL search_path = {store.namespace}")
            await other.execute("SELECT FROM lane WHERE lane = 'a' FOR UPDATE")
            pruning = asyncio.create_task(engine.prune())
            await until_one_waits(postgres_server)
            await other.execute("SELECT FROM lane WHERE lane = 'b' FOR UPDATE NOWAIT")
        await pruning
        assert await engine.audit() == ()


async def test_a_transaction_may_use_many_queues_with_long_names(store: Store) -> None:
    """A payload of NOTIFY is limited in bytes; workers of these queues poll."""
    queues = ["\u961f" * 199 + chr(ord("a") + number) for number in range(14)]
    async with opened(store) as engine:
        async with transaction(store) as user:
            await engine.in_transaction(group(*(NewJob(id="a", queue=queue, task="t") for queue in queues)), user)
        assert [lease.queue for queue in queues for lease in await take(engine, queue)] == queues
