"""Dead workers on Redis: known by the record of their process on one host, by their subscription from another."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from eventually import eventually
from msgspec.structs import replace
from redis_server import RedisServer, private_server
from redis_stores import Store, fresh_namespace

from holdfast.engine import Engine, RenewalConnection
from holdfast.engines import open_engine
from holdfast.engines.redis import presence
from holdfast.errors import EngineUnavailable
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.produce import Group
from holdfast.model.records import WorkerRecord
from holdfast.model.work import Renewal
from holdfast.runtime import SystemRuntime
from holdfast.testing.contract.builders import QUEUE, claim, new_job, succeed

WATCHED = 60 * SECOND
RECORD = WorkerRecord(worker="w", interval=5 * SECOND)
LOOK_S = 1.5


class MovedRuntime(SystemRuntime):
    """Its clock for durations can be moved forward."""

    moved_us = 0

    def monotonic(self) -> int:
        return super().monotonic() + self.moved_us

    def pass_time(self, seconds: float) -> None:
        self.moved_us += round(seconds * SECOND)


@pytest.fixture
def store(redis_store: Callable[[], Store], monkeypatch: pytest.MonkeyPatch) -> Store:
    """On a server that may have just been started."""
    monkeypatch.setattr(presence, "MIN_UPTIME_S", -1)
    return redis_store()


@asynccontextmanager
async def opened(store: Store, runtime: SystemRuntime | None = None, **options: Any) -> AsyncIterator[Any]:
    engine = open_engine(store.url, namespace=store.namespace, durability="none", runtime=runtime, **options)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def session(engine: Engine, record: WorkerRecord = RECORD) -> AsyncIterator[RenewalConnection]:
    """The connection of a keeper that has sent a heartbeat."""
    connection = engine.renewal_connection()
    await asyncio.to_thread(connection.heartbeat, record)
    try:
        yield connection
    finally:
        await asyncio.to_thread(connection.close)


async def hold_a_job(engine: Engine) -> int:
    """Lease a job to the worker; returns when the lease expires."""
    await engine.enqueue(Group((new_job("a"),)))
    (lease,) = (await engine.claim(claim("1" * 32, limit=1, worker="w"))).leases
    return lease.lease_expires


async def expiry(engine: Engine) -> int:
    (job,) = (await engine.get(JobKey(QUEUE, "a"))).jobs
    assert job is not None
    return job.lease_expires or 0


class Watcher:
    """A process that looks for dead workers."""

    def __init__(self, engine: Any, runtime: MovedRuntime) -> None:
        self.engine = engine
        self.runtime = runtime

    async def look(self, after_s: float = LOOK_S) -> dict[str, int] | None:
        self.runtime.pass_time(after_s)
        found: dict[str, int] | None = await self.engine.disown_silent(WATCHED)
        return found


@asynccontextmanager
async def watching(store: Store) -> AsyncIterator[Watcher]:
    runtime = MovedRuntime()
    async with opened(store, runtime) as engine:
        yield Watcher(engine, runtime)


def subscribers(server: RedisServer, store: Store, worker: str = "w") -> int:
    channel = f"{store.namespace}:{server.database}:alive:{worker}"
    return int(server.execute("PUBSUB", "NUMSUB", channel)[1])


# WK3
async def test_a_worker_without_subscription_is_disowned_at_the_second_look(
    store: Store, redis_server: RedisServer
) -> None:
    async with watching(store) as watcher:
        async with opened(store) as engine, session(engine):
            expires = await hold_a_job(engine)
            assert subscribers(redis_server, store) == 1
        await eventually(lambda: subscribers(redis_server, store) == 0)
        assert await watcher.look() == {}
        assert await watcher.look(0.5) == {}  # too early
        assert await watcher.look() == {"w": 1}
        assert await expiry(watcher.engine) < expires
        assert (await watcher.engine.workers()).workers == ()
        assert await watcher.look() == {}
        assert await watcher.engine.audit() == ()
        assert redis_server.execute("EXISTS", f"{store.namespace}:sessions") == 0


async def test_a_worker_with_a_subscription_keeps_its_leases(store: Store) -> None:
    async with watching(store) as watcher, opened(store) as engine, session(engine):
        expires = await hold_a_job(engine)
        for _ in range(3):
            assert await watcher.look() == {}
        assert await expiry(engine) == expires


async def test_a_worker_that_is_subscribed_again_keeps_its_leases(store: Store, redis_server: RedisServer) -> None:
    async with watching(store) as watcher, opened(store) as engine:
        async with session(engine):
            expires = await hold_a_job(engine)
        await eventually(lambda: subscribers(redis_server, store) == 0)
        assert await watcher.look() == {}
        engine._notifier.join_worker("w")
        assert [await watcher.look(), await watcher.look()] == [{}, {}]
        assert await expiry(engine) == expires


async def test_a_worker_that_sends_a_heartbeat_between_the_looks_is_looked_at_anew(
    store: Store, redis_server: RedisServer
) -> None:
    async with watching(store) as watcher, opened(store) as engine:
        async with session(engine):
            await hold_a_job(engine)
        await eventually(lambda: subscribers(redis_server, store) == 0)
        assert await watcher.look() == {}
        await engine.heartbeat(RECORD)
        assert await watcher.look() == {}
        assert await watcher.look() == {"w": 1}


async def test_a_worker_that_cannot_subscribe_says_so_and_stays_with_its_lease(
    store: Store, redis_server: RedisServer
) -> None:
    async with watching(store) as watcher, opened(store) as engine, session(engine) as connection:
        await hold_a_job(engine)
        engine._notifier.leave_worker("w")
        await eventually(lambda: subscribers(redis_server, store) == 0)
        await asyncio.to_thread(connection.heartbeat, RECORD)
        assert [await watcher.look() for _ in range(3)] == [{}] * 3


async def test_a_heartbeat_of_the_event_loop_or_without_notifications_has_no_session(store: Store) -> None:
    async with watching(store) as watcher, opened(store, notify=False) as engine:
        await engine.heartbeat(RECORD)
        async with session(engine, WorkerRecord(worker="other")):
            assert [await watcher.look() for _ in range(3)] == [{}] * 3
        assert await engine.disown_silent(WATCHED) is None


async def test_only_looks_that_the_caller_has_watched_count(store: Store, redis_server: RedisServer) -> None:
    async with watching(store) as watcher:
        async with opened(store) as engine, session(engine):
            await hold_a_job(engine)
        await eventually(lambda: subscribers(redis_server, store) == 0)
        assert await watcher.look() == {}
        watcher.runtime.pass_time(LOOK_S)
        assert await watcher.engine.disown_silent(0) == {}  # it has just begun to watch
        assert await watcher.look() == {"w": 1}


async def test_many_workers_are_looked_at_in_one_call(store: Store, redis_server: RedisServer) -> None:
    names = [f"w{number}" for number in range(2_500)]
    async with watching(store) as watcher, opened(store) as engine:
        redis_server.execute("SADD", f"{store.namespace}:sessions", *names)
        async with session(engine):
            await engine.heartbeat(WorkerRecord(worker="w7"))
            assert await watcher.look() == {}
            assert redis_server.execute("SMEMBERS", f"{store.namespace}:sessions") == {b"w", b"w7"}
            assert await watcher.look() == {"w7": 0}


async def test_of_many_processes_some_look_all_the_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(store) as watcher:
        looks = 0
        perform = watcher.engine._presence._perform

        async def count(command: object) -> object:
            nonlocal looks
            looks += 1
            return replace(await perform(command), sessions=1_000)

        watcher.engine._presence._perform = count
        monkeypatch.setattr(watcher.runtime, "random", lambda: 0.5)
        for _ in range(21):
            await watcher.look()
        assert looks == 3  # every 15 s
        monkeypatch.setattr(watcher.runtime, "random", lambda: 0.001)
        for _ in range(40):
            await watcher.look()
        assert looks > 20


async def test_a_namespace_does_not_see_the_workers_of_another(store: Store, redis_store: Callable[[], Store]) -> None:
    async with watching(redis_store()) as other, watching(store) as watcher:
        async with opened(store) as engine, session(engine):
            await hold_a_job(engine)
        assert [await other.look() for _ in range(3)] == [{}] * 3
        assert [await watcher.look() for _ in range(2)][-1] == {"w": 1}


# Outages


async def test_after_a_break_of_its_own_subscription_the_watcher_waits(store: Store, redis_server: RedisServer) -> None:
    async with watching(store) as watcher:
        async with opened(store) as engine, session(engine):
            await hold_a_job(engine)
        await eventually(lambda: subscribers(redis_server, store) == 0)
        assert await watcher.look() == {}
        notifier = watcher.engine._notifier
        (own,) = notifier._subscribers.values()
        notifier._on_loop(own._connection.close)
        await eventually(lambda: own.connects == 2)
        for _ in range(6):
            assert await watcher.look() == {}
        assert [await watcher.look() for _ in range(4)].count({"w": 1}) == 1


async def test_after_a_look_that_failed_the_watcher_waits(
    store: Store, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(store) as watcher:
        async with opened(store) as engine, session(engine):
            await hold_a_job(engine)
        await eventually(lambda: subscribers(redis_server, store) == 0)
        assert await watcher.look() == {}

        async def fail(command: object) -> None:
            raise EngineUnavailable()

        perform = watcher.engine._presence._perform
        watcher.engine._presence._perform = fail
        with pytest.raises(EngineUnavailable):
            await watcher.look()
        watcher.engine._presence._perform = perform
        for _ in range(6):
            assert await watcher.look() == {}
        assert [await watcher.look() for _ in range(4)].count({"w": 1}) == 1


async def test_a_watcher_that_is_subscribed_at_another_server_disowns_no_worker(
    store: Store, redis_server: RedisServer
) -> None:
    """After a failover its subscriptions may still be at the old server."""
    async with watching(store) as watcher:
        async with opened(store) as engine, session(engine):
            await hold_a_job(engine)
        await eventually(lambda: subscribers(redis_server, store) == 0)
        watcher.engine._notifier.own_channel = "elsewhere"
        assert [await watcher.look() for _ in range(12)] == [{}] * 12


async def test_after_a_start_of_the_server_its_workers_have_time_to_come_back() -> None:
    with private_server({"save": "", "appendonly": "yes", "appendfsync": "always"}) as server:
        store = fresh_namespace(server)
        async with watching(store) as watcher:
            async with opened(store) as engine, session(engine):
                await hold_a_job(engine)
            await eventually(lambda: subscribers(server, store) == 0)
            assert [await watcher.look() for _ in range(3)] == [{}] * 3  # it has just been started


# The renewal connection


async def test_renewals_go_on_after_their_connection_is_ended(store: Store) -> None:
    with private_server({"save": "", "appendonly": "no"}) as server:
        async with opened(fresh_namespace(server)) as engine:
            await engine.enqueue(Group((new_job("a"),)))
            (lease,) = (await engine.claim(claim("c" * 32))).leases

            def renew() -> None:
                connection = engine.renewal_connection()
                for _ in range(3):
                    connection.heartbeat(RECORD)
                    assert connection.renew([Renewal(lease.queue, lease.id, lease.token)]).jobs[0].status == "held"
                    server.kill_clients("normal")
                connection.close()

            await asyncio.to_thread(renew)
            assert [worker.worker for worker in (await engine.workers()).workers] == ["w"]


# PF1
async def test_a_renewal_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engines.redis.engine.CALL_TIMEOUT_S", 1.0)
    monkeypatch.setattr("holdfast.engines.redis.engine.CONNECT_TIMEOUT_S", 1.0)
    with private_server({"save": "", "appendonly": "no"}) as server:
        async with opened(fresh_namespace(server)) as engine, session(engine) as connection:
            server.freeze()
            try:
                for _ in range(2):  # over the old connection, then over a new one
                    with pytest.raises(Exception, match=r"no reply|reached"):
                        await asyncio.wait_for(asyncio.to_thread(connection.heartbeat, RECORD), 20)
            finally:
                server.thaw()
            await asyncio.to_thread(connection.heartbeat, RECORD)


async def test_a_disowned_worker_that_lives_has_one_outcome(store: Store, redis_server: RedisServer) -> None:
    """It was cut off for longer: its job runs again, and one of the two outcomes is accepted."""
    async with watching(store) as watcher, opened(store) as engine:
        async with session(engine):
            await engine.enqueue(Group((new_job("a"),)))
            (lease,) = (await engine.claim(claim("1" * 32, limit=1, worker="w"))).leases
        await eventually(lambda: subscribers(redis_server, store) == 0)
        assert [await watcher.look(), await watcher.look()] == [{}, {"w": 1}]
        # It renews before a reaper comes, and keeps the job.
        renewed = await engine.renew(Renewal(lease.queue, lease.id, lease.token))
        assert renewed.jobs[0].status == "held"
        assert (await watcher.engine.expired("other")).leases == ()
        assert [status.value for status in (await engine.settle(succeed(lease))).settled] == ["applied"]
