"""Draining: what is run, in which order, and how far the clock moves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from shop_app import NOWHERE, Shop

from holdfast import (
    App,
    Cancel,
    Context,
    GiveUp,
    JobState,
    Next,
    Retry,
    Snooze,
    UsageError,
    events,
    fixed,
)
from holdfast.testing import Drained, Harness, harness, stepped_worker

# --- What a drain does ---


def test_a_drain_runs_what_is_due_in_the_order_of_a_worker(shop: Shop, h: Harness) -> None:
    shop.plain.enqueue("first")
    shop.waits.enqueue("second")
    shop.plain.using(priority=5).enqueue("urgent")
    shop.plain.using(delay=1).enqueue("later")

    assert h.drain() == Drained(succeeded=3, left=1)
    assert shop.ran == ["urgent", "first", "second"]


def test_what_a_handler_enqueues_is_run_too(shop: Shop, h: Harness) -> None:
    @shop.jobs.task
    def sync_parent() -> None:
        shop.plain.enqueue("child of a thread")

    @shop.jobs.task
    async def async_parent() -> None:
        await shop.waits.aenqueue("child of a coroutine")

    sync_parent.enqueue()
    async_parent.enqueue()
    assert h.drain().succeeded == 4
    assert shop.ran == ["child of a thread", "child of a coroutine"]


def test_every_outcome_is_counted(shop: Shop, h: Harness) -> None:
    @shop.jobs.task(max_attempts=2)
    def ends(how: str) -> None:
        match how:
            case "retry":
                raise Retry("not yet", delay=5)
            case "snooze":
                raise Snooze(delay=5)
            case "give up":
                raise GiveUp("never")
            case "cancel":
                raise Cancel("not wanted")

    for how in ("return", "retry", "snooze", "give up", "cancel"):
        ends.enqueue(how)

    assert h.drain() == Drained(succeeded=1, failed=1, cancelled=1, retried=1, snoozed=1, left=2)


def test_two_runs_of_a_test_do_the_same_things_in_the_same_order() -> None:
    def scenario() -> tuple[list[str], list[tuple[str, str, int]]]:
        shop = Shop()
        with harness(shop.jobs) as h:
            start = h.clock.now()
            for number in range(5):
                shop.fails.enqueue(f"fails {number}")
                shop.plain.using(queue=f"queue {number % 2}").enqueue(f"plain {number}")
                shop.waits.using(delay=number).enqueue(f"waits {number}")
            h.drain(until=100, raises=False)
            told = [event for event in h.events if isinstance(event, events.JobEvent)]
            names = {job.id: str(job.arguments) for job in h.enqueued()}
            return shop.ran, [
                (type(e).__name__, names[e.job_id], e.at - round(start.timestamp()) * 1_000_000) for e in told
            ]

    assert scenario() == scenario()


def test_a_job_in_a_queue_of_its_own_is_run(shop: Shop, h: Harness) -> None:
    @shop.jobs.task
    def parent() -> None:
        shop.plain.using(queue="made on the way").enqueue("child")

    parent.enqueue()
    shop.plain.using(queue="unusual").enqueue("job")
    assert h.drain().succeeded == 3


def test_a_paused_queue_and_a_task_from_elsewhere_are_left(shop: Shop, h: Harness) -> None:
    shop.plain.using(queue="paused").enqueue("never")
    shop.jobs.client.task("billing.send_invoice").enqueue(42)
    shop.jobs.control.pause("paused")

    assert h.drain(until=60) == Drained(left=2)


def test_a_job_that_has_expired_is_cancelled(shop: Shop, h: Harness) -> None:
    handle = shop.plain.using(expires=10).enqueue("too late")
    shop.plain.using(expires=10, delay=60).enqueue("too late before it is due")
    h.clock.advance(11)

    assert h.drain() == Drained(cancelled=2)
    assert (handle.refresh().state, shop.ran) == (JobState.CANCELLED, [])


def test_handlers_see_middleware_context_and_state() -> None:
    seen: list[object] = []

    @asynccontextmanager
    async def resources() -> AsyncIterator[str]:
        seen.append("opened")
        yield "connection"
        seen.append("closed")

    jobs = App(NOWHERE, lifespan=resources)

    @jobs.middleware
    async def around(ctx: Context, proceed: Next) -> object:
        seen.append(f"before {ctx.job.task}")
        return f"<{await proceed()}>"

    @jobs.task
    def handler(ctx: Context[str], name: str) -> str:
        seen.append((ctx.state, ctx.attempt, ctx.worker))
        return name

    with harness(jobs) as h:
        handle = handler.enqueue("it")
        h.drain()
        assert handle.result() == "<it>"
    assert seen == ["opened", "before handler", ("connection", 1, "harness-1"), "closed"]


def test_hooks_and_listeners_have_run_when_a_drain_returns(shop: Shop, h: Harness) -> None:
    told: list[str] = []

    @shop.jobs.on(events.Failed)
    async def listen(event: events.Failed) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        told.append(f"listener: {event.reason}")

    @shop.fails.on_dead_letter
    def note(job: Any, error: Any) -> None:
        told.append(f"hook: {error.message}")

    shop.fails.using(max_attempts=1).enqueue("it")
    h.drain(raises=False)
    assert sorted(told) == ["hook: it", "listener: exhausted"]


def test_what_a_listener_enqueues_is_run_too(shop: Shop, h: Harness) -> None:
    @shop.jobs.on(events.Succeeded)
    async def follow(event: events.Succeeded) -> None:
        await asyncio.sleep(0)
        if event.task == "plain":
            await shop.waits.aenqueue("after it")

    shop.plain.enqueue("it")
    assert h.drain() == Drained(succeeded=2)
    assert shop.ran == ["it", "after it"]


def test_progress_can_be_seen_afterwards(shop: Shop, h: Harness) -> None:
    @shop.jobs.task
    def halfway(ctx: Context) -> None:
        ctx.progress(0.5, "halfway")
        raise Snooze(delay=10)

    handle = halfway.enqueue()
    h.drain()
    progress = handle.refresh().progress
    assert progress is not None
    assert (progress.fraction, progress.note) == (0.5, "halfway")


def test_a_handler_may_wait_for_another_job(shop: Shop, h: Harness) -> None:
    @shop.jobs.task
    def sync_asks() -> str:
        return shop.waits.request("by request") + shop.plain.enqueue("by handle").result()

    @shop.jobs.task
    async def async_asks() -> str:
        return await shop.plain.arequest("here") + await (await shop.waits.aenqueue("there")).aresult()

    first, second = sync_asks.enqueue(), async_asks.enqueue()
    assert h.drain().succeeded == 6
    assert (first.result(), second.result()) == ("BY REQUESTBY HANDLE", "HERETHERE")


def test_a_handler_may_wait_for_a_job_that_takes_its_time(shop: Shop, h: Harness) -> None:
    @shop.jobs.task(backoff=fixed(10))
    async def flaky(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ConnectionError("not yet")
        return ctx.attempt

    @shop.jobs.task
    async def asks() -> int:
        return await flaky.arequest()

    start, handle = h.clock.now(), asks.enqueue()
    assert h.drain(until=60) == Drained(succeeded=2, retried=2)
    assert (handle.result(), h.clock.now() - start) == (3, timedelta(seconds=20))


def test_a_drain_that_never_ends_says_why(shop: Shop, h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepped_worker, "MAX_ATTEMPTS_AT_ONE_TIME", 50)

    @shop.jobs.task
    def looks_again() -> None:
        raise Snooze(delay=0)

    @shop.jobs.task
    def goes_on() -> None:
        goes_on.enqueue()

    handle = looks_again.enqueue()
    with pytest.raises(UsageError, match=rf"job {handle.id} has run 51 times"):
        h.drain()
    handle.cancel()
    goes_on.enqueue()
    with pytest.raises(UsageError, match="does a job enqueue another one"):
        h.drain()


# --- The clock ---


def test_the_clock_moves_through_delays_and_back_offs_and_stops_at_the_last_end(shop: Shop, h: Harness) -> None:
    start = h.clock.now()
    shop.fails.enqueue("it")  # fails after 0, 10 and 20 seconds
    shop.plain.using(delay=15).enqueue("between")

    assert h.drain(until=timedelta(minutes=5), raises=False) == Drained(succeeded=1, failed=1, retried=2)
    assert shop.ran == ["it", "it", "between", "it"]
    assert h.clock.now() - start == timedelta(seconds=20)


def test_with_jobs_left_the_clock_ends_where_the_drain_does(shop: Shop, h: Harness) -> None:
    start = h.clock.now()
    handle = shop.plain.using(delay=100).enqueue("far")

    assert h.drain(until=60) == Drained(left=1)
    assert h.clock.now() - start == timedelta(seconds=60)
    assert h.drain(until=60).succeeded == 1
    assert handle.refresh().finished_at == start + timedelta(seconds=100)


def test_without_until_the_clock_stands_still(shop: Shop, h: Harness) -> None:
    start = h.clock.now()
    shop.fails.enqueue("it")
    assert h.drain(raises=False) == Drained(retried=1, left=1)
    assert h.clock.now() == start


def test_code_that_reads_the_real_clock_finds_the_present(shop: Shop, h: Harness) -> None:
    shop.plain.using(at=datetime.now(UTC) + timedelta(hours=1)).enqueue("in an hour")
    assert h.drain().left == 1
    h.clock.advance(hours=1)
    assert h.drain().succeeded == 1


def test_the_clock_does_not_go_back(h: Harness) -> None:
    with pytest.raises(ValueError, match="only goes forward"):
        h.clock.advance(-1)


def test_a_handler_can_be_slow_by_the_fake_clock(shop: Shop, h: Harness) -> None:
    @shop.jobs.task(timeout=30, max_attempts=1)
    async def slow() -> None:
        h.clock.advance(31)
        await asyncio.Event().wait()

    @shop.jobs.task(timeout=30, max_attempts=1)
    def slow_thread() -> None:
        h.clock.advance(31)

    handles = slow.enqueue(), slow_thread.enqueue()
    assert h.drain(raises=False).failed == 2
    assert [handle.refresh().reason for handle in handles] == ["timeout", "timeout"]


def test_a_handler_that_hangs_meets_its_timeout_in_real_time(shop: Shop, h: Harness) -> None:
    @shop.jobs.task(timeout=0.01)
    async def hangs() -> None:
        await asyncio.Event().wait()

    hangs.enqueue()
    with pytest.raises(TimeoutError, match="longer than its timeout"):
        h.drain()
