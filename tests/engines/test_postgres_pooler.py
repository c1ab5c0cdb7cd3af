"""The PostgreSQL engine by way of a proxy that shares sessions between its clients."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from bouncer import PROGRAM, WHY_NOT, Bouncer
from postgres import PostgresServer
from postgres_load import Load
from postgres_stock import Store, drop_namespace
from postgres_stories import Stores, opened

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.errors import ConfigError
from holdfast.model.job import JobKey
from holdfast.model.produce import Enqueue, Group
from holdfast.model.states import JobState
from holdfast.testing.contract.builders import QUEUE, claim, new_job, succeed

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT)

IGNORED = "default_transaction_isolation, synchronous_commit"
POOLED: dict[str, Any] = {"pooled": True, "durability": "fast"}
"""The tests' own server does not wait for the disk, and by way of a proxy that cannot be asked for."""


@pytest.fixture
def store(postgres_store: Stores) -> Store:
    return postgres_store()


@pytest.fixture
def shared(postgres_server: PostgresServer) -> Iterator[Bouncer]:
    with Bouncer(postgres_server, "transaction") as bouncer:
        yield bouncer


def test_without_being_told_it_says_what_to_set(store: Store, shared: Bouncer) -> None:
    async def story() -> None:
        async with opened(store._replace(url=shared.url)):
            pass

    with pytest.raises(ConfigError, match="pooled = true"):
        asyncio.run(story())


def test_many_calls_share_a_few_sessions(store: Store, shared: Bouncer) -> None:
    async def drain(engine: Engine, worker: int) -> int:
        done = 0
        for number in range(100):
            leases = (await engine.claim(claim(f"{worker}{number:031}", limit=5))).leases
            if not leases:
                break
            await engine.settle(*map(succeed, leases))
            done += len(leases)
        return done

    async def story() -> None:
        async with opened(store._replace(url=shared.url), **POOLED) as engine:
            assert not engine.capabilities.push
            await asyncio.gather(*(engine.enqueue(Group((new_job(f"j{number}"),))) for number in range(100)))
            assert sum(await asyncio.gather(*(drain(engine, worker) for worker in range(8)))) == 100
            assert (await engine.stats(QUEUE)).queues[0].counts == {JobState.SUCCEEDED: 100}
            assert await engine.audit() == ()

    asyncio.run(story())


def test_the_schema_can_be_made_by_way_of_it(postgres_server: PostgresServer, shared: Bouncer) -> None:
    name = "by_way_of_a_proxy"

    async def story() -> None:
        engine = open_engine(shared.url, namespace=name, **POOLED)
        assert await engine.migrate()
        assert await engine.migrate() == ()
        async with opened(Store(shared.url, name), **POOLED) as opened_one:
            await opened_one.enqueue(Group((new_job("a"),)))

    try:
        asyncio.run(story())
    finally:
        drop_namespace(postgres_server, name)


def test_whoever_rings_by_way_of_it_is_heard_by_those_who_listen(store: Store, shared: Bouncer) -> None:
    async def story() -> None:
        pooled = opened(store._replace(url=shared.url), **POOLED)
        async with opened(store) as direct, pooled as engine:
            with direct.subscribe(f"queue:{QUEUE}") as subscription:
                await engine.enqueue(Group((new_job("a"),)))
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}

    asyncio.run(story())


def test_with_a_way_around_it_bells_are_heard(store: Store, shared: Bouncer) -> None:
    async def story() -> None:
        pooled = opened(store._replace(url=shared.url), **POOLED, listen_url=store.url)
        async with opened(store) as direct, pooled as engine:
            assert engine.capabilities.push
            with engine.subscribe(f"queue:{QUEUE}") as subscription:
                await direct.enqueue(Group((new_job("a"),)))
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}

    asyncio.run(story())


def test_where_listen_is_lost_it_is_noticed_and_said_once(
    store: Store, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engines.postgres.tower.DEAF_PAUSE", 0.2)
    monkeypatch.setattr("holdfast.engines.postgres.tower.PROBE_WITHIN", 0.3)

    async def story(url: str) -> None:
        async with opened(store._replace(url=url)) as engine:
            assert not engine.capabilities.push
            await asyncio.sleep(1.5)  # it looks again now and then, and stays silent about it

    with (
        Bouncer(postgres_server, "transaction", ignored=IGNORED) as bouncer,
        caplog.at_level(logging.WARNING, "holdfast"),
    ):
        asyncio.run(story(bouncer.url))
    assert [record.message for record in caplog.records if "LISTEN does not work" in record.message] != []
    assert len(caplog.records) == 1


def test_a_proxy_that_keeps_sessions_is_as_good_as_none(store: Store, postgres_server: PostgresServer) -> None:
    async def story(url: str) -> None:
        async with opened(store) as direct, opened(store._replace(url=url)) as engine:
            assert engine.capabilities.push
            with engine.subscribe(f"queue:{QUEUE}") as subscription:
                await direct.enqueue(Group((new_job("a"),)))
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}

    with Bouncer(postgres_server, "session", sessions=20, ignored=IGNORED) as bouncer:
        asyncio.run(story(bouncer.url))


def test_a_worker_works_by_way_of_it_while_sessions_are_ended(
    store: Store, postgres_server: PostgresServer, shared: Bouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_POSTGRES_POOLED", "true")
    monkeypatch.setenv("HOLDFAST_DURABILITY", "fast")

    async def story() -> None:
        async with Load(store._replace(url=shared.url), options=POOLED) as load:
            for _ in range(3):
                await asyncio.to_thread(postgres_server.terminate_backends)
                await load.consumes()
        print(load)

    asyncio.run(story())


def test_a_handler_s_transaction_goes_by_way_of_it(store: Store, shared: Bouncer) -> None:
    async def story() -> None:
        async with opened(store._replace(url=shared.url), **POOLED) as engine:
            async with engine.transaction() as connection:
                await engine.in_transaction(Enqueue(groups=(Group((new_job("a"),)),)), connection)
            assert (await engine.get(JobKey(QUEUE, "a"))).jobs[0] is not None

    asyncio.run(story())
