"""The PostgreSQL engine through a proxy that shares sessions between its clients."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from bouncer import PROGRAM, WHY_NOT, Bouncer
from load import Load
from postgres import PostgresServer
from postgres_stock import Store, drop_namespace
from postgres_stories import Stores, opened

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.engines.postgres.notifier import Notifier
from holdfast.errors import ConfigError
from holdfast.model.job import JobKey
from holdfast.model.produce import Enqueue, Group
from holdfast.model.states import JobState
from holdfast.testing.contract.builders import QUEUE, claim, new_job, succeed

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT)

IGNORED_SETTINGS = "default_transaction_isolation, synchronous_commit, statement_timeout"
POOLED: dict[str, Any] = {"pooled": True, "durability": "fast"}
"""The server of the tests does not wait for the disk, and through a proxy Holdfast cannot change that."""


@pytest.fixture
def store(postgres_store: Stores) -> Store:
    return postgres_store()


@pytest.fixture
def shared(postgres_server: PostgresServer) -> Iterator[Bouncer]:
    with Bouncer(postgres_server, "transaction") as bouncer:
        yield bouncer


async def test_the_error_names_the_setting_for_a_proxy(store: Store, shared: Bouncer) -> None:
    with pytest.raises(ConfigError, match="pooled = true"):
        async with opened(store._replace(url=shared.url)):
            pass


async def test_a_proxy_that_ignores_settings_is_refused_by_name(store: Store, postgres_server: PostgresServer) -> None:
    with (
        Bouncer(postgres_server, "transaction", ignored_settings=IGNORED_SETTINGS) as bouncer,
        pytest.raises(ConfigError, match="pooled = true"),
    ):
        async with opened(store._replace(url=bouncer.url)):
            pass


async def test_many_calls_share_a_few_sessions(store: Store, shared: Bouncer) -> None:
    async def drain(engine: Engine, worker: int) -> int:
        done = 0
        for number in range(100):
            leases = (await engine.claim(claim(f"{worker}{number:031}", limit=5))).leases
            if not leases:
                break
            await engine.settle(*map(succeed, leases))
            done += len(leases)
        return done

    async with opened(store._replace(url=shared.url), **POOLED) as engine:
        assert not engine.capabilities.push
        await asyncio.gather(*(engine.enqueue(Group((new_job(f"j{number}"),))) for number in range(100)))
        assert sum(await asyncio.gather(*(drain(engine, worker) for worker in range(8)))) == 100
        assert (await engine.stats(QUEUE)).queues[0].counts == {JobState.SUCCEEDED: 100}
        assert await engine.audit() == ()


async def test_a_schema_can_be_migrated_through_a_proxy(postgres_server: PostgresServer, shared: Bouncer) -> None:
    name = "through_a_proxy"

    try:
        engine = open_engine(shared.url, namespace=name, **POOLED)
        assert await engine.migrate()
        assert await engine.migrate() == ()
        async with opened(Store(shared.url, name), **POOLED) as migrated:
            await migrated.enqueue(Group((new_job("a"),)))
    finally:
        drop_namespace(postgres_server, name)


async def test_notifications_sent_through_a_proxy_arrive(store: Store, shared: Bouncer) -> None:
    pooled = opened(store._replace(url=shared.url), **POOLED)
    async with opened(store) as direct, pooled as engine:
        with direct.subscribe(f"queue:{QUEUE}") as subscription:
            await engine.enqueue(Group((new_job("a"),)))
            assert await subscription.wait(30) == {f"queue:{QUEUE}"}


async def test_with_a_direct_listen_url_notifications_arrive(store: Store, shared: Bouncer) -> None:
    pooled = opened(store._replace(url=shared.url), **POOLED, listen_url=store.url)
    async with opened(store) as direct, pooled as engine:
        assert engine.capabilities.push
        with engine.subscribe(f"queue:{QUEUE}") as subscription:
            await direct.enqueue(Group((new_job("a"),)))
            assert await subscription.wait(30) == {f"queue:{QUEUE}"}


async def test_a_proxy_that_loses_listen_is_noticed_and_logged_once(
    store: Store, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engines.postgres.notifier.LISTEN_RETRY_S", 0.2)
    monkeypatch.setattr("holdfast.engines.postgres.notifier.PROBE_TIMEOUT_S", 0.3)
    tries = threading.Semaphore(0)
    listen = Notifier._listen

    async def counting_listen(notifier: Notifier, connection: asyncpg.Connection) -> None:
        tries.release()
        await listen(notifier, connection)

    monkeypatch.setattr(Notifier, "_listen", counting_listen)
    with (
        Bouncer(postgres_server, "transaction", ignored_settings=IGNORED_SETTINGS) as bouncer,
        caplog.at_level(logging.WARNING, "holdfast"),
    ):
        async with opened(store, listen_url=bouncer.url) as engine:
            assert not engine.capabilities.push
            for _ in range(3):  # the second try has ended when the third begins
                assert await asyncio.to_thread(tries.acquire, timeout=30)
    (record,) = caplog.records
    assert "LISTEN does not work" in record.message


async def test_through_a_proxy_that_keeps_sessions_notifications_arrive(
    store: Store, postgres_server: PostgresServer
) -> None:
    with Bouncer(postgres_server, "session", sessions=20, ignored_settings=IGNORED_SETTINGS) as bouncer:
        async with opened(store) as direct, opened(store._replace(url=bouncer.url)) as engine:
            assert engine.capabilities.push
            with engine.subscribe(f"queue:{QUEUE}") as subscription:
                await direct.enqueue(Group((new_job("a"),)))
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}


async def test_a_worker_works_through_a_proxy_while_sessions_are_ended(
    store: Store, postgres_server: PostgresServer, shared: Bouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_POSTGRES_POOLED", "true")
    monkeypatch.setenv("HOLDFAST_DURABILITY", "fast")

    async with Load(store._replace(url=shared.url), options=POOLED) as load:
        for _ in range(3):
            await asyncio.to_thread(postgres_server.terminate_backends)
            await load.consumes()
    print(load)


async def test_a_handler_s_transaction_works_through_a_proxy(store: Store, shared: Bouncer) -> None:
    async with opened(store._replace(url=shared.url), **POOLED) as engine:
        async with engine.transaction() as connection:
            await engine.in_transaction(Enqueue(groups=(Group((new_job("a"),)),)), connection)
        assert (await engine.get(JobKey(QUEUE, "a"))).jobs[0] is not None
