"""Lanes, pools and pull, as `docs/contributing/seeds.md` has it row by row: through the public API, on every engine."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import App, Context, JobState, LeaseLost, QueueFull, events
from holdfast.model.job import JobKey
from holdfast.model.produce import Group, NewJob
from holdfast.testing import Probe

SECONDS = 20.0


@dataclass(frozen=True)
class Transfer:
    account: str
    cents: int


# --- Lanes ---


def test_a_lane_keeps_its_order_also_while_its_head_is_tried_again(jobs: App[Any]) -> None:
    ran: dict[str, list[int]] = defaultdict(list)

    @jobs.task(lane="account:{account}", backoff=0.01)
    async def book(ctx: Context, account: str, number: int) -> None:
        if number % 3 == 0 and ctx.attempt == 1:
            raise ValueError("again")
        await asyncio.sleep(0)
        ran[account].append(number)

    drafts = [book.draft(account, number) for number in range(10) for account in ("ada", "bob", "cleo")]
    handles = jobs.client.enqueue_many(drafts)
    with jobs.worker(concurrency=8):
        for handle in handles:
            handle.result(timeout=SECONDS)
    assert dict(ran) == {account: list(range(10)) for account in ("ada", "bob", "cleo")}


async def test_a_job_that_cannot_be_read_fails_and_its_lane_continues(jobs: App[Any]) -> None:
    @jobs.task(lane="only")
    def work(number: int) -> int:
        return number

    failed = Probe[events.Failed]("the listener")
    jobs.on(events.Failed)(failed)
    async with jobs:
        spoilt = NewJob(queue="default", id="spoilt", task="work", payload=b"\xff{", lane="only")
        await jobs.engine.enqueue(Group((spoilt,)))
        sound = await work.aenqueue(7)
        async with jobs.worker():
            assert await sound.aresult(timeout=SECONDS) == 7
            (event,) = await failed.calls(1)
        assert (event.job_id, event.reason) == ("spoilt", "undecodable")
        (kept,) = (await jobs.engine.get(JobKey("default", "spoilt"))).jobs
        assert kept is not None
        assert kept.payload == b"\xff{"
        assert (await jobs.control.astatus("default")).failed == 1


# --- Pools ---


def test_jobs_without_a_key_are_spread_and_jobs_of_a_key_share_a_lane(jobs: App[Any]) -> None:
    pool = jobs.pool("ledger", Transfer, lanes=4)
    lanes = [pool.enqueue(Transfer("ada", n)).refresh().lane for n in range(8)]
    assert sorted(lanes) == ["0", "0", "1", "1", "2", "2", "3", "3"]  # type: ignore[type-var]
    for key in ("ada", "bob"):
        assert len({pool.enqueue(Transfer(key, n), key=key).refresh().lane for n in range(5)}) == 1


def test_a_pool_handler_gets_every_field_of_its_job(jobs: App[Any]) -> None:
    pool = jobs.pool("ledger", Transfer, lanes=3)
    seen: list[tuple[Any, ...]] = []

    @pool.handler(backoff=0)
    def book(ctx: Context, event: Transfer) -> int:
        job = ctx.job
        seen.append((event, ctx.pool, ctx.lane, ctx.lane_index, ctx.arrival, ctx.attempt, ctx.is_retry))
        assert job.enqueued_at <= (job.started_at or datetime.now(UTC)) <= datetime.now(UTC) + timedelta(minutes=1)
        if ctx.attempt == 1:
            raise ValueError("again")
        return event.cents

    with jobs.worker():
        handle = pool.enqueue(Transfer("ada", 5), key="ada")
        assert handle.result(timeout=SECONDS) == 5
    lane = handle.refresh().lane
    assert lane is not None
    arrival = handle.refresh().arrival
    assert seen == [
        (Transfer("ada", 5), "ledger", lane, int(lane), arrival, attempt, attempt > 1) for attempt in (1, 2)
    ]


def test_a_pool_of_events_keeps_the_order_of_every_key(jobs: App[Any]) -> None:
    pool = jobs.pool("ledger", Transfer, lanes=4)
    ran: dict[str, list[int]] = defaultdict(list)

    @pool.handler(backoff=0)
    async def book(ctx: Context, event: Transfer) -> None:
        if event.cents % 10 == 3 and ctx.attempt == 1:
            raise ValueError("again")
        ran[event.account].append(event.cents)

    keys = [f"key-{n}" for n in range(10)]
    handles = jobs.client.enqueue_many([pool.draft(Transfer(key, n), key=key) for n in range(20) for key in keys])
    with jobs.worker(concurrency=8), jobs.worker(concurrency=8):
        for handle in handles:
            handle.result(timeout=SECONDS)
    assert dict(ran) == {key: list(range(20)) for key in keys}


async def test_a_pool_and_a_lane_are_paused_inspected_and_cleared(jobs: App[Any]) -> None:
    pool = jobs.pool("ledger", Transfer, lanes=2)
    entered = Probe[int]("the handler")

    @pool.handler
    async def book(ctx: Context, event: Transfer) -> None:
        entered(event.cents)
        if event.cents == 99:
            await asyncio.get_running_loop().create_future()

    async with jobs:
        assert await pool.lane(1).apause()
        handles = [await pool.aenqueue(Transfer("x", n)) for n in range(4)]  # works while paused
        async with jobs.worker(grace=0):
            lanes = {handle: (await handle.arefresh()).lane for handle in handles}
            for handle in handles:
                if lanes[handle] == "0":
                    await handle.aresult(timeout=SECONDS)
            status = await pool.lane(1).astatus()
            assert (status.state, status.depth, status.processed) == ("paused", 2, 0)
            assert await pool.lane(1).aresume()
            for handle in handles:
                await handle.aresult(timeout=SECONDS)
            flying = await pool.aenqueue(Transfer("x", 99))
            await entered.calls(5)
            assert (await pool.astatus()).current == (await flying.arefresh()).arrival
            assert await pool.aclear() == 1  # the event in flight is fenced
        assert (await flying.arefresh()).state == "cancelled"
        status_of_all = await pool.astatus()
        assert (status_of_all.depth, status_of_all.processed, status_of_all.failed) == (0, 4, 0)


def test_a_resize_loses_nothing_and_keeps_the_order_of_keys(jobs: App[Any]) -> None:
    pool = jobs.pool("ledger", Transfer, lanes=2)
    ran: dict[str, list[int]] = defaultdict(list)

    @pool.handler
    async def book(event: Transfer) -> None:
        ran[event.account].append(event.cents)

    keys = [f"key-{n}" for n in range(8)]
    handles = [pool.enqueue(Transfer(key, n), key=key) for n in range(3) for key in keys]
    pool.resize(5)
    handles += [pool.enqueue(Transfer(key, n), key=key) for n in range(3, 6) for key in keys]
    assert pool.status().resizing
    with jobs.worker(concurrency=8):
        for handle in handles:
            handle.result(timeout=SECONDS)
    assert dict(ran) == {key: list(range(6)) for key in keys}
    assert (len(pool.status().lanes), pool.status().resizing) == (5, False)


async def test_a_pool_reports_when_it_is_full_empty_or_has_a_dead_letter(jobs: App[Any]) -> None:
    pool = jobs.pool("ledger", Transfer, lanes=2, max_depth=5)
    soft, empty, dead = Probe[Any]("the soft limit"), Probe[Any]("on_empty"), Probe[Any]("on_dead_letter")

    @pool.handler(max_attempts=1)
    async def book(event: Transfer) -> None:
        if event.cents == 3:
            raise ValueError("no")

    jobs.on(events.SoftLimit)(soft)
    loop = asyncio.get_running_loop()
    pool.on_empty(lambda event: loop.call_soon_threadsafe(empty, event.queue))
    pool.on_dead_letter(lambda job, error: loop.call_soon_threadsafe(dead, error.message))
    async with jobs:
        handles = [await pool.aenqueue(Transfer("x", n)) for n in range(5)]
        with pytest.raises(QueueFull) as full:
            await pool.aenqueue(Transfer("x", 9))
        assert (full.value.queue, full.value.depth, full.value.limit) == ("ledger", 5, 5)
        async with jobs.worker():
            late = await pool.aenqueue(Transfer("x", 7), wait_for_room=SECONDS)
            for handle in [*handles, late]:
                await handle.areport(timeout=SECONDS)
            assert await empty.calls(1) == ["ledger"]
            assert await dead.calls(1) == ["no"]
    assert [event.depth for event in soft.seen] == [4]


# --- Pull ---


def test_each_verb_of_a_lease_has_its_end(jobs: App[Any]) -> None:
    queue = jobs.queue("pulled", Transfer)
    for name in ("complete", "retry", "snooze", "give up", "cancel", "release"):
        queue.enqueue(Transfer(name, 1), id=name)
    leases = {lease.payload.account: lease for lease in queue.claim(10)}
    assert list(leases) == ["complete", "retry", "snooze", "give up", "cancel", "release"]
    assert {lease.attempt for lease in leases.values()} == {1}
    leases["complete"].complete(7)
    leases["retry"].retry("busy", delay=60)
    leases["snooze"].snooze(delay=60)
    leases["give up"].give_up("hopeless")
    leases["cancel"].cancel("unwanted")
    leases["release"].release()
    found = {name: jobs.control.get(name) for name in leases}
    assert {name: (str(job.state), job.attempt) for name, job in found.items()} == {
        "complete": ("succeeded", 1),
        "retry": ("retrying", 1),
        "snooze": ("scheduled", 0),
        "give up": ("failed", 1),
        "cancel": ("cancelled", 1),
        "release": ("queued", 0),
    }
    assert jobs.client.handle("complete", queue="pulled").result() == 7
    (lease,) = queue.claim()
    lease.renew()
    queue.clear()
    with pytest.raises(LeaseLost):
        lease.complete()


def test_leases_of_a_loop_are_settled_by_the_way_the_block_is_left(jobs: App[Any]) -> None:
    queue = jobs.queue("pulled", Transfer)
    for n in range(3):
        queue.enqueue(Transfer("x", n), id=f"job-{n}")

    def work() -> None:
        for lease in queue.leases(batch=2, until_empty=True):
            with lease:
                if lease.payload.cents == 1:
                    raise ValueError("one is wrong")

    with pytest.raises(ValueError, match="one is wrong"):
        work()
    states = [jobs.control.get(f"job-{n}").state for n in range(3)]
    assert states == [JobState.SUCCEEDED, JobState.RETRYING, JobState.QUEUED]


async def test_a_stream_of_leases_is_awaited_too(jobs: App[Any]) -> None:
    queue = jobs.queue("pulled", Transfer)

    async with jobs:
        for n in range(5):
            await queue.aenqueue(Transfer("x", n))
        seen = []
        async for lease in queue.leases(batch=2, until_empty=True):
            async with lease:
                seen.append(lease.payload.cents)
        assert seen == [0, 1, 2, 3, 4]
