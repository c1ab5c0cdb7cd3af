"""A worker with `until_empty`: what it waits for, what it leaves, and what it says about that."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Context, Snooze, fixed
from holdfast.worker import Worker

PATIENCE_S = 60


@pytest.fixture(params=["memory", "sqlite", "file", "postgres", "redis"])
def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> App[Any]:
    match request.param:
        case "memory":
            return App("memory://")
        case "sqlite":
            return App(f"sqlite:///{tmp_path}/jobs.db")
        case "file":
            return App(f"file://{tmp_path}/jobs")
    url, namespace = request.getfixturevalue(f"{request.param}_store")()
    return App(url, namespace=namespace)


async def work(jobs: App[Any], **options: Any) -> Worker:
    """Run a worker until it stops by itself."""
    worker = jobs.worker(until_empty=True, **options)
    async with asyncio.timeout(PATIENCE_S):
        await worker.arun()
    return worker


async def states(jobs: App[Any]) -> dict[str, int]:
    return {state.value: count for state, count in (await jobs.control.astats()).counts.items()}


async def test_it_waits_for_jobs_that_are_retrying_or_snoozed(jobs: App[Any]) -> None:
    @jobs.task(backoff=fixed(0.3))
    async def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("not yet")

    snoozed: list[str] = []

    @jobs.task
    async def sleepy() -> None:
        if not snoozed:
            snoozed.append("once")
            raise Snooze(delay=0.3)

    async with jobs:
        await flaky.aenqueue()
        await sleepy.aenqueue()
        worker = await work(jobs)
        assert await states(jobs) == {"succeeded": 2}
    assert worker.left.total == 0


async def test_it_runs_every_job_of_a_pool(jobs: App[Any]) -> None:
    pool = jobs.pool("ledger", int, lanes=4)

    @pool.handler(backoff=fixed(0.1))
    async def book(ctx: Context, number: int) -> None:
        if ctx.attempt == 1 and number % 8 == 0:
            raise ConnectionError("not yet")

    async with jobs:
        for number in range(24):
            await pool.aenqueue(number, key=str(number % 6))
        worker = await work(jobs)
        assert await states(jobs) == {"succeeded": 24}
    assert worker.left.total == 0


async def test_it_waits_for_a_job_that_another_worker_runs(jobs: App[Any]) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    @jobs.task(backoff=fixed(0.01))
    async def long(ctx: Context) -> str:
        if ctx.attempt == 1:
            begun.set()
            await end.wait()
            raise ConnectionError("again")
        return ctx.worker

    async with jobs:
        job = await long.aenqueue()
        async with jobs.worker(name="first") as first:
            await begun.wait()
            waiting = asyncio.create_task(work(jobs, name="second"))
            await asyncio.sleep(1)
            assert not waiting.done()
            first.stop()
            end.set()
            await waiting
        assert (await jobs.control.aget(job.id)).state == "succeeded"


async def test_what_cannot_end_is_left_and_counted(jobs: App[Any]) -> None:
    @jobs.task
    async def works() -> None: ...

    @jobs.task(queue="other")
    async def rests() -> None: ...

    async with jobs:
        await works.using(delay=3600, lane="a").aenqueue()
        await works.using(lane="a").aenqueue()
        await works.aenqueue()
        await jobs.client.task("nobody").aenqueue()
        await rests.aenqueue()
        await rests.aenqueue()
        await jobs.control.apause("other")
        worker = await work(jobs)
        counts = await states(jobs)
    assert counts == {"scheduled": 1, "blocked": 1, "succeeded": 1, "queued": 3}
    left = worker.left
    assert (left.paused, left.unknown, left.scheduled, left.blocked) == (2, 1, 1, 1)
    assert str(left).startswith("5 jobs are left: 2 in paused queues, 1 of tasks that this worker does not have")


async def test_jobs_of_other_queues_are_no_concern_of_it(jobs: App[Any]) -> None:
    @jobs.task
    async def works() -> None: ...

    async with jobs:
        await works.using(queue="elsewhere").aenqueue()
        await works.aenqueue()
        worker = await work(jobs, queues=["default"])
        assert worker.left.total == 0


async def test_blocked_jobs_that_cannot_go_on_are_left_while_another_queue_is_busy(jobs: App[Any]) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    @jobs.task
    async def works() -> None: ...

    @jobs.task(queue="busy")
    async def runs_long() -> None:
        begun.set()
        await end.wait()

    async with jobs:
        for _ in range(2):
            await works.using(lane="paused").aenqueue()
            await jobs.client.task("nobody").using(lane="unknown").aenqueue()
        await jobs.control.apause("default", lane="paused")
        await runs_long.aenqueue()
        async with jobs.worker(queues=["busy"]):
            await begun.wait()
            try:
                worker = await work(jobs, queues=["default"])
            finally:
                end.set()
    assert (worker.left.blocked, worker.left.unknown) == (3, 1)


async def test_it_waits_for_a_job_behind_one_of_another_worker(tmp_path: Path) -> None:
    ours, theirs = (App[Any](f"sqlite:///{tmp_path}/jobs.db") for _ in range(2))
    begun, end = asyncio.Event(), asyncio.Event()

    @ours.task
    async def works() -> None: ...

    @theirs.task
    async def runs_long() -> None:
        begun.set()
        await end.wait()

    async with ours, theirs:
        await runs_long.using(lane="a").aenqueue()
        await works.using(lane="a").aenqueue()
        async with theirs.worker():
            await begun.wait()
            waiting = asyncio.create_task(work(ours))
            await asyncio.sleep(2)
            assert not waiting.done()
            end.set()
            worker = await waiting
        assert await states(ours) == {"succeeded": 2}
    assert worker.left.total == 0
