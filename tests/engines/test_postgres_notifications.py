"""Notifications over LISTEN and NOTIFY, and renewals, when connections end or stop receiving."""

import asyncio
import errno
import logging
import threading
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from eventually import eventually
from postgres import PostgresServer
from postgres_stock import Store, drop_namespace, open_once, unused_name
from postgres_stories import Stores, made, opened

from holdfast.engines.postgres.messages import listeners_lock, notify_lock
from holdfast.engines.postgres.notifier import Notifier
from holdfast.engines.topics import Topics
from holdfast.errors import EngineUnavailable
from holdfast.model.instants import SECOND
from holdfast.model.produce import Group
from holdfast.model.records import WorkerRecord
from holdfast.model.work import Renewal
from holdfast.runtime import SystemRuntime
from holdfast.testing.contract.builders import QUEUE, claim, fail, new_job, release, succeed


@pytest.fixture
def store(postgres_store: Stores) -> Store:
    return postgres_store()


async def test_a_notifier_whose_connection_is_ended_receives_again(
    store: Store, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(store) as engine, opened(store) as other:
        with caplog.at_level(logging.WARNING), engine.subscribe(f"queue:{QUEUE}") as subscription:
            postgres_server.terminate_backends()
            assert await subscription.wait(30)  # after the reconnect, because notifications may have been lost
            await other.enqueue(Group((new_job("a"),)))
            assert await subscription.wait(30) == {f"queue:{QUEUE}"}
        assert engine.capabilities.push


async def test_pauses_between_reconnects_are_short_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SystemRuntime()
    pauses_s: list[float] = []

    async def pause(notifier: Notifier, seconds: float) -> None:
        pauses_s.append(seconds)
        await asyncio.sleep(0.001)

    async def refuse() -> asyncpg.Connection:
        raise ConnectionRefusedError

    monkeypatch.setattr(Notifier, "_pause", pause)
    notifier = Notifier(refuse, "n", Topics(), runtime)
    await eventually(lambda: len(pauses_s) > 12)
    notifier.close()
    assert min(pauses_s[8:]) >= 1
    assert max(pauses_s) <= 2
    assert len(set(pauses_s[8:])) > 1


async def test_notifications_sent_just_before_closing_arrive(store: Store) -> None:
    async with opened(store) as engine:
        for number in range(5):
            with engine.subscribe(f"queue:{QUEUE}") as subscription:
                async with opened(store) as other:
                    await other.enqueue(Group((new_job(f"j{number}"),)))
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}


async def test_a_closed_engine_holds_no_lock_of_a_listener(
    unused_store: Store, postgres_server: PostgresServer
) -> None:
    """The server would keep the lock until it notices that the connection has ended: too long for the next test."""
    key = "hashtextextended(%s, 0) AS key"
    query = f"SELECT count(*) FROM pg_locks, {key} WHERE locktype = 'advisory' AND objid = (key & 4294967295)::oid"
    for _ in range(20):
        async with opened(unused_store) as engine:
            with engine.subscribe(f"queue:{QUEUE}"):
                assert postgres_server.execute(query, listeners_lock(unused_store.namespace)) != [(0,)]
        assert postgres_server.execute(query, listeners_lock(unused_store.namespace)) == [(0,)]


# N1
async def test_a_job_that_comes_before_a_late_notifier_has_its_lock_is_notified(unused_store: Store) -> None:
    """The subscription begins after a limited wait. No process notifies while none can be seen to subscribe."""
    async with opened(unused_store) as engine, opened(unused_store) as other:
        notifier = engine._notifier
        assert notifier is not None
        may_go_on = threading.Event()
        notifier._on_loop(lambda: may_go_on.wait(60))
        try:
            with engine.subscribe(f"queue:{QUEUE}") as subscription:
                await other.enqueue(Group((new_job("a", fresh_id=True),)))
                may_go_on.set()
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}
        finally:
            may_go_on.set()


# PF1
async def test_a_notifier_that_cannot_start_is_an_error_and_no_endless_wait(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    engine = made(store)
    monkeypatch.setattr("holdfast.engines.notifier_thread.asyncio.Runner", refuse)
    with pytest.raises(EngineUnavailable, match=r"could not start.*Too many open files"):
        await engine.open()
    monkeypatch.undo()
    await engine.open()
    assert engine.capabilities.push
    await engine.close()


async def test_a_connection_that_stopped_receiving_is_replaced(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engines.postgres.notifier.PROBE_INTERVAL_S", 0.2)
    monkeypatch.setattr("holdfast.engines.postgres.notifier.PROBE_TIMEOUT_S", 0.5)
    connections: list[Any] = []
    listen = Notifier._listen

    async def recording_listen(notifier: Notifier, connection: asyncpg.Connection) -> None:
        connections.append(connection)
        await listen(notifier, connection)

    monkeypatch.setattr(Notifier, "_listen", recording_listen)

    async with opened(store) as engine:
        with engine.subscribe(f"queue:{QUEUE}") as subscription:
            notifier = engine._notifier
            assert notifier is not None
            assert notifier._loop is not None
            notifier._loop.call_soon_threadsafe(connections[-1]._listeners.clear)
            assert await subscription.wait(30)  # every topic is notified after a reconnect
        assert len(connections) > 1


async def test_a_process_that_listens_to_the_feed_has_sent_its_announcement(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that learns of it, by any way, publishes its next event."""
    monkeypatch.setattr("holdfast.engines.notifier_thread.SUBSCRIBE_TIMEOUT_S", 30.0)
    sends: list[bool] = []
    send_pending = Notifier._send_pending

    async def send_slowly(notifier: Notifier, connection: asyncpg.Connection) -> None:
        await asyncio.sleep(0.05)
        sends.append(notifier.feed.has_pending)
        await send_pending(notifier, connection)

    async with opened(store) as engine:
        monkeypatch.setattr(Notifier, "_send_pending", send_slowly)
        engine.listen_to_feed(["Started"], lambda message: None)
        assert True in sends


@pytest.fixture
def unused_store(store: Store, postgres_server: PostgresServer) -> Iterator[Store]:
    """A namespace that no earlier test has used, so that none of their sessions can still subscribe in it."""
    unused = store._replace(namespace=unused_name())
    open_once(unused.url, unused.namespace)
    yield unused
    drop_namespace(postgres_server, unused.namespace)


async def test_a_plain_enqueue_notifies_only_if_a_session_subscribes_to_queues(unused_store: Store) -> None:
    async with opened(unused_store) as engine:
        payloads: asyncio.Queue[str] = asyncio.Queue()
        observer = await asyncpg.connect(unused_store.url)
        await observer.add_listener(f"holdfast_{unused_store.namespace}", lambda *event: payloads.put_nowait(event[3]))
        await engine.enqueue(Group((new_job("a", fresh_id=True, queue="unnoticed"),)))
        async with opened(unused_store) as other:
            with other.subscribe(f"queue:{QUEUE}") as subscription:
                await engine.enqueue(Group((new_job("b", fresh_id=True),)))
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}
        assert "unnoticed" not in await asyncio.wait_for(payloads.get(), 30)
        await observer.close()


async def test_a_call_that_locked_a_ready_job_notifies_its_queue(store: Store) -> None:
    """A claim skips a locked job. Without the notification only the next poll would find it."""
    async with opened(store) as engine:
        await engine.enqueue(Group((new_job("a", fresh_id=True),)))
        async with opened(store) as other:
            with other.subscribe(f"queue:{QUEUE}") as subscription:
                await engine.amend(QUEUE, "a", reply="one process")
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}
                await engine.trigger(QUEUE, "a")
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}
                await engine.enqueue(Group((new_job("a", reply="another process"),)))
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}


async def test_a_process_does_not_receive_its_own_notifications_a_second_time(store: Store) -> None:
    async with opened(store) as engine, opened(store) as other:
        with engine.subscribe(f"queue:{QUEUE}", "queue:last") as subscription:
            await engine.enqueue(Group((new_job("a", fresh_id=True),)))
            assert await subscription.wait(30) == {f"queue:{QUEUE}"}
            await other.enqueue(Group((new_job("b", fresh_id=True, queue="last"),)))
            assert await subscription.wait(30) == {"queue:last"}  # and no topic of the first enqueue


@pytest.fixture
def left_to_notifiers(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The topics that calls did not notify with their commits."""
    topics: set[str] = set()
    notify = Notifier.notify

    def recording_notify(notifier: Notifier, notified: frozenset[str]) -> None:
        topics.update(notified)
        notify(notifier, notified)

    monkeypatch.setattr(Notifier, "notify", recording_notify)
    return topics


async def test_an_enqueue_notifies_waiting_processes_with_its_commit(store: Store, left_to_notifiers: set[str]) -> None:
    async with opened(store) as engine, opened(store) as other:
        with other.subscribe(f"queue:{QUEUE}") as subscription:
            await engine.enqueue(Group((new_job("a", fresh_id=True),)))
            assert await subscription.wait(30) == {f"queue:{QUEUE}"}
        assert not left_to_notifiers


async def test_an_exchange_notifies_waiting_callers_with_its_commit(store: Store, left_to_notifiers: set[str]) -> None:
    """Of room in the queue its notifier sends word: not for every job that ends."""
    async with opened(store) as engine, opened(store) as other:
        await engine.enqueue(Group((new_job("a", reply="caller"), new_job("b", reply="caller"))))
        leases = (await engine.claim(claim("c" * 32, limit=2))).leases
        left_to_notifiers.clear()
        with other.subscribe("reply:caller") as subscription:
            await engine.exchange([succeed(leases[0])])
            assert await subscription.wait(30) == {"reply:caller"}
            await engine.exchange([fail(leases[1])])
            assert await subscription.wait(30) == {"reply:caller"}
        assert left_to_notifiers == {f"room:{QUEUE}"}


async def test_an_exchange_notifies_with_its_commit_whatever_is_in_the_name_of_the_queue(store: Store) -> None:
    queue = 'a"room:b'
    async with opened(store) as engine, opened(store) as other:
        await engine.enqueue(Group((new_job("a", queue=queue, reply="caller"), new_job("b", queue=queue))))
        first, second = (await engine.exchange(claim=claim("c1", queue=queue, limit=2))).leases
        with other.subscribe("reply:caller", f"queue:{queue}") as subscription:
            answer = await engine.exchange((release(second), succeed(first)))
            assert [status.value for status in answer.settled] == ["applied", "applied"]
            received = set[str]()
            while received != {"reply:caller", f"queue:{queue}"}:
                topics = await subscription.wait(30)
                assert topics
                received |= topics


async def test_many_queues_whose_names_are_long_as_json_are_notified(store: Store) -> None:
    queues = ["\x01" * 199 + chr(ord("a") + number) for number in range(8)]
    topics = {f"queue:{queue}" for queue in queues}
    async with opened(store) as engine, opened(store) as other:
        with other.subscribe(*topics) as subscription:
            await engine.enqueue(Group(tuple(new_job("a", queue=queue) for queue in queues)))
            received = set[str]()
            while received != topics:
                more = await subscription.wait(30)
                assert more
                received |= more


async def test_a_call_does_not_wait_for_another_that_notifies_with_its_commit(
    store: Store, left_to_notifiers: set[str]
) -> None:
    async with opened(store) as engine, opened(store) as other:
        await engine.enqueue(Group((new_job("a", reply="caller"),)))
        leases = (await engine.claim(claim("c" * 32))).leases
        busy = await asyncpg.connect(store.url)
        async with busy.transaction():
            await busy.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", notify_lock(store.namespace))
            with other.subscribe(f"queue:{QUEUE}", "reply:caller") as subscription:
                await engine.enqueue(Group((new_job("b", fresh_id=True),)))
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}
                await engine.exchange(map(succeed, leases))
                assert await subscription.wait(30) == {"reply:caller"}
        await busy.close()
        assert left_to_notifiers >= {f"queue:{QUEUE}", "reply:caller"}


async def test_too_many_topics_for_one_notification_are_left_to_the_notifier(
    store: Store, left_to_notifiers: set[str]
) -> None:
    names = [f"{number}".rjust(200, "x") for number in range(50)]
    async with opened(store) as engine, opened(store) as other:
        await engine.enqueue(Group(tuple(new_job(name[-5:], reply=name) for name in names)))
        leases = (await engine.claim(claim("c" * 32, limit=50))).leases
        with other.subscribe(f"reply:{names[49]}") as subscription:
            await engine.exchange(map(succeed, leases))
            assert await subscription.wait(30)
        assert {f"reply:{name}" for name in names} <= left_to_notifiers


async def test_without_fast_paths_the_notifier_sends_every_notification(
    store: Store, left_to_notifiers: set[str]
) -> None:
    async with opened(store, fast_paths=False) as engine, opened(store) as other:
        with other.subscribe(f"queue:{QUEUE}") as subscription:
            await engine.enqueue(Group((new_job("a", fresh_id=True),)))
            assert await subscription.wait(30) == {f"queue:{QUEUE}"}
        assert left_to_notifiers == {f"queue:{QUEUE}"}


async def test_a_subscription_is_known_to_others_again_after_its_connection_ended(
    store: Store, postgres_server: PostgresServer
) -> None:
    async with opened(store) as engine:
        with engine.subscribe(f"queue:{QUEUE}") as subscription:
            postgres_server.terminate_backends()
            assert await subscription.wait(30)
            async with opened(store) as other:
                await other.enqueue(Group((new_job("a", fresh_id=True),)))
                assert await subscription.wait(30) == {f"queue:{QUEUE}"}


# The renewal connection


async def test_renewals_go_on_after_their_connection_is_ended(store: Store, postgres_server: PostgresServer) -> None:
    async with opened(store) as engine:
        await engine.enqueue(Group((new_job("a"),)))
        (lease,) = (await engine.claim(claim("c" * 32))).leases

        def renew() -> None:
            connection = engine.renewal_connection()
            record = WorkerRecord(worker="w", host="h", pid=1, interval=SECOND)
            for _ in range(3):
                connection.heartbeat(record)
                assert connection.renew([Renewal(lease.queue, lease.id, lease.token)]).jobs[0].status == "held"
                postgres_server.terminate_backends()
            connection.close()

        await asyncio.to_thread(renew)
        assert [worker.worker for worker in (await engine.workers()).workers] == ["w"]
