"""What a job costs in the memory of the server, with a payload of 100 bytes and an id of 32 characters."""

from contextlib import closing
from uuid import uuid4

import pytest
import redis_server
from redis_server import WITHOUT_PERSISTENCE, RedisServer, private_server

from holdfast.engines.redis.engine import RedisEngine
from holdfast.model.produce import Enqueue, Group, NewJob
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Exchange, Lease, QueueClaim, Settlement, TaskClaim
from holdfast.runtime import SystemRuntime

MAX_QUEUED_BYTES = 600
MAX_FINISHED_BYTES = 750
TASK = "app.tasks.send_mail"
TASKS = (TaskClaim(task=TASK, lease_len=60_000_000),)


async def measure(server: RedisServer, count: int) -> tuple[float, float]:
    """Bytes per queued and per finished job."""
    engine = RedisEngine(server.url(), SystemRuntime(), namespace="memory", durability="none")
    await engine.open()
    await enqueue(engine, 1)
    await drain(engine)
    empty = used_memory(server)
    for _ in range(count // 1_000):
        await enqueue(engine, 1_000)
    queued = used_memory(server)
    await drain(engine)
    finished = used_memory(server)
    await engine.close()
    return (queued - empty) / count, (finished - empty) / count


async def enqueue(engine: RedisEngine, count: int) -> None:
    jobs = [NewJob(queue="default", id=uuid4().hex, task=TASK, payload=b"p" * 100) for _ in range(count)]
    await engine.perform(Enqueue(groups=(Group(tuple(jobs)),)))


async def drain(engine: RedisEngine) -> None:
    leases: tuple[Lease, ...] = ()
    while True:
        claim = Claim(
            claim_id=uuid4().hex, worker="host-12345-abcdef", queues=(QueueClaim("default", TASKS),), limit=250
        )
        settlements = tuple(
            Settlement(queue=one.queue, id=one.id, token=one.token, target=JobState.SUCCEEDED, result=b"null")
            for one in leases
        )
        leases = (await engine.perform(Exchange(settlements=settlements, claim=claim))).leases
        if not leases:
            return


def used_memory(server: RedisServer) -> int:
    return int(server.client.info("memory")["used_memory"])


async def test_a_job_takes_little_memory() -> None:
    with closing(private_server(WITHOUT_PERSISTENCE)) as server:
        queued, finished = await measure(server, 12_000)
    assert queued <= MAX_QUEUED_BYTES
    assert finished <= MAX_FINISHED_BYTES


@pytest.mark.long
@pytest.mark.parametrize("name", redis_server.names())
async def test_a_job_among_many_takes_little_memory(name: str) -> None:
    with closing(private_server(WITHOUT_PERSISTENCE, name=name)) as server:
        queued, finished = await measure(server, 100_000)
    print(f"{name}: {queued:.0f} bytes queued, {finished:.0f} finished")
    assert queued <= MAX_QUEUED_BYTES
    assert finished <= MAX_FINISHED_BYTES
