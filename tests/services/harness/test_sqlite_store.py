"""The harness over a SQLite file, for code with `transaction=`: its sessions are bound to the same file."""

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from holdfast import App, Context, InvalidOption, JobState, Unsupported, UsageError, fixed
from holdfast.testing import Harness, harness

Sessions = sessionmaker()


class OrderDesk:
    """An application whose tasks write to its own table, in the transaction of the job."""

    def __init__(self) -> None:
        self.jobs: App[Any] = App("sqlite:///there/is/no/such/folder/jobs.db")

        @self.jobs.task(transaction=Sessions, backoff=fixed(10))
        def ship(ctx: Context, order: int) -> str:
            session: Session = ctx.tx
            session.execute(text("INSERT INTO shipped VALUES (:order)"), {"order": order})
            self.notify.using(transaction=session).enqueue(order)
            if order < 0 and ctx.attempt == 1:
                raise ConnectionError("not yet")
            return "shipped"

        @self.jobs.task
        def notify(order: int) -> None: ...

        @self.jobs.task(transaction=True)
        async def count(ctx: Context) -> int:
            connection = await ctx.tx
            return int(connection.execute("SELECT count(*) FROM shipped").fetchone()[0])

        @self.jobs.task
        def refund(ctx: Context, order: int) -> None:
            with Sessions.begin() as session:
                session.execute(text("DELETE FROM shipped"))
                ctx.complete("refunded", transaction=session)

        self.ship, self.notify, self.count, self.refund = ship, notify, count, refund

    def place(self, order: int, *, fails: bool = False) -> None:
        """Called by a web view."""
        with Sessions.begin() as session:
            self.ship.using(transaction=session, delay=60).enqueue(order)
            if fails:
                raise ValueError("no such product")


@pytest.fixture
def desk() -> OrderDesk:
    return OrderDesk()


@pytest.fixture
def h(desk: OrderDesk) -> Iterator[Harness]:
    with harness(desk.jobs, store="sqlite") as made:
        engine = create_engine(made.url, poolclass=NullPool)
        Sessions.configure(bind=engine)
        with Sessions.begin() as session:
            session.execute(text("CREATE TABLE shipped (number INTEGER)"))
        yield made


def shipped() -> list[int]:
    with Sessions() as session:
        return list(session.execute(text("SELECT number FROM shipped")).scalars())


def test_a_job_enqueued_in_a_session_is_seen_after_its_commit(desk: OrderDesk, h: Harness) -> None:
    desk.place(1)
    h.assert_enqueued(desk.ship.using(delay=60), 1)


def test_a_job_of_a_session_that_was_rolled_back_is_not_there(desk: OrderDesk, h: Harness) -> None:
    with pytest.raises(ValueError, match="no such product"):
        desk.place(1, fails=True)
    h.assert_not_enqueued(desk.ship)


def test_the_clock_of_the_file_stands_still_until_the_test_moves_it(desk: OrderDesk, h: Harness) -> None:
    desk.place(1)
    assert h.drain().left == 1
    h.clock.advance(minutes=1)
    drained = h.drain()
    assert (drained.succeeded, drained.left, shipped()) == (2, 0, [1])


def test_a_failed_attempt_leaves_nothing_of_its_session(desk: OrderDesk, h: Harness) -> None:
    began = h.clock.now()
    handle = desk.ship.enqueue(-1)
    drained = h.drain(until=60)
    assert (drained.succeeded, drained.retried, shipped()) == (2, 1, [-1])
    assert h.clock.now() - began == timedelta(seconds=10), "the clock stopped when the last job had ended"
    assert handle.result() == "shipped"


def test_an_error_of_a_handler_with_a_session_is_raised_in_the_test(desk: OrderDesk, h: Harness) -> None:
    desk.ship.enqueue(-1)
    with pytest.raises(ConnectionError, match="not yet"):
        h.drain()


async def test_an_async_handler_uses_a_transaction_of_the_store(desk: OrderDesk, h: Harness) -> None:
    await desk.ship.aenqueue(3)
    await h.adrain()
    handle = await desk.count.aenqueue()
    await h.adrain()
    assert await handle.aresult() == 1


async def test_an_async_session_enqueues(desk: OrderDesk, h: Harness) -> None:
    engine = create_async_engine(h.url.replace("sqlite:", "sqlite+aiosqlite:"), poolclass=NullPool)
    async with async_sessionmaker(engine).begin() as session:
        await desk.notify.using(transaction=session).aenqueue(4)
    await engine.dispose()
    assert (await h.adrain()).succeeded == 1


def test_a_job_completed_in_a_session_of_the_handler_has_succeeded(desk: OrderDesk, h: Harness) -> None:
    handle = desk.refund.enqueue(1)
    h.drain()
    assert handle.result() == "refunded"


def test_one_attempt_alone_uses_the_session_and_leaves_no_job(desk: OrderDesk, h: Harness) -> None:
    assert h.attempt(desk.ship, 5) == "shipped"
    assert shipped() == [5]
    assert [job.task for job in h.enqueued()] == ["notify"], "what the handler has enqueued"


@pytest.mark.parametrize("point", ["after_claim", "in_handler", "before_settle"])
def test_a_worker_that_dies_before_the_commit_leaves_nothing(desk: OrderDesk, h: Harness, point: Any) -> None:
    handle = desk.ship.enqueue(1)
    with h.crash(point):
        assert h.drain(raises=False).crashed
    assert shipped() == []
    h.assert_not_enqueued(desk.notify)
    h.drain(until=60)
    assert shipped() == [1]
    assert [attempt.outcome for attempt in handle.refresh().attempts][-1] == "succeeded"


def test_a_worker_that_dies_after_the_commit_leaves_everything(desk: OrderDesk, h: Harness) -> None:
    handle = desk.ship.enqueue(1)
    with h.crash("after_settle"):
        assert h.drain(raises=False).crashed
    assert shipped() == [1]
    assert handle.refresh().state is JobState.SUCCEEDED


def test_the_app_may_be_closed_in_a_test(desk: OrderDesk, h: Harness) -> None:
    with desk.jobs:
        desk.notify.enqueue(1)
    assert h.drain().succeeded == 1


def test_waiting_for_a_job_that_nothing_runs_is_refused(desk: OrderDesk, h: Harness) -> None:
    with pytest.raises(UsageError, match=r"Call drain\(\) first"):
        desk.notify.request(1)


def test_a_real_worker_runs_in_the_harness(desk: OrderDesk, h: Harness) -> None:
    handle = desk.ship.enqueue(1)
    with desk.jobs.worker():
        assert handle.result(timeout=30) == "shipped"


def test_the_store_may_be_the_file_of_a_test_database(desk: OrderDesk, tmp_path: Path) -> None:
    with harness(desk.jobs, store=f"sqlite:///{tmp_path}/shop.db") as made:
        db = sqlite3.connect(tmp_path / "shop.db")
        with db:
            desk.notify.using(transaction=db).enqueue(1)
        db.close()
        assert made.drain().succeeded == 1


def test_a_temporary_file_is_removed_after_the_test(desk: OrderDesk) -> None:
    with harness(desk.jobs, store="sqlite") as made:
        file = Path(made.url.removeprefix("sqlite:///"))
        assert file.exists()
    assert not file.parent.exists()


@pytest.mark.parametrize("store", ["redis://localhost", "postgresql://ada:secret@db/shop", "sqllite", None])
def test_a_store_that_the_harness_does_not_have_is_refused(desk: OrderDesk, store: Any) -> None:
    with pytest.raises(InvalidOption, match="memory") as refused, harness(desk.jobs, store=store):
        pass
    assert "secret" not in str(refused.value)


def test_without_a_file_the_error_says_how_to_get_one(desk: OrderDesk) -> None:
    bound = create_engine("sqlite://")
    with harness(desk.jobs), Sessions(bind=bound) as session, pytest.raises(Unsupported, match='store="sqlite"'):
        desk.notify.using(transaction=session).enqueue(1)
