"""Timeouts: a handler is told when its time is over, and its attempt counts as timed out whatever it does about it."""

import asyncio

import pytest
from eventually import idle
from minimal_app import QUICK, MinimalApp, MinimalTask, ThreadGate

from holdfast.context import AbortReason, Context
from holdfast.model.instants import SECOND
from holdfast.model.job import AttemptOutcome, Given
from holdfast.model.retry import RetryPolicy
from holdfast.model.states import JobState, Reason
from holdfast.testing import FrozenRuntime, Probe

ONCE = RetryPolicy(max_attempts=1)


async def test_an_async_handler_is_cancelled_when_its_time_is_over() -> None:
    running, ended = Probe[None]("the handler"), Probe[str]("its end")

    async def slow() -> None:
        running(None)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended("cancelled")
            raise

    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(slow, timeout=5 * SECOND, retry=ONCE), runtime=runtime)
    id = await app.enqueue("slow")
    async with app.worker():
        await running.calls(1)
        await idle()
        runtime.advance(4.9)
        await idle()
        assert ended.seen == []
        runtime.advance(0.2)
        await ended.calls(1)
        await idle()
        job = await app.look(id)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.TIMEOUT)
    assert job.last_error is not None
    assert "timeout of 5 s" in job.last_error.message
    assert "slow" in job.last_error.traceback
    assert [entry.outcome for entry in job.history] == [AttemptOutcome.TIMED_OUT]


async def test_a_timeout_is_retried_like_any_failure() -> None:
    tries = Probe[int]("the handler")

    async def slow_at_first(ctx: Context) -> str:
        tries(ctx.attempt)
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return "quick now"

    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(slow_at_first, takes_context=True, timeout=SECOND, retry=QUICK), runtime=runtime)
    id = await app.enqueue("slow_at_first")
    async with app.worker():
        await tries.calls(1)
        await idle()
        runtime.advance(1)
        await tries.calls(2)
        await idle()
    assert (await app.look(id)).state is JobState.SUCCEEDED


async def test_a_timeout_given_at_enqueue_wins() -> None:
    running = Probe[None]("the handler")

    async def slow() -> None:
        running(None)
        await asyncio.Event().wait()

    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(slow, timeout=3600 * SECOND, retry=ONCE), runtime=runtime)
    id = await app.enqueue("slow", given=Given(timeout=2 * SECOND))
    async with app.worker():
        await running.calls(1)
        await idle()
        runtime.advance(2)
        await idle()
        assert (await app.look(id)).reason is Reason.TIMEOUT


async def test_each_of_many_handlers_has_its_own_deadline() -> None:
    running, ended = Probe[int]("the handler"), Probe[int]("its end")

    async def slow(number: int) -> None:
        running(number)
        try:
            await asyncio.Event().wait()
        finally:
            ended(number)

    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(slow, retry=ONCE), runtime=runtime)
    await app.put(*(app.job("slow", n, given=Given(timeout=n * SECOND)) for n in (3, 1, 2)))
    async with app.worker():
        await running.calls(3)
        await idle()
        for count in (1, 2, 3):
            runtime.advance(1)
            await ended.calls(count)
            await idle()
        assert ended.seen == [1, 2, 3]


async def test_a_timed_out_thread_keeps_slot_and_lease_until_it_returns_and_then_counts_as_timed_out() -> None:
    latch = ThreadGate()

    def slow() -> str:
        latch.wait()
        return "too late"

    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(slow, timeout=SECOND, retry=ONCE), runtime=runtime)
    id = await app.enqueue("slow")
    async with app.worker() as worker:
        await latch.arrived.calls(1)
        await idle()
        runtime.advance(2)
        await idle()
        assert worker.running == 1
        assert (await app.look(id)).state is JobState.RUNNING
        latch.open()
    job = await app.look(id)
    assert (job.state, job.reason, job.result) == (JobState.FAILED, Reason.TIMEOUT, None)


async def test_a_thread_that_looks_stops_by_itself() -> None:
    latch = ThreadGate()

    def polite(ctx: Context) -> None:
        latch.wait()
        latch.tell((ctx.aborted, ctx.abort_reason))
        ctx.check()
        raise AssertionError("not reached")

    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(polite, takes_context=True, timeout=SECOND, retry=ONCE), runtime=runtime)
    id = await app.enqueue("polite")
    async with app.worker():
        await latch.arrived.calls(1)
        await idle()
        runtime.advance(2)
        await idle()
        latch.open()
        assert (await latch.arrived.calls(2))[1] == (True, AbortReason.TIMEOUT)
    job = await app.look(id)
    assert job.reason is Reason.TIMEOUT
    assert job.last_error is not None
    assert "check" in job.last_error.traceback


async def test_a_handler_that_swallows_the_cancellation_keeps_its_slot_and_counts_as_timed_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    running, told, gate = Probe[None]("the handler"), Probe[None]("its end"), asyncio.Event()

    async def stubborn() -> str:
        running(None)
        while not gate.is_set():
            try:
                await gate.wait()
            except BaseException:
                told(None)
        return "I did it my way"

    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(stubborn, timeout=SECOND, retry=ONCE), runtime=runtime)
    id = await app.enqueue("stubborn")
    async with app.worker() as worker:
        await running.calls(1)
        await idle()
        runtime.advance(1)
        await told.calls(1)
        for _ in range(4):
            await idle()
            runtime.advance(5)
        await idle()
        assert told.seen == [None]  # told once, not over and over
        assert worker.running == 1
        assert (await app.look(id)).state is JobState.RUNNING
        gate.set()
    job = await app.look(id)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.TIMEOUT)
    assert caplog.text.count("was aborted (timeout) and still runs") == 1
