"""A cluster with a slot for each queue: what fails in one queue says nothing about the others."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opened_engine import opened_engine
from redis_binaries import versions
from redis_cluster import RedisCluster, private_cluster
from redis_server import RedisServer
from redis_stores import Store, fresh_cluster_namespace

from holdfast import App, Handle
from holdfast.engines import open_engine
from holdfast.engines.redis.roots import root_of_no_queue, root_of_queue
from holdfast.engines.redis.slots import slot_of
from holdfast.errors import HistoryLost, OutcomeUnknown, StorageFull
from holdfast.model.produce import Group
from holdfast.model.work import Lease, QueueClaim, Renewal, RenewStatus, SettleStatus
from holdfast.telemetry import events
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import jobs, new_job, succeed, task_claim


@pytest.fixture(scope="module", params=versions())
def nodes(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    """A cluster whose servers may be changed."""
    with private_cluster(request.param) as made:
        yield made


@pytest.fixture
def store(nodes: RedisCluster) -> Store:
    return fresh_cluster_namespace(nodes)


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Bench]:
    engine = open_engine(store.url, namespace=store.namespace, durability="none", cluster="queues")
    async with opened_engine(engine):
        yield Bench(engine)


def node_of(nodes: RedisCluster, store: Store, queue: str) -> RedisServer:
    return nodes.node_of(slot_of(root_of_queue(store.namespace, queue)))


def two_queues(nodes: RedisCluster, store: Store) -> tuple[str, str]:
    """Two queues at different primaries. The second one is not where the list of queues is."""
    home = nodes.node_of(slot_of(root_of_no_queue(store.namespace)))
    names = [f"queue-{number}" for number in range(100)]
    other = next(name for name in names if node_of(nodes, store, name) is not home)
    one = next(name for name in names if node_of(nodes, store, name) is home)
    return one, other


@pytest.fixture
def full(nodes: RedisCluster, store: Store) -> Iterator[tuple[str, str]]:
    """Two queues. The primary of the second one has reached its maxmemory."""
    one, other = two_queues(nodes, store)
    server = node_of(nodes, store, other)
    server.configure(maxmemory=1)
    yield one, other
    server.configure(maxmemory=0)


async def test_a_full_primary_does_not_change_the_answers_of_others(store: Store, full: tuple[str, str]) -> None:
    """Callers whose jobs share a write: each gets the answer for its own queue."""
    one, other = full
    app = App[Any](store.url, namespace=store.namespace, durability="none")

    @app.task
    def note(number: int) -> int:
        return number

    def enqueue(number: int, queue: str) -> Any:
        return note.using(id=f"note-{number}", queue=queue).aenqueue(number)

    async with app:
        await enqueue(0, one)
        answers = await asyncio.gather(
            *(enqueue(number, queue) for number, queue in enumerate((one, one, other, one, other), start=1)),
            return_exceptions=True,
        )

    kinds = [answer.receipt.answer if isinstance(answer, Handle) and answer.receipt else answer for answer in answers]
    assert [kinds[place] for place in (0, 1, 3)] == ["created"] * 3
    assert {type(kinds[place]) for place in (2, 4)} == {StorageFull}


async def test_an_enqueue_that_one_of_two_queues_has_refused_is_not_said_to_have_written_nothing(
    store: Store, full: tuple[str, str]
) -> None:
    async with opened(store) as bench:
        groups = [Group((new_job("a", queue=queue),)) for queue in full]
        with pytest.raises(OutcomeUnknown, match=f"carried out for some queues, but not for '{full[1]}'"):
            await bench.engine.enqueue(*groups)
        with pytest.raises(StorageFull, match="Nothing was written"):
            await bench.engine.enqueue(groups[1])


async def test_a_full_primary_with_the_names_of_all_queues_stops_no_call_of_others(
    nodes: RedisCluster, store: Store
) -> None:
    _, other = two_queues(nodes, store)
    home = nodes.node_of(slot_of(root_of_no_queue(store.namespace)))
    async with opened(store) as bench:
        home.configure(maxmemory=1)
        try:
            await bench.put(*jobs("a", "b", queue=other))
            leases = await bench.take(queue=other)
            answer = await bench.engine.exchange(map(succeed, leases), claim=bench.claim(queue=other))
        finally:
            home.configure(maxmemory=0)
    assert answer.settled == (SettleStatus.APPLIED,)
    assert [lease.id for lease in answer.leases] == ["b"]


async def test_a_queue_that_has_lost_its_history_does_not_stop_the_others(nodes: RedisCluster, store: Store) -> None:
    one, other = two_queues(nodes, store)
    claims = tuple(QueueClaim(queue, (task_claim(),), 1) for queue in (one, other))
    lost: list[Any] = []
    async with opened(store) as bench:
        engine = bench.engine
        engine.report_to(lost.append)

        async def take_both_and_lose_one(number: int) -> list[Lease]:
            for queue in (one, other):
                await bench.put(*jobs(f"a{number}", f"b{number}", queue=queue))
            leases = await bench.take(2, queues=claims)
            assert [lease.queue for lease in leases] == [one, other]
            node_of(nodes, store, other).execute("FLUSHALL")
            return list(leases)

        leases = await take_both_and_lose_one(1)
        answer = await engine.exchange(map(succeed, leases), claim=bench.claim(limit=9, queues=claims))
        assert answer.settled == (SettleStatus.APPLIED, SettleStatus.BUSY)
        assert [(lease.queue, lease.id) for lease in answer.leases] == [(one, "b1")]
        assert [(type(event), event.keys) for event in lost] == [
            (events.HistoryLost, f"{root_of_queue(store.namespace, other)}*")
        ]
        assert (await engine.settle(succeed(leases[1]))).settled == (SettleStatus.GONE,)

        leases = await take_both_and_lose_one(2)
        answer = await engine.settle(*map(succeed, leases))
        assert answer.settled == (SettleStatus.APPLIED, SettleStatus.BUSY)

        leases = await take_both_and_lose_one(3)
        renewed = await engine.renew(*(Renewal(lease.queue, lease.id, lease.token) for lease in leases))
        assert [each.status for each in renewed.jobs] == [RenewStatus.HELD, RenewStatus.BUSY]

        await take_both_and_lose_one(4)
        assert (await engine.expired("reaper")).leases == ()

        await take_both_and_lose_one(5)
        assert (await engine.prune()).more is True
        assert len(lost) == 5


async def test_an_exchange_whose_queues_have_all_lost_their_history_is_refused(
    nodes: RedisCluster, store: Store
) -> None:
    queues = two_queues(nodes, store)
    claims = tuple(QueueClaim(queue, (task_claim(),)) for queue in queues)
    async with opened(store) as bench:
        await bench.take(queues=claims)
        for queue in queues:
            node_of(nodes, store, queue).execute("FLUSHALL")
        with pytest.raises(HistoryLost, match="This call wrote nothing"):
            await bench.take(queues=claims)
        await bench.put(new_job("a", queue=queues[1]))
        assert [lease.id for lease in await bench.take(queues=claims)] == ["a"]
        assert [each.queue for each in (await bench.engine.stats()).queues] == [queues[1]]  # its name is back
