"""The client's side of the PostgreSQL engine: connections, event loops, forks, and what is said of a failure."""

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress

import asyncpg
import pytest
from postgres import PostgresServer, private_server
from postgres_stock import Store, fresh_namespace
from postgres_stories import Stores, backends, made, until_one_waits, wait_until, with_engine

from holdfast.engines.postgres.engine import PostgresEngine
from holdfast.errors import Busy, ConfigError, EngineUnavailable, InvalidArguments, OutcomeUnknown
from holdfast.model.job import JobKey
from holdfast.model.produce import Enqueue, Group
from holdfast.model.states import JobState
from holdfast.model.work import Exchange, Settlement, SettleStatus
from holdfast.testing.contract.builders import QUEUE, claim, new_job, succeed


@pytest.fixture
def store(postgres_store: Stores) -> Store:
    return postgres_store()


# Calls that nobody waits for


def test_a_cancelled_call_leaves_no_answer_for_the_next(store: Store, postgres_server: PostgresServer) -> None:
    async def story(engine: PostgresEngine) -> None:
        await engine.enqueue(Group((new_job("a", lane="l"),)))
        stranger = await asyncpg.connect(store.url)
        async with stranger.transaction():
            await stranger.execute(f"SELECT 1 FROM {store.namespace}.lane FOR UPDATE")
            call = asyncio.ensure_future(engine.enqueue(Group((new_job("b", lane="l"),))))
            await until_one_waits(postgres_server)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            records = (await engine.get(JobKey(QUEUE, "a"))).jobs
            assert records[0] is not None
            assert records[0].id == "a"
        await stranger.close()
        answers = await asyncio.gather(*(engine.get(JobKey(QUEUE, "a")) for _ in range(5)))
        assert all(answer.jobs[0] is not None for answer in answers)

    with_engine(made(store, pool_size=1), story)


def test_whoever_waits_for_a_connection_may_give_up(store: Store, postgres_server: PostgresServer) -> None:
    async def story(engine: PostgresEngine) -> None:
        await engine.enqueue(Group((new_job("a", lane="l"),)))
        stranger = await asyncpg.connect(store.url)
        async with stranger.transaction():
            await stranger.execute(f"SELECT 1 FROM {store.namespace}.lane FOR UPDATE")
            first = asyncio.ensure_future(engine.enqueue(Group((new_job("b", lane="l"),))))
            await until_one_waits(postgres_server)
            others = [asyncio.ensure_future(engine.get(JobKey(QUEUE, "a"))) for _ in range(3)]
            await asyncio.sleep(0)
            others[0].cancel()
            others[1].cancel()
        await first
        assert (await others[2]).jobs[0] is not None
        assert (await engine.get(JobKey(QUEUE, "b"))).jobs[0] is not None
        await stranger.close()

    with_engine(made(store, pool_size=1), story)


def test_a_handler_s_transaction_takes_no_connection_away_from_commands(store: Store) -> None:
    async def story(engine: PostgresEngine) -> None:
        async with engine.transaction() as one, engine.transaction() as two:
            assert one is not two
            await engine.enqueue(Group((new_job("a"),)))

    with_engine(made(store, pool_size=1), story)


def test_what_a_handler_sets_on_its_connection_is_gone_for_the_next(store: Store) -> None:
    async def story(engine: PostgresEngine) -> None:
        async with engine.transaction() as connection:
            first = await connection.fetchval("SELECT pg_backend_pid()")
            await connection.execute("SET work_mem = '1MB'")
        async with engine.transaction() as connection:
            assert await connection.fetchval("SELECT pg_backend_pid()") == first
            assert await connection.fetchval("SHOW work_mem") != "1MB"

    with_engine(made(store), story)


# Event loops and processes


def test_an_engine_goes_on_after_the_event_loop_that_opened_it(store: Store, postgres_server: PostgresServer) -> None:
    before = backends(postgres_server)
    engine = made(store, notify=False)

    async def first() -> None:
        await engine.open()
        await engine.enqueue(Group((new_job("a"),)))

    async def second() -> None:
        assert (await engine.get(JobKey(QUEUE, "a"))).jobs[0] is not None

    asyncio.run(first())
    wait_until(lambda: backends(postgres_server) <= before)  # a loop that ends takes its connections with it
    asyncio.run(second())
    asyncio.run(engine.close())
    wait_until(lambda: backends(postgres_server) <= before)


def test_a_loop_closed_without_ceremony_costs_no_connection_for_ever(
    store: Store, postgres_server: PostgresServer
) -> None:
    before = backends(postgres_server)
    engine = made(store, notify=False)

    async def use(name: str) -> None:
        await engine.open()
        await engine.enqueue(Group((new_job(name),)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # that is what it deserves
        for name in ("a", "b", "c"):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(use(name))
            loop.close()
            del loop
        asyncio.run(engine.close())
        gc.collect()
        wait_until(lambda: backends(postgres_server) <= before)


def test_it_is_closed_from_another_loop(store: Store, postgres_server: PostgresServer) -> None:
    before = backends(postgres_server)
    engine = made(store)
    used, ended = threading.Event(), threading.Event()

    async def use() -> None:
        await engine.enqueue(Group((new_job("a"),)))
        used.set()
        await asyncio.to_thread(ended.wait)

    asyncio.run(engine.open())
    user = threading.Thread(target=lambda: asyncio.run(use()))
    user.start()
    used.wait(30)
    asyncio.run(engine.close())
    wait_until(lambda: backends(postgres_server) <= before)
    ended.set()
    user.join()


def test_after_closing_it_says_so_and_can_be_opened_again(store: Store) -> None:
    async def story(engine: PostgresEngine) -> None:
        await engine.close()
        with pytest.raises(EngineUnavailable, match="Nothing was written"):
            await engine.enqueue(Group((new_job("a"),)))
        await engine.open()
        await engine.enqueue(Group((new_job("a"),)))

    with_engine(made(store), story)


def in_forked_child(what: Callable[[], str]) -> str:
    """What a child has to say that is forked here and now."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads: just what is tested here
        pid = os.fork()
    if pid == 0:
        said = "it did not end"
        try:
            said = what()
        except BaseException as error:
            said = repr(error)
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said


def test_a_forked_child_opens_its_own_and_leaves_its_parent_s_alone(store: Store) -> None:
    async def story(engine: PostgresEngine) -> None:
        def child() -> str:
            try:
                asyncio.run(engine.enqueue(Group((new_job("b"),))))
            except EngineUnavailable as error:
                said = str(error)
            with_engine(engine, lambda engine: engine.enqueue(Group((new_job("b"),))))
            return said

        await engine.enqueue(Group((new_job("a"),)))
        assert "not open in this process" in await asyncio.to_thread(in_forked_child, child)
        found = (await engine.get(JobKey(QUEUE, "a"), JobKey(QUEUE, "b"))).jobs
        assert [record is not None for record in found] == [True, True]
        with engine.subscribe(f"queue:{QUEUE}") as subscription:
            await engine.enqueue(Group((new_job("c"),)))
            assert await subscription.wait(30)

    with_engine(made(store), story)


def test_the_interpreter_may_end_without_a_loop(store: Store, postgres_server: PostgresServer) -> None:
    before = backends(postgres_server)
    engine = made(store)
    asyncio.run(engine.open())
    engine.close_now()
    wait_until(lambda: backends(postgres_server) <= before)


# What is said


def test_a_password_that_is_wrong_is_a_mistake_in_the_settings(store: Store) -> None:
    wrong = store._replace(url=store.url.replace("://holdfast:", "://holdfast:x"))
    with pytest.raises(ConfigError, match="refused the login"):
        asyncio.run(made(wrong).open())


def test_an_address_that_means_nothing_is_a_mistake_in_the_settings(store: Store) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        asyncio.run(made(store._replace(url="postgresql://h:port/x")).open())


def test_a_server_that_is_not_there_is_unavailable(store: Store) -> None:
    nobody = store._replace(url="postgresql://someone:secret@127.0.0.1:1/nothing")
    with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:1/nothing cannot be reached") as told:
        asyncio.run(made(nobody).open())
    assert "secret" not in str(told.value)


def test_the_place_is_shown_whatever_the_address_looks_like() -> None:
    urls = ("postgresql://u:p@h:1/d", "postgres://h1:1,h2:2/d", "postgresql+psycopg://u@h/d", "postgresql:///d")
    shown = [made(Store(url, "x")).place for url in urls]
    assert shown == ["h:1/d", "h1:1,h2:2/d", "h/d", "localhost/d"]


def test_a_worker_hears_of_a_lock_as_trouble_and_not_as_a_refusal(
    store: Store, postgres_server: PostgresServer
) -> None:
    """A settlement that is refused would be taken for one that cannot be stored."""

    async def story(engine: PostgresEngine) -> None:
        await engine.enqueue(Group((new_job("a", lane="l"),)))
        (lease,) = (await engine.claim(claim("c" * 32))).leases
        postgres_server.execute(f"ALTER DATABASE {postgres_server.database} SET lock_timeout = '100ms'")
        try:
            other = made(store, notify=False)
            await other.open()
            stranger = await asyncpg.connect(store.url)
            async with stranger.transaction():
                await stranger.execute(f"SELECT 1 FROM {store.namespace}.lane FOR UPDATE")
                with pytest.raises(EngineUnavailable, match="Nothing was written"):
                    await other.exchange([succeed(lease)])
                with pytest.raises(Busy):
                    await other.enqueue(Group((new_job("b", lane="l"),)))
            await stranger.close()
            assert (await other.settle(succeed(lease))).settled == (SettleStatus.APPLIED,)
            await other.close()
        finally:
            postgres_server.execute(f"ALTER DATABASE {postgres_server.database} RESET lock_timeout")

    with_engine(made(store), story)


def test_what_cannot_be_stored_is_refused_and_not_tried_for_ever(store: Store) -> None:
    async def story(engine: PostgresEngine) -> None:
        with pytest.raises(InvalidArguments, match="Nothing was written"):  # checked above the engine, so go below
            await engine.perform(Enqueue(groups=(Group((new_job("a", metadata={"k": "nul \0"}),)),)))
        bad = Settlement(queue=QUEUE, id="a", token="t", target=JobState.FAILED, note="nul \0")
        with pytest.raises(InvalidArguments):
            await engine.perform(Exchange(settlements=(bad,)))

    with_engine(made(store), story)


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_what_the_database_says_of_isolation_changes_nothing(
    store: Store, postgres_server: PostgresServer, isolation: str
) -> None:
    async def story(engine: PostgresEngine) -> None:
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

    name = postgres_server.database
    postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'")
    try:
        with_engine(made(store), story)
    finally:
        postgres_server.execute(f"ALTER DATABASE {name} RESET default_transaction_isolation")


# Limits of the server


@pytest.fixture(scope="module")
def small() -> Iterator[PostgresServer]:
    with private_server(max_connections=12, superuser_reserved_connections=1, fsync="off") as server:
        yield server


def test_a_server_without_free_connections_says_so_and_is_used_again_when_it_has(small: PostgresServer) -> None:
    store = fresh_namespace(small)

    async def story(engine: PostgresEngine) -> None:
        strangers = []
        with suppress(asyncpg.TooManyConnectionsError):
            while True:
                strangers.append(await asyncpg.connect(store.url))
        other = made(store, notify=False)
        with pytest.raises(EngineUnavailable, match="max_connections"):
            await other.open()
        for stranger in strangers:
            await stranger.close()
        await other.open()
        await other.enqueue(Group((new_job("a"),)))
        await other.close()

    with_engine(made(store), story)


def test_with_fewer_connections_than_it_may_have_it_makes_do(small: PostgresServer) -> None:
    store = fresh_namespace(small)

    async def story(engine: PostgresEngine) -> None:
        await asyncio.gather(*(engine.enqueue(Group((new_job(f"j{number}"),))) for number in range(60)))
        assert (await engine.stats(QUEUE)).queues[0].counts[JobState.QUEUED] == 60

    with_engine(made(store, pool_size=50), story)


# Time


def test_a_statement_that_takes_too_long_is_given_up(store: Store, postgres_server: PostgresServer) -> None:
    name = postgres_server.database
    postgres_server.execute(f"ALTER DATABASE {name} SET statement_timeout = '200ms'")
    try:

        async def story(engine: PostgresEngine) -> None:
            await engine.enqueue(Group((new_job("a", lane="l"),)))
            stranger = await asyncpg.connect(store.url)
            async with stranger.transaction():
                await stranger.execute(f"SELECT 1 FROM {store.namespace}.lane FOR UPDATE")
                with pytest.raises(EngineUnavailable, match="Nothing was written"):
                    await engine.enqueue(Group((new_job("b", lane="l"),)))
            await stranger.close()
            await engine.enqueue(Group((new_job("b", lane="l"),)))

        with_engine(made(store), story)
    finally:
        postgres_server.execute(f"ALTER DATABASE {name} RESET statement_timeout")


def test_a_call_that_is_not_answered_ends_as_unknown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engines.postgres.dialling.ANSWER_WITHIN", 0.3)

    async def story(engine: PostgresEngine) -> None:
        await engine.enqueue(Group((new_job("a", lane="l"),)))
        stranger = await asyncpg.connect(store.url)
        async with stranger.transaction():
            await stranger.execute(f"SELECT 1 FROM {store.namespace}.lane FOR UPDATE")
            with pytest.raises(OutcomeUnknown) as told:
                await engine.enqueue(Group((new_job("b", lane="l"),)))
            assert told.value.job_ids == ("b",)
        await stranger.close()
        await engine.enqueue(Group((new_job("b", lane="l"),)))

    with_engine(made(store), story)
