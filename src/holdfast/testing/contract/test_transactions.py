"""Enqueue and settle inside a user's transaction: they take effect with its commit, and block no other call before.

The examples need the capability `user_transactions` and the fixture `user_transaction`. Some of them also need
`concurrent_writers`: if the store has a single lock for writers, every other write waits for the open transaction.
"""

import asyncio

import pytest

from holdfast.model.produce import Enqueue, EnqueueStatus, Group, GroupAccepted
from holdfast.model.states import JobState
from holdfast.model.work import Exchange, RenewStatus, SettleStatus
from holdfast.testing.contract.bench import Bench, UserTransaction
from holdfast.testing.contract.builders import at_most, jobs, new_job, release, renewal, retry, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


class UserCodeError(Exception):
    """An exception of a user's code inside its transaction."""


def need_concurrent_writers(bench: Bench) -> None:
    if not bench.engine.capabilities.concurrent_writers:
        pytest.skip(
            f"not offered: on the {bench.engine.scheme} engine no other call writes while a transaction is open"
        )


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_job_appears_with_the_commit(bench: Bench, user_transaction: UserTransaction) -> None:
    async with user_transaction() as transaction:
        answer = await bench.engine.in_transaction(Enqueue(groups=(Group(jobs("a", "b")),)), transaction)
        assert await bench.get_or_none("a") is None, "the job is not committed"

    (group,) = answer.groups
    assert isinstance(group, GroupAccepted)
    assert [(job.position, job.depth) for job in group.jobs] == [(None, None), (None, None)]
    assert await bench.take_ids() == ["a", "b"]


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_rolled_back_transaction_creates_no_job(bench: Bench, user_transaction: UserTransaction) -> None:
    """E-Q24"""
    try:
        async with user_transaction() as transaction:
            await bench.engine.in_transaction(Enqueue(groups=(Group(jobs("a", "b", lane="lane")),)), transaction)
            raise UserCodeError
    except UserCodeError:
        pass

    assert await bench.get_or_none("a") is None
    assert (await bench.put_one(new_job("a"))).status is EnqueueStatus.CREATED
    assert await bench.take_ids() == ["a"]


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_lane_continues_while_a_transaction_with_an_enqueue_into_it_is_open(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    """Case 6"""
    need_concurrent_writers(bench)
    await bench.put(new_job("head", lane="lane"))
    head = await bench.take_one()
    async with user_transaction() as transaction:
        await bench.engine.in_transaction(Enqueue(groups=(Group((new_job("uncommitted", lane="lane"),)),)), transaction)
        async with asyncio.timeout(30):
            await bench.settle(succeed(head))
            await bench.put(new_job("other", lane="lane"))
            head_now = await bench.take_one()
        assert head_now.id == "other"

    assert await bench.take(10) == (), "the job `other` has the lane"
    await bench.settle(succeed(head_now))
    last = await bench.take_one()
    assert last.id == "uncommitted"
    await bench.settle(succeed(last))
    assert (await bench.lane("lane")).depth == 0


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_transaction_that_holds_a_key_blocks_no_enqueue_without_that_key(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    """Case 7"""
    need_concurrent_writers(bench)
    async with user_transaction() as transaction:
        await bench.engine.in_transaction(
            Enqueue(groups=(Group((new_job("uncommitted", unique_key="key"),)),)), transaction
        )
        async with asyncio.timeout(30):
            await asyncio.gather(*(bench.put(new_job(f"free-{number}")) for number in range(20)))
            await bench.put(new_job("keyed", unique_key="another"))
        second_call = asyncio.gather(bench.put_one(new_job("second", unique_key="key")))

    (answer,) = await second_call
    assert (answer.status, answer.id) == (EnqueueStatus.DUPLICATE, "uncommitted")
    assert len(await bench.take_ids()) == 22


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_committed_job_is_like_any_other(bench: Bench, user_transaction: UserTransaction) -> None:
    async with user_transaction() as transaction:
        await bench.engine.in_transaction(Enqueue(groups=(Group(jobs("a", "b", lane="lane")),)), transaction)

    for id in ("a", "b"):
        lease = await bench.take_one()
        assert (lease.id, lease.attempt) == (id, 1)
        await bench.settle(succeed(lease))
    assert (await bench.stats()).counts == {JobState.SUCCEEDED: 2}


@guarantee(Guarantee.TRANSACTIONS)
async def test_one_id_is_one_job_inside_a_transaction_too(bench: Bench, user_transaction: UserTransaction) -> None:
    await bench.put(new_job("a"))
    async with user_transaction() as transaction:
        answer = await bench.engine.in_transaction(
            Enqueue(
                groups=(
                    Group(jobs("a", "b")),
                    Group(jobs("b")),
                )
            ),
            transaction,
        )

    statuses = [job.status for group in answer.groups if isinstance(group, GroupAccepted) for job in group.jobs]
    assert statuses == [EnqueueStatus.DUPLICATE, EnqueueStatus.CREATED, EnqueueStatus.DUPLICATE]
    assert await bench.take_ids() == ["a", "b"]


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_refused_group_leaves_the_transaction_as_it_was(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    async with user_transaction() as transaction:
        await bench.engine.in_transaction(Enqueue(groups=(Group(jobs("a")),)), transaction)
        answer = await bench.engine.in_transaction(Enqueue(groups=(Group(jobs("b", "c"), at_most(2)),)), transaction)
        assert not isinstance(answer.groups[0], GroupAccepted)
        await bench.engine.in_transaction(Enqueue(groups=(Group(jobs("d")),)), transaction)

    assert await bench.take_ids() == ["a", "d"]


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_job_ends_with_the_commit(bench: Bench, user_transaction: UserTransaction) -> None:
    await bench.put(*jobs("a", "b", lane="lane"))
    lease = await bench.take_one()
    async with user_transaction() as transaction:
        answer = await bench.engine.in_transaction(Exchange(settlements=(succeed(lease, b"done"),)), transaction)
        assert answer.settled == (SettleStatus.APPLIED,)
        assert await bench.state("a") is JobState.RUNNING, "the settlement is not committed"

    job = await bench.get("a")
    assert (job.state, job.result) == (JobState.SUCCEEDED, b"done")
    assert await bench.take_ids() == ["b"], "the next job of its lane is ready"


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_rolled_back_settlement_leaves_the_lease_with_its_owner(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    await bench.put(new_job("a"))
    lease = await bench.take_one()
    try:
        async with user_transaction() as transaction:
            await bench.engine.in_transaction(Exchange(settlements=(succeed(lease),)), transaction)
            raise UserCodeError
    except UserCodeError:
        pass

    assert await bench.state("a") is JobState.RUNNING
    assert await bench.settle(retry(lease)) is SettleStatus.APPLIED
    assert (await bench.take_one()).attempt == 2


@guarantee(Guarantee.TRANSACTIONS)
async def test_after_the_commit_the_owners_own_settlement_changes_nothing(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    await bench.put(new_job("a"))
    lease = await bench.take_one()
    async with user_transaction() as transaction:
        await bench.engine.in_transaction(Exchange(settlements=(succeed(lease, b"done"),)), transaction)

    assert await bench.settle(retry(lease)) is SettleStatus.APPLIED
    job = await bench.get("a")
    assert (job.state, job.result) == (JobState.SUCCEEDED, b"done")


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_settlement_is_not_applied_again_inside_another_transaction(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    """Otherwise the effects of both transactions would be committed."""
    await bench.put(*jobs("a", "b"))
    ended, released = await bench.take(2)
    async with user_transaction() as transaction:
        await bench.engine.in_transaction(Exchange(settlements=(succeed(ended),)), transaction)
    await bench.settle(release(released))

    async with user_transaction() as transaction:
        answer = await bench.engine.in_transaction(
            Exchange(
                settlements=(
                    succeed(ended),
                    succeed(released),
                )
            ),
            transaction,
        )
    assert answer.settled == (SettleStatus.LOST, SettleStatus.LOST)
    assert await bench.states("a", "b") == [JobState.SUCCEEDED, JobState.QUEUED]


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_late_settlement_inside_a_transaction_is_refused(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    await bench.put(new_job("a"))
    lease = await bench.take_one()
    await bench.lose(lease)
    current = await bench.take_one()
    async with user_transaction() as transaction:
        assert (await bench.engine.in_transaction(Exchange(settlements=(succeed(lease),)), transaction)).settled == (
            SettleStatus.LOST,
        )

    assert (await bench.get("a")).token == current.token


@guarantee(Guarantee.TRANSACTIONS)
async def test_settlement_and_enqueue_in_one_transaction_are_atomic(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    await bench.put(new_job("a"))
    lease = await bench.take_one()
    try:
        async with user_transaction() as transaction:
            await bench.engine.in_transaction(Enqueue(groups=(Group(jobs("next")),)), transaction)
            await bench.engine.in_transaction(Exchange(settlements=(succeed(lease),)), transaction)
            raise UserCodeError
    except UserCodeError:
        pass
    assert (await bench.state("a"), await bench.get_or_none("next")) == (JobState.RUNNING, None)

    async with user_transaction() as transaction:
        await bench.engine.in_transaction(Enqueue(groups=(Group(jobs("next")),)), transaction)
        await bench.engine.in_transaction(Exchange(settlements=(succeed(lease),)), transaction)
    assert await bench.states("a", "next") == [JobState.SUCCEEDED, JobState.QUEUED]


# G8
@guarantee(Guarantee.TRANSACTIONS)
async def test_a_settlement_of_a_locked_job_is_busy_and_the_rest_of_the_exchange_is_done(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    """A handler has returned, and has left the transaction open in which it completed its job."""
    need_concurrent_writers(bench)
    await bench.put(*jobs("a", "b", "c"), *jobs("d", "e", lane="lane"))
    locked, plain, other, in_lane = await bench.take(4)
    try:
        async with user_transaction() as transaction, asyncio.timeout(20):
            await bench.engine.in_transaction(Exchange(settlements=(succeed(locked),)), transaction)
            answer = await bench.engine.exchange((retry(locked), succeed(plain), retry(other), succeed(in_lane)))
            assert answer.settled == (SettleStatus.BUSY, *[SettleStatus.APPLIED] * 3)
            raise UserCodeError
    except UserCodeError:
        pass

    ended = [JobState.RUNNING, JobState.SUCCEEDED, JobState.RETRYING, JobState.SUCCEEDED]
    assert await bench.states("a", "b", "c", "d") == ended
    assert await bench.settle(retry(locked)) is SettleStatus.APPLIED, "sent again, it is applied"


# T9
@guarantee(Guarantee.TRANSACTIONS)
async def test_the_lease_of_a_locked_job_is_not_extended_and_the_answer_says_so(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    need_concurrent_writers(bench)
    await bench.put(*jobs("a", "b"))
    locked, free = await bench.take(2)
    async with user_transaction() as transaction, asyncio.timeout(20):
        await bench.engine.in_transaction(Exchange(settlements=(succeed(locked),)), transaction)
        answer = await bench.engine.renew(renewal(locked), renewal(free))

    assert [job.status for job in answer.jobs] == [RenewStatus.BUSY, RenewStatus.HELD]
    assert answer.jobs[0].lease_expires == locked.lease_expires
