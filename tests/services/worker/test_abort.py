"""Aborting: a cancel request and a lost lease reach the handler, whatever it does about it."""

import asyncio
import threading
from typing import Any

import pytest
from eventually import idle
from minimal_app import MinimalApp, MinimalTask, ThreadGate

from holdfast import events
from holdfast.context import AbortReason, Context
from holdfast.errors import Aborted
from holdfast.model.states import JobState, Reason
from holdfast.testing import Probe

# Cancelling


async def test_a_cancel_request_rings_and_reaches_the_handler_at_once() -> None:
    running, ended = Probe[None]("the handler"), Probe[Any]("its end")

    async def slow(ctx: Context) -> None:
        running(None)
        try:
            await asyncio.Event().wait()
        finally:
            ended(ctx.abort_reason)

    app = MinimalApp(MinimalTask(slow, takes_context=True))
    id = await app.enqueue("slow")
    seen = app.record_events(events.Cancelled)
    async with app.worker():
        await running.calls(1)
        await app.engine.cancel("default", id, note="changed my mind")
        assert await ended.calls(1) == [AbortReason.CANCEL]
        await seen.calls(1)
    job = await app.look(id)
    assert (job.state, job.reason) == (JobState.CANCELLED, Reason.ASKED)


async def test_a_handler_that_finishes_all_the_same_has_succeeded() -> None:
    running = Probe[None]("the handler")

    async def quick_enough() -> str:
        running(None)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done anyway"
        return ""

    app = MinimalApp(MinimalTask(quick_enough))
    id = await app.enqueue("quick_enough")
    seen = app.record_events(events.Succeeded)
    async with app.worker():
        await running.calls(1)
        await app.engine.cancel("default", id)
        await seen.calls(1)
    assert await app.result(id) == "done anyway"


async def test_a_handler_that_fails_after_a_cancel_request_is_cancelled_not_retried() -> None:
    running = Probe[None]("the handler")

    async def fails() -> None:
        running(None)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("while tidying up") from None

    app = MinimalApp(MinimalTask(fails))
    id = await app.enqueue("fails")
    seen = app.record_events(events.Cancelled)
    async with app.worker():
        await running.calls(1)
        await app.engine.cancel("default", id)
        await seen.calls(1)
    assert (await app.look(id)).state is JobState.CANCELLED


async def test_a_thread_sees_a_cancel_request_in_its_context() -> None:
    latch = ThreadGate()

    def looks(ctx: Context) -> None:
        latch.tell("running")
        while not ctx.aborted:
            threading.Event().wait(0.001)
        raise Aborted("seen")

    app = MinimalApp(MinimalTask(looks, takes_context=True))
    id = await app.enqueue("looks")
    seen = app.record_events(events.Cancelled)
    async with app.worker():
        await latch.arrived.calls(1)
        await app.engine.cancel("default", id)
        await seen.calls(1)
    assert (await app.look(id)).state is JobState.CANCELLED


async def test_one_of_many_is_cancelled_and_the_others_go_on() -> None:
    running, gate = Probe[int]("the handler"), asyncio.Event()

    async def waits(number: int) -> int:
        running(number)
        await gate.wait()
        return number

    app = MinimalApp(MinimalTask(waits))
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


# Losing the lease


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_lost_lease_aborts_the_handler_and_its_outcome_is_dropped(colour: str) -> None:
    latch, told = ThreadGate(), Probe[Any]("its end")

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
    app = MinimalApp(MinimalTask(function, name="task", takes_context=True))
    id = await app.enqueue("task")
    lost = app.record_events(events.OwnershipLost)
    async with app.worker() as worker:
        await latch.arrived.calls(1)
        await app.engine.clear("default")  # voids the token
        assert worker._services is not None
        worker._services.keeper.renew_now()
        await lost.calls(1)
        if colour == "async":
            assert await told.calls(1) == [AbortReason.OWNERSHIP_LOST]
        latch.open()
        await idle()
    job = await app.look(id)
    assert (job.state, job.reason, job.result) == (JobState.CANCELLED, Reason.CLEARED, None)
    assert len(lost.seen) == 1


async def test_a_late_answer_is_refused_and_published_once() -> None:
    """The job is taken away while it runs, and nobody tells this worker before it answers."""

    running, gate = Probe[None]("the handler"), asyncio.Event()

    async def waits() -> str:
        running(None)
        await gate.wait()
        return "mine"

    app = MinimalApp(MinimalTask(waits))
    id = await app.enqueue("waits")
    lost = app.record_events(events.OwnershipLost)
    async with app.worker():
        await running.calls(1)
        await app.engine.clear("default")
        gate.set()
        await lost.calls(1)
    assert ((await app.look(id)).reason, (await app.look(id)).result) == (Reason.CLEARED, None)
    assert len(lost.seen) == 1
