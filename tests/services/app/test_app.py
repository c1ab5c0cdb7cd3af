"""The App: no effects when it is made, opened by whoever needs it first, and safe to share, fork, close and reopen."""

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from eventually import idle

from holdfast import App, Context, EngineUnavailable, InvalidOption, Next, errors, events
from holdfast.codec import MsgpackCodec
from holdfast.engines.memory import MemoryEngine
from holdfast.runtime import SystemRuntime
from holdfast.testing.clock import FrozenRuntime


def small(app: App[Any]) -> Any:
    @app.task
    def resize(image: str) -> str:
        return image

    return resize


# Making one


def test_making_an_app_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    threads = set(threading.enumerate())  # some of an earlier test may be about to end
    jobs = App("sqlite:///jobs.db")
    small(jobs)
    jobs.worker()
    assert list(tmp_path.iterdir()) == []
    assert set(threading.enumerate()) <= threads
    assert "1 tasks" in repr(jobs)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("url", 3),
        ("url", "jobs.db"),
        ("modules", "shop.tasks"),
        ("modules", [3]),
        ("namespace", "No Word"),
        ("durability", "strong"),
        ("codec", "json"),
        ("middleware", [print]),
    ],
)
def test_what_an_app_cannot_have_is_refused_where_it_is_made(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption) as refused:
        App(value) if option == "url" else App(**{option: value})
    assert refused.value.option == option


def test_modules_are_imported_when_a_worker_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tasks_of_a_test.py").write_text("LOADED = True", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    jobs = App("memory://", modules=["tasks_of_a_test"])
    assert "tasks_of_a_test" not in sys.modules
    jobs.import_modules()
    assert sys.modules.pop("tasks_of_a_test").LOADED


# The address


def test_the_address_in_code_goes_before_the_environment_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://me:secret@db/shop")
    jobs = App("memory://")
    with caplog.at_level(logging.WARNING, "holdfast"):
        small(jobs).enqueue("a")
        small(App("memory://")).draft("a")
    (record,) = caplog.records
    assert "postgresql://me:***@db/shop" in record.getMessage()
    assert "memory://" in record.getMessage()
    assert "secret" not in caplog.text


def test_without_an_address_in_code_the_environment_decides(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "memory://")
    jobs = App()
    small(jobs).enqueue("a")
    assert isinstance(jobs.engine, MemoryEngine)
    assert caplog.records == []


def test_a_file_is_shown_with_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert App().address == str(tmp_path / "holdfast.db")
    assert App("sqlite:jobs.db").address == str(tmp_path / "jobs.db")
    assert App("sqlite:////srv/jobs.db").address == "/srv/jobs.db"
    assert App("memory://").address == "memory://"
    assert App("postgresql://me:secret@db/shop").address == "postgresql://me:***@db/shop"


# Opening and closing


def test_the_first_use_opens_and_the_end_of_the_block_closes() -> None:
    jobs = App("memory://")
    resize = small(jobs)
    with jobs as same:
        assert same is jobs
        resize.enqueue("a")
    assert [queue.depth for queue in jobs.control.queues()] == [1]

    async def on_a_loop() -> int:
        async with jobs:
            return len(await jobs.control.aqueues())

    assert asyncio.run(on_a_loop()) == 1


async def test_blocks_may_be_nested_and_the_last_one_closes() -> None:
    jobs = App("memory://")

    async with jobs:
        process = jobs._store.process
        async with jobs:
            assert process.open
        assert process.open
    assert not process.open


def test_closing_twice_and_closing_what_was_never_open_does_nothing() -> None:
    jobs = App("memory://")
    jobs.close()
    small(jobs).enqueue("a")
    jobs.close()
    jobs.close()
    assert jobs.migrate() == ()


def test_two_threads_that_open_at_once_open_one_engine() -> None:
    jobs = App("memory://")
    resize = small(jobs)
    barrier = threading.Barrier(8)

    def enqueue(n: int) -> object:
        barrier.wait()
        return resize.enqueue(str(n))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enqueue, range(8)))
    (queue,) = jobs.control.queues()
    assert queue.depth == 8


class SlowOpenEngine(MemoryEngine):
    """Counts how often it is opened. Opening takes a few turns of the loop."""

    opened = 0
    fails = 0

    async def open(self) -> None:
        type(self).opened += 1
        await asyncio.sleep(0)
        if type(self).fails:
            type(self).fails -= 1
            raise EngineUnavailable(engine="memory")


async def test_many_coroutines_that_open_at_once_open_once_and_share_no_failure() -> None:
    jobs = App("memory://")
    SlowOpenEngine.opened, SlowOpenEngine.fails = 0, 1

    with jobs.swapped(SlowOpenEngine("memory://", jobs.runtime), jobs.runtime):
        answers = await asyncio.gather(*(jobs.aopen() for _ in range(5)), return_exceptions=True)
    assert [type(answer) for answer in answers].count(EngineUnavailable) == 1
    assert SlowOpenEngine.opened == 2


def test_one_app_serves_several_loops_and_threads_without_one() -> None:
    jobs = App("memory://")
    resize = small(jobs)
    for n in range(3):
        asyncio.run(resize.aenqueue(str(n)))
        resize.enqueue(str(n))
    (queue,) = asyncio.run(jobs.control.aqueues())
    assert queue.depth == 6


def test_a_forked_child_starts_with_nothing_and_leaves_its_parent_alone() -> None:
    script = """
import os, warnings
from holdfast import App
warnings.simplefilter("ignore")
jobs = App("memory://")

@jobs.task
async def double(n: int) -> int:
    return 2 * n

assert double.call(1) == 2                      # the parent's loop thread runs
double.enqueue(1)
child = os.fork()
if not child:
    assert jobs.control.queues() == []          # a memory engine of its own
    double.enqueue(1)
    double.enqueue(2)
    assert double.call(2) == 4                  # a loop thread of its own
    os._exit(0 if jobs.control.queues()[0].depth == 2 else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert jobs.control.queues()[0].depth == 1
assert double.call(3) == 6
print("fine")
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (answer.stdout, answer.stderr, answer.returncode) == ("fine\n", "", 0)


def test_a_script_that_closes_nothing_ends_quietly() -> None:
    script = """
from holdfast import App
jobs = App("memory://")

@jobs.task
async def double(n: int) -> int:
    return 2 * n

double.enqueue(1)
print(double.call(2))
"""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", script]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (answer.stdout, answer.stderr, answer.returncode) == ("4\n", "", 0)


def test_an_app_without_references_ends_its_thread() -> None:
    before = set(threading.enumerate())
    jobs = App("memory://")
    jobs.open()
    (thread,) = [t for t in threading.enumerate() if t not in before and t.name == "holdfast-loop"]
    gone = weakref.ref(jobs)
    del jobs
    gc.collect()
    assert gone() is None
    thread.join(20)
    assert not thread.is_alive()


def test_another_engine_and_clock_can_be_put_under_an_app() -> None:
    jobs = App("memory://")
    resize = small(jobs)
    resize.enqueue("real")
    runtime = FrozenRuntime()
    with jobs.swapped(MemoryEngine("memory://", runtime), runtime):
        assert jobs.control.queues() == []
        job = resize.enqueue("fake").refresh()
        assert job.enqueued_at.timestamp() * 1_000_000 == runtime.wall()
        assert jobs.runtime is runtime
    assert [queue.depth for queue in jobs.control.queues()] == [1]


# What a worker asks for


def test_an_app_offers_its_worker_what_it_needs() -> None:
    @asynccontextmanager
    async def resources() -> AsyncIterator[int]:
        yield 7

    jobs = App("memory://", lifespan=resources, codec=MsgpackCodec())
    assert jobs.lifespan is resources
    assert jobs.config.worker.concurrency == 10
    assert jobs.middlewares == []
    assert jobs.bus.wants(events.Queued) is False


def test_middleware_is_either_an_onion_or_a_generator() -> None:
    async def first(ctx: Context, proceed: Next) -> object:
        return await proceed()

    jobs = App("memory://", middleware=[first])

    @jobs.middleware
    def second(ctx: Context) -> Iterator[None]:
        yield

    assert jobs.middlewares == [first, second]
    for wrong in (lambda ctx: None, 3):
        with pytest.raises(InvalidOption, match="generator"):
            jobs.middleware(wrong)  # type: ignore[type-var]


# Events


def test_listeners_get_the_events_of_this_process() -> None:
    jobs = App("memory://")
    resize = small(jobs)
    heard: list[events.Event] = []
    jobs.on(events.QueueEvent)(heard.append)

    @jobs.on(events.Queued)
    def listen(event: events.Queued) -> None:
        heard.append(event)

    handle = resize.enqueue("a")
    resize.using(delay=60).enqueue("b")
    jobs.control.pause("default")
    jobs.control.resume("default")
    assert jobs.control.clear("default") == 2
    assert [type(event).__name__ for event in heard] == [
        "Queued",
        "Queued",
        "QueuePaused",
        "QueueResumed",
        "QueueCleared",
    ]
    assert isinstance(heard[0], events.Queued)
    assert (heard[0].job_id, heard[0].task) == (handle.id, "resize")
    with pytest.raises(InvalidOption):
        jobs.on(str)  # type: ignore[type-var]


def test_events_come_as_a_sync_or_async_stream() -> None:
    jobs = App("memory://")
    resize = small(jobs)

    with jobs.subscribe(events.Queued, queue="default") as stream:
        resize.using(queue="other").enqueue("a")
        ids = [resize.enqueue("b").id for _ in range(2)]
        assert [next(stream).job_id, next(stream).job_id] == ids
    assert list(stream) == []

    async def on_a_loop() -> list[str]:
        heard = []
        async with jobs.subscribe(job_id="mine") as stream:
            waiting = asyncio.ensure_future(anext(stream))
            await idle()
            await resize.using(id="other").aenqueue("a")
            await asyncio.to_thread(resize.using(id="mine").enqueue, "a")
            heard.append(type(await waiting).__name__)
            stream.close()
            async for event in stream:
                heard.append(type(event).__name__)
            with pytest.raises(errors.BlockingCall):
                next(stream)
        return heard

    assert asyncio.run(on_a_loop()) == ["Queued"]


def test_a_reader_that_is_too_slow_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stream.MAX_EVENTS", 2)
    jobs = App("memory://")
    resize = small(jobs)
    with jobs.subscribe(events.Queued) as stream:
        ids = [resize.enqueue(str(n)).id for n in range(5)]
        assert [next(stream).job_id for _ in range(2)] == ids[3:]
        assert stream.dropped == 3


def test_an_app_that_is_closed_while_swapped_never_reaches_its_real_store(tmp_path: Path) -> None:
    real = tmp_path / "real.db"
    jobs: App[Any] = App(f"sqlite:///{real}")

    @jobs.task
    def nothing() -> None: ...

    runtime = SystemRuntime()
    with jobs.swapped(MemoryEngine("memory://", runtime), runtime):
        with jobs:
            first = nothing.enqueue()
        assert first.refresh().id == first.id  # opened again, on the same engine
    assert not real.exists()
