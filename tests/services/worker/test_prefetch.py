"""Prefetch: jobs claimed ahead of need wait as `assigned`, start when a slot is free, and go back when it is over."""

from collections import Counter

from eventually import idle
from minimal_app import GatedHandler, MinimalApp

from holdfast.model.states import JobState


async def test_prefetched_jobs_are_assigned_and_run_when_a_slot_is_free() -> None:
    gated = GatedHandler()
    app = MinimalApp(gated.task())
    seen = app.record_events()
    ids = await app.put(*(app.job("gated") for _ in range(5)))
    async with app.worker(concurrency=1, prefetch=2):
        await gated.started.calls(1)
        await idle()
        assert await app.counts() == {JobState.RUNNING: 1, JobState.ASSIGNED: 2, JobState.QUEUED: 2}
        gated.gate.set()
        await gated.started.calls(5)
    jobs = [await app.look(id) for id in ids]
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    assert {job.attempt for job in jobs} == {1}
    names = Counter(type(event).__name__ for event in seen.seen)
    assert names["Started"] == names["Succeeded"] == 5
    assert names["Assigned"] == 4


async def test_a_prefetched_job_that_runs_is_running_for_others_to_see() -> None:
    first, second = GatedHandler(), GatedHandler()
    app = MinimalApp(first.task("first"), second.task("second"))
    await app.enqueue("first")
    id = await app.enqueue("second")
    async with app.worker(concurrency=1, prefetch=1):
        await first.started.calls(1)
        await idle()
        assert (await app.look(id)).state is JobState.ASSIGNED
        first.gate.set()
        await second.started.calls(1)
        await idle()
        assert (await app.look(id)).state is JobState.RUNNING
        second.gate.set()


async def test_a_stopping_worker_gives_prefetched_jobs_back_at_once() -> None:
    gated = GatedHandler()
    app = MinimalApp(gated.task())
    ids = await app.put(*(app.job("gated") for _ in range(3)))
    async with app.worker(concurrency=1, prefetch=2) as worker:
        await gated.started.calls(1)
        await idle()
        worker.stop()
        await idle()
        assert await app.counts() == {JobState.RUNNING: 1, JobState.QUEUED: 2}
        assert [(await app.look(id)).attempt for id in ids] == [1, 0, 0]
        gated.gate.set()
