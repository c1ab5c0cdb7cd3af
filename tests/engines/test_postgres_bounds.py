"""The client of PostgreSQL, part by part: the claim cursor, the pool, what is kept in memory, what is sent again."""

import asyncio
import socket
from typing import Any

import asyncpg
import pytest
from eventually import eventually
from postgres import PostgresServer
from postgres_stock import Store
from postgres_stories import Stores, opened

from holdfast.engines.feed_channels import MAX_PENDING_MESSAGES
from holdfast.engines.postgres import failures, renewal_connection
from holdfast.engines.postgres.claim_cursor import DEAD_ENTRIES, WHOLE_SCAN_INTERVAL_US, ClaimCursors
from holdfast.engines.postgres.connect import TCP_OPTIONS, socket_of
from holdfast.engines.postgres.connections import Connections
from holdfast.engines.postgres.feed import NotifyFeed
from holdfast.engines.postgres.loop_connections import ConnectionsByLoop, LoopConnections
from holdfast.engines.postgres.notifier import MAX_PENDING_TOPICS, Notifier
from holdfast.engines.topics import Topics
from holdfast.errors import EngineUnavailable
from holdfast.model.instants import FOREVER, SECOND, At
from holdfast.model.produce import Enqueue, Group, NewJob
from holdfast.model.work import Claim, ExchangeAnswer, Lease, QueueClaim, TaskClaim
from holdfast.runtime import SystemRuntime
from holdfast.testing import FrozenRuntime
from holdfast.transactions import adapt
from holdfast.worker.attempt import fence_age, renewal_age

QUEUE = "q"
TASKS = (TaskClaim(task="t", lease_len=60 * SECOND),)


@pytest.fixture
def store(postgres_store: Stores) -> Store:
    return postgres_store()


def a_claim(name: str = "c", tasks: tuple[TaskClaim, ...] = TASKS, limit: int = 9) -> Claim:
    return Claim(claim_id=name, worker="w", queues=(QueueClaim(QUEUE, tasks),), limit=limit)


# The claim cursor


def answer_with(*arrivals: int) -> ExchangeAnswer:
    def lease(arrival: int) -> Lease:
        fields: dict[str, Any] = dict.fromkeys(Lease.__struct_fields__)
        return Lease(**{**fields, "queue": QUEUE, "priority": 0, "due": 7, "arrival": arrival})

    leases = tuple(map(lease, arrivals))
    return ExchangeAnswer(at=At(0, 0), settled=(), started=(), emptied=(), leases=leases, next_due=None)


def learned(dead: int = DEAD_ENTRIES, now_us: int = 0) -> ClaimCursors:
    """The cursors after one claim that met so many dead entries."""
    cursors = ClaimCursors()
    cursors.learn(a_claim(), {}, answer_with(1, 2), dead + 2, now_us)
    return cursors


def test_a_claim_that_met_many_dead_entries_sets_a_cursor_at_its_first_job() -> None:
    assert learned(DEAD_ENTRIES - 1).of(a_claim(), 0) == {}
    assert learned().of(a_claim(), 0) == {QUEUE: (0, 7, 1)}


def test_the_cursor_moves_with_each_claim() -> None:
    cursors = learned()
    cursors.learn(a_claim(), cursors.of(a_claim(), 0), answer_with(5, 6), 2, 0)
    assert cursors.of(a_claim(), 0) == {QUEUE: (0, 7, 5)}


def test_a_claim_scans_from_the_beginning_at_intervals() -> None:
    assert learned().of(a_claim(), WHOLE_SCAN_INTERVAL_US - 1) != {}
    assert learned().of(a_claim(), WHOLE_SCAN_INTERVAL_US) == {}


def test_the_interval_grows_with_the_time_that_a_whole_scan_takes() -> None:
    assert learned(1_000_000).of(a_claim(), 2 * SECOND) != {}


def test_a_claim_with_shares_per_task_always_scans_from_the_beginning() -> None:
    shares = (TaskClaim(task="t", lease_len=SECOND, limit=1),)
    assert learned().of(a_claim(tasks=shares), 0) == {}


def test_the_cursor_is_dropped_when_a_whole_scan_meets_few_dead_entries() -> None:
    cursors = learned()
    cursors.learn(a_claim(), {}, answer_with(5), 1, WHOLE_SCAN_INTERVAL_US)
    assert cursors.of(a_claim(), WHOLE_SCAN_INTERVAL_US) == {}


async def test_a_claim_that_finds_too_few_jobs_behind_its_cursor_looks_before_it(store: Store) -> None:
    async with opened(store, notify=False) as engine:
        await engine.enqueue(Group(tuple(NewJob(queue=QUEUE, id=id, task="t") for id in ("a", "b", "c"))))
        cursors = engine._caller._cursors
        cursors._cursors[QUEUE] = (0, FOREVER, 0)  # behind all jobs
        cursors._whole_at[QUEUE] = 10**18
        assert len((await engine.claim(a_claim(limit=3))).leases) == 3


# The pool


class FakeConnection:
    """Stands for a connection that is alive until it is terminated."""

    def __init__(self) -> None:
        self.terminated = False

    def terminate(self) -> None:
        self.terminated = True

    def is_closed(self) -> bool:
        return self.terminated


class FakeServer:
    """Makes connections, and refuses more than `room` of them."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.made: list[FakeConnection] = []

    async def __call__(self) -> Any:
        if len([connection for connection in self.made if not connection.terminated]) >= self.room:
            raise EngineUnavailable("full") from asyncpg.TooManyConnectionsError("full")
        self.made.append(FakeConnection())
        return self.made[-1]


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engines.postgres.connections._is_alive", lambda connection: True)


@pytest.mark.usefixtures("alive")
async def test_a_caller_that_is_cancelled_as_it_is_served_gives_its_connection_on() -> None:
    pool = Connections(FakeServer(), 1)
    async with asyncio.timeout(30):
        async with pool.one():
            waiting = asyncio.ensure_future(pool.take())
            await eventually(lambda: pool._waiters)
        waiting.cancel()  # its future has the connection already
        await asyncio.wait({waiting})
        async with pool.one():
            pass


@pytest.mark.usefixtures("alive")
async def test_a_connection_that_comes_back_to_a_closed_pool_is_closed() -> None:
    server = FakeServer()
    pool = Connections(server, 1)
    async with pool.one():
        pool.close()
    assert [connection.terminated for connection in server.made] == [True]


@pytest.mark.usefixtures("alive")
async def test_a_pool_keeps_no_more_idle_connections_than_it_was_told() -> None:
    server = FakeServer()
    pool = Connections(server, 5, keep=1)
    async with pool.one(), pool.one(), pool.one():
        pass
    assert sorted(connection.terminated for connection in server.made) == [False, True, True]


@pytest.mark.usefixtures("alive")
async def test_a_connection_that_the_server_refused_can_be_opened_later() -> None:
    server = FakeServer(room=1)
    pool = Connections(server, 2)
    async with asyncio.timeout(30):
        async with pool.one():
            waiting = asyncio.ensure_future(pool.take())
            await eventually(lambda: pool._waiters)
        pool.give_back(await waiting)
        server.room = 2
        async with pool.one(), pool.one():
            pass


def test_connections_of_a_loop_that_was_closed_are_dropped_when_the_next_loop_comes() -> None:
    def make() -> LoopConnections:
        return LoopConnections(commands=Connections(FakeServer(), 1), transactions=Connections(FakeServer(), 1))

    by_loop = ConnectionsByLoop(SystemRuntime(), make)

    async def use() -> None:
        by_loop.of_running_loop()

    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.set_debug(False)
        loop.run_until_complete(use())
        loop.close()
    assert len(by_loop._by_loop) == 1


# Failures and limits


@pytest.mark.parametrize("kind", [asyncpg.QueryCanceledError, asyncpg.ReadOnlySQLTransactionError])
def test_a_connection_is_not_used_again_after_a_cancelled_call_or_on_a_standby(kind: Any) -> None:
    assert failures.ends_connection(kind("refused"))
    assert not failures.ends_connection(asyncpg.UniqueViolationError("refused"))


def test_a_read_that_took_too_long_is_not_sent_again() -> None:
    assert failures.may_try_again(ConnectionResetError(), reads=True, unknown=True)
    assert not failures.may_try_again(TimeoutError(), reads=True, unknown=True)


def test_a_renewal_that_hangs_leaves_time_for_a_second_one_before_the_fence() -> None:
    lease_us = 30 * SECOND
    assert fence_age(lease_us) - renewal_age(lease_us) >= 2 * renewal_connection.STATEMENT_TIMEOUT_S * SECOND


async def test_every_connection_detects_a_server_that_has_vanished(store: Store) -> None:
    async with opened(store, notify=False) as engine, engine._loop_connections().commands.one() as connection:
        found = socket_of(connection)
        assert found is not None
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for name, value in TCP_OPTIONS.items():
            if hasattr(socket, name):
                assert found.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value


async def test_every_connection_reads_committed_rows_whatever_the_default_is(
    store: Store, postgres_server: PostgresServer
) -> None:
    name = postgres_server.database
    postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    try:
        async with opened(store, notify=False) as engine, engine._loop_connections().commands.one() as connection:
            assert await connection.fetchval("SHOW transaction_isolation") == "read committed"
    finally:
        postgres_server.execute(f"ALTER DATABASE {name} RESET default_transaction_isolation")


# Notifications and the feed


async def never_connects() -> Any:
    await asyncio.Event().wait()


def test_topics_that_cannot_be_sent_do_not_fill_the_memory() -> None:
    notifier = Notifier(never_connects, "ns", Topics(), SystemRuntime())
    for number in range(2 * MAX_PENDING_TOPICS):
        notifier.notify([f"queue:{number}"])
    assert len(notifier._pending_topics) == MAX_PENDING_TOPICS
    notifier._pending_topics.clear()
    notifier.close()


def test_room_is_notified_at_intervals() -> None:
    runtime = FrozenRuntime()
    notifier = Notifier(never_connects, "ns", Topics(), runtime)
    runtime.advance(10)

    def taken() -> list[str]:
        notifier._pending_topics.update({"room:q": None, "queue:q": None})
        return sorted(notifier._take_due_topics())

    assert taken() == ["queue:q", "room:q"]
    assert taken() == ["queue:q"]
    runtime.advance(1)
    assert taken() == ["queue:q", "room:q"]
    notifier._pending_topics.clear()
    notifier.close()


async def test_messages_of_the_feed_that_cannot_be_sent_do_not_fill_the_memory() -> None:
    feed = NotifyFeed("ns", SystemRuntime(), lambda: None)
    for _ in range(2 * MAX_PENDING_MESSAGES):
        feed.publish(b"{}")
    assert len(feed.take_pending()) == MAX_PENDING_MESSAGES


class CountingConnection:
    """Counts statements."""

    count = 0

    async def execute(self, *args: Any) -> None:
        self.count += 1


async def test_a_listener_takes_its_lock_again_on_a_new_connection() -> None:
    feed = NotifyFeed("ns", SystemRuntime(), lambda: None)
    feed.listen(["Started"], lambda message: None)
    connection: Any = CountingConnection()
    for _ in range(2):
        await feed.take_lock(connection)
    assert connection.count == 1
    feed.forget_lock()
    await feed.take_lock(connection)
    assert connection.count == 2


async def test_a_listener_whose_announcements_stopped_is_not_served() -> None:
    runtime = FrozenRuntime()
    feed = NotifyFeed("ns", runtime, lambda: None)
    feed.on_announcement(7, b'["Started"]')
    assert feed.kinds == {"Started"}
    runtime.advance(60)
    assert feed.kinds == frozenset()


# Users' transactions


async def test_the_identity_of_the_database_is_read_again_after_a_restart(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(store, notify=False) as engine:
        user: Any = await asyncpg.connect(store.url)
        async with user.transaction():
            engine._user_transactions._identity = "of the server before its restart"
            await engine.in_transaction(Enqueue(groups=(Group((NewJob(queue=QUEUE, id="a", task="t"),)),)), user)
            assert engine._user_transactions._identity == await adapt(user).aidentity()
        await user.close()


async def test_an_enqueue_to_very_many_queues_does_not_fail_because_of_its_notification(store: Store) -> None:
    async with opened(store) as engine:
        user: Any = await asyncpg.connect(store.url)
        async with user.transaction():
            jobs = tuple(NewJob(queue=f"{number:0190}", id="a", task="t") for number in range(60))
            await engine.in_transaction(Enqueue(groups=(Group(jobs),)), user)
        await user.close()
        assert len((await engine.stats()).queues) == 60


async def test_each_enqueue_of_a_transaction_notifies_its_own_topics(store: Store) -> None:
    received: list[str] = []
    listener: Any = await asyncpg.connect(store.url)
    await listener.add_listener(f"holdfast_{store.namespace}", lambda *given: received.append(given[-1]))
    async with opened(store) as engine:
        user: Any = await asyncpg.connect(store.url)
        async with user.transaction():
            for queue in ("first", "second"):
                await engine.in_transaction(Enqueue(groups=(Group((NewJob(queue=queue, id="a", task="t"),)),)), user)
        await user.close()
    await listener.fetchval("SELECT 1")
    await listener.close()
    assert received[:2] == ['["queue:first"]', '["queue:second"]']
