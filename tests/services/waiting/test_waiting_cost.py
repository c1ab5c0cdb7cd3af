"""What waiting callers cost: bounded reads, and nothing once they have gone."""

import asyncio
from typing import Any

import pytest
from eventually import eventually
from failing_engine import FailingEngine
from manual_worker import settle, take

from holdfast import App, JobState, Task, WaitTimeout
from holdfast.model.observe import Get, Lanes
from holdfast.runtime import SystemRuntime


@pytest.fixture
def jobs() -> App[object]:
    return App("memory://")


@pytest.fixture
def double(jobs: App[object]) -> Task[[int], int]:
    @jobs.task
    def double(n: int) -> int:
        return 2 * n

    return double


def waited_for(jobs: App[Any]) -> int:
    return len(jobs._store.process.per_loop().end_listener._waiters)


async def test_the_jobs_of_many_callers_are_read_in_several_calls(
    jobs: App[object], double: Task[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.waiting.MAX_JOBS_PER_READ", 2)
    engine = FailingEngine(SystemRuntime())
    with jobs.swapped(engine, jobs.runtime):
        calls = [asyncio.ensure_future(double.arequest(n)) for n in range(5)]
        await eventually(lambda: waited_for(jobs) == 5)
        for lease in [await take(jobs, double) for _ in range(5)]:
            await settle(jobs, lease, JobState.SUCCEEDED, result=b"1")
        assert await asyncio.gather(*calls) == [1] * 5
    assert max(len(command.jobs) for command in engine.commands if isinstance(command, Get)) == 2


async def test_a_caller_that_gives_up_leaves_nothing_to_read(jobs: App[object], double: Task[[int], int]) -> None:
    handle = await double.aenqueue(1)
    with pytest.raises(WaitTimeout):
        await handle.aresult(timeout=0.05)
    assert waited_for(jobs) == 0


async def test_a_caller_that_gives_up_reads_no_lane_but_its_own(jobs: App[object], double: Task[[int], int]) -> None:
    engine = FailingEngine(SystemRuntime())
    with jobs.swapped(engine, jobs.runtime):
        handles = [await double.using(lane=lane).aenqueue(1) for lane in ("alice", "bob")]
        with pytest.raises(WaitTimeout):
            await handles[1].aresult(timeout=0)
    assert [command.lanes for command in engine.commands if isinstance(command, Lanes)] == [("bob",)]
