"""Enqueue inside a transaction of the user's: with its commit or not at all, and in nobody's way meanwhile.

These need the capability `joins_transactions` and the fixture `user_transaction`.
"""

import asyncio

from holdfast.model.produce import EnqueueStatus, Group, GroupAccepted
from holdfast.model.states import JobState
from holdfast.testing.contract.bench import Bench, UserTransaction
from holdfast.testing.contract.builders import jobs, new_job, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


class ChangedMyMind(Exception):
    """What a user's code may raise inside its transaction."""


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_job_appears_with_the_commit(bench: Bench, user_transaction: UserTransaction) -> None:
    async with user_transaction() as transaction:
        answer = await bench.engine.enqueue(Group(jobs("a", "b")), join=transaction)
        assert await bench.take(10) == (), "nobody sees what is not committed"

    (group,) = answer.groups
    assert isinstance(group, GroupAccepted)
    assert [(job.position, job.depth) for job in group.jobs] == [(None, None), (None, None)]
    assert await bench.take_ids() == ["a", "b"]


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_job_of_a_transaction_rolled_back_never_was(bench: Bench, user_transaction: UserTransaction) -> None:
    """E-Q24"""
    try:
        async with user_transaction() as transaction:
            await bench.engine.enqueue(Group(jobs("a", "b", lane="lane")), join=transaction)
            raise ChangedMyMind
    except ChangedMyMind:
        pass

    assert await bench.find("a") is None
    assert (await bench.put_one(new_job("a"))).status is EnqueueStatus.CREATED
    assert await bench.take_ids() == ["a"]


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_lane_goes_on_while_a_transaction_holds_an_enqueue_into_it(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    """Case 6"""
    await bench.put(new_job("head", lane="lane"))
    head = await bench.take_one()
    async with user_transaction() as transaction:
        await bench.engine.enqueue(Group((new_job("held", lane="lane"),)), join=transaction)
        async with asyncio.timeout(30):
            await bench.settle(succeed(head))
            await bench.put(new_job("other", lane="lane"))
            next_up = await bench.take_one()
        assert next_up.id == "other"

    assert await bench.take(10) == (), "the lane is taken"
    await bench.settle(succeed(next_up))
    last = await bench.take_one()
    assert last.id == "held"
    await bench.settle(succeed(last))
    assert (await bench.lane("lane")).depth == 0


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_transaction_that_holds_a_key_stops_nobody_without_that_key(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    """Case 7"""
    async with user_transaction() as transaction:
        await bench.engine.enqueue(Group((new_job("held", unique_key="key"),)), join=transaction)
        async with asyncio.timeout(30):
            await asyncio.gather(*(bench.put(new_job(f"free-{number}")) for number in range(20)))
            await bench.put(new_job("keyed", unique_key="another"))
        rival = asyncio.gather(bench.put_one(new_job("rival", unique_key="key")))

    (answer,) = await rival
    assert (answer.status, answer.id) == (EnqueueStatus.DUPLICATE, "held")
    assert len(await bench.take_ids()) == 22


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_committed_job_is_like_any_other(bench: Bench, user_transaction: UserTransaction) -> None:
    async with user_transaction() as transaction:
        await bench.engine.enqueue(Group(jobs("a", "b", lane="lane")), join=transaction)

    for id in ("a", "b"):
        lease = await bench.take_one()
        assert (lease.id, lease.attempt) == (id, 1)
        await bench.settle(succeed(lease))
    assert (await bench.stats()).counts == {JobState.SUCCEEDED: 2}
