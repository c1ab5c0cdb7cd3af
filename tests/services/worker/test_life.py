"""A worker's life: its name, its record, its resources, and the ways to run it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from eventually import idle
from failing_engine import FailingEngine
from minimal_app import MinimalApp, MinimalTask

from holdfast import App, events
from holdfast.context import Context
from holdfast.engines import open_engine
from holdfast.errors import BlockingCall, EngineUnavailable, InvalidOption, UsageError
from holdfast.model.states import JobState, Reason
from holdfast.runtime import SystemRuntime
from holdfast.testing import FrozenRuntime, Probe


async def works() -> str:
    return threading.current_thread().name


def connect() -> str:
    raise OSError("no database")


@asynccontextmanager
async def no_database() -> AsyncIterator[str]:
    yield connect()


async def test_two_workers_of_one_name_are_two_workers() -> None:
    gate, running = asyncio.Event(), Probe[str]("the handler")

    async def waits(ctx: Context) -> None:
        running(ctx.worker)
        await gate.wait()

    app = MinimalApp(MinimalTask(waits, takes_context=True))
    await app.put(*(app.job("waits") for _ in range(4)))
    async with app.worker(name="twin", concurrency=2) as one, app.worker(name="twin", concurrency=2) as two:
        seen = await running.calls(4)
        assert one.name != two.name
        assert sorted(seen) == sorted([one.name, one.name, two.name, two.name])
        records = (await app.engine.workers()).workers
        assert {record.worker for record in records} == {one.name, two.name}
        assert all(record.worker.startswith("twin-") for record in records)
        gate.set()
    assert (await app.engine.workers()).workers == ()


async def test_a_worker_is_on_record_with_what_it_can_do() -> None:
    app = MinimalApp(MinimalTask(works), MinimalTask(works, name="mail", queue="mails"))
    async with app.worker(concurrency=7):
        (record,) = (await app.engine.workers()).workers
    assert record.tasks == ("mail", "works")
    assert record.queues == ("default", "mails")
    assert record.slots == 7
    assert record.pid > 0
    assert record.interval > 0


async def test_what_the_lifespan_yields_is_the_state_of_every_handler() -> None:
    order: list[str] = []

    @asynccontextmanager
    async def resources() -> AsyncIterator[str]:
        order.append("open")
        yield "connection"
        order.append("close")

    async def uses(ctx: Context[str]) -> str:
        order.append("used")
        return ctx.state

    app = MinimalApp(MinimalTask(uses, takes_context=True), lifespan=resources)
    id = await app.enqueue("uses")
    await app.drain()
    assert await app.result(id) == "connection"
    assert order == ["open", "used", "close"]


async def test_a_lifespan_that_cannot_start_starts_no_worker() -> None:
    app = MinimalApp(MinimalTask(works), lifespan=no_database)
    id = await app.enqueue("works")
    with pytest.raises(OSError, match="no database"):
        await app.worker().arun()
    with pytest.raises(OSError, match="no database"):
        async with app.worker():
            pass
    assert (await app.look(id)).state is JobState.QUEUED
    assert (await app.engine.workers()).workers == ()


async def test_a_lifespan_that_fails_at_the_end_still_lets_go_of_everything() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        yield
        raise OSError("could not close")

    app = MinimalApp(MinimalTask(works), lifespan=broken)
    await app.enqueue("works")
    with pytest.raises(OSError, match="could not close"):
        await app.drain()
    assert (await app.engine.workers()).workers == ()


def test_run_works_until_there_is_nothing_left() -> None:
    app = MinimalApp(MinimalTask(works))
    asyncio.run(app.put(app.job("works", id="a")))
    app.worker(until_empty=True).run()
    assert asyncio.run(app.look("a")).state is JobState.SUCCEEDED


async def test_run_refuses_to_block_a_running_loop() -> None:
    with pytest.raises(BlockingCall, match="arun"):
        MinimalApp(MinimalTask(works)).worker().run()


def test_a_worker_in_a_with_block_works_in_a_thread_of_its_own() -> None:
    app = MinimalApp(MinimalTask(works))
    done = threading.Event()
    app.bus.on(events.Succeeded, lambda event: done.set())
    with app.worker():
        asyncio.run(app.put(app.job("works", id="a")))
        assert done.wait(60)
    job = asyncio.run(app.look("a"))
    assert job.result is not None
    assert job.result != f'"{threading.main_thread().name}"'.encode()
    assert asyncio.run(_workers(app)) == ()


async def _workers(app: MinimalApp) -> tuple[object, ...]:
    return (await app.engine.workers()).workers


def test_a_thread_that_cannot_start_says_so_where_it_was_asked_for() -> None:
    app = MinimalApp(MinimalTask(works), lifespan=no_database)
    with pytest.raises(OSError, match="no database"), app.worker():
        pass


async def test_one_worker_runs_once_at_a_time() -> None:
    app = MinimalApp(MinimalTask(works))
    async with app.worker() as worker:
        with pytest.raises(UsageError, match="runs already"):
            await worker.arun()
    await app.drain()


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"prefetch": -1},
        {"grace": -1},
        {"grace": "long"},
        {"name": "x" * 300},
    ],
)
def test_odd_options_are_refused_by_name(options: dict[str, object]) -> None:
    with pytest.raises(InvalidOption) as refused:
        MinimalApp(MinimalTask(works)).worker(**options)
    assert refused.value.option in options


async def test_a_worker_without_tasks_is_no_error() -> None:
    async with MinimalApp().worker():
        await idle()


async def test_two_apps_share_one_store() -> None:
    runtime = SystemRuntime()
    engine = open_engine("memory://", runtime=runtime)
    producer = MinimalApp(engine=engine, runtime=runtime)
    worker = MinimalApp(MinimalTask(works), engine=engine, runtime=runtime)
    id = await producer.enqueue("works")
    await worker.drain()
    assert (await producer.look(id)).state is JobState.SUCCEEDED


# Tasks nobody knows


async def test_a_task_without_a_live_worker_is_reported_once_and_left_alone() -> None:
    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(works), runtime=runtime)
    seen = app.record_events(events.UnknownTask)
    id = await app.enqueue("resise")
    async with app.worker():
        await idle()
        runtime.advance(70)
        await idle()
        runtime.advance(70)
        await idle()
    (event,) = seen.seen
    assert isinstance(event, events.UnknownTask)
    assert (event.task, event.queue) == ("resise", "default")
    assert ((await app.look(id)).state, (await app.look(id)).attempt) == (JobState.QUEUED, 0)


async def test_a_task_without_a_live_worker_is_reported_behind_many_other_jobs() -> None:
    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(works), runtime=runtime)
    seen = app.record_events(events.UnknownTask)
    await app.engine.pause("default")
    await app.enqueue("resise")
    for _ in range(250):
        await app.enqueue("works")
    async with app.worker():
        await idle()
        runtime.advance(1)
        await idle()
    assert [event.task for event in seen.seen if isinstance(event, events.UnknownTask)] == ["resise"]


async def test_a_task_that_another_worker_has_is_not_reported() -> None:
    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(works), runtime=runtime)
    other = MinimalApp(MinimalTask(works, name="elsewhere"), runtime=runtime, engine=app.engine)
    seen = app.record_events(events.UnknownTask)
    await app.engine.pause("default")
    await app.enqueue("elsewhere")
    async with other.worker(), app.worker():
        await idle()
        runtime.advance(1)
        await idle()
    assert seen.seen == []


async def test_with_a_limit_set_a_task_without_a_worker_fails_in_the_end() -> None:
    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(works), runtime=runtime, unknown_task_after=100.0)
    old = await app.enqueue("resise")
    runtime.advance(90)
    async with app.worker():
        await idle()
        assert (await app.look(old)).state is JobState.QUEUED
        runtime.advance(40)
        young = await app.enqueue("resise")
        await idle()
        runtime.advance(30)
        await idle()
    job = await app.look(old)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.UNKNOWN_TASK)
    assert ((await app.look(young)).state, (await app.look(young)).attempt) == (JobState.QUEUED, 0)


async def test_a_worker_that_cannot_reach_the_store_says_so_at_once() -> None:
    runtime = SystemRuntime()
    engine = FailingEngine(runtime)
    engine.before = lambda command: EngineUnavailable()
    app = MinimalApp(MinimalTask(works), runtime=runtime, engine=engine)
    began = asyncio.get_running_loop().time()
    with pytest.raises(EngineUnavailable):
        await app.worker().arun()
    assert asyncio.get_running_loop().time() - began < 1.5


async def test_a_worker_that_stops_logs_for_what_it_waits_and_what_it_releases(
    caplog: pytest.LogCaptureFixture,
) -> None:
    jobs: App[Any] = App("memory://")
    running = asyncio.Event()

    @jobs.task
    async def sleeps() -> None:
        running.set()
        await asyncio.sleep(3600)

    with caplog.at_level("INFO", "holdfast.worker"):
        async with jobs, jobs.worker(grace=0.2, name="ada") as worker:
            await sleeps.using(id="one").aenqueue()
            await running.wait()
    lines = [record.getMessage() for record in caplog.records]
    assert lines[1:] == [
        f"Worker {worker.name} stops. It waits up to 0.2 s for its 1 running job.",
        "Job one (sleeps) was stopped at attempt 1 and is released: it runs again, without the loss of an attempt.",
        f"Worker {worker.name} has stopped.",
    ]


@pytest.mark.parametrize("option", ["concurrency", "prefetch"])
def test_more_slots_than_a_claim_can_fill_are_refused(option: str) -> None:
    with pytest.raises(InvalidOption, match=f"`{option}` must be a whole number from . to 100000"):
        App("memory://").worker(**{option: 100_001})  # type: ignore[arg-type]
