"""What is special about transactions on SQLite: one write lock, connections in many moods, commits nobody tells of."""

import asyncio
import errno
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from eventually import eventually_now, idle
from sqlalchemy import event, text
from sqlalchemy.orm import Session
from user_transactions import Store, by_sqlite3

from holdfast import App, Busy, Context, JobState, UsageError, WrongDatabase, fixed
from holdfast.engines.host import HostProcesses
from holdfast.engines.sqlite import own_transaction
from holdfast.runtime import SystemRuntime
from holdfast.worker import transaction as worker_transaction


@pytest.fixture
def ship(jobs: App[Any]) -> Any:
    @jobs.task
    def ship(order: str) -> str:
        return f"shipped {order}"

    return ship


def depth(jobs: App[Any]) -> int:
    return jobs.control.status("default").depth


# Where the connection leads


def test_a_connection_to_another_file_is_refused(jobs: App[Any], ship: Any, tmp_path: Path) -> None:
    for place in (f"{tmp_path}/other.db", ":memory:"):
        db = sqlite3.connect(place)
        with pytest.raises(WrongDatabase) as refusal:
            ship.using(transaction=db).enqueue("1")
        assert refusal.value.expected.endswith("shop.db")
        assert not db.in_transaction
        db.close()
    assert depth(jobs) == 0


def test_a_database_that_is_only_attached_is_another_one(
    jobs: App[Any], ship: Any, store: Store, tmp_path: Path
) -> None:
    """Across two files a commit is not atomic."""
    db = sqlite3.connect(f"{tmp_path}/other.db")
    db.execute("ATTACH ? AS shop", (store.place,))
    with pytest.raises(WrongDatabase):
        ship.using(transaction=db).enqueue("1")
    db.close()


def test_another_path_to_the_same_file_is_the_same(jobs: App[Any], ship: Any, store: Store, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(store.place)
    with sqlite3.connect(link) as db:
        ship.using(transaction=db).enqueue("1")
    db.close()
    assert depth(jobs) == 1


# Whether it is in a transaction


def test_a_connection_that_commits_by_itself_is_refused(jobs: App[Any], ship: Any, store: Store) -> None:
    db = sqlite3.connect(store.place, isolation_level=None)
    with pytest.raises(UsageError, match="BEGIN IMMEDIATE"):
        ship.using(transaction=db).enqueue("1")
    db.execute("BEGIN")
    ship.using(transaction=db).enqueue("1")
    assert depth(jobs) == 0
    db.execute("COMMIT")
    db.close()
    with store.engine(isolation_level="AUTOCOMMIT").connect() as connection, pytest.raises(UsageError):
        ship.using(transaction=connection).enqueue("2")
    assert depth(jobs) == 1


def test_a_session_that_begins_by_hand_takes_part_too(jobs: App[Any], ship: Any, store: Store) -> None:
    """The recipe for real transactions with SQLAlchemy on SQLite."""
    engine = store.engine()

    @event.listens_for(engine, "connect")
    def connect(db: Any, _: object) -> None:
        db.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    with engine.begin() as connection:
        connection.execute(text(f"INSERT INTO {store.table} VALUES ('a')"))
        ship.using(transaction=connection).enqueue("1")
        assert depth(jobs) == 0
    assert (depth(jobs), store.effects()) == (1, {"a": 1})


def test_a_notification_that_fails_does_not_fail_the_commit_of_the_user(
    jobs: App[Any], ship: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, topics: frozenset[str]) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    jobs.open()
    with Session(store.engine()) as session, session.begin():
        ship.using(transaction=session).enqueue("1")
        monkeypatch.setattr(HostProcesses, "notify", fail)
    monkeypatch.undo()
    assert depth(jobs) == 1


def test_a_transaction_that_has_read_an_old_state_is_refused_with_advice(
    jobs: App[Any], ship: Any, store: Store
) -> None:
    db = sqlite3.connect(store.place, isolation_level=None)
    db.execute("BEGIN")
    db.execute(f"SELECT * FROM {store.table}").fetchall()
    ship.enqueue("somebody else's")
    with pytest.raises(Busy, match="BEGIN IMMEDIATE"):
        ship.using(transaction=db).enqueue("1")
    db.execute("ROLLBACK")
    db.execute("BEGIN IMMEDIATE")
    ship.using(transaction=db).enqueue("1")
    db.execute("COMMIT")
    db.close()
    assert depth(jobs) == 2


def test_a_lock_is_waited_for_as_long_as_the_connection_says(jobs: App[Any], ship: Any, store: Store) -> None:
    holder = sqlite3.connect(store.place, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    db = sqlite3.connect(store.place, timeout=0.05)
    with pytest.raises(Busy, match="locked by another transaction"):
        ship.using(transaction=db).enqueue("1")
    holder.execute("ROLLBACK")
    ship.using(transaction=db).enqueue("1")
    db.commit()
    db.close()
    holder.close()
    assert depth(jobs) == 1


# What is left as it was


def test_row_and_text_factories_of_the_users_do_not_matter(jobs: App[Any], ship: Any, store: Store) -> None:
    db = sqlite3.connect(store.place)
    db.row_factory = lambda cursor, row: {"row": row}
    db.text_factory = bytes
    with db:
        ship.using(transaction=db, id="1").enqueue("1")
        ship.using(transaction=db, id="1").enqueue("1")
    assert (db.text_factory, db.execute("SELECT 'a'").fetchone()) == (bytes, {"row": (b"a",)})
    db.close()
    assert depth(jobs) == 1


def test_a_refusal_does_not_keep_the_lock(jobs: App[Any], ship: Any, store: Store) -> None:
    ship.using(id="1").enqueue("1")
    db = sqlite3.connect(store.place)
    assert not ship.using(transaction=db, id="1").enqueue("1").created
    assert not db.in_transaction
    ship.using(id="2").enqueue("2")
    db.close()


def test_a_connection_of_another_thread_is_a_clear_error(jobs: App[Any], ship: Any, store: Store) -> None:
    with ThreadPoolExecutor(1) as thread:
        connection = thread.submit(sqlite3.connect, store.place).result()
        with pytest.raises(UsageError, match="cannot be used"):
            ship.using(transaction=connection).enqueue("1")
        thread.submit(connection.close).result()


def test_connections_handed_to_us_do_not_checkpoint(jobs: App[Any], ship: Any, store: Store) -> None:
    with by_sqlite3(store) as given:
        ship.using(transaction=given.transaction).enqueue("1")
        assert given.transaction.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)


# The first call of a process


def test_the_first_call_may_come_while_its_user_holds_the_lock(store: Store) -> None:
    """Opening the store would wait for that very user."""
    first = store.app()
    first.open()
    first.close()
    jobs = store.app()

    @jobs.task
    def ship(order: str) -> str:
        return f"shipped {order}"

    with by_sqlite3(store) as given:
        given.write("order 1")
        handle = ship.using(transaction=given.transaction).enqueue("1")
        assert not jobs._store.process.open
    with jobs, jobs.worker():
        assert handle.result(timeout=30) == "shipped 1"


def test_the_tables_may_be_made_in_the_users_transaction(store: Store) -> None:
    jobs = store.app()

    @jobs.task
    def ship(order: str) -> str:
        return f"shipped {order}"

    try:
        with by_sqlite3(store) as given:
            ship.using(transaction=given.transaction).enqueue("0")
            raise LookupError
    except LookupError:
        pass
    with by_sqlite3(store) as given:
        handle = ship.using(transaction=given.transaction).enqueue("1")
    with jobs, jobs.worker():
        assert handle.result(timeout=30) == "shipped 1"
        assert asyncio.run(jobs.engine.audit()) == ()


# Commits that nobody tells of


async def test_a_commit_in_another_process_is_noticed(jobs: App[Any], ship: Any, store: Store) -> None:
    """The other App is not open, so it has no bell to ring."""
    other = store.app()
    there = other.client.task("ship")

    with jobs.engine.subscribe("queue:default") as subscription:
        waiting = asyncio.ensure_future(subscription.wait(30))
        await idle()

        def commit() -> None:
            with by_sqlite3(store) as given:
                there.using(transaction=given.transaction).enqueue("1")

        while not waiting.done():  # the first look only learns what is there
            await asyncio.to_thread(commit)
            await asyncio.wait({waiting}, timeout=0.1)
        assert await waiting == {"queue:default"}


def test_the_file_is_not_polled_while_no_caller_waits(jobs: App[Any]) -> None:
    poller = jobs.engine._poller  # type: ignore[attr-defined]
    assert poller._thread is None


# A transaction of the store's own


def test_only_the_engine_ends_it(jobs: App[Any], store: Store) -> None:
    refused: list[type[BaseException]] = []

    @jobs.task(transaction=True)
    def work(ctx: Context) -> None:
        ctx.tx.execute(f"INSERT INTO {store.table} VALUES ('a')")
        tx = ctx.tx
        acts: list[Callable[[], object]] = [
            tx.commit,
            tx.rollback,
            tx.close,
            tx.__enter__,
            lambda: tx.execute("COMMIT"),
            lambda: tx.executescript("SELECT 1;"),
        ]
        for act in acts:
            try:
                act()
            except Exception as error:
                refused.append(type(error))

    with jobs.worker():
        work.enqueue().result(timeout=30)
    assert refused == [UsageError] * 4 + [sqlite3.DatabaseError] * 2
    assert store.effects() == {"a": 1}


def test_a_write_beside_it_is_refused_instead_of_waiting_for_itself(jobs: App[Any], ship: Any, store: Store) -> None:
    refused: list[str] = []

    @jobs.task(transaction=True)
    def plain(ctx: Context) -> int:
        ctx.tx.execute(f"INSERT INTO {store.table} VALUES ('plain')")
        try:
            ship.enqueue("1")
        except UsageError as error:
            refused.append(str(error))
        return depth(jobs)  # looking is allowed

    @jobs.task(transaction=True)
    async def awaited(ctx: Context) -> int:
        (await ctx.tx).execute(f"INSERT INTO {store.table} VALUES ('awaited')")
        try:
            await ship.aenqueue("1")
        except UsageError as error:
            refused.append(str(error))
        return (await jobs.control.astatus("default")).depth

    with jobs.worker():
        assert plain.enqueue().result(timeout=30) == 1
        assert awaited.enqueue().result(timeout=30) == 1
    assert ["wait for itself" in said for said in refused] == [True, True]
    assert store.effects() == {"plain": 1, "awaited": 1}


def test_many_handlers_take_turns(jobs: App[Any], store: Store) -> None:
    @jobs.task(transaction=True)
    async def work(ctx: Context, number: int) -> None:
        connection = await ctx.tx
        await asyncio.sleep(0)
        connection.execute(f"INSERT INTO {store.table} VALUES (?)", (f"row {number}",))
        await asyncio.sleep(0)

    with jobs.worker(concurrency=10):
        handles = jobs.client.enqueue_many([work.draft(number) for number in range(30)])
        for handle in handles:
            handle.result(timeout=30)
    assert store.effects() == {f"row {number}": 1 for number in range(30)}


class ShiftedRuntime(SystemRuntime):
    """On whose monotonic clock any amount of time may pass at once."""

    ahead = 0

    def monotonic(self) -> int:
        return super().monotonic() + self.ahead


def test_a_transaction_over_its_budget_is_named_and_then_taken_back(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast.worker")
    jobs = store.app()
    runtime = jobs._store.runtime = ShiftedRuntime()

    def wait_for(words: str) -> None:
        eventually_now(
            lambda: any(words in record.getMessage() for record in caplog.records), f"the log to say {words!r}"
        )

    @jobs.task(transaction=True, backoff=fixed(0))
    def work(ctx: Context) -> int:
        if ctx.attempt == 1:
            ctx.tx.execute(f"INSERT INTO {store.table} VALUES ('a')")
            runtime.ahead += round(own_transaction.BUDGET_S * 1_100_000)
            wait_for("has held the store's only write lock")
            runtime.ahead += round(own_transaction.BUDGET_S * worker_transaction.TAKE_BACK_AFTER_BUDGETS * 1_000_000)
            wait_for("Its transaction was rolled back")
        ctx.tx.execute(f"INSERT INTO {store.table} VALUES ('a')")
        return ctx.attempt

    with jobs, jobs.worker():
        handle = work.enqueue()
        assert handle.result(timeout=30) == 2
        job = handle.refresh()
    assert "taken back" in str(job.attempts[0].error)
    assert store.effects() == {"a": 1}


def test_what_was_taken_back_cannot_be_committed(jobs: App[Any], store: Store) -> None:
    transaction = jobs.engine.transaction()
    connection = transaction.__enter__()  # type: ignore[attr-defined]
    insert = f"INSERT INTO {store.table} VALUES ('a')"
    cursor = connection.cursor()
    cursor.execute(insert)
    assert transaction.take_back()  # type: ignore[attr-defined]
    acts: list[Callable[[], object]] = [
        lambda: connection.execute(insert),
        connection.cursor,
        lambda: cursor.execute(insert),
    ]
    for act in acts:
        with pytest.raises((UsageError, sqlite3.DatabaseError)):
            act()
    with pytest.raises(UsageError, match="taken back"):
        transaction.__exit__(None, None, None)  # type: ignore[attr-defined]
    assert not transaction.take_back()  # type: ignore[attr-defined]
    assert store.effects() == {}


async def test_a_caller_that_gives_up_waiting_leaves_no_lock_behind(jobs: App[Any], ship: Any, store: Store) -> None:
    with closing(SystemRuntime().fs.gate(f"{store.place}-gate", 10, guarded=store.place)) as gate, gate:
        waiting = asyncio.ensure_future(jobs.engine.transaction().__aenter__())
        await asyncio.wait({waiting}, timeout=0.05)
        waiting.cancel()
        await asyncio.wait({waiting})
    await ship.aenqueue("1")
    await jobs.aclose()


@pytest.mark.parametrize("cancels", [1, 3])
async def test_a_first_statement_that_is_cancelled_leaves_no_lock_behind(
    jobs: App[Any], ship: Any, store: Store, cancels: int
) -> None:
    await jobs.aopen()
    async with aiosqlite.connect(store.place) as db:
        with closing(sqlite3.connect(store.place, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            began = asyncio.Event()
            loop = asyncio.get_running_loop()
            await db.set_trace_callback(lambda sql: loop.call_soon_threadsafe(began.set) if "BEGIN" in sql else None)
            first = asyncio.ensure_future(ship.using(transaction=db).aenqueue("1"))
            await began.wait()
            for _ in range(cancels):
                first.cancel()
                await asyncio.wait({first}, timeout=0)
            writer.execute("ROLLBACK")
            with pytest.raises(asyncio.CancelledError):
                await first
        await ship.aenqueue("2")
        status = await jobs.control.astatus("default")
        await db.execute("SELECT 1")  # behind what still waits in the thread of the driver
        assert (db.in_transaction, status.depth) == (False, 1)
    await jobs.aclose()


def test_an_awaited_connection_may_be_a_bare_one(jobs: App[Any], ship: Any, store: Store) -> None:
    @jobs.task(backoff=fixed(0))
    async def work(ctx: Context) -> None:
        async with aiosqlite.connect(store.place) as db:
            await db.execute(f"INSERT INTO {store.table} VALUES ('a')")
            await ctx.acomplete("done", transaction=db)
            await db.commit()

    with jobs.worker():
        handle = work.enqueue()
        assert handle.report(timeout=30).job.state is JobState.SUCCEEDED
    assert store.effects() == {"a": 1}
