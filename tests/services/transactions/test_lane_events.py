"""Events of jobs that end inside a transaction: they carry the recorded times, and follow each other in a lane."""

import asyncio
from typing import Any

import pytest
from user_transactions import each_store

from holdfast import App, Context, events
from holdfast.views import moment

IN_LANE = 12


@each_store
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_events_of_a_lane_come_in_order_with_the_recorded_times(jobs: App[Any], kind: str) -> None:
    if kind == "plain":

        @jobs.task(transaction=True, lane="a", name="books")
        def plain(ctx: Context) -> None:
            assert ctx.tx is not None

    else:

        @jobs.task(transaction=True, lane="a", name="books")
        async def coroutine(ctx: Context) -> None:
            await ctx.tx

    @jobs.task
    async def fills() -> None:
        await asyncio.sleep(0)

    seen: list[events.JobEvent] = []
    for event_kind in (events.Started, events.Succeeded):
        jobs.on(event_kind)(lambda event: seen.append(event) if event.lane else None)
    for _ in range(IN_LANE):
        await jobs.client.task("books").using(lane="a").aenqueue()
        for _ in range(8):
            await fills.aenqueue()
    async with asyncio.timeout(60):
        await jobs.worker(until_empty=True, concurrency=4).arun()
    kinds = [type(event).__name__ for event in seen]
    assert kinds == ["Started", "Succeeded"] * IN_LANE
    for started, succeeded in zip(seen[::2], seen[1::2], strict=True):
        job = await jobs.control.aget(started.job_id)
        assert succeeded.job_id == job.id
        # A claim on PostgreSQL reads the clock first. It may then see a commit that comes a moment later. So the start
        # of a job may have an earlier time than the end of the one before it.
        assert (job.last_started_at, job.finished_at) == (moment(started.at), moment(succeeded.at))
