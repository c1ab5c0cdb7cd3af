"""Rows that were deleted from the file by hand: the jobs that waited for them go on, and the log reports it."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opened_engine import opened_engine

from holdfast.engines import open_engine
from holdfast.engines.sqlite import writer as writer_module
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.produce import Accepted, Group, GroupAccepted, NewJob, Parent, PoolPlace
from holdfast.model.records import LaneRecord
from holdfast.model.states import JobState, Reason
from holdfast.model.work import Claim, Lease, QueueClaim, Settlement, SettleStatus, TaskClaim

QUEUE = "q"


class Store:
    """An open engine, and connections of an outsider to the same file."""

    def __init__(self, engine: SqliteEngine, path: Path) -> None:
        self.engine = engine
        self.path = path
        self.claims = 0

    async def put(self, *ids: str, **fields: Any) -> tuple[Accepted, ...]:
        jobs = tuple(NewJob(queue=QUEUE, id=id, task="t", **fields) for id in ids)
        (answer,) = (await self.engine.enqueue(Group(jobs))).groups
        assert isinstance(answer, GroupAccepted)
        return answer.jobs

    async def take(self) -> list[Lease]:
        self.claims += 1
        queues = (QueueClaim(QUEUE, (TaskClaim(task="t", lease_len=30 * SECOND),)),)
        claim = Claim(claim_id=f"c{self.claims}", worker="w", queues=queues, limit=10)
        return list((await self.engine.claim(claim)).leases)

    async def settle(self, lease: Lease) -> SettleStatus:
        done = Settlement(queue=QUEUE, id=lease.id, token=lease.token, target=JobState.SUCCEEDED)
        return (await self.engine.settle(done)).settled[0]

    async def work_off(self) -> list[str]:
        """Claim and settle ready jobs until there are none."""
        done = []
        while leases := await self.take():
            for lease in leases:
                assert await self.settle(lease) is SettleStatus.APPLIED
                done.append(lease.id)
        return done

    async def lane(self, name: str = "L") -> LaneRecord:
        (lane,) = (await self.engine.lanes(QUEUE, name)).lanes
        return lane

    async def depth(self) -> int:
        return (await self.engine.stats(QUEUE)).queues[0].depth

    def delete(self, *ids: str) -> None:
        outsider = sqlite3.connect(self.path)
        with outsider:
            outsider.executemany("DELETE FROM holdfast_job WHERE id = ?", [(id,) for id in ids])
        outsider.close()

    def set_aside(self) -> list[str]:
        outsider = sqlite3.connect(self.path)
        found = [id for (id,) in outsider.execute("SELECT id FROM holdfast_damaged ORDER BY id")]
        outsider.close()
        return found


@asynccontextmanager
async def opened_store(tmp_path: Path) -> AsyncIterator[Store]:
    """A store that is open for as long as the block lasts, and sound at its end."""
    path = tmp_path / "x.db"
    engine = open_engine(f"sqlite:///{path}", durability="none")
    assert isinstance(engine, SqliteEngine)
    async with opened_engine(engine):
        yield Store(engine, path)
        assert await engine.audit() == ()


async def test_the_next_enqueue_lets_a_lane_go_on_whose_head_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_store(tmp_path) as store:
        await store.put("head", "second", "third", lane="L")
        store.delete("head")
        assert await store.take() == []
        assert (await store.lane()).head == "head"

        (accepted,) = await store.put("fourth", lane="L")

        assert (accepted.position, accepted.depth) == (2, 3)
        assert await store.depth() == 3
        assert await store.work_off() == ["second", "third", "fourth"]
    assert "Job head of queue q, the head of lane L: its stored record is missing." in caplog.messages


async def test_a_prune_lets_a_lane_go_on_whose_head_is_missing(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as store:
        await store.put("head", "second", lane="L")
        store.delete("head")

        await store.engine.prune()

        assert (await store.lane()).depth == await store.depth() == 1
        assert await store.work_off() == ["second"]


async def test_a_missing_head_is_counted_kept_on_record_and_among_the_dead(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as store:
        await store.put("head", "second", lane="L")
        store.delete("head")
        await store.engine.prune()

        record = (await store.engine.get(JobKey(QUEUE, "head"))).jobs[0]
        assert record is not None
        assert (record.state, record.reason, record.note) == (
            JobState.FAILED,
            Reason.UNDECODABLE,
            "its stored record is missing",
        )
        assert (await store.lane()).totals.failed == 1
        assert (await store.engine.stats(QUEUE)).queues[0].totals.failed == 1
        assert store.set_aside() == ["head"]


async def test_a_head_that_goes_missing_while_it_runs_is_lost_to_its_worker_and_the_lane_goes_on(
    tmp_path: Path,
) -> None:
    async with opened_store(tmp_path) as store:
        await store.put("head", "second", lane="L")
        (lease,) = await store.take()
        store.delete("head")

        assert await store.settle(lease) is SettleStatus.GONE
        await store.engine.prune()

        assert await store.settle(lease) is SettleStatus.LOST
        assert await store.work_off() == ["second"]


async def test_a_lane_whose_jobs_are_all_missing_is_empty(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as store:
        await store.put("head", "second", "third", lane="L")
        store.delete("head", "second", "third")
        await store.engine.prune()

        lane = await store.lane()
        assert (lane.head, lane.depth, lane.totals.failed, await store.depth()) == (None, 0, 3, 0)
        await store.put("fourth", lane="L")
        assert await store.work_off() == ["fourth"]


async def test_missing_jobs_behind_the_head_do_not_stop_the_last_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_store(tmp_path) as store:
        await store.put("head", "second", "third", "fourth", lane="L")
        store.delete("second", "fourth")

        assert await store.work_off() == ["head", "third"]

        lane = await store.lane()
        assert (lane.depth, lane.totals.failed, lane.totals.succeeded, await store.depth()) == (0, 2, 2, 0)
    assert "Lane L of queue q: 2 waiting jobs are missing from the store." in caplog.messages


async def test_a_lane_whose_jobs_are_missing_can_be_cleared(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as store:
        await store.put("head", "second", "third", lane="L")
        store.delete("second")

        assert (await store.engine.clear(QUEUE, "L")).count == 2

        assert (await store.lane()).depth == 0


async def test_a_missing_head_before_a_damaged_one_are_both_set_aside(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as store:
        await store.put("head", "second", "third", lane="L")
        outsider = sqlite3.connect(store.path)
        with outsider:
            outsider.execute("UPDATE holdfast_job SET body = x'c1' WHERE id = 'second'")
        outsider.close()
        store.delete("head")
        await store.engine.prune()

        assert await store.work_off() == ["third"]
        assert store.set_aside() == ["head", "second"]


async def test_the_end_of_a_missing_head_resolves_its_children(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as store:
        await store.put("head", lane="L")
        await store.put("child", parents=(Parent(JobKey(QUEUE, "head")),))
        await store.put("after", parents=(Parent(JobKey(QUEUE, "head"), any_end=True),))
        store.delete("head")
        await store.engine.prune()

        child = (await store.engine.get(JobKey(QUEUE, "child"))).jobs[0]
        assert child is not None
        assert (child.state, child.reason) == (JobState.CANCELLED, Reason.PARENT_FAILED)
        assert await store.work_off() == ["after"]


async def test_a_job_of_an_older_size_that_goes_missing_does_not_hold_up_a_pool(tmp_path: Path) -> None:
    async with opened_store(tmp_path) as store:
        await store.put("old", pool=PoolPlace(2, "k"))
        await store.engine.resize(QUEUE, 3)
        await store.put("new", pool=PoolPlace(3, "k"))
        store.delete("old")
        await store.engine.prune()

        assert await store.work_off() == ["new"]
        assert [pool.old_live for pool in (await store.engine.pools()).pools] == [0]


# PR3
async def test_prunes_check_every_lane_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "LANES_PER_PRUNE", 2)

    async with opened_store(tmp_path) as store:
        for lane in "abcde":
            await store.put(f"{lane}-head", f"{lane}-second", lane=lane)
        store.delete(*(f"{lane}-head" for lane in "ade"))
        for _ in range(4):
            await store.engine.prune()

        assert store.set_aside() == ["a-head", "d-head", "e-head"]
        store.delete("a-second")
        for _ in range(3):
            await store.engine.prune()
        assert "a-second" in store.set_aside()
