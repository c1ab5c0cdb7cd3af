"""Progress: the last report is stored with the end of an attempt, a success is at 1.0, and there is an event."""

import asyncio
from pathlib import Path
from typing import Any

from eventually import eventually

from holdfast import App, Context, GiveUp, events
from holdfast.views import Progress


async def test_a_job_that_has_succeeded_is_at_one_and_keeps_its_last_note(jobs: App[object]) -> None:
    @jobs.task
    async def packs(ctx: Context) -> None:
        ctx.progress(0.84, "parcel 21 of 25")

    async with jobs:
        job = await packs.aenqueue()
        await jobs.worker(until_empty=True).arun()
        assert (await jobs.control.aget(job.id)).progress == Progress(1.0, "parcel 21 of 25")


async def test_a_job_without_a_report_has_no_progress(jobs: App[object]) -> None:
    @jobs.task
    async def works() -> None: ...

    async with jobs:
        job = await works.aenqueue()
        await jobs.worker(until_empty=True).arun()
        assert (await jobs.control.aget(job.id)).progress is None


async def test_the_last_report_is_stored_with_a_failure(jobs: App[object]) -> None:
    @jobs.task
    async def breaks(ctx: Context) -> None:
        ctx.progress(0.5)
        ctx.progress(0.84, "parcel 21 of 25")
        raise GiveUp("no more boxes")

    async with jobs:
        job = await breaks.aenqueue()
        await jobs.worker(until_empty=True).arun()
        assert (await jobs.control.aget(job.id)).progress == Progress(0.84, "parcel 21 of 25")


async def test_progress_of_a_running_job_is_shown_and_has_an_event(jobs: App[object]) -> None:
    end = asyncio.Event()
    seen: list[events.JobEvent] = []

    @jobs.task
    async def packs(ctx: Context) -> None:
        ctx.progress(0.25, "one")
        await end.wait()
        ctx.progress(0.75, "three")

    jobs.on(events.Progressed)(seen.append)
    jobs.on(events.Succeeded)(seen.append)
    async with jobs:
        job = await packs.aenqueue()
        async with jobs.worker():
            await eventually(lambda: seen, "the first report")
            assert (await jobs.control.aget(job.id)).progress == Progress(0.25, "one")
            end.set()
            await eventually(lambda: isinstance(seen[-1], events.Succeeded), "the end")
    reports = [(event.fraction, event.note) for event in seen if isinstance(event, events.Progressed)]
    assert reports == [(0.25, "one"), (0.75, "three")]
    assert seen[0].job_id == job.id


async def test_a_report_inside_a_transaction_is_stored_with_its_commit(tmp_path: Path) -> None:
    jobs = App[object](f"sqlite:///{tmp_path}/jobs.db")

    @jobs.task(transaction=True)
    async def books(ctx: Context) -> None:
        ctx.progress(0.9, "booked")
        await ctx.tx

    async with jobs:
        job = await books.aenqueue()
        await jobs.worker(until_empty=True).arun()
        assert (await jobs.control.aget(job.id)).progress == Progress(1.0, "booked")


async def test_each_progress_is_reported_once_and_none_after_the_end(jobs: App[object]) -> None:
    """The keeper's report comes from another thread: here it comes late, and again after the end."""
    seen: list[str] = []
    late: list[tuple[Any, ...]] = []

    @jobs.task
    async def packs(ctx: Context) -> None:
        ctx.progress(0.5)
        attempt: Any = ctx._attempt
        await eventually(lambda: attempt.sent_progress, "the keeper to send it")
        late.append((attempt, attempt.sent_progress, 0))
        reporter.progressed(*late[0])

    jobs.on(events.Progressed)(lambda event: seen.append(f"progress {event.fraction}"))
    jobs.on(events.Succeeded)(lambda event: seen.append("succeeded"))
    async with jobs:
        await packs.aenqueue()
        worker = jobs.worker()
        async with worker:
            reporter: Any = worker._services._reporter  # type: ignore[union-attr]
            await eventually(lambda: "succeeded" in seen, "the end")
            reporter.progressed(*late[0])
    assert seen[-1] == "succeeded"
    assert seen.count("progress 0.5") == 1


async def test_a_worker_without_listeners_keeps_no_progress_of_ended_jobs(jobs: App[object]) -> None:
    @jobs.task
    async def packs(ctx: Context) -> None:
        ctx.progress(0.5)
        services.keeper.renew_now()
        attempt: Any = ctx._attempt
        await eventually(lambda: attempt.sent_progress, "the keeper to send it")
        await asyncio.sleep(0.01)  # the keeper reports it to the event loop

    async with jobs:
        job = await packs.aenqueue()
        worker = jobs.worker()
        async with worker:
            services: Any = worker._services
            await job.aresult(timeout=60)
            await eventually(lambda: not services.exchanger.has_unsettled, "the end")
            kept = [value for value in vars(services._reporter).values() if isinstance(value, dict) and value]
    assert kept == []
