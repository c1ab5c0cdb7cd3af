"""A user's transaction that stays open: no other call waits for it, except for its own ids and keys.

The examples need the capability `user_transactions` and the fixture `user_transaction`. Those that call the engine
while the transaction is open also need `concurrent_writers`.
"""

import asyncio
from typing import Any

from holdfast.model.job import Given
from holdfast.model.operate import Cancel, PutPool
from holdfast.model.produce import (
    DepthLimit,
    Enqueue,
    EnqueueStatus,
    Group,
    GroupAccepted,
    GroupAnswer,
    GroupFull,
    NewJob,
    PoolPlace,
)
from holdfast.model.states import JobState
from holdfast.model.work import Exchange
from holdfast.testing.contract.bench import Bench, UserTransaction
from holdfast.testing.contract.builders import after, at_most, fail, jobs, new_job, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee
from holdfast.testing.contract.test_transactions import need_concurrent_writers

TIMEOUT_S = 20.0
"""A call that waits for no lock is answered in milliseconds. One that does would wait for the end of the test."""


async def offer_in(bench: Bench, transaction: object, *new: NewJob, limits: tuple[DepthLimit, ...] = ()) -> GroupAnswer:
    """Enqueue one group in a user's transaction."""
    answer = await bench.engine.in_transaction(Enqueue(groups=(Group(new, limits),)), transaction)
    return answer.groups[0]


async def settle_in(bench: Bench, transaction: object, *settlements: Any) -> None:
    await bench.engine.in_transaction(Exchange(settlements=settlements), transaction)


# --- Locks ---


# PF5
@guarantee(Guarantee.TRANSACTIONS)
async def test_an_id_whose_end_is_not_processed_is_replaced_and_no_call_waits(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    need_concurrent_writers(bench)
    await bench.put(*jobs("a", "b", lane="lane"))
    await bench.put(new_job("child", parents=after("a", any_end=True)))
    lease = await bench.take_one()
    async with user_transaction() as transaction:
        await settle_in(bench, transaction, fail(lease))
    async with user_transaction() as transaction:
        answer = await offer_in(bench, transaction, new_job("a", lane="lane"))
        assert isinstance(answer, GroupAccepted)
        assert answer.jobs[0].generation == 1
        async with asyncio.timeout(TIMEOUT_S):
            assert sorted(await bench.take_ids()) == ["b", "child"], "the lane and the child continue"
            await bench.put(new_job("c", lane="lane"))

    assert (await bench.lane("lane")).depth in (2, 3)
    assert await bench.take_ids() == [], "`b` has the lane"
    assert (await bench.lane("lane")).depth == 3


# PF5
@guarantee(Guarantee.TRANSACTIONS)
async def test_children_of_a_replaced_job_get_its_end_after_the_commit(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    await bench.put(new_job("a"), new_job("b", parents=after("a")), new_job("c", parents=after("a", any_end=True)))
    lease = await bench.take_one()
    async with user_transaction() as transaction:
        await settle_in(bench, transaction, fail(lease))
        answer = await offer_in(bench, transaction, new_job("a", delay=1_000_000_000))
        assert isinstance(answer, GroupAccepted)
        assert answer.jobs[0].status is EnqueueStatus.CREATED

    assert await bench.take_ids() == ["c"]
    assert await bench.states("a", "b") == [JobState.SCHEDULED, JobState.CANCELLED]


# PF5
@guarantee(Guarantee.TRANSACTIONS)
async def test_a_limit_in_an_open_transaction_delays_no_other_producer(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    need_concurrent_writers(bench)
    async with user_transaction() as transaction:
        await offer_in(bench, transaction, new_job("a"), limits=at_most(1))
        async with asyncio.timeout(TIMEOUT_S):
            await bench.put(new_job("b"), limits=at_most(1))

    assert await bench.take_ids() == ["a", "b"], "the limit is exceeded by what was not committed"
    assert isinstance(await bench.offer(new_job("c"), limits=at_most(2)), GroupFull)


# PF5
@guarantee(Guarantee.TRANSACTIONS)
async def test_the_first_job_of_a_pool_in_an_open_transaction_delays_no_other_pool(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    need_concurrent_writers(bench)
    async with user_transaction() as transaction:
        await offer_in(bench, transaction, new_job("a", queue="pool", pool=PoolPlace(2, "key")))
        async with asyncio.timeout(TIMEOUT_S):
            await bench.put(new_job("b", queue="other", pool=PoolPlace(3)))
            await bench.engine.resize("third", 2)

    assert not (await bench.engine.perform(PutPool(name="pool", lanes=9))).changed, "its first job has declared it"
    assert await bench.take_ids(queue="pool") == ["a"]
    assert {pool.name: pool.lanes for pool in (await bench.engine.pools()).pools} == {"other": 3, "pool": 2, "third": 2}


# PF5
@guarantee(Guarantee.TRANSACTIONS)
async def test_a_job_that_is_replaced_with_another_key_does_not_lock_its_old_key(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    need_concurrent_writers(bench)
    await bench.put(new_job("a", unique_key="old"))
    await bench.engine.perform(Cancel(queue=new_job().queue, ids=("a",)))
    async with user_transaction() as transaction:
        await offer_in(bench, transaction, new_job("a", unique_key="new"))
        async with asyncio.timeout(TIMEOUT_S):
            assert (await bench.put_one(new_job("b", unique_key="old"))).status is EnqueueStatus.CREATED

    assert (await bench.put_one(new_job("c", unique_key="old"))).id == "b"
    assert (await bench.put_one(new_job("d", unique_key="new"))).id == "a"


# PF5
@guarantee(Guarantee.TRANSACTIONS)
async def test_a_claim_admits_a_child_whose_parent_is_locked_by_an_open_transaction(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    need_concurrent_writers(bench)
    await bench.put(new_job("parent"))
    lease = await bench.take_one()
    async with user_transaction() as transaction:
        await offer_in(bench, transaction, new_job("child", parents=after("parent"), lane="lane"))
    async with user_transaction() as transaction:
        await settle_in(bench, transaction, succeed(lease))
        async with asyncio.timeout(TIMEOUT_S):
            assert await bench.take_ids() == []
            await bench.put(new_job("other", lane="lane"))
            assert await bench.take_ids() == [], "the child has the lane"

    assert await bench.take_ids() == ["child"]


# --- Limits ---


# E6, E8, PF5
@guarantee(Guarantee.TRANSACTIONS)
async def test_a_limit_on_a_lane_counts_the_jobs_of_the_transaction(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    await bench.put(new_job("a", lane="lane"))
    limits = at_most(2, lane="lane")
    async with user_transaction() as transaction:
        assert isinstance(await offer_in(bench, transaction, new_job("b", lane="lane"), limits=limits), GroupAccepted)
        answer = await offer_in(bench, transaction, new_job("c", lane="lane"), limits=limits)
        assert answer == GroupFull(new_job().queue, "lane", 2, 2)
        assert isinstance(await offer_in(bench, transaction, new_job("d", lane="free"), limits=limits), GroupAccepted)

    assert sorted(await bench.take_ids()) == ["a", "d"]
    assert isinstance(await bench.offer(new_job("c", lane="lane"), limits=limits), GroupFull)


# E6, E8, PF5
@guarantee(Guarantee.TRANSACTIONS)
async def test_a_limit_on_every_lane_counts_the_pool_jobs_of_the_transaction(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    limits = (DepthLimit("pool", 1, each_lane=True),)
    await bench.engine.perform(PutPool(name="pool", lanes=2))
    async with user_transaction() as transaction:
        answers = [
            await offer_in(bench, transaction, new_job(id, queue="pool", pool=PoolPlace(2, key)), limits=limits)
            for id, key in (("a", "key"), ("b", "key"))
        ]
    assert [type(answer) for answer in answers] == [GroupAccepted, GroupFull]
    limits = (DepthLimit("turns", 1, each_lane=True),)
    await bench.engine.perform(PutPool(name="turns", lanes=2))
    async with user_transaction() as transaction:
        answers = [
            await offer_in(bench, transaction, new_job(id, queue="turns", pool=PoolPlace(2)), limits=limits)
            for id in ("a", "b", "c")
        ]
    assert [type(answer) for answer in answers] == [GroupAccepted, GroupAccepted, GroupFull]
    assert [lease.lane for lease in await bench.take(9, queue="turns")] == ["0", "1"]


# O2
@guarantee(Guarantee.TRANSACTIONS)
async def test_in_a_transaction_too_a_job_without_a_key_takes_the_next_lane_that_has_room(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    await bench.put(new_job("a", queue="pool", pool=PoolPlace(3, "k")))
    lane = int((await bench.get("a", "pool")).lane or "")
    limits = (DepthLimit("pool", 1, each_lane=True),)
    async with user_transaction() as transaction:
        for id in "bc":
            await offer_in(bench, transaction, new_job(id, queue="pool", pool=PoolPlace(3)), limits=limits)
        answer = await offer_in(bench, transaction, new_job("d", queue="pool", pool=PoolPlace(3)), limits=limits)

    assert isinstance(answer, GroupFull)
    await bench.take_ids(queue="pool")
    others = [str(other) for other in range(3) if other != lane]
    assert [(await bench.get(id, "pool")).lane for id in "bc"] == others


# --- Order ---


# L2, L3, O2
@guarantee(Guarantee.TRANSACTIONS)
async def test_a_job_does_not_overtake_the_many_that_a_transaction_brought_to_its_lane(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    """More of them than one call admits."""
    in_front = jobs(*(f"front-{number}" for number in range(1_500)), lane="front")
    keyed = new_job("keyed", pool=PoolPlace(3, "key"))
    async with user_transaction() as transaction:
        await offer_in(bench, transaction, *in_front, new_job("first", lane="lane"), keyed)

    assert (await bench.put_one(new_job("second", lane="lane"))).position == 1
    assert (await bench.put_one(new_job("third", pool=PoolPlace(3, "key")))).position == 1
    assert sorted(await bench.take_ids()) == ["first", "front-0", "keyed"]


# --- Parents ---


# P10
@guarantee(Guarantee.TRANSACTIONS)
async def test_a_parent_that_succeeds_and_is_gone_before_the_commit_counts_as_ended(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    need_concurrent_writers(bench)
    await bench.put(new_job("parent", given=Given(result_ttl=0, retention=0)))
    lease = await bench.take_one()
    async with user_transaction() as transaction:
        await offer_in(bench, transaction, new_job("child", parents=after("parent")))
        async with asyncio.timeout(TIMEOUT_S):
            await bench.settle(succeed(lease))
        assert await bench.get_or_none("parent") is None

    assert await bench.take_ids() == ["child"]


# P10
@guarantee(Guarantee.TRANSACTIONS)
async def test_a_child_waits_for_the_job_that_its_parents_id_named_at_the_call(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    need_concurrent_writers(bench)
    await bench.put(new_job("parent", given=Given(result_ttl=0)))
    lease = await bench.take_one()
    async with user_transaction() as transaction:
        await offer_in(bench, transaction, new_job("child", parents=after("parent")))
        async with asyncio.timeout(TIMEOUT_S):
            await bench.settle(succeed(lease))
            assert (await bench.put_one(new_job("parent"))).generation == 1

    first, second = await bench.take(9)
    assert {first.id, second.id} == {"parent", "child"}, "the child does not wait for the next job of that id"


# P2, P3, P10
@guarantee(Guarantee.TRANSACTIONS)
async def test_a_parent_that_had_ended_at_the_call_is_not_waited_for(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    await bench.put(*jobs("good", "bad"))
    good, bad = await bench.take(2)
    await bench.settle(succeed(good))
    await bench.settle(fail(bad))
    async with user_transaction() as transaction:
        await offer_in(bench, transaction, new_job("a", parents=after("good")))
        await offer_in(bench, transaction, new_job("b", parents=after("bad")))
        await offer_in(bench, transaction, new_job("c", parents=after("bad", any_end=True)))
        await offer_in(bench, transaction, new_job("d", lane="lane"), new_job("e", parents=after("d")))

    assert sorted(await bench.take_ids()) == ["a", "c", "d"]
    assert await bench.states("b", "e") == [JobState.CANCELLED, JobState.BLOCKED]
