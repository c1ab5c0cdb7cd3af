"""Bells over LISTEN and NOTIFY, and the keeper's own line, when connections end or go deaf."""

import asyncio
import logging
from typing import Any

import asyncpg
import pytest
from postgres import PostgresServer
from postgres_stock import Store
from postgres_stories import Stores, made, opened, with_engine

from holdfast.engines.postgres.engine import PostgresEngine
from holdfast.engines.postgres.tower import Tower
from holdfast.model.instants import SECOND
from holdfast.model.produce import Group
from holdfast.model.records import WorkerRecord
from holdfast.model.work import Renewal
from holdfast.testing.contract.builders import QUEUE, claim, new_job


@pytest.fixture
def store(postgres_store: Stores) -> Store:
    return postgres_store()


def test_a_tower_whose_connection_is_ended_hears_again(
    store: Store, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(engine: PostgresEngine) -> None:
        other = made(store)
        await other.open()
        with caplog.at_level(logging.WARNING), engine.subscribe(f"queue:{QUEUE}") as subscription:
            postgres_server.terminate_backends()
            assert await subscription.wait(30)  # it looks once it hears again, since it may have missed something
            await other.enqueue(Group((new_job("a"),)))
            assert await subscription.wait(30) == {f"queue:{QUEUE}"}
        assert engine.capabilities.push
        await other.close()

    with_engine(made(store), story)


def test_bells_rung_just_before_the_end_are_heard(store: Store) -> None:
    async def story(engine: PostgresEngine) -> None:
        for number in range(5):
            with engine.subscribe(f"queue:{QUEUE}") as subscription:
                other = made(store)
                await other.open()
                await other.enqueue(Group((new_job(f"j{number}"),)))
                await other.close()
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}

    with_engine(made(store), story)


def test_a_connection_that_went_deaf_is_noticed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engines.postgres.tower.PROBE_EVERY", 0.2)
    monkeypatch.setattr("holdfast.engines.postgres.tower.PROBE_WITHIN", 0.5)
    listened: list[Any] = []
    listen = Tower._listen

    async def noting(tower: Tower, connection: asyncpg.Connection) -> None:
        listened.append(connection)
        await listen(tower, connection)

    monkeypatch.setattr(Tower, "_listen", noting)

    async def story(engine: PostgresEngine) -> None:
        with engine.subscribe(f"queue:{QUEUE}") as subscription:
            tower, connection = engine._tower, listened[-1]
            assert tower is not None
            assert tower._loop is not None
            tower._loop.call_soon_threadsafe(connection._listeners.clear)
            assert await subscription.wait(30)  # all bells, after it has connected anew
        assert len(listened) > 1

    with_engine(made(store), story)


def test_a_plain_enqueue_notifies_only_where_somebody_listens_for_queues(store: Store) -> None:
    async def story(engine: PostgresEngine) -> None:
        heard: asyncio.Queue[str] = asyncio.Queue()
        bystander = await asyncpg.connect(store.url)
        await bystander.add_listener(f"holdfast_{store.namespace}", lambda *said: heard.put_nowait(said[3]))
        await engine.enqueue(Group((new_job("a", fresh_id=True, queue="unheard"),)))
        async with opened(store) as other:
            with other.subscribe(f"queue:{QUEUE}") as subscription:
                await engine.enqueue(Group((new_job("b", fresh_id=True),)))
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}
        assert "unheard" not in await asyncio.wait_for(heard.get(), 30)
        await bystander.close()

    with_engine(made(store), story)


def test_who_has_had_a_ready_job_in_hand_rings_for_it(store: Store) -> None:
    """A claim passes over what is locked, and would find it by chance otherwise, when it next looks."""

    async def story(engine: PostgresEngine) -> None:
        await engine.enqueue(Group((new_job("a", fresh_id=True),)))
        async with opened(store) as other:
            with other.subscribe(f"queue:{QUEUE}") as subscription:
                await engine.amend(QUEUE, "a", reply="somebody")
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}
                await engine.trigger(QUEUE, "a")
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}
                await engine.enqueue(Group((new_job("a", reply="somebody else"),)))
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}

    with_engine(made(store), story)


def test_a_process_does_not_hear_its_own_bells_a_second_time(store: Store) -> None:
    async def story(engine: PostgresEngine) -> None:
        async with opened(store) as other:
            with engine.subscribe(f"queue:{QUEUE}", "queue:last") as subscription:
                await engine.enqueue(Group((new_job("a", fresh_id=True),)))
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}
                await other.enqueue(Group((new_job("b", fresh_id=True, queue="last"),)))
                assert await subscription.wait(30) == {"queue:last"}  # and nothing of what was said before

    with_engine(made(store), story)


def test_who_listens_for_queues_is_known_again_after_its_connection_ended(
    store: Store, postgres_server: PostgresServer
) -> None:
    async def story(engine: PostgresEngine) -> None:
        with engine.subscribe(f"queue:{QUEUE}") as subscription:
            postgres_server.terminate_backends()
            assert await subscription.wait(30)
            async with opened(store) as other:
                await other.enqueue(Group((new_job("a", fresh_id=True),)))
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}

    with_engine(made(store), story)


# The renewal connection


def test_the_lifeline_outlives_the_end_of_its_connection(store: Store, postgres_server: PostgresServer) -> None:
    async def story(engine: PostgresEngine) -> None:
        await engine.enqueue(Group((new_job("a"),)))
        (lease,) = (await engine.claim(claim("c" * 32))).leases

        def keep() -> None:
            line = engine.renewal_connection()
            record = WorkerRecord(worker="w", host="h", pid=1, interval=SECOND)
            for _ in range(3):
                line.heartbeat(record)
                assert line.renew([Renewal(lease.queue, lease.id, lease.token)]).jobs[0].status == "held"
                postgres_server.terminate_backends()
            line.close()

        await asyncio.to_thread(keep)
        assert [worker.worker for worker in (await engine.workers()).workers] == ["w"]

    with_engine(made(store), story)
