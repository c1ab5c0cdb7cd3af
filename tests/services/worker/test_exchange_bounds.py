"""The exchange when answers are slow, calls are cancelled or batches are full; slots and claims at their limits."""

import asyncio
from typing import Any

import pytest
from eventually import eventually, idle
from failing_engine import FailingEngine, fail_times
from minimal_app import GatedHandler, MinimalApp, MinimalTask
from msgspec.structs import replace

from holdfast.model.command import Command
from holdfast.model.instants import SECOND
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Exchange, QueueClaim, TaskClaim
from holdfast.runtime import SystemRuntime
from holdfast.testing import FrozenRuntime
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.exchange import SECOND_POLL_S
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.handler_threads import HandlerThreads
from holdfast.worker.services import WorkerServices
from holdfast.worker.slots import Slots


async def noop() -> None: ...


def faulty(*tasks: MinimalTask, runtime: SystemRuntime | None = None) -> tuple[MinimalApp, FailingEngine]:
    runtime = SystemRuntime() if runtime is None else runtime
    engine = FailingEngine(runtime)
    return MinimalApp(*tasks, runtime=runtime, engine=engine), engine


def services_of(worker: Any) -> WorkerServices:
    services = worker._services
    assert isinstance(services, WorkerServices)
    return services


async def with_manual_exchange(worker: Any) -> WorkerServices:
    """From now on only the test calls `exchanger.tick`."""
    services = services_of(worker)
    await eventually(lambda: services.keeper.problem is None)  # else nothing would be claimed
    await services.supervisor.stop(services.exchanger)
    return services


async def test_a_lease_lasts_from_when_its_claim_was_sent() -> None:
    gated, runtime = GatedHandler(), FrozenRuntime()
    app, engine = faulty(gated.task(), runtime=runtime)
    await app.enqueue("gated")
    sent_at: list[int] = []

    def slow(command: Command[Any]) -> None:
        if isinstance(command, Exchange) and not sent_at:
            sent_at.append(runtime.boot())
            runtime.advance(0.5)

    engine.after = slow
    async with app.worker() as worker:
        await gated.started.calls(1)
        (attempt,) = services_of(worker).slots.attempts.values()
        assert attempt.renewed_at == sent_at[0]
        gated.gate.set()


async def test_the_outcomes_of_a_cancelled_exchange_are_sent_by_the_next() -> None:
    gated = GatedHandler()
    app, engine = faulty(gated.task())
    id = await app.enqueue("gated")
    async with app.worker() as worker:
        await gated.started.calls(1)
        services = await with_manual_exchange(worker)
        gated.gate.set()
        await idle()
        engine.before = fail_times(1, Exchange, asyncio.CancelledError)
        with pytest.raises(asyncio.CancelledError):
            await services.exchanger.tick()
        await services.exchanger.tick()
        assert (await app.look(id)).state is JobState.SUCCEEDED


async def test_the_starts_of_a_cancelled_exchange_are_sent_by_the_next() -> None:
    first, second = GatedHandler(), GatedHandler()
    app, engine = faulty(first.task("first"), second.task("second"))
    await app.enqueue("first")
    id = await app.enqueue("second")
    async with app.worker(concurrency=1, prefetch=1) as worker:
        await first.started.calls(1)
        await idle()
        services = await with_manual_exchange(worker)
        first.gate.set()
        await idle()
        engine.before = fail_times(1, Exchange, asyncio.CancelledError)
        with pytest.raises(asyncio.CancelledError):
            await services.exchanger.tick()  # settles the first and starts the second
        assert (await app.look(id)).state is JobState.ASSIGNED
        await services.exchanger.tick()
        assert (await app.look(id)).state is JobState.RUNNING
        second.gate.set()
        await idle()
        await services.exchanger.tick()


async def test_after_the_first_claim_that_finds_nothing_the_next_comes_soon() -> None:
    app, _ = faulty(MinimalTask(noop))
    async with app.worker() as worker:
        services = await with_manual_exchange(worker)
        services.exchanger._polled_before = False
        assert await services.exchanger.tick() == SECOND_POLL_S
        assert await services.exchanger.tick() == app.config.worker.poll_interval


async def test_outcomes_above_the_limit_of_a_batch_follow_at_once() -> None:
    app, engine = faulty(MinimalTask(noop))
    async with app.worker(concurrency=600) as worker:
        services = await with_manual_exchange(worker)
        await app.put(*(app.job("noop") for _ in range(600)))
        await services.exchanger.tick()
        await idle()
        assert await services.exchanger.tick() == 0
        await services.exchanger.tick()
    assert [len(exchange.settlements) for exchange in engine.exchanges if exchange.settlements] == [500, 100]


async def test_a_worker_prefetches_no_more_than_it_was_given() -> None:
    gated = GatedHandler()
    app, _ = faulty(gated.task())
    await app.put(*(app.job("gated") for _ in range(10)))
    async with app.worker(concurrency=1, prefetch=2) as worker:
        await gated.started.calls(1)
        for _ in range(3):
            services_of(worker).exchanger.wake()
            await idle()
        assert await app.counts() == {JobState.RUNNING: 1, JobState.ASSIGNED: 2, JobState.QUEUED: 7}
        gated.gate.set()


async def test_a_prefetched_job_waits_for_a_slot_of_its_queue() -> None:
    app, engine = faulty(MinimalTask(noop))
    await app.put(*(app.job("noop") for _ in range(2)))
    tasks = (TaskClaim(task="noop", lease_len=30 * SECOND),)
    claim = Claim(claim_id="c", worker="w", queues=(QueueClaim("default", tasks),), limit=0, prefetch=2)
    threads = HandlerThreads(app.runtime)
    plan = ExecutionPlan(app.registry["noop"], worker="w", state=None, middleware=(), handler_threads=threads)
    slots = Slots(2, {"default": 1})
    for lease in (await engine.claim(claim)).leases:
        slots.admit(LeasedAttempt(lease, plan, app.runtime.boot()))
    (first,) = slots.pop_startable()
    assert slots.pop_startable() == []
    slots.end(first)
    assert len(slots.pop_startable()) == 1


async def test_no_job_starts_that_comes_when_the_worker_has_run_max_jobs() -> None:
    """The claim was made before. With claims ahead it may bring a job for every slot."""
    app, engine = faulty(MinimalTask(noop))
    await app.put(app.job("noop"))
    tasks = (TaskClaim(task="noop", lease_len=30 * SECOND),)
    claim = Claim(claim_id="c", worker="w", queues=(QueueClaim("default", tasks),), limit=1)
    threads = HandlerThreads(app.runtime)
    plan = ExecutionPlan(app.registry["noop"], worker="w", state=None, middleware=(), handler_threads=threads)
    slots = Slots(2)
    slots.close()
    (lease,) = (await engine.claim(claim)).leases
    assert not slots.admit(LeasedAttempt(lease, plan, app.runtime.boot()))
    assert [attempt.lease for attempt in slots.take_back_all()] == [lease], "the worker that stops releases it"
    assert slots.busy == plan.held_count == 0


async def test_a_lease_whose_answer_came_after_its_fence_is_given_back_unstarted() -> None:
    gated, runtime = GatedHandler(), SystemRuntime()
    app, engine = faulty(gated.task(lease=30 * SECOND), runtime=runtime)

    def late(command: Command[Any]) -> None:
        if isinstance(command, Exchange) and command.claim is not None:
            runtime.clock_offset += 29 * SECOND
            engine.after = None

    async with app.worker() as worker:
        services = await with_manual_exchange(worker)
        id = await app.enqueue("gated")
        engine.after = late
        await services.exchanger.tick()
        await idle()
        assert gated.started.seen == []
        services.exchanger.stop_accepting()
        await services.exchanger.tick()
        assert ((await app.look(id)).state, (await app.look(id)).attempt) == (JobState.QUEUED, 0)


async def test_a_start_is_sent_once() -> None:
    first, second = GatedHandler(), GatedHandler()
    app, engine = faulty(first.task("first"), second.task("second"))
    await app.enqueue("first")
    await app.enqueue("second")
    async with app.worker(concurrency=1, prefetch=1) as worker:
        await first.started.calls(1)
        first.gate.set()
        await second.started.calls(1)
        for _ in range(3):
            services_of(worker).exchanger.wake()
            await app.enqueue("first")
            await idle()
        second.gate.set()
    starts = [start.id for exchange in engine.exchanges for start in exchange.starts]
    assert len(starts) == len(set(starts)) > 0


async def test_a_lease_of_a_task_that_was_not_claimed_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gated = GatedHandler()
    app, engine = faulty(gated.task())
    ids = await app.put(*(app.job("gated") for _ in range(3)))
    exchange, damaged = engine.exchange, False

    async def damage(*given: Any) -> Any:
        nonlocal damaged
        answer = await exchange(*given)
        if answer.leases and not damaged:
            damaged = True
            leases = tuple(
                replace(lease, task="dam\xe1ged") if lease.id == ids[1] else lease for lease in answer.leases
            )
            return replace(answer, leases=leases)
        return answer

    monkeypatch.setattr(engine, "exchange", damage)
    async with app.worker(concurrency=3):
        await gated.started.calls(2)
        gated.gate.set()
    assert [(await app.look(id)).state for id in ids] == [JobState.SUCCEEDED, JobState.SCHEDULED, JobState.SUCCEEDED]
