"""The client of the Redis engine: event loops, forks, cancellations, lost replies, formats and settings."""

import asyncio
import os
import socket
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from eventually import eventually, eventually_now
from opened_engine import opened_engine
from proxy import Cut, Direction, Proxy, RedisWire
from redis_server import RedisServer
from redis_stores import Store

from holdfast import App
from holdfast.engines import open_engine
from holdfast.engines.redis.engine import RedisEngine
from holdfast.engines.redis.failures import FORMAT
from holdfast.engines.redis.notifier import ChannelNotifier
from holdfast.engines.redis.scripts import ServerScript, whole_script
from holdfast.errors import ConfigError, OutcomeUnknown, SchemaMismatch
from holdfast.model.job import JobKey
from holdfast.model.produce import EnqueueStatus, Group, GroupAccepted
from holdfast.model.work import SettleStatus
from holdfast.testing.contract.builders import QUEUE, claim, new_job, succeed

Stores = Callable[[], Store]


@pytest.fixture
def store(redis_store: Stores) -> Store:
    return redis_store()


def made(store: Store, **options: Any) -> RedisEngine:
    engine = open_engine(store.url, namespace=store.namespace, **{"durability": "none", **options})
    assert isinstance(engine, RedisEngine)
    return engine


# Event loops and processes


def test_event_loops_of_several_threads_use_one_engine_at_a_time(store: Store) -> None:
    engine = made(store)
    asyncio.run(engine.open())
    taken: list[str] = []

    async def drain(worker: str) -> None:
        number = 0
        while leases := (await engine.claim(claim(f"{worker}{number:031}", limit=3, worker=worker))).leases:
            number += 1
            taken.extend(lease.id for lease in leases)
            assert set((await engine.settle(*map(succeed, leases))).settled) == {SettleStatus.APPLIED}

    async def enqueue() -> None:
        await engine.enqueue(Group(tuple(new_job(f"j{number}") for number in range(100))))

    asyncio.run(enqueue())
    threads = [threading.Thread(target=lambda name=name: asyncio.run(drain(name))) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken) == sorted(f"j{number}" for number in range(100))
    asyncio.run(engine.close())


async def test_a_forked_child_keeps_no_connection_of_its_parent_open(store: Store, redis_server: RedisServer) -> None:
    before = redis_server.clients()
    engine = made(store)
    await engine.open()
    own = redis_server.clients() - before
    assert own
    reader, writer = os.pipe()

    def fork() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about a fork with threads, which is tested here
            pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)  # until the parent closes its end
            os._exit(0)
        return pid

    pid = await asyncio.to_thread(fork)
    os.close(reader)
    try:
        await engine.close()
        await asyncio.to_thread(eventually_now, lambda: own.isdisjoint(redis_server.clients()))
    finally:
        os.close(writer)
        os.waitpid(pid, 0)


async def test_a_child_that_is_forked_during_a_handshake_keeps_no_copy_of_the_socket() -> None:
    """The server here accepts and says nothing. The parent gives up, and its server must notice it."""
    reader, writer = os.pipe()

    def fork() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        return pid

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        engine = open_engine(f"redis://127.0.0.1:{server.getsockname()[1]}/0", durability="none", connect_timeout=60)
        opening = asyncio.ensure_future(engine.open())
        accepted, _ = await asyncio.to_thread(server.accept)
        with accepted:
            accepted.settimeout(30)
            assert await asyncio.to_thread(accepted.recv, 100)
            pid = await asyncio.to_thread(fork)
            os.close(reader)
            try:
                opening.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await opening

                async with asyncio.timeout(30):
                    while await asyncio.to_thread(accepted.recv, 100):  # until the end of the connection
                        pass
            finally:
                os.close(writer)
                os.waitpid(pid, 0)


# Cancelled calls


async def test_an_open_that_is_cancelled_leaves_neither_threads_nor_connections(
    store: Store, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, may_end = threading.Event(), threading.Event()

    def wait_ready(notifier: ChannelNotifier) -> None:
        waits.set()
        may_end.wait(30)

    monkeypatch.setattr(ChannelNotifier, "wait_ready", wait_ready)
    engine = made(store)
    threads = set(threading.enumerate())
    opening = asyncio.ensure_future(engine.open())
    await asyncio.to_thread(waits.wait, 30)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    may_end.set()
    await eventually(lambda: not redis_server.clients(), "the connections are closed")
    assert "holdfast-redis-notifier" not in {thread.name for thread in set(threading.enumerate()) - threads}
    monkeypatch.undo()
    async with opened_engine(engine):
        await engine.enqueue(Group((new_job("a"),)))
    await eventually(lambda: not redis_server.clients(), "the connections are closed")


def test_an_engine_that_was_closed_without_a_loop_can_be_opened_again(store: Store) -> None:
    engine = made(store)
    asyncio.run(engine.open())
    engine.close_now()
    asyncio.run(engine.open())
    engine.close_now()


async def test_a_cancelled_call_takes_no_answer_away_from_others(store: Store, redis_server: RedisServer) -> None:
    with Proxy(redis_server.port, RedisWire) as proxy:
        through = store._replace(url=redis_server.url(port=proxy.port))
        async with opened_engine(made(through, notify=False)) as engine:
            ids = [f"j{number}" for number in range(20)]
            await engine.enqueue(Group(tuple(new_job(name) for name in ids)))
            for round_number in range(10):
                proxy.hold(Direction.TO_CLIENT)
                calls = [asyncio.ensure_future(engine.get(JobKey(QUEUE, name))) for name in ids]
                await asyncio.sleep(0)
                for call in calls[round_number::3]:
                    call.cancel()
                proxy.release()
                for name, call in zip(ids, calls, strict=True):
                    (found,) = await asyncio.gather(call, return_exceptions=True)
                    if not isinstance(found, asyncio.CancelledError):
                        assert not isinstance(found, BaseException)
                        (record,) = found.jobs
                        assert record is not None
                        assert record.id == name


async def test_a_call_that_was_cancelled_after_it_was_sent_may_have_been_carried_out(
    store: Store, redis_server: RedisServer
) -> None:
    with Proxy(redis_server.port, RedisWire) as proxy:
        through = store._replace(url=redis_server.url(port=proxy.port))
        async with opened_engine(made(through, notify=False)) as engine:
            proxy.hold(Direction.TO_CLIENT)
            call = asyncio.ensure_future(engine.enqueue(Group((new_job("a"),))))
            await asyncio.sleep(0)
            call.cancel()
            proxy.release()
            with pytest.raises(asyncio.CancelledError):
                await call
            (answer,) = (await engine.enqueue(Group((new_job("a"),)))).groups
            assert isinstance(answer, GroupAccepted)
            assert answer.jobs[0].status is EnqueueStatus.DUPLICATE


# Lost replies


async def test_the_error_of_a_lost_reply_names_the_jobs(store: Store, redis_server: RedisServer) -> None:
    with Proxy(redis_server.port, RedisWire) as proxy:
        through = store._replace(url=redis_server.url(port=proxy.port))
        async with opened_engine(made(through, notify=False)) as engine:
            proxy.cut_at(Cut.BEFORE_REPLY)
            with pytest.raises(OutcomeUnknown, match="enqueue of a, b may or may not") as unknown:
                await engine.enqueue(Group((new_job("a"), new_job("b"))))
            assert unknown.value.job_ids == ("a", "b")


def test_an_enqueue_with_a_generated_id_is_looked_up_when_its_reply_is_lost(
    store: Store, redis_server: RedisServer
) -> None:
    with Proxy(redis_server.port, RedisWire) as proxy:
        app = App(redis_server.url(port=proxy.port), namespace=store.namespace, durability="none")

        @app.task
        def add(x: int) -> None: ...

        add.enqueue(1)
        proxy.cut_at(Cut.BEFORE_REPLY)
        handle = add.enqueue(2)
        assert handle.refresh().state == "queued"
        app.close()


# Formats and releases


async def test_a_newer_format_is_refused_before_anything_is_written(store: Store, redis_server: RedisServer) -> None:
    async with opened_engine(made(store)) as engine:
        await engine.enqueue(Group((new_job("a"),)))
        redis_server.execute("HSET", f"{store.namespace}:meta", "format", FORMAT + 1)
        before = redis_server.execute("HGETALL", f"{store.namespace}:meta")
        with pytest.raises(SchemaMismatch, match=f"stored in format {FORMAT + 1}") as refused:
            await engine.enqueue(Group((new_job("b"),)))
        assert (refused.value.found, refused.value.wanted) == (str(FORMAT + 1), str(FORMAT))
        with pytest.raises(SchemaMismatch):
            await made(store).open()
        assert redis_server.execute("HGETALL", f"{store.namespace}:meta") == before


async def test_two_releases_of_one_format_work_side_by_side(store: Store) -> None:
    other = ServerScript(f"-- another release\n{whole_script().text.decode()}")
    async with opened_engine(made(store)) as one, opened_engine(made(store, script=other)) as two:
        for number in range(20):
            await (one, two)[number % 2].enqueue(Group((new_job(f"j{number}"),)))
        for number, engine in enumerate((one, two) * 5):
            leases = (await engine.claim(claim(f"{number:032}", limit=2))).leases
            assert [lease.id for lease in leases] == [f"j{2 * number}", f"j{2 * number + 1}"]
            await (two, one)[number % 2].settle(*map(succeed, leases))
        assert await one.audit() == ()


async def test_migrate_writes_the_format_once(store: Store, redis_server: RedisServer) -> None:
    assert await made(store).migrate() == (f"format {FORMAT}",)
    assert redis_server.execute("HGET", f"{store.namespace}:meta", "format") == str(FORMAT).encode()
    assert await made(store).migrate() == ()


# Settings


async def test_options_in_the_address_are_settings(store: Store) -> None:
    options = store._replace(url=f"{store.url}?timeout=7&notify=no")
    async with opened_engine(made(options, timeout=9.0)) as engine:
        assert not engine.capabilities.push
        assert engine._servers.settings.timeout == 7.0


@pytest.mark.parametrize(
    ("option", "words"),
    [("timeout=soon", "`timeout` must be"), ("pool_size=4", "unknown option `pool_size`")],
)
def test_a_wrong_option_in_the_address_is_refused(option: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        made(Store(f"redis://:secret@h:1/0?{option}", "x"))
    assert "secret" not in str(refused.value)


def test_the_namespace_is_a_word() -> None:
    with pytest.raises(ConfigError, match="lower-case word"):
        made(Store("redis://h", "{a}"))
