"""The lanes of a pool one by one: paused, cleared, counted, told of when empty, and more or fewer of them."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import App, BlockingCall, Context, InvalidOption, JobState, WrongState, events
from holdfast.model.states import Reason
from holdfast.pool import Pool
from holdfast.testing import Probe
from holdfast.worker import Worker


@dataclass(frozen=True)
class Event:
    number: int


@pytest.fixture
def hooks(jobs: App[object]) -> Pool[Event]:
    return jobs.pool("hooks", Event, lanes=3)


@pytest.fixture
def seen(hooks: Pool[Event]) -> list[tuple[int | None, int]]:
    """Lane and number of each event that was worked on; negative ones fail for good."""
    worked: list[tuple[int | None, int]] = []

    @hooks.handler(max_attempts=1)
    async def work(ctx: Context, event: Event) -> None:
        worked.append((ctx.lane_index, event.number))
        if event.number < 0:
            raise ValueError("bad event")

    return worked


async def drain(jobs: App[Any]) -> None:
    await Worker(jobs, until_empty=True).arun()


async def fill(hooks: Pool[Event], count: int) -> None:
    for n in range(count):
        await hooks.aenqueue(Event(n), id=f"{n}")


async def test_a_paused_lane_waits_and_the_others_go_on(
    jobs: App[object], hooks: Pool[Event], seen: list[tuple[int | None, int]]
) -> None:
    async with jobs:
        lane = hooks.lane(1)
        assert await lane.apause()
        assert not await lane.apause()
        await fill(hooks, 6)
        await drain(jobs)
        assert sorted(seen) == [(0, 0), (0, 3), (2, 2), (2, 5)]
        status = await lane.astatus()
        assert (status.pool, status.lane, status.state, status.depth) == ("hooks", 1, "paused", 2)
        assert await lane.aresume()
        await drain(jobs)
        assert seen[4:] == [(1, 1), (1, 4)]


async def test_a_paused_pool_takes_in_and_works_on_nothing(
    jobs: App[object], hooks: Pool[Event], seen: list[tuple[int | None, int]]
) -> None:
    async with jobs:
        assert await hooks.apause()
        await fill(hooks, 3)
        await drain(jobs)
        assert seen == []
        assert (await hooks.astatus()).state == "paused"
        assert (await hooks.lane(0).astatus()).state == "running"
        assert await hooks.aresume()
        await drain(jobs)
        assert len(seen) == 3


async def test_the_status_comes_from_counters(
    jobs: App[object], hooks: Pool[Event], seen: list[tuple[int | None, int]]
) -> None:
    async with jobs:
        empty = await hooks.astatus()
        assert (empty.state, empty.depth, empty.processed, empty.current) == ("running", 0, 0, None)
        assert [lane.depth for lane in empty.lanes] == [0, 0, 0]
        await fill(hooks, 3)
        await hooks.aenqueue(Event(-1))
        await drain(jobs)
        assert len(seen) == 4
        waiting = [(await hooks.aenqueue(Event(n))).receipt for n in range(5)]
        arrivals = [receipt.arrival for receipt in waiting if receipt is not None]
        status = await hooks.astatus()
        assert (status.pool, status.depth, status.processed, status.failed) == ("hooks", 5, 4, 1)
        assert status.current == arrivals[0]
        assert not status.resizing
        assert [(lane.lane, lane.depth, lane.processed, lane.failed) for lane in status.lanes] == [
            (0, 1, 2, 1),
            (1, 2, 1, 0),
            (2, 2, 1, 0),
        ]
        assert [lane.current for lane in status.lanes] == [arrivals[2], arrivals[0], arrivals[1]]
        assert "state='running'" in repr(status)
        await hooks.aclear()
        cleared = await hooks.astatus()
        assert (cleared.depth, cleared.processed, cleared.failed, cleared.current) == (0, 4, 1, None)


async def test_clear_of_a_lane_leaves_the_others_and_fences_what_runs(jobs: App[object], hooks: Pool[Event]) -> None:
    gate, running, lost = asyncio.Event(), Probe[str]("the handler"), Probe[events.Event]("the listener")
    jobs.on(events.OwnershipLost)(lost)

    @hooks.handler
    async def work(ctx: Context, event: Event) -> None:
        running(ctx.job.id)
        await gate.wait()

    async with jobs:
        await fill(hooks, 6)
        async with jobs.worker():
            await running.calls(3)
            assert await hooks.lane(0).aclear() == 2
            gate.set()
            await lost.calls(1)
        states = [(await jobs.control.aget(f"{n}", queue="hooks")) for n in range(6)]
        assert [job.reason for job in states if job.state is JobState.CANCELLED] == [Reason.CLEARED] * 2
        assert [job.id for job in states if job.state is JobState.CANCELLED] == ["0", "3"]


def test_sync_and_async_methods_do_the_same(hooks: Pool[Event]) -> None:
    hooks.enqueue(Event(0))
    lane = hooks.lane(0)
    assert (lane.pool, lane.index, repr(lane)) == ("hooks", 0, "<Lane 0 of pool 'hooks'>")
    assert lane.pause()
    assert lane.status().state == "paused"
    assert lane.resume()
    assert hooks.pause()
    assert hooks.resume()
    assert hooks.status().depth == 1
    assert lane.clear() == 1
    assert hooks.clear() == 0
    hooks.resize(5)
    assert len(hooks.status().lanes) == 5

    async def scenario() -> None:
        for call in (hooks.status, hooks.pause, lane.status, lane.clear, lambda: hooks.resize(2)):
            with pytest.raises(BlockingCall):
                call()

    asyncio.run(scenario())


def test_a_lane_that_is_not_there_is_refused(hooks: Pool[Event]) -> None:
    wrong: Any
    for wrong in (-1, "0", True):
        with pytest.raises(InvalidOption):
            hooks.lane(wrong)
    for verb in (hooks.lane(3).pause, hooks.lane(3).status, hooks.lane(7).clear):
        with pytest.raises(InvalidOption, match="has 3 lanes"):
            verb()


# Empty


async def test_on_empty_is_called_once_for_the_pool_and_for_a_lane_each_time(
    jobs: App[object], hooks: Pool[Event], seen: list[tuple[int | None, int]]
) -> None:
    told, lane_told = Probe[str]("the pool's hook"), Probe[str | None]("the lane's hook")

    @hooks.on_empty
    async def pool_is_empty(event: events.QueueEmpty) -> None:
        told(event.queue)

    @hooks.lane(1).on_empty
    async def lane_is_empty(event: events.LaneEmpty) -> None:
        lane_told(event.lane)

    async with jobs:
        for round in (1, 2):
            for n in range(6):
                await hooks.aenqueue(Event(n))
            await drain(jobs)
            assert await told.calls(round) == ["hooks"] * round
            assert await lane_told.calls(round) == ["1"] * round
    assert len(seen) == 12


# Another size


async def test_a_resize_loses_nothing_and_keeps_every_key_in_order(jobs: App[object]) -> None:
    hooks = jobs.pool("hooks", Event, lanes=2)
    order: list[int] = []

    @hooks.handler(max_attempts=2, backoff=0)
    async def work(ctx: Context, event: Event) -> None:
        await asyncio.sleep(0)
        if event.number % 5 == 0 and not ctx.is_retry:
            raise ConnectionError("once")
        order.append(event.number)

    async with jobs:
        for n in range(30):
            await hooks.aenqueue(Event(n), key=f"{n % 10}")
        await hooks.aresize(7)
        assert (await hooks.astatus()).resizing
        with pytest.raises(WrongState, match="30 jobs of its old size"):
            await hooks.aresize(3)
        for n in range(30, 60):
            await hooks.aenqueue(Event(n), key=f"{n % 10}")
        held = [job for job in await jobs.control.afind(queue="hooks", limit=100) if job.arrival > 30]
        assert {job.state for job in held} == {JobState.BLOCKED}
        await drain(jobs)
        status = await hooks.astatus()
        assert (status.depth, status.processed, status.resizing, len(status.lanes)) == (0, 60, False, 7)
        await hooks.aresize(3)
        await hooks.aresize(3)
    for key in range(10):
        mine = [n for n in order if n % 10 == key]
        assert mine == sorted(mine)
    assert sorted(order) == list(range(60))


async def test_fewer_lanes_may_be_looked_at_until_they_are_empty(
    jobs: App[object], hooks: Pool[Event], seen: list[tuple[int | None, int]]
) -> None:
    async with jobs:
        await fill(hooks, 3)
        await hooks.aresize(1)
        assert (await hooks.lane(2).astatus()).depth == 1
        await hooks.lane(2).apause()
        await drain(jobs)
        assert len(seen) == 2
        await hooks.lane(2).aresume()
        await drain(jobs)
        assert len(seen) == 3
        for n in range(2):
            await hooks.aenqueue(Event(n))
        await drain(jobs)
        assert [lane for lane, _ in seen[3:]] == [0, 0]


@pytest.mark.parametrize("lanes", [0, -1, 2.5, 1_000_000])
def test_a_size_that_cannot_be_is_refused(hooks: Pool[Event], lanes: Any) -> None:
    with pytest.raises(InvalidOption):
        hooks.resize(lanes)
