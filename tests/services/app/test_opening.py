"""Opening a store whose engine runs in this process: once, also if the callers are cancelled."""

import asyncio
import threading
from pathlib import Path

import pytest
from host_stores import HostStore

from holdfast import App


class SlowDisk:
    """The check of the file system, which every opening begins with, waits for `ready`."""

    def __init__(self) -> None:
        self.others = set(threading.enumerate())
        """Threads of earlier tests."""
        self.openings = 0
        self.begun = threading.Event()
        self.ready = threading.Event()

    def file_system_type(self, path: object) -> str:
        self.openings += 1
        self.begun.set()
        assert self.ready.wait(30)
        return "ext4"

    def engine_threads(self) -> list[str]:
        """Those that were started since."""
        names = ("holdfast-file", "holdfast-sqlite-writer")
        return [thread.name for thread in set(threading.enumerate()) - self.others if thread.name in names]


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture(params=["sqlite", "file"])
def app(request: pytest.FixtureRequest, tmp_path: Path, disk: SlowDisk) -> App[object]:
    made: App[object] = App(HostStore.of(request.param, tmp_path).url)
    made._store.runtime.fs.file_system_type = disk.file_system_type  # type: ignore[method-assign]
    return made


async def cancelled_call(app: App[object], disk: SlowDisk) -> None:
    call = asyncio.create_task(app.control.aqueues())
    await asyncio.to_thread(disk.begun.wait, 30)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_calls_that_are_cancelled_while_the_store_opens_open_it_once(app: App[object], disk: SlowDisk) -> None:
    for _ in range(3):
        await cancelled_call(app, disk)
    disk.ready.set()
    assert await app.control.aqueues() == []
    assert (disk.openings, len(disk.engine_threads())) == (1, 1)
    await app.aclose()
    assert disk.engine_threads() == []


def test_calls_whose_event_loops_end_while_the_store_opens_open_it_once(app: App[object], disk: SlowDisk) -> None:
    for _ in range(3):
        asyncio.run(cancelled_call(app, disk))
    disk.ready.set()
    assert app.control.queues() == []
    assert (disk.openings, len(disk.engine_threads())) == (1, 1)
    app.close()
    assert disk.engine_threads() == []


async def test_close_waits_for_an_opening_whose_caller_was_cancelled(app: App[object], disk: SlowDisk) -> None:
    await cancelled_call(app, disk)
    closing = asyncio.create_task(app.aclose())
    asyncio.get_running_loop().call_soon(disk.ready.set)
    await closing
    assert disk.engine_threads() == []
