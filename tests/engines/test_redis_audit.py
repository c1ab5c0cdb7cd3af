"""The audit finds every index, counter and edge that does not follow from the records."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis_server import RedisServer
from redis_stores import Store

from holdfast.engines.redis import audit_keys
from holdfast.engines.redis.engine import RedisEngine
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.operate import Cancel, Resize
from holdfast.model.produce import Enqueue, Group, NewJob, Parent, PoolPlace
from holdfast.model.work import Claim, Exchange, QueueClaim, TaskClaim
from holdfast.runtime import SystemRuntime

DAMAGE = {
    "HDEL jobs:q run": "the count of running jobs is not that of the records",
    "HSET jobs:q run x": "its record cannot be decoded",
    "HSET queue:q queued 7": "the count of queued jobs is not that of the records",
    "HSET queue:pool pooled 7": "the count of live jobs of a pool is not that of the records",
    "HDEL queue:q paused": "it has jobs and no record",
    "ZREM queues q": "its record and the list of queues contradict each other",
    "ZADD state:q:queued 1 x": "the list of queued jobs is not that of the records",
    "ZADD ready:q:t 1 x": "the ready jobs of task 't' are not those of the records",
    "SREM tasks:q t": "is not in the list of tasks",
    "DEL due:q": "the index of due times is not that of the records",
    "DEL epoch:pool": "the jobs that wait for a resize are not those of the records",
    "DEL lane:lanes:x": "the jobs that wait in lane 'x' are not those of the records",
    "HDEL lanes:lanes x": "lane 'x' of queue 'lanes' has jobs and no record",
    "HSET keys:q t none": "which does not have it",
    "DEL keys:q": "key 'k' does not name job 'key', which holds it",
    "DEL payload:q:large": "its payload is missing",
    "DEL leases": "the list of leases is not that of the records",
    "HSET claims c 9": "the list of claims is not that of the records",
    "DEL ended": "the index of ended jobs is not that of the records",
    "DEL expiring": "the index of expiring jobs is not that of the records",
    "ZADD idle_lanes 1 x": "the list of idle lanes is not that of the records",
    "ZADD ended_parents 0 x": "the list of ended parents is not that of the records",
    "DEL edges:q:run": "parents left, edges say otherwise",
}
"""A command that damages the store, with `keys` of the root, and what the audit says."""


def new(job_id: str, queue: str = "q", **fields: Any) -> NewJob:
    return NewJob(queue=queue, id=job_id, task="t", **fields)


async def fill(engine: RedisEngine) -> None:
    jobs = [new("run", priority=9), new("wait"), new("late", delay=SECOND), new("end"), new("key", unique_key="k")]
    jobs += [new("child", parents=(Parent(JobKey("q", "run")),)), new("large", payload=b"x" * 9_000)]
    jobs += [new("expires", expires=2**52), new("old", "pool", pool=PoolPlace(2, "a"))]
    jobs += [new(str(number), "lanes", lane="x") for number in range(3)]
    await engine.perform(Enqueue(groups=(Group(tuple(jobs)),)))
    await engine.perform(Resize(name="pool", lanes=3))
    await engine.perform(Enqueue(groups=(Group((new("new", "pool", pool=PoolPlace(3, "b")),)),)))
    await engine.perform(Cancel(queue="q", ids=("end",)))
    queues = (QueueClaim("q", (TaskClaim(task="t", lease_len=60 * SECOND),)),)
    await engine.perform(Exchange(claim=Claim(claim_id="c", worker="w", queues=queues, limit=1)))


@asynccontextmanager
async def open_engine(store: Store) -> AsyncIterator[RedisEngine]:
    engine = RedisEngine(store.url, SystemRuntime(), namespace=store.namespace, durability="none")
    await engine.open()
    yield engine
    await engine.close()


@pytest.mark.parametrize("max_at_once", [audit_keys.MAX_AT_ONCE, 5], ids=["at-once", "in-pages"])
async def test_the_audit_finds_damage(
    redis_server: RedisServer,
    redis_store: Callable[[], Store],
    monkeypatch: pytest.MonkeyPatch,
    max_at_once: int,
) -> None:
    monkeypatch.setattr(audit_keys, "MAX_AT_ONCE", max_at_once)
    monkeypatch.setattr(audit_keys, "PAGE", 2)
    for damage, text in DAMAGE.items():
        store = redis_store()
        async with open_engine(store) as engine:
            await fill(engine)
            assert await engine.audit() == ()
            command, key, *rest = damage.split()
            redis_server.execute(command, f"{store.namespace}:{key}", *rest)
            assert text in "\n".join(await engine.audit()), damage
