"""Records of jobs that were deleted or cut by hand: one costs one job, stops no other queue, and is reported."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis_server import RedisServer
from redis_stores import Store

from holdfast.engines.redis.engine import RedisEngine
from holdfast.model.instants import HOUR, SECOND
from holdfast.model.job import Given, JobKey, JobRecord
from holdfast.model.observe import Find, Get, Lanes, Prune, Stats
from holdfast.model.operate import Cancel, Clear, Pause, Pools, Resize, Resume
from holdfast.model.produce import Enqueue, Group, GroupAccepted, NewJob, Parent, PoolPlace
from holdfast.model.records import LaneRecord, WorkerRecord
from holdfast.model.states import JobState, Reason
from holdfast.model.work import (
    Claim,
    Exchange,
    Expired,
    Heartbeat,
    Lease,
    QueueClaim,
    Settlement,
    SettleStatus,
    TaskClaim,
)
from holdfast.runtime import SystemRuntime

TASKS = (TaskClaim(task="t", lease_len=60 * SECOND),)
QUEUES = ("q", "other")
FAILED = (JobState.FAILED, Reason.UNDECODABLE)
MISSING = "its stored record is missing"
DAMAGED = "its stored record was damaged; the bytes are kept"


class DamagedStore:
    """An open engine, and the hands of somebody who deletes and cuts records."""

    def __init__(self, engine: RedisEngine, server: RedisServer, root: str) -> None:
        self.engine, self.server, self.root = engine, server, root
        self.claims = 0
        self.problems: tuple[str, ...] = ()
        """What the audit says at the end."""

    async def put(self, *ids: str, queue: str = "q", **fields: Any) -> None:
        jobs = tuple(NewJob(queue=queue, id=id, task="t", payload=b"[1]", **fields) for id in ids)
        (answer,) = (await self.engine.perform(Enqueue(groups=(Group(jobs),)))).groups
        assert isinstance(answer, GroupAccepted)

    async def take(self, *queues: str) -> tuple[Lease, ...]:
        self.claims += 1
        wanted = tuple(QueueClaim(queue, TASKS) for queue in queues or QUEUES)
        claim = Claim(claim_id=f"c{self.claims}", worker="w", queues=wanted, limit=10)
        return (await self.engine.perform(Exchange(claim=claim))).leases

    async def settle(self, *leases: Lease) -> list[SettleStatus]:
        ends = tuple(
            Settlement(queue=one.queue, id=one.id, token=one.token, target=JobState.SUCCEEDED) for one in leases
        )
        return list((await self.engine.perform(Exchange(settlements=ends))).settled)

    async def work_off(self) -> list[str]:
        """Claim and settle ready jobs until there are none."""
        done: list[str] = []
        while leases := await self.take():
            assert {*await self.settle(*leases)} == {SettleStatus.APPLIED}
            done += [lease.id for lease in leases]
        return done

    async def get(self, id: str) -> JobRecord:
        (record,) = (await self.engine.perform(Get(jobs=(JobKey("q", id),)))).jobs
        assert record is not None
        return record

    async def lane(self) -> LaneRecord:
        return (await self.engine.perform(Lanes(queue="q"))).lanes[0]

    async def depth(self) -> int:
        return (await self.engine.perform(Stats(queues=("q",)))).queues[0].depth

    def delete(self, *ids: str) -> None:
        self.server.execute("HDEL", f"{self.root}jobs:q", *ids)

    def cut(self, id: str, length: int) -> bytes:
        """Keep the first bytes of a record."""
        raw: bytes = self.server.execute("HGET", f"{self.root}jobs:q", id)
        self.server.execute("HSET", f"{self.root}jobs:q", id, raw[:length])
        return raw[:length]


@pytest.fixture(params=[True, False], ids=["fast_paths", "rules"])
def damaged_store(
    request: pytest.FixtureRequest, redis_server: RedisServer, redis_store: Callable[[], Store]
) -> Callable[[], Any]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[DamagedStore]:
        """A store that is sound at the end of the block, but for the problems that it is told."""
        store = redis_store()
        engine = RedisEngine(
            store.url, SystemRuntime(), namespace=store.namespace, durability="none", fast_paths=request.param
        )
        await engine.open()
        damaged = DamagedStore(engine, redis_server, f"{store.namespace}:")
        yield damaged
        assert await engine.audit() == damaged.problems
        await engine.close()

    return opened


async def test_a_missing_waiting_record_stops_no_claim_and_is_reported(
    damaged_store: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with damaged_store() as store:
        await store.put("lost", "second")
        await store.put("elsewhere", queue="other")
        store.delete("lost")

        assert await store.work_off() == ["second", "elsewhere"]

        record = await store.get("lost")
        assert ((record.state, record.reason), record.note) == (FAILED, MISSING)
        assert (await store.depth(), (await store.engine.stats("q")).queues[0].totals.failed) == (0, 1)
    assert "Job lost of queue q: its stored record is missing." in caplog.messages


@pytest.mark.parametrize("fields", [{}, {"lane": "L"}, {"reply": "p"}, {"lane": "L", "expires": 2**52}], ids=str)
async def test_a_record_that_is_cut_anywhere_costs_one_job(
    damaged_store: Callable[[], Any], fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with damaged_store() as store:
        for length in range(0, 200, 2):
            await store.put(f"cut{length}", metadata={"a": "b"}, **fields)
            await store.put(f"second{length}", f"third{length}", **fields)
            await store.put(f"elsewhere{length}", queue="other")
            payload = len(b"[1]")
            raw = store.server.execute("HGET", f"{store.root}jobs:q", f"cut{length}")
            if length >= len(raw) - payload:
                break
            kept = store.cut(f"cut{length}", length)

            assert sorted(await store.work_off()) == sorted([f"second{length}", f"third{length}", f"elsewhere{length}"])

            record = await store.get(f"cut{length}")
            assert ((record.state, record.reason), record.note) == (FAILED, DAMAGED)
            assert store.server.execute("HGET", f"{store.root}damaged", f"q\0cut{length}") == kept
        await store.work_off()


async def test_a_cut_record_can_be_read(damaged_store: Callable[[], Any]) -> None:
    async with damaged_store() as store:
        await store.put("cut")
        store.cut("cut", 33)

        record = await store.get("cut")

        assert ((record.state, record.reason), record.note) == (FAILED, DAMAGED)
        assert await store.work_off() == []


@pytest.mark.parametrize("ids", [("head",), ("second",), ("third",), ("head", "second"), ("head", "second", "third")])
async def test_a_lane_with_missing_records_goes_on(damaged_store: Callable[[], Any], ids: tuple[str, ...]) -> None:
    async with damaged_store() as store:
        await store.put("head", "second", "third", lane="L")
        store.delete(*ids)

        assert await store.work_off() == [id for id in ("head", "second", "third") if id not in ids]

        lane = await store.lane()
        assert (lane.head, lane.depth, lane.totals.failed, await store.depth()) == (None, 0, len(ids), 0)


async def test_a_paused_head_that_is_missing_holds_no_resumed_lane(damaged_store: Callable[[], Any]) -> None:
    async with damaged_store() as store:
        await store.put("head", "second", lane="L")
        await store.engine.perform(Pause(queue="q", lane="L"))
        store.delete("head")

        await store.engine.perform(Resume(queue="q", lane="L"))

        assert await store.work_off() == ["second"]


async def test_the_next_enqueue_lets_a_lane_go_on_whose_head_is_missing(damaged_store: Callable[[], Any]) -> None:
    async with damaged_store() as store:
        await store.put("head", "second", lane="L")
        await store.engine.perform(Pause(queue="q", lane="L"))
        store.delete("head")

        await store.put("third", lane="L")

        assert ((await store.lane()).head, (await store.lane()).depth) == ("second", 2)


@pytest.mark.parametrize("lane", [None, "L"])
async def test_jobs_whose_records_are_missing_can_be_cleared_and_found(
    damaged_store: Callable[[], Any], lane: str | None
) -> None:
    async with damaged_store() as store:
        await store.put("first", "second", "third", "fourth", lane=lane)
        await store.put("late", delay=HOUR)
        store.delete("first", "third")
        store.cut("second", 20)

        found = await store.engine.perform(Find(queue="q", state=JobState.FAILED))
        assert found.jobs == ()  # nothing has met them yet
        assert (await store.engine.perform(Clear(queue="q", lane=lane))).count == (1 if lane else 2)

        found = await store.engine.perform(Find(queue="q", state=JobState.FAILED))
        assert {job.id for job in found.jobs} == {"first", "second", "third"}
        assert await store.work_off() == []


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.SCHEDULED, JobState.BLOCKED, JobState.SUCCEEDED])
async def test_a_search_passes_over_a_record_that_is_lost(
    damaged_store: Callable[[], Any], state: JobState, is_cut: bool
) -> None:
    async with damaged_store() as store:
        if state is JobState.BLOCKED:
            await store.put("head", lane="L")
        await store.put("lost", "there", lane="L" if state is JobState.BLOCKED else None)
        if state is JobState.SCHEDULED:
            await store.put("lost2", "there2", delay=HOUR)
        elif state is JobState.SUCCEEDED:
            await store.work_off()
        name = "2" if state is JobState.SCHEDULED else ""
        if is_cut:
            store.cut(f"lost{name}", 30)
        else:
            store.delete(f"lost{name}")

        found = await store.engine.perform(Find(queue="q", state=state))

        assert [job.id for job in found.jobs] == [f"there{name}"]
        await store.work_off()


@pytest.mark.parametrize("is_cut", [True, False])
async def test_a_running_job_whose_record_is_lost_stops_no_other_settlement(
    damaged_store: Callable[[], Any], is_cut: bool
) -> None:
    async with damaged_store() as store:
        await store.put("lost", "second", "third", lane="L")
        await store.put("plain", "other")
        leases = {lease.id: lease for lease in await store.take()}
        if is_cut:
            store.cut("lost", 60)
            store.cut("plain", 60)
        else:
            store.delete("lost", "plain")

        statuses = await store.settle(leases["lost"], leases["plain"], leases["other"])

        assert statuses == [SettleStatus.LOST if is_cut else SettleStatus.GONE] * 2 + [SettleStatus.APPLIED]
        store.engine.clock_offset = HOUR  # what was not met by its settlement is met when its lease has expired
        await store.engine.perform(Expired(worker="w"))
        assert await store.work_off() == ["second", "third"]
        assert (await store.get("plain")).reason is Reason.UNDECODABLE
        store.problems = ("the list of claims is not that of the records",)  # nothing says which claim took them


@pytest.mark.parametrize("fields", [{}, {"reply": "p"}], ids=str)
async def test_a_running_record_that_is_cut_anywhere_stops_no_other_settlement(
    damaged_store: Callable[[], Any], fields: dict[str, Any]
) -> None:
    async with damaged_store() as store:
        length, whole = 0, 1
        while length < whole:
            await store.put(f"cut{length}", f"other{length}", metadata={"a": "b"}, **fields)
            leases = await store.take()
            whole = len(store.server.execute("HGET", f"{store.root}jobs:q", f"cut{length}"))
            store.cut(f"cut{length}", length)

            _, status = await store.settle(*leases)

            assert status is SettleStatus.APPLIED, length
            await store.engine.get(JobKey("q", f"cut{length}"))
            length += 2
        store.problems = ("the list of claims is not that of the records",)  # nothing says which claim took them


async def test_the_end_of_a_missing_job_resolves_its_children(damaged_store: Callable[[], Any]) -> None:
    async with damaged_store() as store:
        await store.put("parent")
        await store.put("child", parents=(Parent(JobKey("q", "parent")),))
        await store.put("after", parents=(Parent(JobKey("q", "parent"), any_end=True),))
        store.delete("parent")

        assert await store.work_off() == ["after"]

        child = await store.get("child")
        assert (child.state, child.reason) == (JobState.CANCELLED, Reason.PARENT_FAILED)


async def test_an_ended_parent_whose_record_is_missing_still_releases_its_children(
    damaged_store: Callable[[], Any],
) -> None:
    async with damaged_store() as store:
        await store.put("parent")
        for part in range(3):
            parents = (Parent(JobKey("q", "parent")),)
            await store.put(*[f"{part}-{number}" for number in range(500)], parents=parents)
        (lease,) = await store.take()
        await store.settle(lease)  # it resolves 1,000 edges, and later calls the others
        store.delete("parent")

        assert len(await store.work_off()) == 1500


async def test_a_missing_child_does_not_keep_its_parent_from_ending(damaged_store: Callable[[], Any]) -> None:
    async with damaged_store() as store:
        await store.put("parent")
        await store.put("child", "second", parents=(Parent(JobKey("q", "parent")),))
        store.delete("child")

        assert await store.work_off() == ["parent", "second"]
        await store.engine.perform(Find(queue="q", state=JobState.BLOCKED))


async def test_a_missing_job_of_an_older_size_does_not_hold_up_a_pool(damaged_store: Callable[[], Any]) -> None:
    async with damaged_store() as store:
        await store.put("old", pool=PoolPlace(2, "k"))
        await store.engine.perform(Resize(name="q", lanes=3))
        await store.put("new", "lost", pool=PoolPlace(3, "k"))
        store.delete("old", "lost")

        assert await store.work_off() == ["new"]
        assert [pool.old_live for pool in (await store.engine.perform(Pools())).pools] == [0]
        await store.engine.perform(Find(queue="q", state=JobState.BLOCKED))


async def test_a_prune_passes_over_missing_records(damaged_store: Callable[[], Any]) -> None:
    async with damaged_store() as store:
        await store.put("late", expires=1, lane="L")
        await store.put("second", lane="L")
        await store.put("done", given=Given(retention=0, result_ttl=SECOND))
        await store.engine.perform(Cancel(queue="q", ids=("done",)))
        store.delete("late", "done")
        store.engine.clock_offset = HOUR

        await store.engine.perform(Prune())

        assert await store.work_off() == ["second"]


async def test_a_thousand_missing_records_are_repaired_by_one_claim(damaged_store: Callable[[], Any]) -> None:
    async with damaged_store() as store:
        await store.put(*map(str, range(1_000)))
        await store.put("there")
        store.delete(*map(str, range(1_000)))

        assert await store.work_off() == ["there"]

        assert (await store.engine.stats("q")).queues[0].totals.failed == 1_000


@pytest.mark.parametrize("kind", ["workers", "pools", "unfinished"])
async def test_a_small_record_that_is_cut_stops_no_call(damaged_store: Callable[[], Any], kind: str) -> None:
    async with damaged_store() as store:
        await store.put("there", "second", pool=PoolPlace(2, "k"))
        store.server.execute("HSET", f"{store.root}{kind}", "q", b"\x85\xa4ab")

        await store.engine.perform(Heartbeat(worker=WorkerRecord(worker="q")))
        await store.engine.perform(Prune())
        assert await store.work_off() == ["there", "second"]

        store.server.execute("HDEL", f"{store.root}{kind}", "q")


async def test_a_lane_whose_jobs_are_in_no_index_goes_on(damaged_store: Callable[[], Any]) -> None:
    async with damaged_store() as store:
        await store.put("head", "lost", lane="L")
        store.server.execute("DEL", f"{store.root}lane:q:L")
        store.delete("lost")
        store.server.execute("ZREM", f"{store.root}state:q:blocked", "lost")

        assert await store.work_off() == ["head"]

        lane = await store.lane()
        assert (lane.head, lane.depth, lane.totals.failed) == (None, 0, 1)
        store.server.execute("HSET", f"{store.root}queue:q", "blocked", 0)  # which nothing else says any more
