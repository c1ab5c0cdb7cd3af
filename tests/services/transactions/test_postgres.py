"""What is special about transactions on PostgreSQL: drivers in many moods, other databases, dead transactions."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
from postgres_roles import new_role
from psycopg.rows import dict_row
from sqlalchemy import text
from sqlalchemy.exc import DataError
from user_transactions import Store

from holdfast import App, Context, UsageError, WrongDatabase, fixed
from holdfast.testing import Probe
from holdfast.transactions import adapt

if TYPE_CHECKING:
    from postgres import PostgresServer


@pytest.fixture(params=["postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    url, namespace = request.getfixturevalue("postgres_store")()
    found = Store("postgres", url, url, namespace)
    yield found
    found.close()


@pytest.fixture
def ship(jobs: App[Any]) -> Any:
    @jobs.task
    def ship(order: str) -> str:
        return f"shipped {order}"

    return ship


def depth(jobs: App[Any]) -> int:
    return jobs.control.status("default").depth


# Whether it is in a transaction


async def test_an_asyncpg_connection_outside_of_a_transaction_is_refused(
    jobs: App[Any], ship: Any, store: Store
) -> None:
    connection = await asyncpg.connect(store.place)
    with pytest.raises(UsageError, match="is in no transaction"):
        await ship.using(transaction=connection).aenqueue("1")
    await connection.close()
    async with asyncpg.create_pool(store.place, min_size=1) as pool:
        with pytest.raises(UsageError, match="pool is not a transaction"):
            await ship.using(transaction=pool).aenqueue("1")
    assert (await jobs.control.astatus("default")).depth == 0
    await jobs.aclose()


def test_a_psycopg_connection_that_commits_by_itself_needs_a_block(jobs: App[Any], ship: Any, store: Store) -> None:
    with psycopg.connect(store.place, autocommit=True) as connection:
        with pytest.raises(UsageError, match="is in no transaction"):
            ship.using(transaction=connection).enqueue("1")
        with connection.transaction():
            ship.using(transaction=connection).enqueue("1")
            assert depth(jobs) == 0
    assert depth(jobs) == 1


def test_a_session_without_transactions_is_refused(jobs: App[Any], ship: Any, store: Store) -> None:
    engine = store.engine(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(UsageError, match="AUTOCOMMIT"):
        ship.using(transaction=connection).enqueue("1")
    assert depth(jobs) == 0


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_an_async_session_without_transactions_is_refused(
    jobs: App[Any], ship: Any, store: Store, driver: str
) -> None:
    async with store.async_engine(driver, isolation_level="AUTOCOMMIT").connect() as connection:
        with pytest.raises(UsageError, match="AUTOCOMMIT"):
            await ship.using(transaction=connection).aenqueue("1")
    assert (await jobs.control.astatus("default")).depth == 0
    await jobs.aclose()


# Where the connection leads


def test_a_connection_to_another_database_is_refused(
    jobs: App[Any], ship: Any, store: Store, postgres_server: "PostgresServer", tmp_path: Path
) -> None:
    with psycopg.connect(postgres_server.url("template1")) as connection, pytest.raises(WrongDatabase):
        ship.using(transaction=connection).enqueue("1")
    elsewhere = Store("sqlite", "", f"{tmp_path}/shop.db")
    with elsewhere.sessions()() as session, pytest.raises(WrongDatabase):
        ship.using(transaction=session).enqueue("1")
    assert depth(jobs) == 0


def test_a_session_on_postgresql_is_no_way_to_a_file(store: Store, tmp_path: Path) -> None:
    jobs: App[Any] = App(f"sqlite:///{tmp_path}/jobs.db")

    @jobs.task
    def ship(order: str) -> None: ...

    with jobs, store.sessions()() as session, pytest.raises(WrongDatabase):
        ship.using(transaction=session).enqueue("1")


async def test_every_driver_gives_a_database_the_same_name(store: Store) -> None:
    first = await asyncpg.connect(store.place)
    names = {await adapt(first).aidentity()}
    await first.close()
    async with await psycopg.AsyncConnection.connect(store.place) as other:
        names.add(await adapt(other).aidentity())
    for driver in ("asyncpg", "psycopg"):
        async with store.async_sessions(driver)() as async_session:
            names.add(await adapt(async_session).aidentity())
    with psycopg.connect(store.place, options="-c timezone=Asia/Tokyo") as connection:
        names.add(adapt(connection).identity())
    with store.sessions()() as session:
        names.add(adapt(session).identity())
    assert len(names) == 1


# What does not matter, and what does


def test_factories_of_the_users_do_not_matter(jobs: App[Any], ship: Any, store: Store) -> None:
    with psycopg.connect(store.place, row_factory=dict_row) as connection:
        connection.cursor_factory = psycopg.RawCursor
        ship.using(transaction=connection).enqueue("100 %")
    assert depth(jobs) == 1


def test_a_dead_transaction_leaves_the_job_to_be_tried_again(jobs: App[Any], store: Store) -> None:
    """The handler has swallowed the error, and PostgreSQL takes nothing more of this transaction."""

    @jobs.task(transaction=store.sessions(), backoff=fixed(0))
    def work(ctx: Context) -> int:
        ctx.tx.execute(text(f"INSERT INTO {store.table} VALUES ('a')"))
        if ctx.attempt == 1:
            with suppress(DataError):
                ctx.tx.execute(text("SELECT 1 / 0"))
        return ctx.attempt

    @jobs.task(transaction=True, backoff=fixed(0))
    async def awaited(ctx: Context) -> int:
        connection = await ctx.tx
        await connection.execute(f"INSERT INTO {store.table} VALUES ('b')")
        if ctx.attempt == 1:
            with pytest.raises(asyncpg.DivisionByZeroError):
                await connection.execute("SELECT 1 / 0")
        return ctx.attempt

    with jobs.worker():
        assert work.enqueue().result(timeout=30) == 2
        assert awaited.enqueue().result(timeout=30) == 2
    assert store.effects() == {"a": 1, "b": 1}


# The engine's own transactions


@pytest.mark.parametrize("durability", ["durable", "fast"])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_handler_s_transaction_has_the_settings_of_the_app(
    store: Store, postgres_server: "PostgresServer", kind: str, durability: Literal["durable", "fast"]
) -> None:
    role = new_role(postgres_server)
    postgres_server.execute(f"GRANT {urlsplit(store.place).username} TO {role.name}")
    postgres_server.execute(f"ALTER ROLE {role.name} SET default_transaction_isolation = 'repeatable read'")
    opposite = "off" if durability == "durable" else "on"
    postgres_server.execute(f"ALTER ROLE {role.name} SET synchronous_commit = {opposite}")
    app: App[Any] = App(role.url, namespace=store.namespace, durability=durability)
    query = "SELECT current_setting('transaction_isolation') || ' ' || current_setting('synchronous_commit')"

    @app.task(name="plain")
    def plain(ctx: Context) -> str:
        with ctx.transaction() as connection:
            return str(connection.execute(query).fetchone()[0])

    @app.task(name="async")
    async def coroutine(ctx: Context) -> str:
        async with ctx.transaction() as connection:
            return str(await connection.fetchval(query))

    with app:
        handle = {"plain": plain, "async": coroutine}[kind].enqueue()
        app.worker(until_empty=True).run()
        assert handle.result(timeout=30) == f"read committed {'on' if durability == 'durable' else 'off'}"


def test_under_repeatable_read_a_plain_handler_that_outlives_a_renewal_succeeds(
    store: Store, postgres_server: "PostgresServer"
) -> None:
    """The renewal writes the job while the handler's transaction is open, and before it completes the job."""
    role = new_role(postgres_server)
    postgres_server.execute(f"GRANT {urlsplit(store.place).username} TO {role.name}")
    postgres_server.execute(f"ALTER ROLE {role.name} SET default_transaction_isolation = 'repeatable read'")
    app: App[Any] = App(role.url, namespace=store.namespace)

    @app.task(transaction=True, max_attempts=1)
    def slow(ctx: Context) -> int:
        ctx.tx.execute("SELECT 1")
        place = f"{store.namespace}.job"
        postgres_server.execute(f"UPDATE {place} SET lease_expires = lease_expires + 1 WHERE id = %s", ctx.job.id)
        return 1

    with app:
        handle = slow.enqueue()
        app.worker(until_empty=True).run()
        assert handle.result(timeout=30) == 1


# A transaction that stays open


async def test_a_completion_that_is_left_open_delays_no_other_job_and_no_stop(jobs: App[Any], store: Store) -> None:
    """Its row stays locked. The worker goes on with the other jobs, and sends this outcome again without them."""
    ran: Probe[int] = Probe("the other jobs")
    forgotten = asyncio.Event()
    connection = await asyncpg.connect(store.place)
    transaction = connection.transaction()
    await transaction.start()

    @jobs.task(max_attempts=3, backoff=fixed(0))
    async def forgets(ctx: Context) -> str:
        if ctx.attempt == 1:
            await ctx.acomplete("early", transaction=connection)
            forgotten.set()
        return "late"

    @jobs.task
    async def other(number: int) -> None:
        ran(number)

    async with jobs.worker(concurrency=2, grace=1):
        handle = await forgets.aenqueue()
        await asyncio.wait_for(forgotten.wait(), 30)
        for number in range(10):
            await other.aenqueue(number)
        await ran.calls(10, timeout=40)
        stopping_since = time.monotonic()
    assert time.monotonic() - stopping_since < 30  # PF1: waiting for the row took a minute
    await transaction.rollback()
    await connection.close()
    async with jobs.worker(concurrency=2):
        assert await handle.aresult(timeout=60) == "late"
    await jobs.aclose()
