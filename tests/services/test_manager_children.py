"""The children of a manager, as small real processes that only speak the channel."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from eventually import eventually

from holdfast.manager import children as module
from holdfast.manager.child import Child, ChildStarter, ChildState
from holdfast.manager.children import Children
from holdfast.manager.output import ChildOutput
from holdfast.manager.scaling import SizeLimits
from holdfast.model.instants import SECOND
from holdfast.process_death import death_of
from holdfast.processes import own_peak_bytes
from holdfast.runtime import SystemRuntime
from holdfast.service import Supervisor

FAKE = str(Path(__file__).parent.parent / "support" / "fake_worker.py")


class Kept:
    """A service with children, and what it has reported."""

    def __init__(self, children: Children, lost: list[Child], failed: list[str]) -> None:
        self.children = children
        self.lost = lost
        self.failed = failed

    def in_state(self, state: ChildState) -> list[Child]:
        return [child for child in self.children.alive if child.state is state]

    async def running(self, count: int) -> list[Child]:
        """Wait until this number runs and no other child is left."""
        await eventually(
            lambda: len(self.in_state(ChildState.RUNNING)) == len(self.children.alive) == count, f"{count} children"
        )
        return list(self.children.alive)


@asynccontextmanager
async def kept(folder: Path, behaviour: str = "works", *, low: int = 1, high: int = 4) -> AsyncIterator[Kept]:
    runtime = SystemRuntime()
    output = ChildOutput(runtime)
    lost: list[Child] = []
    failed: list[str] = []
    children = Children(
        runtime,
        ChildStarter(runtime, [sys.executable, "-S", "-E", FAKE, behaviour, str(folder)], output),
        SizeLimits(min=low, max=high, slots=1, idle_before_down_us=SECOND),
        grace_s=5.0,
        on_lost=lost.append,
        on_changed=lambda: None,
        on_failure=lambda: failed.append(children.failure),
    )
    supervisor = Supervisor(runtime, [children])
    supervisor.start()
    try:
        yield Kept(children, lost, failed)
    finally:
        await supervisor.stop()
        left = list(children.alive)
        for child in left:
            child.kill()
        await eventually(lambda: all(child.process.poll() is not None for child in left), "the end of the children")
        children.abandon()
        await asyncio.to_thread(output.close)


async def test_a_child_that_starts_slowly_counts(tmp_path: Path) -> None:
    async with kept(tmp_path, "slow", low=2) as manager:
        await eventually(lambda: len(manager.children.alive) == 2)
        for _ in range(20):
            manager.children.size = 4
            await manager.children.tick()
        assert len(manager.children.alive) == 4
        manager.children.size = 2
        await eventually(lambda: len(manager.in_state(ChildState.STARTING)) == 2)
        manager.children.size = 4
        await manager.children.tick()
        assert len(manager.children.alive) <= 4  # those that stop still count
        (tmp_path / "START").touch()
        await manager.running(4)


async def test_a_dead_child_is_replaced_at_once_and_reported_as_lost(tmp_path: Path) -> None:
    async with kept(tmp_path, low=2) as manager:
        first, second = await manager.running(2)
        os.kill(first.process.pid, signal.SIGKILL)
        await eventually(lambda: manager.lost == [first])
        await eventually(lambda: first not in manager.children.alive)
        death = death_of(first.death())
        assert death is not None
        assert death.cause == "SIGKILL"
        # Its own memory, not that of this process, with which the kernel's figure begins.
        assert death.peak_mib in range(1, own_peak_bytes() >> 20)
        await manager.running(2)
        assert second in manager.children.alive
        assert manager.failed == []


async def test_children_that_cannot_start_end_the_manager_with_their_last_lines(tmp_path: Path) -> None:
    async with kept(tmp_path, "broken", low=2) as manager:
        await eventually(lambda: manager.failed)
        (failure,) = manager.failed
        assert "No child could start, in 3 tries." in failure
        assert "ended with exit code 2" in failure
        assert "There is no module 'shop'." in failure


async def test_a_child_that_recycles_itself_has_its_successor_at_once(tmp_path: Path) -> None:
    async with kept(tmp_path, "recycles", high=1) as manager:
        (first,) = await manager.running(1)
        (tmp_path / "RECYCLE").touch()
        await eventually(lambda: manager.in_state(ChildState.STOPPING) == [first])
        await eventually(lambda: len(manager.in_state(ChildState.RUNNING)) == 1)
        assert len(manager.children.alive) == 2
        (tmp_path / "FINISH").touch()
        (second,) = await manager.running(1)
        assert second is not first
        assert manager.lost == []  # it has released everything


async def test_a_roll_over_starts_each_successor_before_the_old_child_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.manager")
    async with kept(tmp_path, low=2, high=2) as manager:
        old = await manager.running(2)
        least = 2
        manager.children.roll_over()

        def is_done() -> bool:
            nonlocal least
            least = min(least, len(manager.in_state(ChildState.RUNNING)))
            return not set(old) & set(manager.children.alive)

        await eventually(is_done)
        assert least == 2
        await manager.running(2)
        assert manager.lost == []
        assert sum("takes the place" in record.getMessage() for record in caplog.records) == 2


async def test_a_second_roll_over_also_replaces_a_successor_that_starts(tmp_path: Path) -> None:
    """The code may have changed between the two."""
    async with kept(tmp_path, low=2, high=2) as manager:
        old = await manager.running(2)
        manager.children.roll_over()
        await eventually(lambda: len(manager.children.alive) == 3, "the first successor")
        before = list(manager.children.alive)
        manager.children.roll_over()
        await eventually(lambda: not set(before) & set(manager.children.alive), "the end of all earlier children")
        assert set(old) < set(before)
        await manager.running(2)
        assert manager.lost == []


async def test_a_roll_over_ends_if_the_new_child_cannot_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with kept(tmp_path, low=2) as manager:
        old = await manager.running(2)
        starter = manager.children._starter
        starter._arguments = tuple("broken" if word == "works" else word for word in starter._arguments)
        manager.children.roll_over()
        await eventually(lambda: any("The roll over has ended" in record.getMessage() for record in caplog.records))
        assert await manager.running(2) == old
        assert manager.failed == []


async def test_a_stop_lets_the_children_end(tmp_path: Path) -> None:
    async with kept(tmp_path, low=3) as manager:
        await manager.running(3)
        manager.children.stop(5.0)
        await eventually(lambda: not manager.children.alive)
        assert manager.lost == []
        assert manager.children.killed == 0


async def test_a_child_that_does_not_stop_is_killed_and_reported_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KILL_MARGIN_S", 0.2)
    async with kept(tmp_path, "stubborn") as manager:
        (child,) = await manager.running(1)
        manager.children.stop(0)
        await eventually(lambda: not manager.children.alive)
        assert manager.lost == [child]
        assert manager.children.killed == 1
        death = death_of(child.death())
        assert death is not None
        assert death.cause == "a stop that took too long"


async def test_the_idle_child_stops_first(tmp_path: Path) -> None:
    async with kept(tmp_path, low=3) as manager:
        one, two, three = await manager.running(3)
        manager.children.busy = {one.worker: 0, two.worker: 4, three.worker: 2}
        manager.children.size = 2
        manager.children.wake()
        await eventually(lambda: one not in manager.children.alive)
        assert await manager.running(2) == [two, three]


async def test_without_a_pidfd_the_end_of_a_child_is_seen_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.manager.child.watch_descriptor", lambda pid: None)
    async with kept(tmp_path) as manager:
        (first,) = await manager.running(1)
        os.kill(first.process.pid, signal.SIGKILL)
        await eventually(lambda: manager.lost == [first])
        await manager.running(1)


async def test_a_forked_process_keeps_no_copy_of_the_channel(tmp_path: Path) -> None:
    """Else a child would not notice the end of its manager."""
    async with kept(tmp_path) as manager:
        (child,) = await manager.running(1)
        fd = child.channel_fd
        assert os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        pid = os.fork()
        if not pid:
            try:
                os._exit(os.readlink(f"/proc/self/fd/{fd}") != os.devnull)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
