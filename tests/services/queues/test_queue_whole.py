"""A queue as a whole: how full it may be, paused, cleared, looked at, and told of when it has run empty."""

import asyncio

import pytest
from scan_queue import Scan

from holdfast import (
    App,
    BlockingCall,
    InvalidOption,
    QueueFull,
    events,
)
from holdfast.model.states import Reason
from holdfast.queue import Queue

# Room


def test_a_full_queue_says_how_full_it_is(jobs: App[object]) -> None:
    few = jobs.queue("few", int, max_depth=2)
    few.enqueue(1)
    few.enqueue(2)
    with pytest.raises(QueueFull) as full:
        few.enqueue(3)
    assert (full.value.queue, full.value.depth, full.value.limit) == ("few", 2, 2)
    with pytest.raises(QueueFull):
        jobs.client.enqueue_many([few.draft(3)])
    (lease,) = few.claim()
    lease.complete()
    few.enqueue(3)


def test_the_soft_limit_is_published_once_on_the_way_up(jobs: App[object]) -> None:
    few = jobs.queue("few", int, max_depth=10)
    told: list[events.SoftLimit] = []
    jobs.on(events.SoftLimit)(told.append)
    for n in range(10):
        few.enqueue(n)
    assert [(event.queue, event.depth, event.limit) for event in told] == [("few", 8, 10)]


async def test_a_producer_may_wait_for_room(jobs: App[object]) -> None:
    few = jobs.queue("few", int, max_depth=1)
    async with jobs:
        await few.aenqueue(1)
        waiting = asyncio.create_task(few.aenqueue(2, wait_for_room=10))
        (lease,) = await few.aclaim()
        await lease.acomplete()
        assert (await waiting).created
        with pytest.raises(QueueFull):
            await few.aenqueue(3, wait_for_room=0.01)


def test_a_limit_in_code_goes_over_the_configured_one(monkeypatch: pytest.MonkeyPatch, jobs: App[object]) -> None:
    monkeypatch.setenv("HOLDFAST_QUEUES_FEW_MAX_DEPTH", "1")
    few = jobs.queue("few", int, max_depth=2)
    few.enqueue(1)
    few.enqueue(2)
    with pytest.raises(QueueFull, match="limit 2"):
        few.enqueue(3)


def test_a_limit_is_a_whole_number(jobs: App[object]) -> None:
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(InvalidOption, match="max_depth"):
            jobs.queue("few", int, max_depth=wrong)  # type: ignore[arg-type]


# The whole of it


def test_a_paused_queue_takes_in_and_hands_out_nothing(scans: Queue[Scan]) -> None:
    assert scans.pause()
    assert not scans.pause()
    scans.enqueue(Scan("a"))
    assert scans.claim() == []
    assert (scans.status().paused, scans.status().depth) == (True, 1)
    assert scans.resume()
    assert not scans.resume()
    assert len(scans.claim()) == 1


def test_clear_cancels_what_has_not_ended_and_keeps_pause_and_counters(jobs: App[object], scans: Queue[Scan]) -> None:
    scans.enqueue(Scan("done"))
    scans.claim()[0].complete()
    for n in range(3):
        scans.enqueue(Scan(f"{n}"), id=f"{n}")
    scans.claim()
    scans.pause()
    assert scans.clear() == 3
    status = scans.status()
    assert (status.paused, status.depth, status.succeeded, status.cancelled) == (True, 0, 1, 3)
    assert jobs.control.get("0", queue="scans").reason is Reason.CLEARED


async def test_async_methods_do_the_same(jobs: App[object], scans: Queue[Scan]) -> None:
    async with jobs:
        handle = await scans.aenqueue(Scan("a"))
        assert await scans.apause()
        assert await scans.aresume()
        (lease,) = await scans.aclaim()
        await lease.acomplete(3)
        assert await handle.aresult() == 3
        assert (await scans.astatus()).succeeded == 1
        assert await scans.aclear() == 0


async def test_a_blocking_method_on_a_loop_names_its_twin(scans: Queue[Scan]) -> None:
    for call in (lambda: scans.enqueue(Scan("a")), scans.claim, scans.pause, scans.status, scans.clear):
        with pytest.raises(BlockingCall):
            call()
    with pytest.raises(BlockingCall, match="async for"):
        for _ in scans.leases():
            pass


def test_on_empty_is_called_once_each_time_the_queue_has_run_empty(jobs: App[object], scans: Queue[Scan]) -> None:
    heard: list[tuple[str, int]] = []
    other = jobs.queue("other", int)

    @scans.on_empty
    def refill(event: events.QueueEmpty) -> None:
        heard.append((event.queue, scans.status().depth))  # a blocking method: hooks never run on a loop

    @scans.on_empty
    async def later(event: events.QueueEmpty) -> None:
        heard.append(("async", (await scans.astatus()).depth))

    for _ in range(2):
        scans.enqueue(Scan("a"))
        scans.enqueue(Scan("b"))
        other.enqueue(1)
        other.claim()[0].complete()
        for lease in scans.claim(2):
            assert len(heard) % 2 == 0
            lease.complete()
    assert heard == [("scans", 0), ("async", 0)] * 2


async def test_close_waits_for_hooks_that_still_run(jobs: App[object], scans: Queue[Scan]) -> None:
    depths: list[int] = []

    @scans.on_empty
    async def slow(event: events.QueueEmpty) -> None:
        await asyncio.sleep(0.05)
        depths.append((await scans.astatus()).depth)

    async with jobs:
        await scans.aenqueue(Scan("a"))
        (lease,) = await scans.aclaim()
        await lease.acomplete()
    assert depths == [0]


def test_a_hook_that_fails_has_no_other_effect(scans: Queue[Scan], caplog: pytest.LogCaptureFixture) -> None:
    @scans.on_empty
    def broken(event: events.QueueEmpty) -> None:
        raise ValueError("no")

    scans.enqueue(Scan("a"))
    scans.claim()[0].complete()
    assert scans.status().succeeded == 1
    assert "broken failed on QueueEmpty" in caplog.text
    with pytest.raises(InvalidOption):
        scans.on_empty("no function")  # type: ignore[type-var]
