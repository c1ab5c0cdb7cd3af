"""Aborting: a timeout, a cancel request and a lost lease each reach the handler, whatever it does about it."""

import asyncio
import threading
from typing import Any

import pytest
from small_app import QUICK, SmallApp, SmallTask, run, settled

from holdfast import events
from holdfast.context import AbortReason, Context
from holdfast.errors import Aborted
from holdfast.model.instants import SECOND
from holdfast.model.job import AttemptOutcome
from holdfast.model.retry import RetryPolicy
from holdfast.model.states import JobState, Reason
from holdfast.testing import FrozenRuntime, Probe

ONCE = RetryPolicy(max_attempts=1)


class Latch:
    """A thread waits here until the test opens it. `arrived` tells the test's loop."""

    def __init__(self) -> None:
        self.arrived = Probe[Any]("the thread")
        self._open = threading.Event()
        self._loop = asyncio.get_running_loop()

    def wait(self, value: Any = None) -> None:
        self._loop.call_soon_threadsafe(self.arrived, value)
        assert self._open.wait(10)

    def tell(self, value: Any) -> None:
        self._loop.call_soon_threadsafe(self.arrived, value)

    def open(self) -> None:
        self._open.set()


# Timeouts


def test_an_async_handler_is_cancelled_when_its_time_is_over() -> None:
    async def scenario() -> None:
        running, ended = Probe[None]("the handler"), Probe[str]("its end")

        async def slow() -> None:
            running(None)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended("cancelled")
                raise

        runtime = FrozenRuntime()
        app = SmallApp(SmallTask(slow, timeout=5 * SECOND, retry=ONCE), runtime=runtime)
        id = await app.enqueue("slow")
        async with app.worker():
            await running.calls(1)
            await settled()
            runtime.advance(4.9)
            await settled()
            assert ended.seen == []
            runtime.advance(0.2)
            await ended.calls(1)
            await settled()
            job = await app.look(id)
        assert (job.state, job.reason) == (JobState.FAILED, Reason.TIMEOUT)
        assert job.last_error is not None
        assert "timeout of 5 s" in job.last_error.message
        assert "slow" in job.last_error.traceback
        assert [entry.outcome for entry in job.history] == [AttemptOutcome.TIMED_OUT]

    run(scenario())


def test_a_timeout_is_retried_like_any_failure() -> None:
    async def scenario() -> None:
        tries = Probe[int]("the handler")

        async def slow_at_first(ctx: Context) -> str:
            tries(ctx.attempt)
            if ctx.attempt == 1:
                await asyncio.Event().wait()
            return "quick now"

        runtime = FrozenRuntime()
        app = SmallApp(SmallTask(slow_at_first, takes_context=True, timeout=SECOND, retry=QUICK), runtime=runtime)
        id = await app.enqueue("slow_at_first")
        async with app.worker():
            await tries.calls(1)
            await settled()
            runtime.advance(1)
            await tries.calls(2)
            await settled()
        assert (await app.look(id)).state is JobState.SUCCEEDED

    run(scenario())


def test_a_timeout_given_at_enqueue_wins() -> None:
    async def scenario() -> None:
        running = Probe[None]("the handler")

        async def slow() -> None:
            running(None)
            await asyncio.Event().wait()

        from holdfast.model.job import Given

        runtime = FrozenRuntime()
        app = SmallApp(SmallTask(slow, timeout=3600 * SECOND, retry=ONCE), runtime=runtime)
        id = await app.enqueue("slow", given=Given(timeout=2 * SECOND))
        async with app.worker():
            await running.calls(1)
            await settled()
            runtime.advance(2)
            await settled()
            assert (await app.look(id)).reason is Reason.TIMEOUT

    run(scenario())


def test_each_of_many_handlers_has_its_own_deadline() -> None:
    async def scenario() -> None:
        running, ended = Probe[int]("the handler"), Probe[int]("its end")

        async def slow(number: int) -> None:
            running(number)
            try:
                await asyncio.Event().wait()
            finally:
                ended(number)

        from holdfast.model.job import Given

        runtime = FrozenRuntime()
        app = SmallApp(SmallTask(slow, retry=ONCE), runtime=runtime)
        await app.put(*(app.job("slow", n, given=Given(timeout=n * SECOND)) for n in (3, 1, 2)))
        async with app.worker():
            await running.calls(3)
            await settled()
            for count in (1, 2, 3):
                runtime.advance(1)
                await ended.calls(count)
                await settled()
            assert ended.seen == [1, 2, 3]

    run(scenario())


def test_a_timed_out_thread_keeps_slot_and_lease_until_it_returns_and_then_counts_as_timed_out() -> None:
    async def scenario() -> None:
        latch = Latch()

        def slow() -> str:
            latch.wait()
            return "too late"

        runtime = FrozenRuntime()
        app = SmallApp(SmallTask(slow, timeout=SECOND, retry=ONCE), runtime=runtime)
        id = await app.enqueue("slow")
        async with app.worker() as worker:
            await latch.arrived.calls(1)
            await settled()
            runtime.advance(2)
            await settled()
            assert worker.running == 1
            assert (await app.look(id)).state is JobState.RUNNING
            latch.open()
        job = await app.look(id)
        assert (job.state, job.reason, job.result) == (JobState.FAILED, Reason.TIMEOUT, None)

    run(scenario())


def test_a_thread_that_looks_stops_by_itself() -> None:
    async def scenario() -> None:
        latch = Latch()

        def polite(ctx: Context) -> None:
            latch.wait()
            latch.tell((ctx.aborted, ctx.abort_reason))
            ctx.check()
            raise AssertionError("not reached")

        runtime = FrozenRuntime()
        app = SmallApp(SmallTask(polite, takes_context=True, timeout=SECOND, retry=ONCE), runtime=runtime)
        id = await app.enqueue("polite")
        async with app.worker():
            await latch.arrived.calls(1)
            await settled()
            runtime.advance(2)
            await settled()
            latch.open()
            assert (await latch.arrived.calls(2))[1] == (True, AbortReason.TIMEOUT)
        job = await app.look(id)
        assert job.reason is Reason.TIMEOUT
        assert job.last_error is not None
        assert "check" in job.last_error.traceback

    run(scenario())


def test_a_handler_that_swallows_the_cancellation_keeps_its_slot_and_counts_as_timed_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
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
        app = SmallApp(SmallTask(stubborn, timeout=SECOND, retry=ONCE), runtime=runtime)
        id = await app.enqueue("stubborn")
        async with app.worker() as worker:
            await running.calls(1)
            await settled()
            runtime.advance(1)
            await told.calls(1)
            for _ in range(4):
                await settled()
                runtime.advance(5)
            await settled()
            assert told.seen == [None]  # told once, not over and over
            assert worker.running == 1
            assert (await app.look(id)).state is JobState.RUNNING
            gate.set()
        job = await app.look(id)
        assert (job.state, job.reason) == (JobState.FAILED, Reason.TIMEOUT)

    run(scenario())
    assert caplog.text.count("was told to stop (timeout) and still runs") == 1


# Cancelling


def test_a_cancel_request_rings_and_reaches_the_handler_at_once() -> None:
    async def scenario() -> None:
        running, ended = Probe[None]("the handler"), Probe[Any]("its end")

        async def slow(ctx: Context) -> None:
            running(None)
            try:
                await asyncio.Event().wait()
            finally:
                ended(ctx.abort_reason)

        app = SmallApp(SmallTask(slow, takes_context=True))
        id = await app.enqueue("slow")
        seen = app.record_events(events.Cancelled)
        async with app.worker():
            await running.calls(1)
            await app.engine.cancel("default", id, note="changed my mind")
            assert await ended.calls(1) == [AbortReason.CANCEL]
            await seen.calls(1)
        job = await app.look(id)
        assert (job.state, job.reason) == (JobState.CANCELLED, Reason.ASKED)

    run(scenario())


def test_a_handler_that_finishes_all_the_same_has_succeeded() -> None:
    async def scenario() -> None:
        running = Probe[None]("the handler")

        async def quick_enough() -> str:
            running(None)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "done anyway"
            return ""

        app = SmallApp(SmallTask(quick_enough))
        id = await app.enqueue("quick_enough")
        seen = app.record_events(events.Succeeded)
        async with app.worker():
            await running.calls(1)
            await app.engine.cancel("default", id)
            await seen.calls(1)
        assert await app.result(id) == "done anyway"

    run(scenario())


def test_a_handler_that_fails_after_a_cancel_request_is_cancelled_not_retried() -> None:
    async def scenario() -> None:
        running = Probe[None]("the handler")

        async def fails() -> None:
            running(None)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("while tidying up") from None

        app = SmallApp(SmallTask(fails))
        id = await app.enqueue("fails")
        seen = app.record_events(events.Cancelled)
        async with app.worker():
            await running.calls(1)
            await app.engine.cancel("default", id)
            await seen.calls(1)
        assert (await app.look(id)).state is JobState.CANCELLED

    run(scenario())


def test_a_thread_hears_of_a_cancel_request_through_its_context() -> None:
    async def scenario() -> None:
        latch = Latch()

        def looks(ctx: Context) -> None:
            latch.tell("running")
            while not ctx.aborted:
                threading.Event().wait(0.001)
            raise Aborted("seen")

        app = SmallApp(SmallTask(looks, takes_context=True))
        id = await app.enqueue("looks")
        seen = app.record_events(events.Cancelled)
        async with app.worker():
            await latch.arrived.calls(1)
            await app.engine.cancel("default", id)
            await seen.calls(1)
        assert (await app.look(id)).state is JobState.CANCELLED

    run(scenario())


def test_one_of_many_is_cancelled_and_the_others_go_on() -> None:
    async def scenario() -> None:
        running, gate = Probe[int]("the handler"), asyncio.Event()

        async def waits(number: int) -> int:
            running(number)
            await gate.wait()
            return number

        app = SmallApp(SmallTask(waits))
        ids = await app.put(*(app.job("waits", n) for n in range(5)))
        seen = app.record_events(events.Cancelled)
        async with app.worker():
            await running.calls(5)
            await app.engine.cancel("default", ids[2])
            await seen.calls(1)
            gate.set()
        states = [(await app.look(id)).state for id in ids]
        assert states.count(JobState.SUCCEEDED) == 4
        assert states[2] is JobState.CANCELLED

    run(scenario())


# Losing the lease


@pytest.mark.parametrize("colour", ["async", "sync"])
def test_a_lost_lease_aborts_the_handler_and_its_outcome_is_dropped(colour: str) -> None:
    async def scenario() -> None:
        latch, told = Latch(), Probe[Any]("its end")

        async def on_the_loop(ctx: Context) -> str:
            latch.arrived(None)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                told(ctx.abort_reason)
            return "late"

        def in_a_thread(ctx: Context) -> str:
            latch.wait()
            return "late"

        function: Any = on_the_loop if colour == "async" else in_a_thread
        app = SmallApp(SmallTask(function, name="task", takes_context=True))
        id = await app.enqueue("task")
        lost = app.record_events(events.OwnershipLost)
        async with app.worker() as worker:
            await latch.arrived.calls(1)
            await app.engine.clear("default")  # voids the token
            assert worker._shift is not None
            worker._shift.keeper.hurry()
            await lost.calls(1)
            if colour == "async":
                assert await told.calls(1) == [AbortReason.OWNERSHIP_LOST]
            latch.open()
            await settled(50)
        job = await app.look(id)
        assert (job.state, job.reason, job.result) == (JobState.CANCELLED, Reason.CLEARED, None)
        assert len(lost.seen) == 1

    run(scenario())


def test_a_late_answer_is_refused_told_once_and_harms_nobody() -> None:
    """The job is taken away while it runs, and nobody tells this worker before it answers."""

    async def scenario() -> None:
        running, gate = Probe[None]("the handler"), asyncio.Event()

        async def waits() -> str:
            running(None)
            await gate.wait()
            return "mine"

        app = SmallApp(SmallTask(waits))
        id = await app.enqueue("waits")
        lost = app.record_events(events.OwnershipLost)
        async with app.worker():
            await running.calls(1)
            await app.engine.clear("default")
            gate.set()
            await lost.calls(1)
        assert ((await app.look(id)).reason, (await app.look(id)).result) == (Reason.CLEARED, None)
        assert len(lost.seen) == 1

    run(scenario())
