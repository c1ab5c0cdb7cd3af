"""Events across real processes: an observer hears a worker it did not start, and a killed observer disturbs nobody."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from eventually import eventually

from holdfast import App, events
from holdfast.testing import Probe

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no sockets between processes")

PROGRAM = """
    import os, sys
    from holdfast import App, events
    from holdfast.engines import feed_channels

    feed_channels.ANNOUNCEMENT_TIMEOUT_S = 30.0  # a busy machine may need longer than 2 s to tell who listens
    jobs = App(os.environ["TEST_STORE"], namespace=os.environ["TEST_NAMESPACE"])


    @jobs.task(max_attempts=2, backoff=0)
    def work(how: str) -> str:
        if how == "fails":
            raise ValueError("no")
        return how


    if sys.argv[1] == "worker":
        jobs.worker(signals=True, name="child").run()
    elif sys.argv[1] == "produce":
        work.using(id="theirs").enqueue("well")
    else:
        with jobs.subscribe() as stream:
            print("listening", flush=True)
            for event in stream:
                print(type(event).__name__, flush=True)
"""


class Place(NamedTuple):
    folder: Path
    url: str
    namespace: str


@pytest.fixture(params=["sqlite", "file", "postgres", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return Place(tmp_path, f"sqlite:///{tmp_path}/jobs.db", "holdfast")
    if request.param == "file":
        return Place(tmp_path, f"file://{tmp_path}/jobs", "holdfast")
    url, namespace = request.getfixturevalue(f"{request.param}_store")()
    return Place(tmp_path, url, namespace)


@asynccontextmanager
async def child(place: Place, role: str) -> AsyncIterator[asyncio.subprocess.Process]:
    program = place.folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(program),
        role,
        env={**os.environ, "TEST_STORE": place.url, "TEST_NAMESPACE": place.namespace},
        stdout=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def app(place: Place) -> App[Any]:
    jobs: App[Any] = App(place.url, namespace=place.namespace)

    @jobs.task(max_attempts=2, backoff=0)
    def work(how: str) -> str:
        return how

    return jobs


async def test_an_observer_gets_the_events_of_a_worker_from_start_to_end(place: Place) -> None:
    jobs = app(place)
    work = jobs.registry["work"]
    seen = Probe[events.Event]("the observer")

    async def observe(stream: Any) -> None:
        async for event in stream:
            seen(event)

    async with jobs, jobs.subscribe() as stream:
        observing = asyncio.ensure_future(observe(stream))
        async with child(place, "worker") as worker:
            for how in ("well", "fails"):
                handle = await work.using(id=how).aenqueue(how)
                await handle.areport(timeout=60)
            worker.send_signal(signal.SIGTERM)
            assert await worker.wait() == 0
            while not isinstance(seen.seen[-1], events.WorkerStopped):
                await seen.calls(len(seen.seen) + 1)
        stream.close()
        await observing
    assert [event.job_id for event in seen.seen if isinstance(event, events.Queued)] == ["well", "fails"]
    lives = {  # without `Queued`, an event of this process: the order of events of two processes is not defined
        id: [
            type(event).__name__
            for event in seen.seen
            if isinstance(event, events.JobEvent) and event.job_id == id and not isinstance(event, events.Queued)
        ]
        for id in ("well", "fails")
    }
    assert lives == {
        "well": ["Started", "Succeeded"],
        "fails": ["Started", "Retrying", "Started", "Failed"],
    }
    workers = [event for event in seen.seen if isinstance(event, events.WorkerEvent)]
    assert [type(event).__name__ for event in workers] == ["WorkerStarted", "WorkerStopping", "WorkerStopped"]
    assert all(event.worker.startswith("child-") for event in workers)
    (failed,) = [event for event in seen.seen if isinstance(event, events.Failed)]
    assert failed.error is not None
    assert failed.error.message == "no"
    assert any(isinstance(event, events.QueueEmpty) for event in seen.seen)


async def test_events_of_a_script_that_ends_at_once_arrive(place: Place) -> None:
    jobs = app(place)

    async with jobs, jobs.subscribe(events.Queued) as stream, child(place, "produce") as producer:
        assert (await anext(stream)).job_id == "theirs"
        assert await producer.wait() == 0


async def test_a_killed_observer_is_forgotten_and_disturbs_no_process(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engines.feed_channels.LISTENER_TTL_S", 3.0)
    jobs = app(place)
    work = jobs.registry["work"]

    async with jobs:
        async with child(place, "observer") as observer:
            assert observer.stdout is not None
            assert await observer.stdout.readline() == b"listening\n"
            await eventually(lambda: jobs.bus.wants(events.Queued))  # its announcement comes by another way
            await work.aenqueue("well")
            assert await observer.stdout.readline() == b"Queued\n"
            observer.kill()
            await observer.wait()
        async with jobs.subscribe(events.Succeeded) as stream, child(place, "worker"):
            event = asyncio.ensure_future(anext(stream))
            while not event.done():  # one event may be lost: a worker that starts waits 2 s to learn who listens
                await (await work.aenqueue("well")).aresult(timeout=60)
                await asyncio.wait({event}, timeout=1)
        while jobs.bus.wants(events.Queued):  # whoever tells something next finds that nobody is there
            await work.aenqueue("well")
