"""How full each lane may be: of a queue, of a pool, of a task's lanes; by code and by configuration."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, InvalidOption, QueueFull, events
from holdfast.pool import Pool
from holdfast.queue import Queue


@dataclass(frozen=True)
class Transfer:
    account: str
    cents: int = 1


def pool(jobs: App[object], **options: Any) -> Pool[Transfer]:
    return Pool(jobs._store, jobs.registry, "ledger", Transfer, **{"lanes": 8, **options})


def queue(jobs: App[object], **options: Any) -> Queue[int]:
    return Queue(jobs._store, jobs._pull_workers, "few", int, **options)


def test_a_full_lane_of_a_pool_says_which_and_how_full_it_is(jobs: App[object]) -> None:
    ledger = pool(jobs, lane_max_depth=2)
    for cents in (1, 2):
        ledger.enqueue(Transfer("alice", cents), key="alice")
    with pytest.raises(QueueFull, match="Lane '1' of queue 'ledger' is full") as full:
        ledger.enqueue(Transfer("alice", 3), key="alice")
    assert (full.value.queue, full.value.lane, full.value.depth, full.value.limit) == ("ledger", "1", 2, 2)
    assert ledger.enqueue(Transfer("bob"), key="bob").created


def test_a_full_lane_of_a_queue_says_which_and_how_full_it_is(jobs: App[object]) -> None:
    few = queue(jobs, lane_max_depth=1)
    few.enqueue(1, lane="x")
    few.enqueue(2)
    few.enqueue(3)
    with pytest.raises(QueueFull) as full:
        few.enqueue(4, lane="x")
    assert (full.value.queue, full.value.lane, full.value.depth, full.value.limit) == ("few", "x", 1, 1)


def test_the_limit_of_the_queue_and_that_of_its_lanes_hold_side_by_side(jobs: App[object]) -> None:
    few = queue(jobs, max_depth=3, lane_max_depth=2)
    few.enqueue(1, lane="x")
    few.enqueue(2, lane="x")
    with pytest.raises(QueueFull) as full:
        few.enqueue(3, lane="x")
    assert full.value.lane == "x"
    few.enqueue(3, lane="y")
    with pytest.raises(QueueFull) as full:
        few.enqueue(4, lane="y")
    assert (full.value.lane, full.value.depth, full.value.limit) == (None, 3, 3)


def test_the_configuration_limits_the_lanes_of_tasks_and_pools(
    monkeypatch: pytest.MonkeyPatch, jobs: App[object]
) -> None:
    monkeypatch.setenv("HOLDFAST_QUEUES_BANK_LANE_MAX_DEPTH", "1")
    monkeypatch.setenv("HOLDFAST_QUEUES_LEDGER_LANE_MAX_DEPTH", "1")

    @jobs.task(queue="bank", lane="account:{account}")
    def book(account: str) -> None: ...

    ledger = jobs.pool("ledger", Transfer, lanes=8)
    book.enqueue("ada")
    book.enqueue("bob")
    ledger.enqueue(Transfer("alice"), key="alice")
    with pytest.raises(QueueFull, match="account:ada"):
        book.enqueue("ada")
    with pytest.raises(QueueFull, match="Lane '1'"):
        ledger.enqueue(Transfer("alice"), key="alice")


async def test_a_producer_may_wait_for_room_in_a_lane(jobs: App[object]) -> None:
    few = queue(jobs, lane_max_depth=1)
    async with jobs:
        await few.aenqueue(1, lane="x")
        waiting = asyncio.create_task(few.aenqueue(2, lane="x", wait_for_room=10))
        (lease,) = await few.aclaim()
        await lease.acomplete()
        assert (await waiting).created
        with pytest.raises(QueueFull):
            await few.aenqueue(3, lane="x", wait_for_room=0.01)


def test_jobs_without_a_key_pass_over_a_full_lane(jobs: App[object]) -> None:
    ledger = pool(jobs, lanes=4, lane_max_depth=2)
    for cents in (1, 2):
        ledger.enqueue(Transfer("poisoned", cents), key="alice")
    for cents in range(6):
        ledger.enqueue(Transfer("anybody", cents))
    with pytest.raises(QueueFull, match="Lane '0' of queue 'ledger' is full"):
        ledger.enqueue(Transfer("anybody"))


async def test_a_job_without_a_key_waits_for_room_in_any_lane(jobs: App[object]) -> None:
    ledger = pool(jobs, lanes=3, lane_max_depth=1)
    async with jobs:
        handles = [await ledger.aenqueue(Transfer("anybody", cents)) for cents in range(3)]
        waiting = asyncio.create_task(ledger.aenqueue(Transfer("anybody", 4), wait_for_room=10))
        await handles[1].acancel()
        assert (await waiting).created


def test_the_soft_limit_of_a_lane_is_published_once_on_the_way_up(jobs: App[object]) -> None:
    few, ledger = queue(jobs, lane_max_depth=5), pool(jobs, lane_max_depth=5)
    told: list[events.SoftLimit] = []
    jobs.on(events.SoftLimit)(told.append)
    for n in range(5):
        few.enqueue(n, lane="x")
        few.enqueue(n)
        ledger.enqueue(Transfer("alice", n), key="alice")
    assert [(event.queue, event.lane, event.depth, event.limit) for event in told] == [
        ("few", "x", 4, 5),
        ("ledger", "1", 4, 5),
    ]


def test_a_limit_in_code_is_known_where_nothing_was_ever_produced(tmp_path: Path) -> None:
    producer, operator = App(f"sqlite:///{tmp_path}/jobs.db"), App(f"sqlite:///{tmp_path}/jobs.db")
    few = queue(producer, lane_max_depth=1)
    first = few.enqueue(1, lane="x")
    first.cancel()
    few.enqueue(2, lane="x")
    queue(operator, lane_max_depth=1)
    with pytest.raises(QueueFull):
        operator.control.requeue(first.id, queue="few")


def test_a_limit_in_code_leaves_the_configuration_as_it_was(jobs: App[object]) -> None:
    queue(jobs, max_depth=3, lane_max_depth=2).enqueue(1)
    assert (jobs.config.queue("few").max_depth, jobs.config.queue("few").lane_max_depth) == (0, 0)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_limit_of_lanes_is_a_whole_number(jobs: App[object], wrong: object) -> None:
    with pytest.raises(InvalidOption, match="lane_max_depth"):
        queue(jobs, lane_max_depth=wrong)
    with pytest.raises(InvalidOption, match="lane_max_depth"):
        pool(jobs, lane_max_depth=wrong)
