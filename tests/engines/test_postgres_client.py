"""The client of the PostgreSQL engine: connections, event loops, forks, and the errors it raises."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import psycopg
import pytest
from postgres import PostgresServer, private_server
from postgres_binaries import NoServer
from postgres_stock import Store, fresh_namespace
from postgres_stories import Stores, made, opened, until_one_waits

from holdfast.engines.postgres import failures
from holdfast.engines.postgres.connect import ARRAY_TYPES, STATEMENT_TIMEOUT_S, Connector
from holdfast.engines.postgres.durability import Durability
from holdfast.errors import Busy, ConfigError, EngineUnavailable, InvalidArguments, OutcomeUnknown
from holdfast.model.job import JobKey
from holdfast.model.produce import Enqueue, Group
from holdfast.model.states import JobState
from holdfast.model.work import Exchange, Expired, Settlement, SettleStatus
from holdfast.testing.contract.builders import QUEUE, claim, new_job, succeed


@pytest.fixture
def store(postgres_store: Stores) -> Store:
    return postgres_store()


@asynccontextmanager
async def lanes_locked(store: Store) -> AsyncIterator[None]:
    """Another session holds the locks of all lanes."""
    other = await asyncpg.connect(store.url)
    try:
        async with other.transaction():
            await other.execute(f"SELECT 1 FROM {store.namespace}.lane FOR UPDATE")
            yield
    finally:
        await other.close()


# Array types


async def test_the_array_types_are_those_that_asyncpg_reads_from_the_server(store: Store) -> None:
    connection: Any = await asyncpg.connect(store.url)
    try:
        numbers = [array_type["oid"] for array_type in ARRAY_TYPES]
        read, _ = await connection._introspect_types(numbers, 10)
    finally:
        await connection.close()
    arrays = sorted((dict(row) for row in read if row["oid"] in numbers), key=lambda row: row["oid"])
    assert arrays == list(ARRAY_TYPES)


async def test_an_exchange_on_a_new_connection_does_not_read_types_from_the_server(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(store) as engine:
        await engine.enqueue(Group((new_job("a"),)))

        async def read_types(*_: object) -> None:
            raise AssertionError("asyncpg reads types from the server")

        monkeypatch.setattr(asyncpg.Connection, "_introspect_types", read_types)
        (lease,) = (await engine.claim(claim("1" * 32, limit=1))).leases
        assert (await engine.settle(succeed(lease))).settled == (SettleStatus.APPLIED,)


# Cancelled calls


async def test_a_cancelled_call_leaves_no_answer_for_the_next(store: Store, postgres_server: PostgresServer) -> None:
    async with opened(store, pool_size=1) as engine:
        await engine.enqueue(Group((new_job("a", lane="l"),)))
        async with lanes_locked(store):
            call = asyncio.ensure_future(engine.enqueue(Group((new_job("b", lane="l"),))))
            await until_one_waits(postgres_server)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            records = (await engine.get(JobKey(QUEUE, "a"))).jobs
            assert records[0] is not None
            assert records[0].id == "a"
        answers = await asyncio.gather(*(engine.get(JobKey(QUEUE, "a")) for _ in range(5)))
        assert all(answer.jobs[0] is not None for answer in answers)


async def test_a_call_that_waits_for_a_connection_can_be_cancelled(
    store: Store, postgres_server: PostgresServer
) -> None:
    async with opened(store, pool_size=1) as engine:
        await engine.enqueue(Group((new_job("a", lane="l"),)))
        async with lanes_locked(store):
            first = asyncio.ensure_future(engine.enqueue(Group((new_job("b", lane="l"),))))
            await until_one_waits(postgres_server)
            others = [asyncio.ensure_future(engine.get(JobKey(QUEUE, "a"))) for _ in range(3)]
            await asyncio.sleep(0)  # each of them begins, and waits for the only connection
            others[0].cancel()
            others[1].cancel()
        await first
        assert (await others[2]).jobs[0] is not None
        assert (await engine.get(JobKey(QUEUE, "b"))).jobs[0] is not None


async def test_a_handler_s_transaction_takes_no_connection_away_from_commands(store: Store) -> None:
    async with (
        opened(store, pool_size=1) as engine,
        engine.transaction() as one,
        engine.transaction() as two,
    ):
        assert one is not two
        await engine.enqueue(Group((new_job("a"),)))


async def test_settings_of_a_handler_s_connection_are_reset_for_the_next_handler(store: Store) -> None:
    async with opened(store) as engine:
        async with engine.transaction() as connection:
            first = await connection.fetchval("SELECT pg_backend_pid()")
            await connection.execute("SET work_mem = '1MB'")
        async with engine.transaction() as connection:
            assert await connection.fetchval("SELECT pg_backend_pid()") == first
            assert await connection.fetchval("SHOW work_mem") != "1MB"


# Errors


async def test_a_wrong_password_is_a_config_error(store: Store) -> None:
    wrong = store._replace(url=store.url.replace("://holdfast:", "://holdfast:x"))
    with pytest.raises(ConfigError, match="refused the login"):
        await made(wrong).open()


async def test_an_invalid_address_is_a_config_error(store: Store) -> None:
    with pytest.raises(ConfigError, match=r"its port is no number .* Write it as postgresql://USER:"):
        await made(store._replace(url="postgresql://h:port/x")).open()


async def test_a_server_that_does_not_run_is_unavailable(store: Store) -> None:
    closed_port = store._replace(url="postgresql://user:secret@127.0.0.1:1/nothing")
    with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:1/nothing cannot be reached") as refused:
        await made(closed_port).open()
    assert "secret" not in str(refused.value)


def test_the_place_is_shown_for_every_form_of_address() -> None:
    urls = ("postgresql://u:p@h:1/d", "postgres://h1:1,h2:2/d", "postgresql+psycopg://u@h/d", "postgresql:///d")
    shown = [made(Store(url, "x")).place for url in urls]
    assert shown == ["h:1/d", "h1:1,h2:2/d", "h/d", "localhost/d"]


async def test_a_locked_lane_is_busy_to_a_worker_and_to_a_producer(store: Store) -> None:
    """The worker would take a refusal for a settlement that cannot be stored, and fail the job."""
    async with opened(store) as engine:
        await engine.enqueue(Group((new_job("a", lane="l"),)))
        (lease,) = (await engine.claim(claim("c" * 32))).leases
        async with lanes_locked(store):
            assert (await engine.exchange([succeed(lease)])).settled == (SettleStatus.BUSY,)
            with pytest.raises(Busy):
                await engine.enqueue(Group((new_job("b", lane="l"),)))
        assert (await engine.settle(succeed(lease))).settled == (SettleStatus.APPLIED,)


async def test_a_value_that_cannot_be_stored_is_refused_without_retries(store: Store) -> None:
    async with opened(store) as engine:
        with pytest.raises(InvalidArguments, match="Nothing was written"):  # `enqueue` would check it first
            await engine.perform(Enqueue(groups=(Group((new_job("a", metadata={"k": "nul \0"}),)),)))
        bad = Settlement(queue=QUEUE, id="a", token="t", target=JobState.FAILED, note="nul \0")
        with pytest.raises(InvalidArguments):
            await engine.perform(Exchange(settlements=(bad,)))


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_the_default_isolation_of_the_database_changes_nothing(
    store: Store, postgres_server: PostgresServer, isolation: str
) -> None:
    name = postgres_server.database
    postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'")
    try:
        async with opened(store) as engine:

            async def drain(worker: str) -> int:
                done = 0
                for number in range(100):
                    wanted = claim(f"{worker}{number:031}", limit=5, worker=worker)
                    leases = (await engine.claim(wanted)).leases
                    if not leases:
                        break
                    await engine.settle(*map(succeed, leases))
                    done += len(leases)
                return done

            await engine.enqueue(Group(tuple(new_job(f"j{number}") for number in range(100))))
            assert sum(await asyncio.gather(*(drain(worker) for worker in "abcd"))) == 100
            assert await engine.audit() == ()
    finally:
        postgres_server.execute(f"ALTER DATABASE {name} RESET default_transaction_isolation")


# Limits of the server


@pytest.fixture(scope="module")
def small() -> Iterator[PostgresServer]:
    with private_server(max_connections=12, superuser_reserved_connections=1, fsync="off") as server:
        yield server


async def test_jobs_are_enqueued_and_settled_while_the_queue_of_notifications_is_full() -> None:
    """A session listens and does not end its transaction, so that the server keeps all notifications since."""
    try:
        server = private_server(oldest_major=17, max_notify_queue_pages=64, fsync="off")
    except NoServer as error:  # before 17 the queue has 8 GB
        pytest.skip(str(error))
    with server:
        store = fresh_namespace(server)
        async with opened(store) as engine, opened(store) as other:
            listener, user = await asyncpg.connect(store.url), await asyncpg.connect(store.url)
            await listener.execute("LISTEN elsewhere; BEGIN")
            with other.subscribe(f"queue:{QUEUE}", "reply:caller"):
                with suppress(psycopg.errors.ProgramLimitExceeded):
                    while True:
                        server.execute("SELECT pg_notify('elsewhere', repeat('x', 7000))")
                await engine.enqueue(Group((new_job("a", reply="caller", fresh_id=True),)))
                async with user.transaction():
                    await engine.in_transaction(Enqueue(groups=(Group((new_job("b"),)),)), user)
                leases = (await engine.claim(claim("c" * 32, limit=2))).leases
                answer = await engine.exchange([succeed(lease) for lease in leases])
            assert answer.settled == (SettleStatus.APPLIED, SettleStatus.APPLIED)
            await user.close()
            await listener.close()


async def test_a_server_without_free_connections_is_an_error_until_it_has_some(small: PostgresServer) -> None:
    store = fresh_namespace(small)

    async with opened(store):
        others = []
        with suppress(asyncpg.TooManyConnectionsError):
            while True:
                others.append(await asyncpg.connect(store.url))
        other = made(store, notify=False)
        with pytest.raises(EngineUnavailable, match="max_connections"):
            await other.open()
        for connection in others:
            await connection.close()
        await other.open()
        await other.enqueue(Group((new_job("a"),)))
        await other.close()


async def test_an_engine_works_with_fewer_connections_than_its_pool_size(small: PostgresServer) -> None:
    store = fresh_namespace(small)

    async with opened(store, pool_size=50) as engine:
        await asyncio.gather(*(engine.enqueue(Group((new_job(f"j{number}"),))) for number in range(60)))
        assert (await engine.stats(QUEUE)).queues[0].counts[JobState.QUEUED] == 60


# Timeouts


async def test_a_statement_timeout_of_the_server_is_unavailable(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # PF1: each connection sets it.
    async with opened(store) as patient:
        await patient.enqueue(Group((new_job("a", lane="l"),)))
        monkeypatch.setattr("holdfast.engines.postgres.connect.SERVER_GRACE_S", 1 - STATEMENT_TIMEOUT_S)
        async with lanes_locked(store), opened(store) as hasty:
            with pytest.raises(EngineUnavailable, match=r"statement timeout.*Nothing was written"):
                await hasty.enqueue(Group((new_job("b", lane="l"),)))
        await patient.enqueue(Group((new_job("b", lane="l"),)))


async def test_a_call_without_an_answer_raises_outcome_unknown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(store) as patient:
        await patient.enqueue(Group((new_job("a", lane="l"),)))
        monkeypatch.setattr("holdfast.engines.postgres.connect.STATEMENT_TIMEOUT_S", 1)
        async with lanes_locked(store), opened(store) as hasty:
            with pytest.raises(OutcomeUnknown) as unknown:
                await hasty.enqueue(Group((new_job("b", lane="l"),)))
            assert unknown.value.job_ids == ("b",)
        await patient.enqueue(Group((new_job("b", lane="l"),)))


# A proxy that shares sessions, as the client sees it


class ProxiedConnection:
    """A connection whose session has another process than the handshake named."""

    def __init__(self, pid: int, error: Exception | None = None) -> None:
        self._pid = pid
        self._error = error
        self.closed = False

    def get_server_pid(self) -> int:
        return 1

    async def fetchval(self, query: str) -> int:
        if self._error is not None:
            raise self._error
        return self._pid

    def terminate(self) -> None:
        self.closed = True


def connector_to(other: ProxiedConnection) -> Any:
    class ToOther(Connector):
        async def __call__(self) -> Any:
            return other

    return ToOther("postgresql://", "here", Durability("fast", pooled=False), pooled=False)


async def test_two_connections_with_one_session_are_refused_by_name() -> None:
    other = ProxiedConnection(7)
    with pytest.raises(ConfigError, match=r"here .*shares sessions.*pooled = true"):
        await connector_to(other).check_session(ProxiedConnection(7))
    assert other.closed


async def test_a_proxy_that_keeps_sessions_is_accepted() -> None:
    other = ProxiedConnection(8)
    await connector_to(other).check_session(ProxiedConnection(7))
    assert other.closed


async def test_a_statement_that_is_missing_in_the_session_names_the_proxy() -> None:
    error = asyncpg.InvalidSQLStatementNameError('prepared statement "__asyncpg_1__" does not exist')
    with pytest.raises(ConfigError, match="pooled = true"):
        await connector_to(ProxiedConnection(8)).check_session(ProxiedConnection(7, error))
    for found in (error, asyncpg.DuplicatePreparedStatementError("prepared statement already exists")):
        failure = failures.of_call(found, Expired(worker="w"), "here", reads=True, unknown=False)
        assert isinstance(failure, ConfigError)
        assert "pooled = true" in str(failure)


async def test_during_a_call_a_statement_that_is_missing_names_the_proxy(store: Store) -> None:
    """DEALLOCATE does what a proxy does that gives the session to another client."""
    async with opened(store, notify=False, pool_size=1) as engine:
        await engine.stats(QUEUE)
        async with engine._loop_connections().commands.one() as connection:
            await connection.execute("DEALLOCATE ALL")
        with pytest.raises(ConfigError, match="pooled = true"):
            await engine.stats(QUEUE)
