"""Stopping: no new claims, time to finish, then an abort, then everything is given back. It never hangs."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from eventually import idle
from failing_engine import FailingEngine
from minimal_app import MinimalApp, MinimalTask, names

from holdfast import events
from holdfast.context import AbortReason, Context
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable
from holdfast.model.job import JobKey
from holdfast.model.outcome import LostLease, decide, decide_loss
from holdfast.model.produce import Group
from holdfast.model.records import WorkerRecord
from holdfast.model.retry import RetryPolicy
from holdfast.model.states import JobState, Reason
from holdfast.model.work import Exchange, HeartbeatAnswer
from holdfast.runtime import Runtime, SystemRuntime
from holdfast.testing import FrozenRuntime, Probe
from holdfast.testing.contract.builders import claim, new_job
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.release import Rest, release_rest
from holdfast.worker.thread import run_loop


class GatedHandler:
    """A handler that reports and waits for the gate; it notes why it was aborted."""

    def __init__(self) -> None:
        self.started = Probe[str]("the handler")
        self.ended = Probe[AbortReason | None]("its end")
        self.gate = asyncio.Event()

    def task(self, **policy: Any) -> MinimalTask:
        async def waits(ctx: Context) -> str:
            self.started(ctx.job.id)
            try:
                await self.gate.wait()
            finally:
                self.ended(ctx.abort_reason)
            return "finished"

        return MinimalTask(waits, takes_context=True, **policy)


async def leases_of(app: MinimalApp) -> int:
    counts = (await app.engine.stats("default")).queues[0].counts
    return counts.get(JobState.RUNNING, 0) + counts.get(JobState.ASSIGNED, 0)


async def test_a_stopping_worker_claims_nothing_more_and_lets_handlers_finish() -> None:
    waits = GatedHandler()
    app = MinimalApp(waits.task())
    seen = app.record_events()
    first = await app.enqueue("waits")
    worker = app.worker()
    life = asyncio.create_task(worker.arun())
    await waits.started.calls(1)
    worker.stop()
    await idle()
    second = await app.enqueue("waits")
    await idle()
    assert len(waits.started.seen) == 1
    waits.gate.set()
    await life
    assert (await app.look(first)).state is JobState.SUCCEEDED
    assert ((await app.look(second)).state, (await app.look(second)).attempt) == (JobState.QUEUED, 0)
    assert waits.ended.seen == [None]
    assert names(seen.seen) == ["WorkerStarted", "Started", "WorkerStopping", "Succeeded", "WorkerStopped"]


async def test_after_the_grace_handlers_are_aborted_and_their_jobs_given_back_for_nothing() -> None:
    waits = GatedHandler()
    runtime = FrozenRuntime()
    app = MinimalApp(waits.task(), runtime=runtime)
    ids = await app.put(*(app.job("waits") for _ in range(5)))
    worker = app.worker(concurrency=5)
    life = asyncio.create_task(worker.arun())
    await waits.started.calls(5)
    worker.stop(grace=10)
    await idle()
    runtime.advance(9.9)
    await idle()
    assert waits.ended.seen == []
    runtime.advance(0.2)
    assert await waits.ended.calls(5) == [AbortReason.SHUTDOWN] * 5
    await life
    jobs = [await app.look(id) for id in ids]
    assert {(job.state, job.reason, job.attempt) for job in jobs} == {(JobState.QUEUED, Reason.RELEASED, 0)}
    assert all(job.history == () for job in jobs)
    assert await leases_of(app) == 0


async def test_the_second_wish_ends_the_grace_at_once() -> None:
    waits = GatedHandler()
    runtime = FrozenRuntime()
    app = MinimalApp(waits.task(), runtime=runtime)
    id = await app.enqueue("waits")
    worker = app.worker(grace=3600)
    life = asyncio.create_task(worker.arun())
    await waits.started.calls(1)
    worker.stop()
    await idle()
    assert not life.done()
    worker.stop(grace=0)
    await life  # no clock has moved
    assert ((await app.look(id)).state, (await app.look(id)).attempt) == (JobState.QUEUED, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_gently_and_a_second_one_at_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    waits = GatedHandler()
    app = MinimalApp(waits.task())
    stopping, stopped = app.record_events(events.WorkerStopping), app.record_events(events.WorkerStopped)
    id = await app.enqueue("waits")
    life = asyncio.create_task(app.worker(signals=True, grace=3600).arun())
    await waits.started.calls(1)
    os.kill(os.getpid(), number)
    await stopping.calls(1)
    await idle()
    assert waits.ended.seen == []
    os.kill(os.getpid(), number)
    await life
    await stopped.calls(1)
    assert ((await app.look(id)).state, (await app.look(id)).attempt) == (JobState.QUEUED, 0)
    assert signal.getsignal(number) == before


async def test_an_operator_can_stop_a_worker_by_its_name() -> None:
    app = MinimalApp(GatedHandler().task())
    worker = app.worker()
    life = asyncio.create_task(worker.arun())
    started = app.record_events(events.WorkerStarted)
    await started.calls(1)
    (record,) = (await app.engine.workers()).workers
    assert record.worker == worker.name
    await app.engine.stop_worker(worker.name)
    await life
    assert (await app.engine.workers()).workers == ()


async def test_a_handler_that_swallows_its_cancellation_is_given_back_and_cannot_hang_the_stop() -> None:
    running, told, gate = Probe[None]("the handler"), Probe[None]("its end"), asyncio.Event()

    async def stubborn() -> str:
        running(None)
        while not gate.is_set():
            try:
                await gate.wait()
            except BaseException:
                told(None)
        return "far too late"

    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(stubborn), runtime=runtime)
    seen = app.record_events(events.WorkerStopped)
    id = await app.enqueue("stubborn")
    worker = app.worker(grace=5)
    life = asyncio.create_task(worker.arun())
    await running.calls(1)
    worker.stop()
    while not life.done():
        await idle()
        runtime.advance(1)
    await life
    job = await app.look(id)
    assert (job.state, job.attempt) == (JobState.QUEUED, 0)
    assert isinstance(seen.seen[0], events.WorkerStopped)
    assert seen.seen[0].released == 1
    gate.set()  # whatever it answers now is nobody's business
    await idle()
    assert (await app.look(id)).state is JobState.QUEUED


async def test_a_thread_that_does_not_end_is_given_back_as_the_last_call() -> None:
    loop, started, gate = asyncio.get_running_loop(), Probe[None]("the handler"), threading.Event()

    def blocks() -> str:
        loop.call_soon_threadsafe(started, None)
        gate.wait(10)
        return "late"

    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(blocks), runtime=runtime)
    id = await app.enqueue("blocks")
    worker = app.worker(grace=1)
    life = asyncio.create_task(worker.arun())
    await started.calls(1)
    worker.stop()
    while not life.done():
        await idle()
        runtime.advance(1)
    await life
    job = await app.look(id)
    assert (job.state, job.attempt) == (JobState.QUEUED, 0)
    gate.set()
    await idle()
    assert (await app.look(id)).result is None


def test_run_returns_although_a_handler_never_does() -> None:
    """The loop is closed over a coroutine that swallows every cancellation."""
    gate = threading.Event()
    app: MinimalApp
    woken: list[int] = []
    tasks: list[Any] = []

    async def immortal() -> None:
        tasks.append(asyncio.current_task())
        worker.stop(grace=0)
        while not gate.is_set():
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                woken.append(1)

    app = MinimalApp(MinimalTask(immortal))
    worker = app.worker()
    asyncio.run(app.put(app.job("immortal", id="a")))
    worker.run()
    assert len(woken) >= 1
    gate.set()
    assert asyncio.run(app.look("a")).state is JobState.QUEUED
    tasks[0].get_coro().close()
    tasks[0]._log_destroy_pending = False  # else it logs when it is collected, in the middle of another test


async def test_a_handler_that_finishes_in_spite_of_the_abort_has_succeeded() -> None:
    running = Probe[None]("the handler")

    async def tidy() -> str:
        running(None)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "saved"
        return ""

    app = MinimalApp(MinimalTask(tidy))
    id = await app.enqueue("tidy")
    worker = app.worker()
    life = asyncio.create_task(worker.arun())
    await running.calls(1)
    worker.stop(grace=0)
    await life
    assert await app.result(id) == "saved"


async def test_cancelling_the_worker_itself_gives_everything_back() -> None:
    waits = GatedHandler()
    app = MinimalApp(waits.task())
    id = await app.enqueue("waits")
    life = asyncio.create_task(app.worker().arun())
    await waits.started.calls(1)
    life.cancel()
    with pytest.raises(asyncio.CancelledError):
        await life
    assert ((await app.look(id)).state, (await app.look(id)).attempt) == (JobState.QUEUED, 0)
    assert (await app.engine.workers()).workers == ()


async def test_a_stop_while_the_store_is_away_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.services.RELEASE_TIMEOUT_S", 0.2)  # seconds of the real clock
    waits = GatedHandler()
    runtime = FrozenRuntime()
    engine = FailingEngine(runtime)
    app = MinimalApp(waits.task(), runtime=runtime, engine=engine)
    await app.enqueue("waits")
    worker = app.worker(grace=1)
    life = asyncio.create_task(worker.arun())
    await waits.started.calls(1)
    engine.before = lambda command: EngineUnavailable() if isinstance(command, Exchange) else None
    waits.gate.set()
    worker.stop()
    while not life.done():
        await idle()
        runtime.advance(1)
    await life


async def test_leases_that_arrive_after_the_stop_are_given_back_unstarted() -> None:
    waits = GatedHandler()
    runtime = FrozenRuntime()
    engine = FailingEngine(runtime)
    app = MinimalApp(waits.task(), runtime=runtime, engine=engine)
    id = await app.enqueue("waits")
    worker = app.worker()

    def lose(command: Any) -> BaseException | None:
        if isinstance(command, Exchange) and command.claim is not None:
            engine.after = None
            worker.stop()
            return EngineUnavailable()
        return None

    engine.after = lose  # the claim is made, its answer comes only with the second try
    life = asyncio.create_task(worker.arun())
    while not life.done():
        await idle()
        runtime.advance(1)
    await life
    assert waits.started.seen == []
    assert ((await app.look(id)).state, (await app.look(id)).attempt) == (JobState.QUEUED, 0)


# Threads of `asyncio.to_thread`


def test_a_thread_that_does_not_return_does_not_delay_the_end_of_the_worker() -> None:
    entered, release = threading.Event(), threading.Event()

    def blocked() -> None:
        entered.set()
        release.wait(60)

    async def blocks() -> None:
        await asyncio.to_thread(blocked)

    app = MinimalApp(MinimalTask(blocks), grace=0.2)
    asyncio.run(app.enqueue("blocks"))
    try:
        with app.worker():
            assert entered.wait(20)
            began = time.monotonic()
        assert time.monotonic() - began < 20
    finally:
        release.set()


async def test_a_blocking_call_of_ours_does_not_queue_behind_threads_of_handlers() -> None:
    release = threading.Event()
    blocked = [asyncio.create_task(asyncio.to_thread(release.wait, 60)) for _ in range(100)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(20):
            assert await SystemRuntime().run_blocking(lambda: "done") == "done"
    finally:
        release.set()
        await asyncio.gather(*blocked)


async def test_a_job_that_runs_when_the_worker_ends_by_its_own_error_counts_a_loss() -> None:
    running = Probe[None]("the handler")

    async def patient() -> None:
        running(None)
        await asyncio.Event().wait()

    app = MinimalApp(MinimalTask(patient))
    id = await app.enqueue("patient")
    worker = app.worker(grace=0)
    work = asyncio.ensure_future(worker.arun())
    await running.calls(1)
    services = worker._services
    assert services is not None
    services._on_service_ended(services.exchanger)  # as after an error that no service survives
    with pytest.raises(RuntimeError, match="service 'exchange' ended"):
        await work

    job = await app.look(id)
    assert (job.state, job.attempt, job.losses) == (JobState.RUNNING, 1, 0), "not released free of charge"
    (lost,) = (await app.engine.expired("another", limit=10)).leases
    await app.engine.settle(decide_loss(lost, None, draw=0.0))
    assert (await app.look(id)).losses == 1


def test_an_error_that_stops_the_event_loop_is_not_taken_for_a_request_to_stop() -> None:
    failures = []

    async def main() -> None:
        asyncio.get_running_loop().call_soon(interrupt)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            failures.append("cancelled")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_loop(main(), lambda: failures.append("failure"))
    assert failures == ["failure", "cancelled"]


# A second signal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_the_worker_ends_does_not_kill_the_process(number: signal.Signals) -> None:
    runtime = SystemRuntime()
    ended = Probe[None]("the end")

    class SlowEnd(FailingEngine):
        async def forget_worker(self, worker: str) -> Any:
            assert signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler)
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.01)
            ended(None)
            return await super().forget_worker(worker)

    async def noop() -> None: ...

    app = MinimalApp(MinimalTask(noop), runtime=runtime, engine=SlowEnd(runtime))
    await app.enqueue("noop")
    await app.worker(signals=True, until_empty=True).arun()
    assert len(ended.seen) == 1
    assert not (await app.engine.workers()).workers


async def test_a_worker_that_is_cancelled_twice_still_gives_back_its_jobs() -> None:
    waits = GatedHandler()
    runtime = SystemRuntime()

    class SlowSettle(FailingEngine):
        async def settle(self, *settlements: Any) -> Any:
            life.cancel()
            await asyncio.sleep(0)
            return await super().settle(*settlements)

    app = MinimalApp(waits.task(), runtime=runtime, engine=SlowSettle(runtime))
    id = await app.enqueue("waits")
    life = asyncio.create_task(app.worker().arun())
    await waits.started.calls(1)
    life.cancel()
    await asyncio.wait({life})
    assert life.cancelled()
    assert ((await app.look(id)).state, (await app.look(id)).attempt) == (JobState.QUEUED, 0)
    assert not (await app.engine.workers()).workers


# A8
async def test_a_worker_that_ends_reports_a_lost_lease_that_it_could_not_report_before() -> None:
    engine = FailingEngine(FrozenRuntime())
    await engine.enqueue(Group((new_job("a"),)))
    (lease,) = (await engine.claim(claim("c", worker="w"))).leases
    plan: Any = None
    attempt = LeasedAttempt(lease, plan, 0)
    attempt.abort_reason = AbortReason.OWNERSHIP_LOST
    attempt.settlement = decide(LostLease(), lease, RetryPolicy(), now=0, draw=0.0)
    assert await release_rest(engine, "w", [attempt], failed=False) == Rest(released=1, left=0)
    (record,) = (await engine.get(JobKey(lease.queue, "a"))).jobs
    assert record is not None
    assert record.state is JobState.RETRYING


class SilentAtStart(MemoryEngine):
    """A store that does not answer the first heartbeat of a worker, such as a server that stops in a handshake."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("memory://", runtime)
        self.called = asyncio.Event()

    async def heartbeat(self, worker: WorkerRecord) -> HeartbeatAnswer:
        self.called.set()
        await asyncio.Event().wait()
        raise AssertionError("it never answers")


async def test_a_stop_while_the_first_heartbeat_is_under_way_ends_at_once() -> None:
    runtime = SystemRuntime()
    engine = SilentAtStart(runtime)
    ended: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        ended.append("as after any other stop")  # an exception at `yield` would skip this

    worker = MinimalApp(GatedHandler().task(), runtime=runtime, engine=engine, lifespan=lifespan).worker()
    life = asyncio.create_task(worker.arun())
    await engine.called.wait()
    worker.stop()
    async with asyncio.timeout(30):  # it would wait for ever
        await life
    assert ended == ["as after any other stop"]
