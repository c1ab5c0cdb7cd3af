"""Notifications and dead workers in a cluster: a channel belongs to the node of its slot, and moves with it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from eventually import eventually
from opened_engine import opened_engine
from redis_binaries import find_all
from redis_cluster import RedisCluster, cluster, private_cluster
from redis_server import RedisServer
from redis_stores import Store, fresh_cluster_namespace

from holdfast.engines import open_engine
from holdfast.engines.redis import presence
from holdfast.engines.redis.engine import RedisEngine
from holdfast.model.instants import SECOND
from holdfast.model.produce import Group
from holdfast.model.records import WorkerRecord
from holdfast.testing.contract.builders import QUEUE, claim, new_job

WATCHED = 60 * SECOND
OLDEST, NEWEST = find_all()[0].name, find_all()[-1].name
"""Without and with channels that stay at one node."""


@asynccontextmanager
async def opened(store: Store, mode: str) -> AsyncIterator[RedisEngine]:
    made = open_engine(store.url, namespace=store.namespace, durability="none", cluster=mode)
    assert isinstance(made, RedisEngine)
    async with opened_engine(made) as engine:
        yield engine


# WK3
@pytest.mark.parametrize("mode", ["queues", "namespace"])
@pytest.mark.parametrize("name", [OLDEST, NEWEST])
async def test_an_ended_worker_is_disowned_in_every_queue(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "MIN_UPTIME_S", -1)
    monkeypatch.setattr(presence, "BETWEEN_LOOKS_S", 0)
    store = fresh_cluster_namespace(cluster(name))
    async with opened(store, mode) as watcher:
        async with opened(store, mode) as engine:
            connection = engine.renewal_connection()
            await asyncio.to_thread(connection.heartbeat, WorkerRecord(worker="w"))
            for number in range(3):
                queue = f"q{number}"
                await engine.enqueue(Group((new_job("a", queue=queue),)))
                await engine.claim(claim(f"{number}" * 32, queue=queue, worker="w"))
            for _ in range(3):
                assert await watcher.disown_silent(WATCHED) == {}
            await asyncio.to_thread(connection.close)
        await eventually(lambda: _disowns(watcher))
        assert (await watcher.workers()).workers == ()
        assert len((await watcher.expired("other")).leases) == 3
        assert await watcher.audit() == ()


async def _disowns(watcher: RedisEngine) -> bool:
    return await watcher.disown_silent(WATCHED) == {"w": 3}


Migrate = Callable[[RedisCluster, int, RedisServer], None]


def move_slot(made: RedisCluster, key: str, migrate: Migrate) -> None:
    """Move the slot of a key to another node."""
    slot = made.slot_of(key)
    target = next(node for node in made.primaries if node is not made.node_of(slot))
    migrate(made, slot, target)


MIGRATIONS: list[Any] = [
    pytest.param(OLDEST, RedisCluster.migrate_slot, marks=pytest.mark.chaos),
    (NEWEST, RedisCluster.migrate_slot),
]
if find_all()[-1].moves_slots_in_one_step:
    in_one_step = RedisCluster.migrate_slot_in_one_step
    MIGRATIONS.append(pytest.param(NEWEST, in_one_step, marks=pytest.mark.chaos))


@pytest.mark.usefixtures("confirmed_subscriptions")
@pytest.mark.parametrize(("name", "migrate"), MIGRATIONS)
async def test_notifications_arrive_again_after_a_slot_has_moved(name: str, migrate: Migrate) -> None:
    with private_cluster(name) as made:
        store = fresh_cluster_namespace(made)
        async with opened(store, "queues") as engine, opened(store, "queues") as other:
            with engine.subscribe(f"queue:{QUEUE}") as subscription:
                await other.enqueue(Group((new_job("a"),)))
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}
                await asyncio.to_thread(move_slot, made, f"{store.namespace}:{{{QUEUE}}}:", migrate)
                await engine.stats(QUEUE)  # a worker polls
                count = 0

                async def arrives() -> bool:
                    nonlocal count
                    count += 1
                    await other.enqueue(Group((new_job(f"b{count}"),)))
                    return bool(await subscription.wait(0.2))

                await eventually(arrives)
                await eventually(lambda: engine.capabilities.push)
                await other.enqueue(Group((new_job("last"),)))
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}
