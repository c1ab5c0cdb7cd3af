"""The reaper: what a lost worker left behind runs again, and what has killed too many workers does not."""

import asyncio

import pytest
from eventually import idle
from failing_engine import FailingEngine
from minimal_app import QUEUE, MinimalApp, MinimalTask, names

from holdfast import events
from holdfast.model.instants import SECOND
from holdfast.model.job import AttemptOutcome
from holdfast.model.records import WorkerRecord
from holdfast.model.retry import RetryPolicy, fixed
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.model.work import Claim, QueueClaim, TaskClaim
from holdfast.process_death import worker_died_info
from holdfast.testing import FrozenRuntime, Probe
from holdfast.worker import reaper

LEASE = 30 * SECOND


async def works() -> str:
    return "done"


async def lose(app: MinimalApp, *tasks: str, max_losses: int = 5, max_attempts: int = 20) -> None:
    """A worker takes all there is of these tasks, and is never heard of again."""
    terms = [TaskClaim(task=task, lease_len=LEASE, max_losses=max_losses, max_attempts=max_attempts) for task in tasks]
    claim = Claim(
        claim_id=app.runtime.new_claim_id(),
        worker="dead",
        queues=(QueueClaim(QUEUE, tuple(terms)),),
        limit=1000,
    )
    assert (await app.engine.claim(claim)).leases


async def test_a_job_of_a_lost_worker_runs_again_when_its_lease_has_run_out() -> None:
    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(works), runtime=runtime)
    seen = app.record_events()
    id = await app.enqueue("works")
    await lose(app, "works")
    async with app.worker():
        await idle()
        assert (await app.look(id)).owner == "dead"
        runtime.advance(30)
        await idle()
        runtime.advance(6)
        await idle()
    job = await app.look(id)
    assert (job.state, job.attempt, job.losses) == (JobState.SUCCEEDED, 2, 1)
    assert [entry.outcome for entry in job.history] == [AttemptOutcome.WORKER_LOST]
    assert names(seen.seen)[1:-2] == ["Reaped", "Retrying", "Started", "Succeeded", "QueueEmpty"]


async def test_a_new_worker_reaps_at_once() -> None:
    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(works), runtime=runtime)
    id = await app.enqueue("works")
    await lose(app, "works")
    runtime.advance(31)
    async with app.worker():
        await idle()
        assert (await app.look(id)).state is JobState.SUCCEEDED


async def test_a_reaper_pauses_if_all_expired_jobs_are_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "MAX_LEASES_PER_CALL", 2)
    runtime = FrozenRuntime()
    engine = FailingEngine(runtime)
    app = MinimalApp(MinimalTask(works), runtime=runtime, engine=engine)
    engine.locked = {await app.enqueue("works"), await app.enqueue("works")}
    await lose(app, "works")
    runtime.advance(31)
    async with app.worker():
        await idle()
        assert len([one for one in engine.exchanges if one.settlements]) == 1


async def test_a_saturated_worker_reaps_too() -> None:
    runtime = FrozenRuntime()
    running, gate = Probe[None]("the handler"), asyncio.Event()

    async def occupies() -> None:
        running(None)
        await gate.wait()

    app = MinimalApp(MinimalTask(works), MinimalTask(occupies, lease=3600 * SECOND), runtime=runtime)
    lost = await app.enqueue("works")
    await lose(app, "works")
    await app.enqueue("occupies")
    async with app.worker(concurrency=1):
        await running.calls(1)
        await idle()
        runtime.advance(36)
        await idle()
        job = await app.look(lost)
        assert (job.state, job.losses) == (JobState.RETRYING, 1)
        gate.set()


async def test_a_worker_never_reaps_what_it_runs_itself() -> None:
    runtime = FrozenRuntime()
    running, gate = Probe[None]("the handler"), asyncio.Event()

    async def waits() -> str:
        running(None)
        await gate.wait()
        return "mine"

    app = MinimalApp(MinimalTask(waits), runtime=runtime)
    seen = app.record_events(events.Reaped)
    id = await app.enqueue("waits")
    async with app.worker() as worker:
        await running.calls(1)
        await idle()
        assert worker._services is not None
        worker._services.keeper.stop()  # nobody renews
        worker._services._watcher.stop()
        runtime.advance(31)
        for _ in range(3):
            await idle()
            runtime.advance(6)
        await idle()
        assert seen.seen == []
        gate.set()
        await idle()
    assert await app.result(id) == "mine"


async def test_a_job_that_costs_too_many_workers_is_a_dead_letter_and_its_hook_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runtime = FrozenRuntime()
    task = MinimalTask(works)
    dead = Probe[str]("the hook")
    task.dead_letter_hooks.append(lambda job, error: dead(job.id))
    app = MinimalApp(task, runtime=runtime)
    seen = app.record_events(events.Failed)
    id = await app.enqueue("works")
    await lose(app, "works", max_losses=1)
    runtime.advance(31)
    async with app.worker():
        await dead.calls(1)
    job = await app.look(id)
    assert (job.state, job.reason, job.losses) == (JobState.FAILED, Reason.WORKER_LOST, 1)
    assert len(seen.seen) == 1
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage().startswith("works: worker lost: job ")


# A14
async def test_how_a_worker_died_is_in_the_history_the_event_and_the_hook() -> None:
    runtime = FrozenRuntime()
    task = MinimalTask(works)
    dead = Probe[ErrorInfo | None]("the hook")
    task.dead_letter_hooks.append(lambda job, error: dead(error))
    app = MinimalApp(task, runtime=runtime)
    seen = app.record_events()
    fails, runs_again = await app.enqueue("works"), await app.enqueue("stranger")
    await lose(app, "works", max_losses=1)
    await lose(app, "stranger")
    death = worker_died_info(-9, 812 << 20)
    await app.engine.disown("dead", error=death)
    runtime.advance(11 * 30)  # any reaper may take the job whose task it does not know
    async with app.worker():
        assert await dead.calls(1) == [death]
        await idle()
    for id in (fails, runs_again):
        job = await app.look(id)
        assert (job.last_error, job.loss_error) == (death, None)
        assert [(run.outcome, run.error) for run in job.history] == [(AttemptOutcome.WORKER_LOST, death)]
    errors = [event.error for event in seen.seen if isinstance(event, events.Failed | events.Retrying)]
    assert errors == [death, death]


# A14
async def test_a_job_that_has_not_started_gets_no_error_of_the_death() -> None:
    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(works), runtime=runtime)
    id = await app.enqueue("works")
    queues = (QueueClaim(QUEUE, (TaskClaim(task="works", lease_len=LEASE),)),)
    await app.engine.claim(Claim(claim_id="c", worker="dead", queues=queues, limit=0, prefetch=1))
    await app.engine.disown("dead", error=worker_died_info(-9, 812 << 20))
    await app.engine.pause(QUEUE)
    async with app.worker():
        await idle()
    job = await app.look(id)
    assert (job.losses, job.attempt, job.last_error, job.history) == (1, 0, None, ())


async def test_a_second_loss_waits_for_the_back_off() -> None:
    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(works, retry=RetryPolicy(backoff=fixed(100))), runtime=runtime)
    id = await app.enqueue("works")
    for _ in range(2):
        await lose(app, "works")
        runtime.advance(31)
        await app.engine.pause(QUEUE)
        async with app.worker():
            await idle()
        await app.engine.resume(QUEUE)
    job = await app.look(id)
    assert (job.state, job.losses) == (JobState.RETRYING, 2)
    assert job.due - runtime.wall() == 100 * SECOND


async def test_other_peoples_tasks_are_left_to_them_until_long_expired() -> None:
    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(works), runtime=runtime)
    id = await app.enqueue("stranger")
    await lose(app, "stranger")
    async with app.worker():
        runtime.advance(60)
        await idle()
        assert (await app.look(id)).state is JobState.RUNNING
        runtime.advance(11 * 30)
        await idle()
        runtime.advance(6)
        await idle()
        assert (await app.look(id)).losses == 1


async def test_a_thousand_lost_jobs_are_reaped_in_bounded_pieces() -> None:
    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(works), runtime=runtime)
    ids = await app.put(*(app.job("works") for _ in range(1000)))
    await lose(app, "works")
    runtime.advance(31)
    async with app.worker(concurrency=100):
        await idle()
    assert {(await app.look(id)).losses for id in ids} == {1}


async def test_a_worker_that_was_disowned_is_not_waited_for() -> None:
    runtime = FrozenRuntime()
    app = MinimalApp(MinimalTask(works), runtime=runtime)
    id = await app.enqueue("works")
    await app.engine.heartbeat(WorkerRecord(worker="dead"))
    await lose(app, "works")
    async with app.worker():
        await idle()
        await app.engine.disown("dead")
        runtime.advance(6)  # one reap interval, not a lease
        await idle()
        assert (await app.look(id)).state is JobState.SUCCEEDED
