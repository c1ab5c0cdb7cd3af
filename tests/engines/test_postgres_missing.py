"""Rows of jobs that were deleted by hand: their lanes go on, and the log reports it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from eventually import eventually
from postgres import PostgresServer
from postgres_stock import Store
from postgres_stories import Stores, opened

from holdfast.engines.postgres.engine import PostgresEngine
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.produce import Group, GroupAccepted, NewJob, Parent, PoolPlace
from holdfast.model.records import LaneRecord
from holdfast.model.states import JobState, Reason
from holdfast.model.work import Claim, Lease, QueueClaim, Settlement, SettleStatus, TaskClaim

QUEUE = "q"


class HandledStore:
    """An open engine, and somebody who deletes rows."""

    def __init__(self, engine: PostgresEngine, server: PostgresServer, namespace: str) -> None:
        self.engine, self.server, self.namespace = engine, server, namespace
        self.claims = 0

    async def put(self, *ids: str, **fields: Any) -> None:
        jobs = tuple(NewJob(queue=QUEUE, id=id, task="t", **fields) for id in ids)
        (answer,) = (await self.engine.enqueue(Group(jobs))).groups
        assert isinstance(answer, GroupAccepted)

    async def take(self) -> tuple[Lease, ...]:
        self.claims += 1
        queues = (QueueClaim(QUEUE, (TaskClaim(task="t", lease_len=30 * SECOND),)),)
        return (await self.engine.claim(Claim(claim_id=f"c{self.claims}", worker="w", queues=queues, limit=10))).leases

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

    async def get(self, id: str) -> JobRecord:
        record = (await self.engine.get(JobKey(QUEUE, id))).jobs[0]
        assert record is not None
        return record

    async def lane(self) -> LaneRecord:
        (lane,) = (await self.engine.lanes(QUEUE, "L")).lanes
        return lane

    async def depth(self) -> int:
        return (await self.engine.stats(QUEUE)).queues[0].depth

    def delete(self, *ids: str) -> None:
        self.server.execute(f"DELETE FROM {self.namespace}.job WHERE id = ANY (%s)", list(ids))


@pytest.fixture
def handled_store(postgres_server: PostgresServer, postgres_store: Stores) -> Callable[[], Any]:
    @asynccontextmanager
    async def opened_store() -> AsyncIterator[HandledStore]:
        """A store that is sound at the end of the block."""
        store: Store = postgres_store()
        async with opened(store) as engine:
            yield HandledStore(engine, postgres_server, store.namespace)
            assert await engine.audit() == ()

    return opened_store


# PR3
@pytest.mark.parametrize("ids", [("head",), ("head", "second"), ("head", "third"), ("head", "second", "third")])
async def test_a_prune_lets_a_lane_go_on_whose_head_is_missing(
    handled_store: Callable[[], Any], ids: tuple[str, ...]
) -> None:
    async with handled_store() as store:
        await store.put("head", "second", "third", lane="L")
        store.delete(*ids)
        assert await store.take() == ()

        await store.engine.prune()

        left = [id for id in ("head", "second", "third") if id not in ids]
        assert (await store.lane()).depth == await store.depth() == len(left)
        assert await store.work_off() == left
        assert (await store.lane()).totals.failed == len(ids)


async def test_a_missing_head_is_counted_logged_and_among_the_dead(
    handled_store: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with handled_store() as store:
        await store.put("head", "second", lane="L")
        store.delete("head")

        await store.engine.prune()

        record = await store.get("head")
        assert (record.state, record.reason, record.note) == (
            JobState.FAILED,
            Reason.UNDECODABLE,
            "its stored record is missing",
        )
        assert (await store.engine.stats(QUEUE)).queues[0].totals.failed == 1
        message = "Job head of queue q, the head of lane L: its stored record is missing."
        await eventually(lambda: message in caplog.messages, "a line of the log")


async def test_missing_jobs_behind_the_head_do_not_stop_the_last_one(
    handled_store: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with handled_store() as store:
        await store.put("head", "second", "third", "fourth", lane="L")
        store.delete("second", "fourth")

        assert await store.work_off() == ["head", "third"]

        lane = await store.lane()
        assert (lane.head, lane.depth, lane.totals.failed, await store.depth()) == (None, 0, 2, 0)
        message = "Lane L of queue q: 2 waiting jobs are missing from the store."
        await eventually(lambda: message in caplog.messages, "a line of the log")


@pytest.mark.parametrize("lane", ["L", None])
async def test_a_lane_whose_head_is_missing_can_be_cleared(handled_store: Callable[[], Any], lane: str | None) -> None:
    async with handled_store() as store:
        await store.put("head", "second", lane="L")
        store.delete("head")

        assert (await store.engine.clear(QUEUE, lane)).count == 1

        await store.put("third", lane="L")
        assert await store.work_off() == ["third"]


async def test_a_head_whose_id_belongs_to_another_job_is_only_counted(handled_store: Callable[[], Any]) -> None:
    async with handled_store() as store:
        await store.put("head", "second", lane="L")
        store.delete("head")
        await store.put("head")

        await store.engine.prune()

        assert sorted(await store.work_off()) == ["head", "second"]
        assert (await store.lane()).totals.failed == 1


async def test_the_end_of_a_missing_head_resolves_its_children(handled_store: Callable[[], Any]) -> None:
    async with handled_store() as store:
        await store.put("head", lane="L")
        await store.put("child", parents=(Parent(JobKey(QUEUE, "head")),))
        await store.put("after", parents=(Parent(JobKey(QUEUE, "head"), any_end=True),))
        store.delete("head")

        await store.engine.prune()

        assert await store.work_off() == ["after"]
        child = await store.get("child")
        assert (child.state, child.reason) == (JobState.CANCELLED, Reason.PARENT_FAILED)


async def test_a_missing_job_of_an_older_size_does_not_hold_up_a_pool(handled_store: Callable[[], Any]) -> None:
    async with handled_store() as store:
        await store.put("old", pool=PoolPlace(2, "k"))
        await store.engine.resize(QUEUE, 3)
        await store.put("new", pool=PoolPlace(3, "k"))
        store.delete("old")

        await store.engine.prune()

        assert await store.work_off() == ["new"]
        assert [pool.old_live for pool in (await store.engine.pools()).pools] == [0]


async def test_prunes_look_at_every_lane_in_turn(handled_store: Callable[[], Any]) -> None:
    async with handled_store() as store:
        for part in range(11):
            lanes = [NewJob(queue=QUEUE, id=f"{part}-{n}", task="t", lane=f"{part:02}-{n:03}") for n in range(100)]
            await store.engine.enqueue(Group(tuple(lanes)))
        store.delete("0-0", "10-99")

        await store.engine.prune()
        assert (await store.engine.get(JobKey(QUEUE, "10-99"))).jobs == (None,)
        await store.engine.prune()

        assert {(await store.get(id)).state for id in ("0-0", "10-99")} == {JobState.FAILED}
