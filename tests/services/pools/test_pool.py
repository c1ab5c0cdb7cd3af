"""A pool: lanes behind one name, keys that stay in order, a handler with its context, and every lane by itself."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    App,
    Context,
    DuplicateTask,
    InvalidArguments,
    InvalidOption,
    Job,
    JobState,
    QueueFull,
    events,
)
from holdfast.model.job import JobKey
from holdfast.model.produce import Group, NewJob, PoolPlace
from holdfast.model.states import Reason
from holdfast.pool import Pool
from holdfast.worker import Worker


@dataclass(frozen=True)
class Transfer:
    account: str
    cents: int = 0


@pytest.fixture
def ledger(jobs: App[object]) -> Pool[Transfer]:
    return jobs.pool("ledger", Transfer, lanes=4)


async def drain(jobs: App[Any], concurrency: int = 10) -> None:
    """Run what is due, until nothing is."""
    await Worker(jobs, until_empty=True, concurrency=concurrency).arun()


def lanes_of(jobs: App[Any], pool: str = "ledger") -> list[int]:
    """The lanes of all jobs, in the order of arrival."""
    found = sorted(jobs.control.find(queue=pool, limit=1_000), key=lambda job: job.arrival)
    return [int(job.lane or -1) for job in found]


# Lanes


def test_jobs_without_a_key_go_round(jobs: App[object], ledger: Pool[Transfer]) -> None:
    for n in range(8):
        ledger.enqueue(Transfer("a", n))
    assert lanes_of(jobs) == [0, 1, 2, 3, 0, 1, 2, 3]


def test_the_turn_is_one_for_all_producers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    one, two = App(url), App(url)
    with one, two:
        pools = [app.pool("ledger", Transfer, lanes=4) for app in (one, two)]
        for n in range(40):
            pools[n % 3 == 0].enqueue(Transfer("a", n))
        assert Counter(lanes_of(one)) == {0: 10, 1: 10, 2: 10, 3: 10}


def test_a_key_always_goes_to_one_lane(jobs: App[object], ledger: Pool[Transfer]) -> None:
    for n in range(40):
        ledger.enqueue(Transfer(f"{n % 8}", n), key=f"{n % 8}", id=f"{n}")
    lanes: dict[int, set[str | None]] = {}
    for n in range(40):
        lanes.setdefault(n % 8, set()).add(jobs.control.get(f"{n}", queue="ledger").lane)
    assert all(len(found) == 1 for found in lanes.values())
    assert len(set.union(*lanes.values())) > 1


def test_the_receipt_has_the_position_in_the_lane(ledger: Pool[Transfer]) -> None:
    receipts = [ledger.enqueue(Transfer("a"), key="a").receipt for _ in range(3)]
    assert [(r.position, r.depth, r.state) for r in receipts if r] == [
        (0, 1, JobState.QUEUED),
        (1, 2, JobState.BLOCKED),
        (2, 3, JobState.BLOCKED),
    ]


def test_the_number_in_the_store_wins_over_the_one_in_the_code(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    old, new = App(url), App(url)
    with old, new:
        old.pool("ledger", Transfer, lanes=2).enqueue(Transfer("a"))
        ledger = new.pool("ledger", Transfer, lanes=8)
        for n in range(4):
            ledger.enqueue(Transfer("a", n))
        assert lanes_of(new) == [0, 1, 0, 1, 0]
        assert len(ledger.status().lanes) == 2


# Payloads


def test_a_payload_is_checked_before_it_is_written(jobs: App[object], ledger: Pool[Transfer]) -> None:
    wrong: Any = Transfer("a", cents="much")  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="Pool 'ledger' refuses field `cents`") as refused:
        ledger.enqueue(wrong, key="a")
    assert refused.value.field == "cents"
    with pytest.raises(InvalidOption) as bad:
        ledger.enqueue(Transfer("a"), key="")
    assert bad.value.option == "key"
    lane: Any = {"lane": "3"}
    with pytest.raises(InvalidOption, match="no option `lane`"):
        ledger.enqueue(Transfer("a"), **lane)
    assert jobs.control.queues() == []


def test_many_go_in_with_one_call(jobs: App[object], ledger: Pool[Transfer]) -> None:
    jobs.client.enqueue_many([ledger.draft(Transfer("a", n), key="a") for n in range(10)])
    assert len(set(lanes_of(jobs))) == 1
    assert ledger.status().depth == 10


@pytest.mark.parametrize("given", [{"lanes": 0}, {"lanes": 1.5}, {"lanes": 1, "max_depth": 0}])
def test_a_pool_that_cannot_be_is_refused(jobs: App[object], given: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        jobs.pool("ledger", Transfer, **given)


# Handlers


async def test_a_handler_sees_pool_lane_and_attempt(jobs: App[object], ledger: Pool[Transfer]) -> None:
    seen: list[tuple[Any, ...]] = []

    @ledger.handler(max_attempts=3, backoff=0)
    async def book(ctx: Context, event: Transfer) -> int:
        job = ctx.job
        assert job.started_at is not None
        assert job.started_at >= job.enqueued_at
        seen.append((ctx.pool, ctx.lane, ctx.lane_index, ctx.attempt, ctx.is_retry, event))
        if not ctx.is_retry:
            raise ConnectionError("not yet")
        assert Context.current().pool == "ledger"
        return ctx.arrival

    async with jobs:
        handle = await ledger.aenqueue(Transfer("alice", 5), key="alice")
        await drain(jobs)
        receipt = handle.receipt
        assert receipt is not None
        assert await handle.aresult() == receipt.arrival
        lane = (await handle.arefresh()).lane
        assert lane is not None
        where = ("ledger", lane, int(lane))
        assert seen == [(*where, 1, False, Transfer("alice", 5)), (*where, 2, True, Transfer("alice", 5))]


async def test_outside_a_pool_there_is_no_pool(jobs: App[object]) -> None:
    @jobs.task(lane="7")
    async def plain(ctx: Context) -> list[Any]:
        return [ctx.pool, ctx.lane, ctx.lane_index]

    async with jobs:
        handle = await plain.aenqueue()
        await drain(jobs)
        assert await handle.aresult() == [None, "7", None]


def test_a_handler_may_be_sync_or_async_and_do_without_the_context(jobs: App[object]) -> None:
    pools = [jobs.pool(name, Transfer, lanes=2) for name in ("alone", "plain", "both", "untyped")]

    @pools[0].handler
    async def alone(event: Transfer) -> str:
        return event.account

    @pools[1].handler
    def plain(event: Transfer) -> str:
        return event.account * 2

    @pools[2].handler(lease=10, concurrency=1)
    def both(ctx: Context, event: Transfer) -> str:
        return f"{ctx.pool} {event.account}"

    @pools[3].handler
    def untyped(ctx, event):  # type: ignore[no-untyped-def]
        return f"{ctx.pool} {event.account}"

    with jobs:
        handles = [pool.enqueue(Transfer("x")) for pool in pools]
        Worker(jobs, until_empty=True).run()
        assert [handle.result() for handle in handles] == ["x", "xx", "both x", "untyped x"]
    assert plain(Transfer("y")) == "yy"
    assert both.call(Transfer("y")) == "None y"


def test_a_handler_is_a_task_whose_jobs_go_to_the_lanes(jobs: App[object], ledger: Pool[Transfer]) -> None:
    @ledger.handler
    async def book(event: Transfer) -> int:
        return event.cents

    assert (book.name, book.queue) == ("ledger", "ledger")
    assert jobs.registry["ledger"] is book
    for n in range(4):
        book.enqueue(Transfer("a", n))
    jobs.client.enqueue_many([book.draft(Transfer("a", 4))])
    assert lanes_of(jobs) == [0, 1, 2, 3, 0]
    with pytest.raises(InvalidArguments, match="Pool 'ledger' refuses"):
        book.enqueue("no transfer")  # type: ignore[arg-type]


def no_payload() -> None: ...
def too_many(ctx: Context, event: Transfer, more: int) -> None: ...
def by_keyword(event: Transfer, *, more: int) -> None: ...
def generates(event: Transfer) -> Any:
    yield event


@pytest.mark.parametrize("function", [no_payload, too_many, by_keyword, generates, 3])
def test_a_handler_of_another_shape_is_refused(ledger: Pool[Transfer], function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidOption):
        ledger.handler(function)


def test_options_about_enqueueing_have_no_place_at_a_handler(ledger: Pool[Transfer]) -> None:
    for option in ("name", "queue", "lane", "priority", "unique_key", "remote", "codec"):
        given: Any = {option: "x"}
        with pytest.raises(InvalidOption) as refused:
            ledger.handler(**given)
        assert refused.value.option == option
    with pytest.raises(InvalidOption, match="max_attempts"):
        ledger.handler(max_attempts=0)
    ledger.handler(max_attempts=None)


def test_a_pool_has_one_handler(ledger: Pool[Transfer]) -> None:
    @ledger.handler
    async def one(event: Transfer) -> None: ...

    with pytest.raises(DuplicateTask, match="has a handler already"):

        @ledger.handler
        async def two(event: Transfer) -> None: ...


async def test_the_jobs_of_a_key_run_in_order_whatever_fails(jobs: App[object]) -> None:
    ledger = jobs.pool("ledger", Transfer, lanes=3)
    done: dict[str, list[int]] = {}

    @ledger.handler(max_attempts=2, backoff=0)
    async def book(ctx: Context, event: Transfer) -> None:
        await asyncio.sleep(0)
        if event.cents % 3 == 0 and not ctx.is_retry:
            raise ConnectionError("once")
        done.setdefault(event.account, []).append(event.cents)
        if event.cents % 7 == 0:
            raise ValueError("for good, at the second time")

    async with jobs:
        for n in range(60):
            await ledger.aenqueue(Transfer(f"{n % 6}", n), key=f"{n % 6}")
        await drain(jobs)
        assert (await ledger.astatus()).depth == 0
    for seen in done.values():
        assert seen == sorted(seen)
    assert {cents for seen in done.values() for cents in seen} == set(range(60))


async def test_a_payload_that_cannot_be_read_is_set_aside_and_the_lane_goes_on(
    jobs: App[object], ledger: Pool[Transfer]
) -> None:
    @ledger.handler
    async def book(event: Transfer) -> str:
        return event.account

    async with jobs:
        bad = NewJob(queue="ledger", id="bad", task="ledger", payload=b"\xff", pool=PoolPlace(4, "a"))
        await jobs.engine.enqueue(Group((bad,)))
        good = await ledger.aenqueue(Transfer("x"), key="a")
        await drain(jobs)
        assert await good.aresult() == "x"
        (record,) = (await jobs.engine.get(JobKey("ledger", "bad"))).jobs
        assert record is not None
        assert (record.state, record.reason, record.payload) == (JobState.FAILED, Reason.UNDECODABLE, b"\xff")
        assert (await ledger.astatus()).failed == 1


async def test_a_dead_letter_is_published_and_its_lane_goes_on(jobs: App[object], ledger: Pool[Transfer]) -> None:
    told: list[tuple[str, str]] = []

    @ledger.on_dead_letter
    def note(job: Job, error: Any) -> None:
        told.append((job.id, error.message))

    @ledger.handler(max_attempts=1)
    async def book(event: Transfer) -> str:
        if event.cents < 0:
            raise ValueError("no funds")
        return event.account

    @ledger.on_dead_letter
    async def later(job: Job, error: Any) -> None:
        told.append((job.id, "async"))
        raise ValueError("harms nobody")

    async with jobs:
        await ledger.aenqueue(Transfer("a", -1), key="a", id="dead")
        after = await ledger.aenqueue(Transfer("a", 1), key="a")
        await drain(jobs)
        assert await after.aresult() == "a"
    assert told == [("dead", "no funds"), ("dead", "async")]
    with pytest.raises(InvalidOption):
        ledger.on_dead_letter(3)  # type: ignore[type-var]


# Room


async def test_a_full_pool_says_how_full_it_is_and_may_be_waited_for(jobs: App[object]) -> None:
    ledger = jobs.pool("ledger", Transfer, lanes=4, max_depth=3)

    @ledger.handler
    async def book(event: Transfer) -> None: ...

    async with jobs:
        for n in range(3):
            await ledger.aenqueue(Transfer("a", n), key="a")
        with pytest.raises(QueueFull) as full:
            await ledger.aenqueue(Transfer("b"), key="b")
        assert (full.value.queue, full.value.depth, full.value.limit) == ("ledger", 3, 3)
        waiting = asyncio.create_task(ledger.aenqueue(Transfer("b"), wait_for_room=10))
        await drain(jobs)
        assert (await waiting).created


@pytest.mark.parametrize("key", [None, "one"])
def test_the_soft_limit_of_a_pool_is_published_once_on_the_way_up(jobs: App[object], key: str | None) -> None:
    ledger = jobs.pool("ledger", Transfer, lanes=4, max_depth=10)
    told: list[tuple[int, int]] = []
    jobs.on(events.SoftLimit)(lambda event: told.append((event.depth, event.limit)))
    for n in range(10):
        ledger.enqueue(Transfer("a", n), key=key)
    assert told == [(8, 10)]
    ledger.clear()
    for n in range(9):
        ledger.enqueue(Transfer("a", n), key=key)
    assert told == [(8, 10), (8, 10)]


def test_the_receipt_has_the_lane_and_the_job_the_key(jobs: App[object], ledger: Pool[Transfer]) -> None:
    queued: list[str | None] = []
    jobs.on(events.Queued)(lambda event: queued.append(event.lane))
    keyed, keyless = ledger.enqueue(Transfer("ada"), key="ada"), ledger.enqueue(Transfer("ada"))
    again = ledger.enqueue(Transfer("ada"), key="ada", id=keyed.id)

    assert [handle.receipt.lane for handle in (keyed, keyless, again) if handle.receipt] == ["3", "0", "3"]
    assert queued == ["3", "0"]
    assert (keyed.refresh().pool_key, keyless.refresh().pool_key) == ("ada", None)
