"""Events between Apps that share a store: who hears what, who is left alone, and what a broken one does to the rest.

Two Apps in one process are to each other as two processes are: each has a record and sockets of its own.
`test_bus_processes.py` uses real processes.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually

from holdfast import App, events
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.runtime import SystemRuntime
from holdfast.testing import Probe

Open = Callable[..., Awaitable[App[Any]]]
OpenNow = Callable[..., App[Any]]

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no sockets between processes here")


@pytest.fixture
def another_now(tmp_path: Path) -> Iterator[OpenNow]:
    """One more App on the same store, open; for a test without an event loop."""
    with ExitStack() as stack:

        def another_now(**options: Any) -> App[Any]:
            return stack.enter_context(made(tmp_path, **options))

        yield another_now


@pytest.fixture
def another(tmp_path: Path) -> Iterator[Open]:
    """One more App on the same store, open."""
    with ExitStack() as stack:

        async def another(**options: Any) -> App[Any]:
            app = made(tmp_path, **options)
            await app.aopen()
            stack.callback(app.close)
            return app

        yield another


def made(folder: Path, **options: Any) -> App[Any]:
    app: App[Any] = App(f"sqlite:///{folder}/jobs.db", **options)

    @app.task
    def work() -> None: ...

    return app


def enqueue(app: App[Any], id: str) -> None:
    app.registry["work"].using(id=id).enqueue()


async def aenqueue(app: App[Any], id: str) -> None:
    await app.registry["work"].using(id=id).aenqueue()


def heard(app: App[Any], kind: type[events.Event] = events.Event, *, everywhere: bool = True) -> Probe[Any]:
    """A probe that is called, on the loop of the test, with every event that this App hears."""
    probe, loop = Probe[Any]("the listener"), asyncio.get_running_loop()
    app.on(kind, everywhere=everywhere)(lambda event: loop.call_soon_threadsafe(probe, event))
    return probe


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast-e")}


# Who hears what


async def test_a_stream_gets_events_of_another_app(another: Open) -> None:
    here, there = await another(), await another()

    async with here.subscribe(events.Queued) as stream:
        await aenqueue(there, "a")
        assert (await anext(stream)).job_id == "a"


def test_a_blocking_stream_opens_the_store_that_it_listens_to(tmp_path: Path, another_now: OpenNow) -> None:
    there = another_now()
    here: App[Any] = App(f"sqlite:///{tmp_path}/jobs.db")
    with here.subscribe(job_id="b") as stream:
        enqueue(there, "a")
        enqueue(there, "b")
        assert type(next(stream)) is events.Queued
    here.close()


async def test_a_stream_opens_the_store_that_it_listens_to(tmp_path: Path, another: Open) -> None:
    there = await another()
    here: App[Any] = App(f"sqlite:///{tmp_path}/jobs.db")
    stream = here.subscribe(job_id="d")
    waiting = asyncio.ensure_future(anext(aiter(stream)))
    await eventually(lambda: there.bus.wants(events.Queued))
    await aenqueue(there, "d")
    assert (await waiting).at > 0
    stream.close()
    await here.aclose()


def test_a_stream_of_this_process_gets_nothing_else_and_opens_nothing(tmp_path: Path, another_now: OpenNow) -> None:
    here, there = another_now(), another_now()
    with here.subscribe(events.Queued, everywhere=False) as stream:
        assert not there.bus.wants(events.Queued)
        enqueue(there, "a")
        enqueue(here, "b")
        assert next(stream).job_id == "b"
    store = tmp_path / "never.db"
    with App(f"sqlite:///{store}").subscribe(everywhere=False):
        assert not store.exists()


async def test_a_listener_gets_events_of_its_own_process_by_default(another: Open) -> None:
    here, there = await another(), await another()

    near, far = heard(here, events.Queued, everywhere=False), heard(here, events.Queued)
    await aenqueue(there, "a")
    await far.calls(1)
    await aenqueue(here, "b")
    assert [event.job_id for event in await far.calls(2)] == ["a", "b"]
    assert [event.job_id for event in await near.calls(1)] == ["b"]


async def test_a_listener_registered_before_the_store_is_open_gets_events_too(tmp_path: Path, another: Open) -> None:
    there = await another()
    here: App[Any] = App(f"sqlite:///{tmp_path}/jobs.db")

    queued = heard(here, events.Queued)
    for opened in range(2):  # and again after it was closed
        async with here:
            await aenqueue(there, f"job {opened}")
            await queued.calls(opened + 1)
        await eventually(lambda: not there.bus.wants(events.Queued))


def test_an_async_listener_gets_events_of_another_app(another_now: OpenNow) -> None:
    here, there = another_now(), another_now()
    told: list[str] = []
    done = threading.Event()

    @here.on(events.Queued, everywhere=True)
    async def listen(event: events.Queued) -> None:
        await asyncio.sleep(0)
        told.append(event.job_id)
        done.set()

    enqueue(there, "a")
    assert done.wait(20)
    assert told == ["a"]


async def test_apps_of_different_namespaces_get_no_events_of_each_other(another: Open) -> None:
    here, there, stranger = await another(), await another(), await another(namespace="other")

    queued = heard(here, events.Queued)
    assert not stranger.bus.wants(events.Queued)
    await aenqueue(stranger, "a")
    await aenqueue(there, "b")
    assert [event.job_id for event in await queued.calls(1)] == ["b"]


async def test_events_of_one_app_come_in_their_order(another: Open) -> None:
    here, there = await another(), await another()

    told = heard(here)
    work = there.registry["work"]
    await there.client.aenqueue_many([work.using(id=f"{n:03}").draft() for n in range(500)])
    await there.control.apause("default")
    await eventually(lambda: any(isinstance(event, events.QueuePaused) for event in told.seen))
    ids = [event.job_id for event in told.seen[:-1]]
    assert len(ids) > 100  # a few may be lost, if this machine is very busy
    assert ids == sorted(ids)


# Who is left alone


async def test_nothing_is_published_without_a_listener(another: Open) -> None:
    here, there = await another(), await another()

    assert not there.bus.wants(events.Queued)
    here.on(events.Event)(lambda event: None)
    await aenqueue(there, "a")
    async with here.subscribe(events.WorkerEvent):
        await eventually(lambda: there.bus.wants(events.WorkerStopped))
        assert not there.bus.wants(events.Queued)
        await aenqueue(there, "b")
    await eventually(lambda: not there.bus.wants(events.WorkerStopped))
    await aenqueue(there, "c")
    assert "holdfast-events-out" not in threads()


async def test_apps_that_listen_to_each_other_get_each_event_once(another: Open) -> None:
    apps = [await another() for _ in range(3)]

    probes = [heard(app) for app in apps]
    for index, app in enumerate(apps):
        await aenqueue(app, f"job {index}")
    for probe in probes:
        assert sorted(event.job_id for event in await probe.calls(3)) == ["job 0", "job 1", "job 2"]
    await apps[0].control.apause("default")  # if anything were on its way once more, it would come before this
    for probe in probes:
        assert [type(event).__name__ for event in (await probe.calls(4))[3:]] == ["QueuePaused"]


async def test_an_app_under_test_exchanges_no_events_with_the_real_ones(another: Open) -> None:
    here, there, third = await another(), await another(), await another()
    feed = here.bus.feed
    assert feed is not None
    runtime = SystemRuntime()

    near, far, also_far = heard(here, events.Queued), heard(there, events.Queued), heard(third, events.Queued)
    with here.swapped(MemoryEngine("memory://", runtime), runtime):
        await aenqueue(here, "in the test")
        await aenqueue(there, "unheard")
        await also_far.calls(1)
        there.engine.publish(b"this comes after it")
        await eventually(lambda: feed.unreadable_lines == 1)
    await aenqueue(here, "afterwards")
    assert [event.job_id for event in await far.calls(2)] == ["unheard", "afterwards"]
    await aenqueue(there, "heard")
    assert [event.job_id for event in (await near.calls(3))] == ["in the test", "afterwards", "heard"]


# What goes wrong


async def test_the_last_events_of_an_app_arrive(another: Open) -> None:
    here, there = await another(), await another()

    async with here.subscribe(events.Queued) as stream:
        await aenqueue(there, "last")
        await there.aclose()
        assert (await anext(stream)).job_id == "last"
    assert "holdfast-events-out" not in threads()


async def test_an_unreadable_message_is_counted_and_the_next_one_arrives(another: Open) -> None:
    here, there = await another(), await another()

    queued = heard(here, events.Queued)
    await eventually(lambda: there.bus.wants(events.Queued))
    there.engine.publish(b'{"event":"Teleported","at":1}\nnonsense')
    await aenqueue(there, "a")
    await queued.calls(1)
    assert here.bus.feed is not None
    assert here.bus.feed.unreadable_lines == 2


async def test_a_broken_listener_keeps_no_event_of_another_process_from_the_rest(another: Open) -> None:
    here, there = await another(), await another()

    @here.on(events.Event, everywhere=True)
    def broken(event: events.Event) -> None:
        raise RuntimeError("broken")

    @here.on(events.Event, everywhere=True)
    def cancelled(event: events.Event) -> None:
        raise asyncio.CancelledError

    async with here.subscribe(events.Queued) as stream:
        await aenqueue(there, "a")
        await aenqueue(there, "b")
        assert {(await anext(stream)).job_id, (await anext(stream)).job_id} == {"a", "b"}


async def test_a_slow_listener_loses_events_and_the_others_do_not(another: Open) -> None:
    here, there = await another(), await another()
    assert isinstance(there.engine, SqliteEngine)
    processes = there.engine._processes
    assert processes is not None
    folder = processes._folder.path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as slow:
        slow.bind(str(folder / "1-slow.feed"))
        (folder / "1-slow.kinds").write_bytes(b"holdfast\0Event")

        queued, work = heard(here, events.Queued), there.registry["work"]
        for _ in range(5):
            await there.client.aenqueue_many([work.draft() for _ in range(1_000)])
        number = 0
        while not any(event.job_id.startswith("after") for event in queued.seen):
            await aenqueue(there, f"after {number}")
            number += 1
        assert "1-slow" in processes.feed._connections
    await aenqueue(there, "one more")  # it is gone now
    await there.aclose()
    assert not (folder / "1-slow.kinds").exists()
