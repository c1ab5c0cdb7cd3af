"""Ending a job inside a transaction: its effects, its end and what follows from it, all of them or none."""

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from user_transactions import Store, each_store

from holdfast import App, Context, GiveUp, JobState, LeaseLost, UsageError, events, fixed
from holdfast.errors import InvalidOption
from holdfast.testing import Probe

Hook = Callable[[Context], Any]
"""What happens in the middle of a handler."""


def nothing(ctx: Context) -> None: ...


OPTIONS: dict[str, Any] = {"name": "work", "backoff": fixed(0), "max_attempts": 3}


def insert(store: Store, mark: str) -> str:
    return f"INSERT INTO {store.table} VALUES ({mark})"


def write(store: Store, connection: Any, name: str) -> None:
    """With the store's own connection, in a thread."""
    connection.execute(insert(store, "?" if store.kind == "sqlite" else "%s"), (name,))


async def awrite(store: Store, connection: Any, name: str) -> None:
    """With the store's own connection, on an event loop."""
    if store.kind == "sqlite":
        connection.execute(insert(store, "?"), (name,))
    else:
        await connection.execute(insert(store, "$1"), name)


async def awaited(said: Any) -> None:
    if inspect.isawaitable(said):
        await said


# --- Handlers: each writes a row and enqueues a note, and ends its job with them ---


def with_tx(app: App[Any], store: Store, note: Any, before: Hook, then: Hook) -> Any:
    @app.task(transaction=True, **OPTIONS)
    def work(ctx: Context, order: str) -> str:
        before(ctx)
        write(store, ctx.tx, order)
        note.using(id=f"note-{order}", transaction=ctx.tx).enqueue(order)
        then(ctx)
        return f"done {order}"

    return work


def with_sessions(app: App[Any], store: Store, note: Any, before: Hook, then: Hook) -> Any:
    @app.task(transaction=store.sessions(), **OPTIONS)
    def work(ctx: Context, order: str) -> str:
        before(ctx)
        ctx.tx.execute(text(insert(store, ":name")), {"name": order})
        note.using(id=f"note-{order}", transaction=ctx.tx).enqueue(order)
        then(ctx)
        return f"done {order}"

    return work


def with_block(app: App[Any], store: Store, note: Any, before: Hook, then: Hook) -> Any:
    @app.task(**OPTIONS)
    def work(ctx: Context, order: str) -> str:
        before(ctx)
        with ctx.transaction() as connection:
            write(store, connection, order)
            note.using(id=f"note-{order}", transaction=connection).enqueue(order)
        then(ctx)
        return f"done {order}"

    return work


def with_complete(app: App[Any], store: Store, note: Any, before: Hook, then: Hook) -> Any:
    sessions = store.sessions()

    @app.task(**OPTIONS)
    def work(ctx: Context, order: str) -> str:
        before(ctx)
        with sessions.begin() as session:
            session.execute(text(insert(store, ":name")), {"name": order})
            note.using(id=f"note-{order}", transaction=session).enqueue(order)
            ctx.complete(f"done {order}", transaction=session)
            then(ctx)
        return "said in vain"

    return work


def with_awaited_tx(app: App[Any], store: Store, note: Any, before: Hook, then: Hook) -> Any:
    @app.task(transaction=True, **OPTIONS)
    async def work(ctx: Context, order: str) -> str:
        await awaited(before(ctx))
        await awrite(store, await ctx.tx, order)
        await note.using(id=f"note-{order}", transaction=ctx.tx).aenqueue(order)
        await awaited(then(ctx))
        return f"done {order}"

    return work


def with_async_sessions(app: App[Any], store: Store, note: Any, before: Hook, then: Hook) -> Any:
    @app.task(transaction=store.async_sessions(), **OPTIONS)
    async def work(ctx: Context, order: str) -> str:
        await awaited(before(ctx))
        await ctx.tx.execute(text(insert(store, ":name")), {"name": order})
        await note.using(id=f"note-{order}", transaction=ctx.tx).aenqueue(order)
        await awaited(then(ctx))
        return f"done {order}"

    return work


def with_async_block(app: App[Any], store: Store, note: Any, before: Hook, then: Hook) -> Any:
    @app.task(**OPTIONS)
    async def work(order: str) -> str:  # nothing stands around it, and it finds its context
        ctx = Context.current()
        await awaited(before(ctx))
        async with ctx.transaction() as connection:
            await awrite(store, connection, order)
            await note.using(id=f"note-{order}", transaction=connection).aenqueue(order)
        await awaited(then(ctx))
        return f"done {order}"

    return work


def with_acomplete(app: App[Any], store: Store, note: Any, before: Hook, then: Hook) -> Any:
    sessions = store.async_sessions()

    @app.task(**OPTIONS)
    async def work(ctx: Context, order: str) -> str:
        await awaited(before(ctx))
        async with sessions.begin() as session:
            await session.execute(text(insert(store, ":name")), {"name": order})
            await note.using(id=f"note-{order}", transaction=session).aenqueue(order)
            await ctx.acomplete(f"done {order}", transaction=session)
            await awaited(then(ctx))
        return "said in vain"

    return work


SYNC = (with_tx, with_sessions, with_block, with_complete)
ASYNC = (with_awaited_tx, with_async_sessions, with_async_block, with_acomplete)

each_form = pytest.mark.parametrize("form", [*SYNC, *ASYNC], ids=lambda form: form.__name__)


@pytest.fixture
def note(jobs: App[Any]) -> Any:
    @jobs.task
    def note(order: str) -> str:
        return f"noted {order}"

    return note


def is_there(jobs: App[Any], id: str) -> bool:
    return any(job.id == id for job in jobs.control.find(queue="default").jobs)


# --- All or nothing ---


@each_store
@each_form
def test_effect_end_and_follow_up_are_committed_together(jobs: App[Any], store: Store, note: Any, form: Any) -> None:
    work = form(jobs, store, note, nothing, nothing)
    with jobs.worker():
        assert work.enqueue("a").result(timeout=30) == "done a"
        assert note.handle("note-a").result(timeout=30) == "noted a"
    assert store.effects() == {"a": 1}


@each_store
@each_form
def test_a_handler_that_raises_leaves_nothing_behind_and_is_tried_again(
    jobs: App[Any], store: Store, note: Any, form: Any
) -> None:
    seen: list[tuple[dict[str, int], bool]] = []

    def fails_twice(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise ConnectionError("not yet")

    def looks(ctx: Context) -> None:
        seen.append((store.effects(), ctx.attempt > 1))

    work = form(jobs, store, note, looks, fails_twice)
    with jobs.worker():
        handle = work.enqueue("a")
        assert handle.result(timeout=30) == "done a"
        assert note.handle("note-a").result(timeout=30) == "noted a"
    assert seen == [({}, False), ({}, True), ({}, True)]
    assert store.effects() == {"a": 1}
    assert handle.refresh().attempt == 3


@each_store
@each_form
def test_giving_up_rolls_back_too(jobs: App[Any], store: Store, note: Any, form: Any) -> None:
    def gives_up(ctx: Context) -> None:
        raise GiveUp("card expired")

    work = form(jobs, store, note, nothing, gives_up)
    with jobs.worker():
        report = work.enqueue("a").report(timeout=30)
    assert (report.outcome, report.job.attempt) == ("failed", 1)
    assert store.effects() == {}


@each_store
@pytest.mark.parametrize("form", SYNC, ids=lambda form: form.__name__)
def test_a_worker_that_has_lost_the_job_changes_nothing(jobs: App[Any], store: Store, note: Any, form: Any) -> None:
    def loses(ctx: Context) -> None:
        jobs.control.clear("default")

    work = form(jobs, store, note, loses, nothing)
    with jobs.worker():
        report = work.enqueue("a").report(timeout=30)
        note.enqueue("after").result(timeout=30)
    assert report.outcome == "cancelled"
    assert store.effects() == {}


@each_store
@pytest.mark.parametrize("form", ASYNC, ids=lambda form: form.__name__)
def test_a_worker_that_has_lost_the_job_changes_nothing_on_a_loop(
    jobs: App[Any], store: Store, note: Any, form: Any
) -> None:
    async def loses(ctx: Context) -> None:
        await jobs.control.aclear("default")

    work = form(jobs, store, note, loses, nothing)
    with jobs.worker():
        report = work.enqueue("a").report(timeout=30)
        note.enqueue("after").result(timeout=30)
    assert report.outcome == "cancelled"
    assert store.effects() == {}


@each_store
def test_a_lost_lease_raises_inside_the_transaction(jobs: App[Any], store: Store) -> None:
    told: list[BaseException] = []
    sessions = store.sessions()

    @jobs.task
    def work(ctx: Context) -> None:
        jobs.control.clear("default")
        with sessions.begin() as session:
            session.execute(text(insert(store, "'lost'")))
            try:
                ctx.complete(transaction=session)
            except LeaseLost as error:
                told.append(error)
                raise

    with jobs.worker():
        work.enqueue().report(timeout=30)
        work.enqueue().report(timeout=30)
    assert len(told) == 2
    assert store.effects() == {}


# --- After the end ---


@each_store
@each_form
def test_what_happens_after_the_commit_does_not_undo_it(jobs: App[Any], store: Store, note: Any, form: Any) -> None:
    """A middleware that fails when all is done: the job has ended, and is not run again."""

    @jobs.middleware
    async def fails_afterwards(ctx: Context, proceed: Any) -> Any:
        value = await proceed()
        if ctx.job.task == "work":
            raise ConnectionError("too late")
        return value

    heard: list[str] = []
    jobs.on(events.Succeeded)(lambda event: heard.append(event.task))
    work = form(jobs, store, note, nothing, nothing)
    with jobs.worker():
        handle = work.enqueue("a")
        assert handle.result(timeout=30) == "done a"
        assert note.handle("note-a").result(timeout=30) == "noted a"
    assert (handle.refresh().attempt, store.effects()) == (1, {"a": 1})
    assert sorted(heard) == ["note", "work"]


@each_store
def test_a_handler_may_raise_after_its_own_commit(jobs: App[Any], store: Store) -> None:
    sessions = store.sessions()

    @jobs.task(backoff=fixed(0))
    def work(ctx: Context) -> None:
        with sessions.begin() as session:
            session.execute(text(insert(store, "'once'")))
            ctx.complete("done", transaction=session)
        raise ConnectionError("too late")

    with jobs.worker():
        handle = work.enqueue()
        assert handle.report(timeout=30).outcome == "succeeded"
    assert (handle.refresh().state, store.effects()) == (JobState.SUCCEEDED, {"once": 1})


@each_store
def test_a_completion_that_was_rolled_back_is_tried_again(jobs: App[Any], store: Store) -> None:
    sessions = store.sessions()

    @jobs.task(backoff=fixed(0))
    def work(ctx: Context) -> str:
        with sessions() as session:
            session.execute(text(insert(store, "'once'")))
            ctx.complete("done", transaction=session)
            if ctx.attempt > 1:
                session.commit()
        return "not what counts"

    with jobs.worker():
        handle = work.enqueue()
        assert handle.result(timeout=30) == "done"
    job = handle.refresh()
    assert (job.attempt, store.effects()) == (2, {"once": 1})
    assert "was not committed" in str(job.attempts[0].error)


@each_store
def test_a_poisoned_transaction_leaves_the_job_to_be_tried_again(jobs: App[Any], store: Store) -> None:
    """The handler has swallowed the error, and its session can do nothing any more."""
    store.execute(f"CREATE UNIQUE INDEX {store.table}_once ON {store.table} (name)")
    sessions = store.sessions()

    @jobs.task(transaction=sessions, backoff=fixed(0))
    def work(ctx: Context) -> int:
        ctx.tx.execute(text(insert(store, "'a'")))
        if ctx.attempt == 1:
            ctx.tx.connection().invalidate()
        return ctx.attempt

    with jobs.worker():
        assert work.enqueue().result(timeout=30) == 2
    assert store.effects() == {"a": 1}


# --- Parts ---


@each_store
def test_earlier_parts_are_committed_by_themselves_and_the_last_one_with_the_job(jobs: App[Any], store: Store) -> None:
    @jobs.task(backoff=fixed(0), max_attempts=2)
    def work(ctx: Context) -> int:
        with ctx.transaction() as connection:
            write(store, connection, "first part")
        with ctx.transaction() as connection:
            write(store, connection, "last part")
        if ctx.attempt == 1:
            raise ConnectionError("not yet")
        return ctx.attempt

    with jobs.worker():
        assert work.enqueue().result(timeout=30) == 2
    assert store.effects() == {"first part": 2, "last part": 1}


@each_store
def test_a_part_that_fails_is_rolled_back_and_the_handler_may_go_on(jobs: App[Any], store: Store) -> None:
    @jobs.task
    def work(ctx: Context) -> str:
        try:
            with ctx.transaction() as connection:
                write(store, connection, "in vain")
                raise LookupError
        except LookupError:
            with ctx.transaction() as connection:
                write(store, connection, "instead")
        return "done"

    with jobs.worker():
        assert work.enqueue().result(timeout=30) == "done"
    assert store.effects() == {"instead": 1}


@each_store
def test_a_job_may_be_completed_inside_a_part(jobs: App[Any], store: Store) -> None:
    seen: list[Any] = []

    @jobs.task
    def work(ctx: Context) -> str:
        with ctx.transaction() as connection:
            write(store, connection, "a")
            ctx.complete("early", transaction=connection)
        seen.append((jobs.control.get(ctx.job.id).state, store.effects()))
        return "late"

    with jobs.worker():
        assert work.enqueue().result(timeout=30) == "early"
    assert seen == [(JobState.SUCCEEDED, {"a": 1})]


@each_store
def test_one_transaction_at_a_time(jobs: App[Any], store: Store) -> None:
    refused: list[str] = []

    def note_refusal(act: Callable[[], object]) -> None:
        try:
            act()
        except UsageError as error:
            refused.append(str(error))

    @jobs.task
    def nested(ctx: Context) -> None:
        with ctx.transaction():
            note_refusal(lambda: ctx.transaction().__enter__())

    @jobs.task(transaction=True)
    def besides(ctx: Context) -> None:
        assert ctx.tx is ctx.tx
        note_refusal(lambda: ctx.transaction().__enter__())

    @jobs.task
    def undeclared(ctx: Context) -> None:
        note_refusal(lambda: ctx.tx)

    @jobs.task
    def twice(ctx: Context) -> None:
        with ctx.transaction() as connection:
            ctx.complete(transaction=connection)
            note_refusal(lambda: ctx.complete(transaction=connection))

    with jobs.worker():
        for task in (nested, besides, undeclared, twice):
            task.enqueue().result(timeout=30)
    assert [
        words in said
        for words, said in zip(
            ("is open already", "has its transaction already", "has no transaction", "already"), refused, strict=True
        )
    ] == [True] * 4


# --- Other ends ---


@each_store
def test_a_result_that_cannot_be_stored_fails_the_job_without_its_effects(jobs: App[Any], store: Store) -> None:
    @jobs.task(transaction=True)
    def work(ctx: Context) -> object:
        write(store, ctx.tx, "a")
        return object()

    with jobs.worker():
        assert work.enqueue().report(timeout=30).outcome == "failed"
    assert store.effects() == {}


@each_store
def test_an_attempt_that_was_called_off_commits_nothing(jobs: App[Any], store: Store) -> None:
    told = threading.Event()

    @jobs.task(transaction=True, timeout=0.2, backoff=fixed(0))
    def work(ctx: Context) -> int:
        write(store, ctx.tx, "a")
        while ctx.attempt == 1 and not ctx.aborted:
            told.wait(0.01)
        return ctx.attempt

    with jobs.worker():
        assert work.enqueue().result(timeout=60) >= 2  # on a busy machine a later attempt may time out, too
    assert store.effects() == {"a": 1}


@each_store
def test_a_handler_that_outlives_its_worker_commits_nothing(jobs: App[Any], store: Store) -> None:
    """Its job was given back, and somebody else may have run it by then."""
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()
    sessions = store.sessions()

    @jobs.task(transaction=sessions)
    def work(ctx: Context) -> int:
        if ctx.attempt == 1 and not go_on.is_set():
            begun.set()
            assert go_on.wait(30)
            try:
                ctx.tx.execute(text(insert(store, "'a'")))
                return 1
            finally:
                over.set()
        ctx.tx.execute(text(insert(store, "'a'")))
        return 2

    async def first() -> None:
        worker = jobs.worker(grace=0)
        async with worker:
            await asyncio.to_thread(begun.wait, 30)

    handle = work.enqueue()
    asyncio.run(first())
    go_on.set()
    assert over.wait(30)
    with jobs.worker():
        assert handle.result(timeout=30) == 2
    assert store.effects() == {"a": 1}


@each_store
def test_a_task_without_a_worker_has_no_transaction(jobs: App[Any], store: Store) -> None:
    @jobs.task(transaction=True)
    def work(ctx: Context) -> None:
        with pytest.raises(UsageError, match="called directly"):
            ctx.tx.execute("SELECT 1")
        with pytest.raises(UsageError, match="called directly"):
            ctx.complete(transaction=None)

    work.call()


@each_store
def test_a_blocking_transaction_on_a_loop_names_its_twin(jobs: App[Any], store: Store) -> None:
    refused = Probe[str]("the handler")

    @jobs.task(transaction=True)
    async def work(ctx: Context) -> None:
        for act in (lambda: ctx.transaction().__enter__(), lambda: ctx.complete(transaction=None)):
            try:
                act()
            except UsageError as error:
                refused(str(error))
        with pytest.raises(AttributeError, match=r"await ctx\.tx"):
            ctx.tx.execute("SELECT 1")

    with jobs.worker():
        work.enqueue().result(timeout=30)
    assert [("async with" in said) or ("acomplete" in said) for said in refused.seen] == [True, True]


# --- Declaring ---


def test_a_sessionmaker_must_be_async_as_its_handler_is(jobs: App[Any], store: Store) -> None:
    with pytest.raises(InvalidOption, match="async_sessionmaker"):

        @jobs.task(transaction=store.sessions())
        async def awaited() -> None: ...

    with pytest.raises(InvalidOption, match="`sessionmaker`"):

        @jobs.task(transaction=store.async_sessions())
        def plain() -> None: ...

    with pytest.raises(InvalidOption, match="must be True, or a function"):
        jobs.task(transaction="yes")  # type: ignore[call-overload]


def test_an_async_factory_for_a_sync_handler_is_refused_at_its_use(
    jobs: App[Any], store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    def make() -> Any:
        return store.async_sessions()()

    @jobs.task(transaction=make, max_attempts=1)
    def plain(ctx: Context) -> None:
        ctx.tx.execute(text("SELECT 1"))

    with jobs.worker():
        report = plain.enqueue().report(timeout=30)
    assert report.job.last_error is not None
    assert "needs an event loop" in report.job.last_error.message


def test_the_handler_of_a_pool_may_have_a_transaction(jobs: App[Any], store: Store) -> None:
    pool = jobs.pool("ledger", str, lanes=2)

    @pool.handler(transaction=True)
    def book(ctx: Context, line: str) -> str:
        write(store, ctx.tx, line)
        return line

    with jobs.worker():
        assert pool.enqueue("a", key="a").result(timeout=30) == "a"
    assert store.effects() == {"a": 1}
