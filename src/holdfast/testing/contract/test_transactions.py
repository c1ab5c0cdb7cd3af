"""Enqueue and settle inside a transaction of the user's: with its commit or not at all, in nobody's way meanwhile.

These need the capability `user_transactions` and the fixture `user_transaction`. Two of them also need
`concurrent_writers`: where a single lock lets one transaction write at a time, nobody else can go on meanwhile.
"""

import asyncio

import pytest

from holdfast.model.produce import Enqueue, EnqueueStatus, Group, GroupAccepted
from holdfast.model.states import JobState
from holdfast.model.work import Exchange, SettleStatus
from holdfast.testing.contract.bench import Bench, UserTransaction
from holdfast.testing.contract.builders import at_most, jobs, new_job, release, retry, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


class ChangedMyMind(Exception):
    """What a user's code may raise inside its transaction."""


def need_concurrent_writers(bench: Bench) -> None:
    if not bench.engine.capabilities.concurrent_writers:
        pytest.skip(f"not offered: on the {bench.engine.scheme} engine nobody writes while a transaction is open")


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_job_appears_with_the_commit(bench: Bench, user_transaction: UserTransaction) -> None:
    async with user_transaction() as transaction:
        answer = await bench.engine.in_transaction(Enqueue(groups=(Group(jobs("a", "b")),)), transaction)
        assert await bench.find("a") is None, "nobody sees what is not committed"

    (group,) = answer.groups
    assert isinstance(group, GroupAccepted)
    assert [(job.position, job.depth) for job in group.jobs] == [(None, None), (None, None)]
    assert await bench.take_ids() == ["a", "b"]


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_job_of_a_transaction_rolled_back_never_was(bench: Bench, user_transaction: UserTransaction) -> None:
    """E-Q24"""
    try:
        async with user_transaction() as transaction:
            await bench.engine.in_transaction(Enqueue(groups=(Group(jobs("a", "b", lane="lane")),)), transaction)
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
    need_concurrent_writers(bench)
    await bench.put(new_job("head", lane="lane"))
    head = await bench.take_one()
    async with user_transaction() as transaction:
        await bench.engine.in_transaction(Enqueue(groups=(Group((new_job("held", lane="lane"),)),)), transaction)
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
    need_concurrent_writers(bench)
    async with user_transaction() as transaction:
        await bench.engine.in_transaction(Enqueue(groups=(Group((new_job("held", unique_key="key"),)),)), transaction)
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
        assert await bench.state("a") is JobState.RUNNING, "nobody sees what is not committed"

    job = await bench.look("a")
    assert (job.state, job.result) == (JobState.SUCCEEDED, b"done")
    assert await bench.take_ids() == ["b"], "its lane goes on"


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_settlement_rolled_back_leaves_the_job_in_its_owners_hands(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    await bench.put(new_job("a"))
    lease = await bench.take_one()
    try:
        async with user_transaction() as transaction:
            await bench.engine.in_transaction(Exchange(settlements=(succeed(lease),)), transaction)
            raise ChangedMyMind
    except ChangedMyMind:
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
    job = await bench.look("a")
    assert (job.state, job.result) == (JobState.SUCCEEDED, b"done")


@guarantee(Guarantee.TRANSACTIONS)
async def test_a_settlement_is_not_applied_again_inside_another_transaction(
    bench: Bench, user_transaction: UserTransaction
) -> None:
    """Or the effects of both transactions would be committed."""
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

    assert (await bench.look("a")).token == current.token


@guarantee(Guarantee.TRANSACTIONS)
async def test_end_and_follow_up_are_one(bench: Bench, user_transaction: UserTransaction) -> None:
    await bench.put(new_job("a"))
    lease = await bench.take_one()
    try:
        async with user_transaction() as transaction:
            await bench.engine.in_transaction(Enqueue(groups=(Group(jobs("next")),)), transaction)
            await bench.engine.in_transaction(Exchange(settlements=(succeed(lease),)), transaction)
            raise ChangedMyMind
    except ChangedMyMind:
        pass
    assert (await bench.state("a"), await bench.find("next")) == (JobState.RUNNING, None)

    async with user_transaction() as transaction:
        await bench.engine.in_transaction(Enqueue(groups=(Group(jobs("next")),)), transaction)
        await bench.engine.in_transaction(Exchange(settlements=(succeed(lease),)), transaction)
    assert await bench.states("a", "next") == [JobState.SUCCEEDED, JobState.QUEUED]
