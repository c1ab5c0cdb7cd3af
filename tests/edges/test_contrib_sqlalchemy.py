"""Jobs on PostgreSQL as a mapped class of SQLAlchemy: read, compared, joined; never written."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from postgres import PostgresServer
from postgres_roles import app_role
from postgres_stock import Store
from sqlalchemy import Engine, create_engine, delete, func, insert, inspect, select, text, update
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from holdfast import App, ConfigError, UsageError
from holdfast.contrib.sqlalchemy import JobRow, jobs_model
from holdfast.model.instants import FOREVER
from holdfast.model.states import JobState, Reason


@pytest.fixture
def store(postgres_store: Callable[[], Store]) -> Store:
    return postgres_store()


@pytest.fixture
def row(store: Store) -> type[JobRow]:
    return jobs_model(store.namespace)


def address(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


@pytest.fixture
def database(store: Store) -> Iterator[Engine]:
    engine = create_engine(address(store.url, "psycopg"))
    yield engine
    engine.dispose()


@pytest.fixture
def session(database: Engine) -> Iterator[Session]:
    with Session(database) as made:
        yield made


@pytest.fixture
def jobs(store: Store) -> Iterator[App[Any]]:
    """With one job that succeeded, one that failed, and one that is due in an hour."""
    app: App[Any] = App(store.url, namespace=store.namespace)

    @app.task(max_attempts=1)
    def charge(order: int) -> str:
        if order == 2:
            raise ValueError("no such order")
        return f"charged {order}"

    charge.using(id="good", metadata={"order": "1"}, lane="ada").enqueue(1)
    charge.using(id="bad", priority=3).enqueue(2)
    app.worker(until_empty=True).run()
    charge.using(id="later", delay=3600).enqueue(3)
    yield app
    app.close()


def test_a_row_says_what_a_job_says(jobs: App[Any], session: Session, row: type[JobRow]) -> None:
    good, job = session.get_one(row, ("default", "good")), jobs.control.get("good")
    assert (good.id, good.queue, good.task, good.lane) == (job.id, job.queue, job.task, job.lane)
    assert (good.state, good.attempt, good.priority) == (JobState.SUCCEEDED, 1, 0)
    assert good.job_metadata == job.metadata == {"order": "1"}
    assert (good.enqueued_at, good.due_at) == (job.enqueued_at, job.due_at)
    assert (good.started_at, good.finished_at) == (job.started_at, job.finished_at)
    assert (good.worker, good.arrival, good.fence) == (job.worker, job.arrival, job.fence)
    assert good.expires_at is None
    assert good.result == b'"charged 1"'
    assert repr(good) == "JobRow(queue='default', id='good', task='charge', state='succeeded')"


def test_a_failed_one_keeps_its_error(jobs: App[Any], session: Session, row: type[JobRow]) -> None:
    bad = session.get_one(row, ("default", "bad"))
    assert (bad.state, bad.reason) == (JobState.FAILED, Reason.EXHAUSTED)
    assert bad.last_error is not None
    assert (bad.last_error["type"], bad.last_error["message"]) == ("builtins.ValueError", "no such order")


def test_states_and_moments_are_compared_in_the_database(jobs: App[Any], session: Session, row: type[JobRow]) -> None:
    def found(*conditions: Any) -> list[str]:
        return list(session.scalars(select(row.id).where(*conditions).order_by(row.id)))

    soon = datetime.now(UTC) + timedelta(minutes=5)
    assert found(row.due_at > soon) == ["later"]
    assert found(row.due_at - timedelta(hours=1) < soon, row.due_at > soon) == ["later"]
    assert found(row.state == "failed") == found(row.state == JobState.FAILED) == ["bad"]
    assert found(row.state.in_([JobState.FAILED, JobState.SUCCEEDED])) == ["bad", "good"]
    assert found(row.job_metadata["order"].astext == "1") == ["good"]


def test_two_moments_differ_by_a_timedelta(jobs: App[Any], session: Session, row: type[JobRow]) -> None:
    ran = row.finished_at - row.started_at
    longest = session.scalar(select(func.max(ran)))
    assert isinstance(longest, timedelta)
    assert timedelta(0) <= longest < timedelta(minutes=5)
    assert session.scalar(select(func.count()).where(ran < timedelta(minutes=5))) == 2
    assert isinstance(session.scalar(select(func.max(row.finished_at))), datetime)


def test_an_instant_that_never_comes_is_the_last_moment_there_is(
    jobs: App[Any], session: Session, row: type[JobRow], store: Store
) -> None:
    session.execute(text(f"UPDATE {store.namespace}.job SET due = {FOREVER} WHERE id = 'later'"))
    assert session.get_one(row, ("default", "later")).due_at == datetime.max.replace(tzinfo=UTC)


def test_jobs_are_joined_with_tables_of_ones_own(jobs: App[Any], session: Session, row: type[JobRow]) -> None:
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        __table_args__ = {"prefixes": ["TEMPORARY"]}  # noqa: RUF012
        number: Mapped[int] = mapped_column(primary_key=True)
        job_id: Mapped[str]

    Base.metadata.create_all(session.connection())
    session.add_all([Order(number=1, job_id="good"), Order(number=2, job_id="bad")])
    joined = select(Order.number, row.state).join(row, row.id == Order.job_id).order_by(Order.number)
    assert session.execute(joined).all() == [(1, JobState.SUCCEEDED), (2, JobState.FAILED)]
    assert "job" not in Base.metadata.tables


async def test_it_is_read_by_an_async_session_too(jobs: App[Any], store: Store, row: type[JobRow]) -> None:
    engine = create_async_engine(address(store.url, "asyncpg"))
    try:
        async with AsyncSession(engine) as session:
            assert list(await session.scalars(select(row.id).where(row.state == "failed"))) == ["bad"]
    finally:
        await engine.dispose()


# --- Nothing is written ---


def test_a_flush_is_refused(jobs: App[Any], session: Session, row: type[JobRow]) -> None:
    good = session.get_one(row, ("default", "good"))
    good.state = JobState.QUEUED
    with pytest.raises(UsageError, match="only read"):
        session.flush()
    session.rollback()
    session.delete(session.get_one(row, ("default", "good")))
    with pytest.raises(UsageError, match="only read"):
        session.commit()
    session.rollback()
    new = row()
    new.queue, new.id = "default", "new"
    session.add(new)
    with pytest.raises(UsageError, match="only read"):
        session.commit()


def test_statements_that_write_are_refused(jobs: App[Any], session: Session, row: type[JobRow]) -> None:
    for statement in (update(row).values(state="queued"), delete(row), insert(row).values(queue="q", id="a")):
        with pytest.raises(UsageError, match="only read"):
            session.execute(statement)


def test_its_table_is_neither_made_nor_dropped(session: Session, row: type[JobRow]) -> None:
    for act in (row.metadata.drop_all, row.metadata.create_all):
        with pytest.raises(UsageError, match="only read"):
            act(session.connection(), checkfirst=False)


def test_a_role_that_may_read_some_columns_sees_those(
    jobs: App[Any], store: Store, row: type[JobRow], postgres_server: PostgresServer
) -> None:
    role = app_role(postgres_server)
    hidden = {"payload", "result", "codec"}
    shown = ", ".join(column.name for column in row.__table__.columns if column.name not in hidden)
    postgres_server.execute(f"GRANT USAGE ON SCHEMA {store.namespace} TO {role.name}")
    postgres_server.execute(f"GRANT SELECT ({shown}) ON {store.namespace}.job TO {role.name}")
    engine = create_engine(address(role.url, "psycopg"))
    try:
        with Session(engine) as session:
            good = session.get_one(row, ("default", "good"))
            assert good.state is JobState.SUCCEEDED
            with pytest.raises(ProgrammingError, match="permission denied"):
                _ = good.payload
    finally:
        engine.dispose()
        postgres_server.execute(f"REVOKE SELECT ({shown}) ON {store.namespace}.job FROM {role.name}")


def test_each_namespace_has_one_class(row: type[JobRow], store: Store) -> None:
    assert jobs_model(store.namespace) is row
    assert jobs_model("elsewhere") is not row
    with pytest.raises(ConfigError, match="Robert"):
        jobs_model('Robert"; DROP')


# --- The user's own classes and sessions ---


def test_importing_registers_nothing_for_other_classes_and_sessions() -> None:
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(primary_key=True)
        total: Mapped[int] = mapped_column()

    jobs_model()
    for name in ("do_orm_execute", "before_flush", "after_commit", "after_rollback"):
        assert list(getattr(Session().dispatch, name)) == [], name
    for name in ("before_insert", "before_update", "before_delete"):
        assert list(getattr(inspect(Order).dispatch, name)) == [], name
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Order(id=1, total=5))
        session.commit()
        session.execute(insert(Order).values(id=2, total=6))
        session.execute(update(Order).values(total=7))
        session.execute(delete(Order).where(Order.id == 2))
        assert [(order.id, order.total) for order in session.scalars(select(Order))] == [(1, 7)]
    engine.dispose()


def test_core_statements_that_write_are_refused(jobs: App[Any], session: Session, row: type[JobRow]) -> None:
    table = row.__table__
    for statement in (update(table).values(note="x"), delete(table), insert(table).values(queue="q", id="a")):
        with pytest.raises(UsageError, match="only read"):
            session.connection().execute(statement)
