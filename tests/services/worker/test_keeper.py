"""The keeper: leases live on while handlers work, and attempts stop before a lease that cannot be renewed runs out.

Most examples call `round` themselves, with a clock that stands still; the last ones let the threads work.
"""

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from eventually import eventually, idle
from failing_engine import FailingEngine
from minimal_app import MinimalApp, MinimalTask
from msgspec import structs

from holdfast import events
from holdfast.context import AbortReason, Context
from holdfast.engine import RenewalConnection
from holdfast.errors import EngineUnavailable
from holdfast.model.instants import SECOND
from holdfast.model.job import ProgressRecord
from holdfast.model.outcome import LOSSES_REPORTED_UP_TO_ATTEMPT
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState, Reason
from holdfast.model.work import Claim, Heartbeat, QueueClaim, Renew, RenewStatus, TaskClaim
from holdfast.runtime import SystemRuntime
from holdfast.testing import FrozenRuntime, Probe
from holdfast.worker.attempt import LeasedAttempt, fence_age
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.handler_threads import HandlerThreads
from holdfast.worker.keeper import HEARTBEAT_US, Keeper
from holdfast.worker.slots import Slots


async def nothing() -> None: ...


class Bench:
    """A keeper without its thread, and leases for it to keep."""

    def __init__(self) -> None:
        self.runtime = FrozenRuntime()
        self.engine = FailingEngine(self.runtime)
        self.app = MinimalApp(MinimalTask(nothing), runtime=self.runtime, engine=self.engine)
        self.slots = Slots(100)
        self.delivered: list[tuple[str, RenewStatus]] = []
        self.stops = 0
        self.keeper = Keeper(
            self.runtime,
            self.engine,
            self.slots,
            record=lambda: WorkerRecord(worker="w", interval=HEARTBEAT_US),
            on_status=lambda attempt, status: self.delivered.append((attempt.lease.id, status)),
            on_stop_requested=self._stop,
        )

    def _stop(self) -> None:
        self.stops += 1

    async def hold(self, id: str, lease: int = 30 * SECOND, prefetch: bool = False) -> LeasedAttempt:
        await self.app.enqueue("nothing", id=id)
        plan = ExecutionPlan(
            self.app.registry["nothing"],
            worker="w",
            state=None,
            middleware=(),
            handler_threads=HandlerThreads(self.runtime),
        )
        claim = Claim(
            claim_id=self.runtime.new_claim_id(),
            worker="w",
            queues=(QueueClaim("default", (TaskClaim(task="nothing", lease_len=lease),)),),
            limit=0 if prefetch else 1,
            prefetch=1 if prefetch else 0,
        )
        (lease_of_it,) = (await self.engine.claim(claim)).leases
        attempt = LeasedAttempt(lease_of_it, plan, self.runtime.boot())
        self.slots.admit(attempt)
        return attempt

    def renewed(self) -> list[list[str]]:
        """The ids of each renewal that was sent."""
        return [[job.id for job in command.jobs] for command in self.engine.commands if isinstance(command, Renew)]

    def heartbeats(self) -> int:
        return sum(isinstance(command, Heartbeat) for command in self.engine.commands)


async def test_a_lease_is_renewed_at_a_third_of_its_length() -> None:
    bench = Bench()
    await bench.hold("a")
    bench.keeper.run_once()
    assert bench.renewed() == []
    bench.runtime.advance(10)
    bench.keeper.run_once()
    assert bench.renewed() == [["a"]]
    bench.keeper.run_once()
    assert bench.renewed() == [["a"]]
    assert (await bench.app.look("a")).lease_expires == bench.runtime.boot() + 30 * SECOND


async def test_all_that_are_nearly_due_are_renewed_in_one_batch() -> None:
    bench = Bench()
    for name in "abc":
        await bench.hold(name)
        bench.runtime.advance(1)
    await bench.hold("long", lease=300 * SECOND)
    bench.runtime.advance(8)
    bench.keeper.run_once()
    assert bench.renewed() == [["a", "b", "c"]]


async def test_a_short_lease_is_looked_at_often_enough() -> None:
    bench = Bench()
    assert bench.keeper.run_once() <= 0.5
    await bench.hold("short", lease=SECOND)
    assert bench.keeper.run_once() == pytest.approx(1 / 3, abs=0.01)


async def test_progress_rides_on_the_renewal_and_is_sent_once() -> None:
    bench = Bench()
    attempt = await bench.hold("a")
    attempt.context.progress(0.5, "half way")
    bench.runtime.advance(10)
    bench.keeper.run_once()
    assert (await bench.app.look("a")).progress == ProgressRecord(0.5, "half way")
    bench.runtime.advance(10)
    bench.keeper.run_once()
    last = [command for command in bench.engine.commands if isinstance(command, Renew)][-1]
    assert last.jobs[0].progress is None


async def test_what_the_store_says_is_delivered() -> None:
    bench = Bench()
    await bench.hold("fine")
    await bench.hold("cancelled")
    await bench.hold("waiting", prefetch=True)
    await bench.engine.cancel("default", "cancelled")
    await bench.engine.pause("default")
    bench.keeper.renew_now()
    bench.keeper.run_once()
    assert sorted(bench.delivered) == [("cancelled", RenewStatus.CANCEL), ("waiting", RenewStatus.HOLD)]
    await bench.engine.clear("default")
    bench.delivered.clear()
    bench.keeper.renew_now()
    bench.keeper.run_once()
    assert {status for _, status in bench.delivered} == {RenewStatus.LOST}


async def test_a_lease_that_is_lost_is_not_renewed_any_more() -> None:
    bench = Bench()
    attempt = await bench.hold("a")
    attempt.mark(AbortReason.OWNERSHIP_LOST)
    bench.runtime.advance(10)
    bench.keeper.run_once()
    assert bench.renewed() == []


async def test_an_outcome_that_waits_to_be_sent_keeps_its_lease_alive() -> None:
    bench = Bench()
    attempt = await bench.hold("a")
    bench.slots.end(attempt)
    bench.runtime.advance(10)
    bench.keeper.run_once()
    assert bench.renewed() == [["a"]]


async def test_errors_of_the_engine_are_survived_and_the_next_round_comes_soon() -> None:
    bench = Bench()
    attempt = await bench.hold("a")
    bench.engine.before = lambda command: EngineUnavailable() if isinstance(command, Renew) else None
    bench.runtime.advance(10)
    assert [bench.keeper.run_once() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert attempt.renewed_at == bench.runtime.boot() - 10 * SECOND
    bench.engine.before = None
    bench.keeper.run_once()
    assert attempt.renewed_at == bench.runtime.boot()


async def test_the_worker_record_is_written_every_few_seconds() -> None:
    bench = Bench()
    bench.keeper.run_once()
    bench.keeper.run_once()
    assert bench.heartbeats() == 1
    bench.runtime.advance(HEARTBEAT_US / SECOND)
    bench.keeper.run_once()
    assert bench.heartbeats() == 2
    (record,) = (await bench.engine.workers()).workers
    assert record.worker == "w"
    assert bench.stops == 0
    await bench.engine.stop_worker("w")
    bench.keeper.renew_now()
    bench.keeper.run_once()
    assert bench.stops == 1


async def test_a_new_number_of_busy_slots_is_written_within_a_second() -> None:
    bench = Bench()
    bench.keeper.run_once()
    await bench.hold("a")
    bench.keeper.run_once()
    assert bench.heartbeats() == 1, "at most one a second"
    bench.runtime.advance(1)
    bench.keeper.run_once()
    bench.keeper.run_once()
    assert bench.heartbeats() == 2


async def test_progress_is_sent_within_a_second_and_once_a_second_at_most() -> None:
    bench = Bench()
    reports, silent = await bench.hold("reports"), await bench.hold("silent")
    for step in range(8):
        reports.progress = ProgressRecord(step / 10)
        bench.keeper.run_once()
        bench.runtime.advance(0.5)
    assert bench.renewed() == [["reports"]] * 3
    assert (await bench.app.look("reports")).progress == ProgressRecord(0.6)
    assert silent.sent_progress is None


async def test_heartbeats_give_way_to_renewals_while_calls_are_slow() -> None:
    bench = Bench()
    await bench.hold("a", lease=10 * SECOND)
    bench.keeper.run_once()

    def slow(command: Any) -> None:
        bench.runtime.advance(4)
        assert bench.keeper.fence() == []

    bench.engine.before = slow
    for _ in range(20):
        bench.runtime.advance(bench.keeper.run_once())
    assert bench.heartbeats() == 1
    bench.engine.before = None
    for _ in range(20):
        bench.runtime.advance(bench.keeper.run_once())
    assert bench.heartbeats() > 1


# WK3
async def test_a_heartbeat_that_failed_is_sent_again_with_the_next_round() -> None:
    bench = Bench()
    bench.engine.before = lambda command: EngineUnavailable() if isinstance(command, Heartbeat) else None
    bench.keeper.run_once()
    bench.engine.before = None
    bench.keeper.run_once()
    assert bench.heartbeats() == 2


# Fencing


@pytest.mark.parametrize(("lease", "age"), [(30, 25), (6, 5), (2, 1), (300, 250)])
def test_an_attempt_stops_a_second_or_a_sixth_before_its_lease_runs_out(lease: int, age: int) -> None:
    assert fence_age(lease * SECOND) == age * SECOND


async def test_an_attempt_whose_lease_cannot_be_renewed_is_fenced_in_time() -> None:
    bench = Bench()
    attempt = await bench.hold("a")
    bench.engine.before = lambda command: EngineUnavailable()
    bench.runtime.advance(24.9)
    bench.keeper.run_once()
    assert bench.keeper.fence() == []
    bench.runtime.advance(0.1)
    assert bench.keeper.fence() == [attempt]
    assert attempt.abort_reason is AbortReason.OWNERSHIP_LOST
    assert bench.keeper.fence() == []


async def test_a_lease_that_was_not_extended_because_of_a_lock_is_tried_again_soon_and_fenced_in_time() -> None:
    # T9
    bench = Bench()
    attempt = await bench.hold("a")
    bench.engine.locked = {"a"}
    bench.runtime.advance(10)
    assert 0 < bench.keeper.run_once() <= 0.5
    bench.runtime.advance(1)
    bench.keeper.run_once()
    assert bench.renewed() == [["a"], ["a"]]
    bench.runtime.advance(14)
    assert bench.keeper.fence() == [attempt]


async def test_an_outcome_that_came_before_the_fence_is_still_sent() -> None:
    running, gate = Probe[None]("the handler"), asyncio.Event()

    async def waits() -> str:
        running(None)
        await gate.wait()
        return "in time"

    runtime = FrozenRuntime()
    engine = FailingEngine(runtime)
    app = MinimalApp(MinimalTask(waits), runtime=runtime, engine=engine)
    id = await app.enqueue("waits")
    async with app.worker() as worker:
        await running.calls(1)
        engine.before = lambda command: EngineUnavailable()
        gate.set()
        await idle()
        runtime.advance(29)  # older than the fence, not yet expired
        assert worker._services is not None
        assert worker._services.keeper.fence() == []
        engine.before = None
        for _ in range(5):
            await idle()
            runtime.advance(1)
        assert await app.result(id) == "in time"


async def test_an_outcome_that_came_after_the_fence_is_not_sent() -> None:
    running, gate = Probe[None]("the handler"), asyncio.Event()

    async def stubborn() -> str:
        running(None)
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()
        return "too late"

    runtime = FrozenRuntime()
    engine = FailingEngine(runtime)
    app = MinimalApp(MinimalTask(stubborn), runtime=runtime, engine=engine)
    id = await app.enqueue("stubborn")
    lost = app.record_events(events.OwnershipLost)
    async with app.worker() as worker:
        await running.calls(1)
        engine.before = lambda command: EngineUnavailable() if isinstance(command, Renew) else None
        runtime.advance(25)
        services = worker._services
        assert services is not None
        services._check_attempts()
        await lost.calls(1)
        engine.commands.clear()
        gate.set()
        await idle()
        (sent,) = [one for exchange in engine.exchanges for one in exchange.settlements]
        assert (sent.target, sent.reason, sent.result) == (JobState.RETRYING, Reason.WORKER_LOST, None)
        assert worker.running == 0
    assert (await app.look(id)).result is None


# A8, A9
async def test_a_worker_that_lost_a_lease_and_lives_reports_it_and_no_loss_is_counted() -> None:
    runtime = FrozenRuntime()
    engine = FailingEngine(runtime)
    running = Probe[int]("the attempt")

    async def patient(ctx: Context[None]) -> None:
        running(ctx.attempt)
        await asyncio.Event().wait()

    app = MinimalApp(MinimalTask(patient, takes_context=True), runtime=runtime, engine=engine)
    id = await app.enqueue("patient")
    async with app.worker() as worker:
        await running.calls(1)
        engine.before = lambda command: EngineUnavailable() if isinstance(command, Renew | Heartbeat) else None
        runtime.advance(25)
        assert worker._services is not None
        worker._services._check_attempts()
        await idle()
        job = await app.look(id)
        assert (job.state, job.reason, job.attempt, job.losses) == (JobState.RETRYING, Reason.WORKER_LOST, 1, 0)


# A9
async def test_an_owner_reports_no_loss_after_the_twentieth_attempt() -> None:
    assert LOSSES_REPORTED_UP_TO_ATTEMPT == 20
    runtime = FrozenRuntime()
    engine = FailingEngine(runtime)
    running = Probe[None]("the handler")

    async def patient() -> None:
        running(None)
        await asyncio.Event().wait()

    app = MinimalApp(MinimalTask(patient), runtime=runtime, engine=engine)
    id = await app.enqueue("patient")
    async with app.worker() as worker:
        await running.calls(1)
        services = worker._services
        assert services is not None
        (attempt,) = services.slots.attempts.values()
        attempt.lease = structs.replace(attempt.lease, attempt=21)
        engine.before = lambda command: EngineUnavailable() if isinstance(command, Renew | Heartbeat) else None
        runtime.advance(25)
        services._check_attempts()
        await idle()
        assert (await app.look(id)).state is JobState.RUNNING
        assert services.slots.attempts == {}


async def test_a_worker_claims_nothing_while_renewals_fail_and_claims_again_when_they_succeed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = Probe[None]("the handler")

    async def quick() -> None:
        done(None)

    runtime = SystemRuntime()
    engine = FailingEngine(runtime)
    app = MinimalApp(MinimalTask(quick), runtime=runtime, engine=engine)
    async with app.worker() as worker:
        services = worker._services
        assert services is not None
        await eventually(lambda: services.keeper.problem is None, "the keeper to connect")
        engine.before = lambda command: EngineUnavailable() if isinstance(command, Renew | Heartbeat) else None
        services.keeper.renew_now()
        await eventually(lambda: services.keeper.problem is not None, "a failed renewal")
        engine.commands.clear()
        await app.enqueue("quick")
        services.exchanger.wake()
        await idle()
        assert [exchange for exchange in engine.exchanges if exchange.claim is not None] == []
        assert "no job is claimed" in caplog.text
        engine.before = None
        await done.calls(1)
    assert "The store answers again" in caplog.text


async def test_a_worker_does_not_claim_before_its_keeper_is_connected() -> None:
    class Unconnectable(FailingEngine):
        connectable = False

        def renewal_connection(self) -> RenewalConnection:
            if not self.connectable:
                raise OSError("Too many open files")
            return super().renewal_connection()

    done = Probe[None]("the handler")

    async def quick() -> None:
        done(None)

    runtime = SystemRuntime()
    engine = Unconnectable(runtime)
    app = MinimalApp(MinimalTask(quick), runtime=runtime, engine=engine)
    await app.enqueue("quick")
    async with app.worker() as worker:
        services = worker._services
        assert services is not None
        await eventually(lambda: "Too many open files" in (services.keeper.problem or ""), "a failed connection")
        assert [exchange for exchange in engine.exchanges if exchange.claim is not None] == []
        engine.connectable = True
        await done.calls(1)


async def test_a_renewal_that_takes_too_long_is_a_problem_until_one_is_fast_enough() -> None:
    bench = Bench()
    keeper = bench.keeper
    keeper.run_once()
    assert keeper.problem is None

    def slow(command: Any) -> None:
        assert keeper.problem is None
        bench.runtime.advance(16)  # a lease of 30 s is renewed from 10 s on and must be renewed before 25 s
        assert "in flight for 16.0 s" in str(keeper.problem)

    bench.engine.before = slow
    keeper.renew_now()
    keeper.run_once()
    assert "took 16.0 s" in str(keeper.problem)
    bench.engine.before = None
    keeper.run_once()
    assert keeper.problem is None


# With threads


async def test_leases_live_while_a_handler_blocks_the_event_loop() -> None:
    """A18: the loop stands still, the keeper's thread does not, and people are told where it stands."""
    renewed, blocked = threading.Event(), threading.Event()
    told: list[events.LoopBlocked] = []

    class Watched(FailingEngine):
        def perform_now(self, command: Any) -> Any:
            answer = super().perform_now(command)
            if isinstance(command, Renew):
                renewed.set()
            return answer

    def hear(event: events.LoopBlocked) -> None:
        told.append(event)
        blocked.set()

    async def careless() -> None:
        assert blocked.wait(60)
        assert renewed.wait(60)

    runtime = SystemRuntime()
    app = MinimalApp(MinimalTask(careless, lease=2 * SECOND), runtime=runtime, engine=Watched(runtime))
    app.bus.on(events.LoopBlocked, hear)
    id = await app.enqueue("careless", id="culprit")
    await app.drain()
    assert await app.result(id) is None
    assert len(told) == 1
    assert "careless" in told[0].stack
    assert told[0].job_ids == ("culprit",)
    assert SECOND <= told[0].blocked < 60 * SECOND


async def test_progress_of_a_running_job_can_be_seen() -> None:
    said, gate, renewed = Probe[None]("the handler"), asyncio.Event(), Probe[None]("a renewal")
    loop = asyncio.get_running_loop()

    def notice(command: Any) -> None:
        if isinstance(command, Renew):
            loop.call_soon_threadsafe(renewed, None)

    async def works(ctx: Context) -> None:
        ctx.progress(0.25, "first quarter")
        said(None)
        await gate.wait()

    runtime = SystemRuntime()
    engine = FailingEngine(runtime)
    engine.after = notice
    app = MinimalApp(MinimalTask(works, takes_context=True), runtime=runtime, engine=engine)
    id = await app.enqueue("works")
    async with app.worker() as worker:
        await said.calls(1)
        assert worker._services is not None
        worker._services.keeper.renew_now()
        await renewed.calls(1)
        assert (await app.look(id)).progress == ProgressRecord(0.25, "first quarter")
        gate.set()
