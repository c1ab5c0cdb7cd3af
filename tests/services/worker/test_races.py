"""Races between workers, reapers, cancellers and operators, with the other's step put exactly in between."""

import asyncio
from typing import Any

import pytest
from eventually import idle
from failing_engine import FailingEngine
from minimal_app import QUEUE, QUICK, MinimalApp, MinimalTask

from holdfast import events
from holdfast.model.command import Command
from holdfast.model.instants import SECOND
from holdfast.model.operate import CancelStatus
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Exchange, Expired, QueueClaim, Renewal, Settlement, TaskClaim
from holdfast.runtime import Runtime, SystemRuntime
from holdfast.testing import FrozenRuntime, Probe


async def works() -> str:
    return "done"


def faulty(*tasks: MinimalTask, runtime: Runtime | None = None, **settings: Any) -> tuple[MinimalApp, FailingEngine]:
    runtime = SystemRuntime() if runtime is None else runtime
    engine = FailingEngine(runtime)
    return MinimalApp(*tasks, runtime=runtime, engine=engine, **settings), engine


async def test_of_sixty_four_claimers_one_gets_the_job() -> None:
    runs = 0

    async def counts() -> None:
        nonlocal runs
        runs += 1

    app = MinimalApp(MinimalTask(counts))
    seen = app.record_events(events.Succeeded)
    workers = [app.worker(concurrency=1) for _ in range(64)]
    lives = [asyncio.create_task(worker.arun()) for worker in workers]
    await idle()
    await app.enqueue("counts")
    await seen.calls(1)
    for worker in workers:
        worker.stop()
    await asyncio.gather(*lives)
    assert runs == 1


@pytest.mark.parametrize("owner", ["completes", "renews"])
async def test_between_the_reapers_list_and_its_write_the_owner_is_quicker(owner: str) -> None:
    runtime = FrozenRuntime()
    app, engine = faulty(MinimalTask(works), runtime=runtime)
    reaped = app.record_events(events.Reaped)
    id = await app.enqueue("works")
    terms = (QueueClaim(QUEUE, (TaskClaim(task="works", lease_len=30 * SECOND),)),)
    claim = Claim(claim_id=runtime.new_claim_id(), worker="owner", queues=terms, limit=1)
    (lease,) = (await engine.claim(claim)).leases
    runtime.advance(30)

    def in_between(command: Command[Any]) -> BaseException | None:
        if isinstance(command, Expired):
            engine.after = None
            if owner == "completes":
                done = Settlement(queue=QUEUE, id=id, token=lease.token, target=JobState.SUCCEEDED, result=b"1")
                engine.perform_now(Exchange(settlements=(done,)))
            else:
                line = engine.renewal_connection()
                line.renew([Renewal(QUEUE, id, lease.token)])
        return None

    engine.after = in_between
    async with app.worker():
        await idle()
    job = await app.look(id)
    assert reaped.seen == []
    assert job.losses == 0
    assert job.state is (JobState.SUCCEEDED if owner == "completes" else JobState.RUNNING)


async def test_a_lease_is_not_reaped_a_tick_before_it_expires_and_is_a_tick_after() -> None:
    runtime = FrozenRuntime()
    app, engine = faulty(MinimalTask(works), runtime=runtime, reap_interval=0.001)
    id = await app.enqueue("works")
    terms = (QueueClaim(QUEUE, (TaskClaim(task="works", lease_len=30 * SECOND),)),)
    await engine.claim(Claim(claim_id=runtime.new_claim_id(), worker="dead", queues=terms, limit=1))
    await engine.pause(QUEUE)
    runtime.advance(29.999999)
    async with app.worker():
        await idle()
        assert (await app.look(id)).state is JobState.RUNNING
        runtime.advance(0.002)
        await idle()
        assert (await app.look(id)).state is JobState.RETRYING


async def test_a_cancel_between_the_failure_and_its_settlement_wins_over_the_retry() -> None:
    async def fails() -> None:
        raise ValueError

    app, engine = faulty(MinimalTask(fails, retry=QUICK))
    id = await app.enqueue("fails")
    answers: list[CancelStatus] = []

    def in_between(command: Command[Any]) -> BaseException | None:
        if isinstance(command, Exchange) and command.settlements:
            engine.before = None
            from holdfast.model.operate import Cancel

            (answer,) = engine.perform_now(Cancel(queue=QUEUE, ids=(id,))).jobs
            answers.append(answer.status)
        return None

    engine.before = in_between
    await app.drain()
    assert answers == [CancelStatus.REQUESTED]
    assert ((await app.look(id)).state, (await app.look(id)).attempt) == (JobState.CANCELLED, 1)


async def test_a_cancel_between_the_success_and_its_settlement_comes_too_late() -> None:
    app, engine = faulty(MinimalTask(works))
    id = await app.enqueue("works")

    def in_between(command: Command[Any]) -> BaseException | None:
        if isinstance(command, Exchange) and command.settlements:
            engine.before = None
            from holdfast.model.operate import Cancel

            engine.perform_now(Cancel(queue=QUEUE, ids=(id,)))
        return None

    engine.before = in_between
    await app.drain()
    assert await app.result(id) == "done"


async def test_a_pause_gives_prefetched_jobs_back_and_lets_running_ones_finish() -> None:
    running, gate = Probe[None]("the handler"), asyncio.Event()

    async def waits() -> str:
        running(None)
        await gate.wait()
        return "done"

    app = MinimalApp(MinimalTask(waits))
    ids = await app.put(*(app.job("waits") for _ in range(3)))
    given_back = app.record_events(events.Retrying)
    async with app.worker(concurrency=1, prefetch=2) as worker:
        await running.calls(1)
        await idle()
        await app.engine.pause(QUEUE)
        assert worker._services is not None
        worker._services.keeper.renew_now()
        await given_back.calls(2)
        gate.set()
        await idle()
        jobs = [await app.look(id) for id in ids]
        assert [job.state for job in jobs] == [JobState.SUCCEEDED, JobState.QUEUED, JobState.QUEUED]
        assert [job.attempt for job in jobs] == [1, 0, 0]
        assert len(running.seen) == 1


async def test_a_cancelled_prefetched_job_never_starts() -> None:
    running, gate = Probe[str]("the handler"), asyncio.Event()

    async def waits(name: str) -> None:
        running(name)
        await gate.wait()

    app = MinimalApp(MinimalTask(waits))
    await app.enqueue("waits", "first")
    id = await app.enqueue("waits", "second")
    cancelled = app.record_events(events.Cancelled)
    async with app.worker(concurrency=1, prefetch=1):
        await running.calls(1)
        await idle()
        assert (await app.look(id)).state is JobState.ASSIGNED
        await app.engine.cancel(QUEUE, id)
        await cancelled.calls(1)
        gate.set()
    assert running.seen == ["first"]
    assert (await app.look(id)).state is JobState.CANCELLED
