"""What is to be done after a commit is dropped with its transaction, or with its savepoint, however that ends."""

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session
from user_transactions import Store, each_store

from holdfast import App, Context, JobFailed, events


@pytest.fixture
def ship(jobs: App[Any]) -> Any:
    @jobs.task
    def ship(order: str) -> str:
        return f"shipped {order}"

    return ship


@pytest.fixture
def published(jobs: App[Any]) -> list[str]:
    """The ids of the jobs whose enqueueing was published."""
    found: list[str] = []
    jobs.on(events.Queued)(lambda event: found.append(event.job_id))
    return found


def enqueue(ship: Any, session: Any, id: str) -> None:
    ship.using(transaction=session, id=id).enqueue("1")


@each_store
@pytest.mark.parametrize("end", ["rollback", "close", "reset", "expunge_and_close", "invalidate"])
def test_a_session_that_ends_without_a_commit_publishes_nothing_later(
    jobs: App[Any], ship: Any, store: Store, published: list[str], end: str
) -> None:
    with store.sessions()() as session:
        enqueue(ship, session, "never")
        if end == "expunge_and_close":
            session.expunge_all()
            session.close()
        else:
            getattr(session, end)()
        session.execute(text("SELECT 1"))
        session.commit()
        enqueue(ship, session, "kept")
        session.commit()
    assert published == ["kept"]


@each_store
def test_a_savepoint_that_is_rolled_back_publishes_nothing(
    jobs: App[Any], ship: Any, store: Store, published: list[str]
) -> None:
    with begin(store) as session:
        enqueue(ship, session, "before")
        outer = session.begin_nested()
        enqueue(ship, session, "outer")
        with session.begin_nested():
            enqueue(ship, session, "inner")
        outer.rollback()
        with session.begin_nested():
            enqueue(ship, session, "released")
        session.commit()
    assert published == ["before", "released"]
    assert jobs.control.status("default").depth == len(published)


def begin(store: Store) -> Session:
    """A session in a transaction. With pysqlite the driver begins only before a statement that writes."""
    session = store.sessions()()
    if store.kind == "sqlite":
        session.execute(text("BEGIN IMMEDIATE"))
    return session


@each_store
async def test_an_async_session_that_is_closed_publishes_nothing_later(
    jobs: App[Any], ship: Any, store: Store, published: list[str]
) -> None:
    async with store.async_sessions()() as session:
        await ship.using(transaction=session, id="never").aenqueue("1")
        await session.close()
        await ship.using(transaction=session, id="kept").aenqueue("1")
        await session.commit()
    assert published == ["kept"]
    await jobs.aclose()


def test_a_transaction_of_the_store_publishes_only_what_it_has_committed(
    jobs: App[Any], ship: Any, store: Store, published: list[str]
) -> None:
    @jobs.task(transaction=True)
    def fulfil(ctx: Context, order: str) -> None:
        if order == "fails":
            enqueue(ship, ctx.tx, "never")
            raise ValueError("rolled back")
        ctx.tx.execute("SAVEPOINT outer_one")
        ctx.tx.cursor().execute('savepoint "inner"')
        enqueue(ship, ctx.tx, "inner")
        ctx.tx.execute("ROLLBACK TO outer_one")
        enqueue(ship, ctx.tx, "again")
        ctx.tx.execute("RELEASE SAVEPOINT outer_one")

    with jobs.worker():
        with pytest.raises(JobFailed):
            fulfil.using(id="1", max_attempts=1).enqueue("fails").result(timeout=30)
        fulfil.using(id="2").enqueue("works").result(timeout=30)
    assert [id for id in published if id not in ("1", "2")] == ["again"]
