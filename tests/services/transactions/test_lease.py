"""A lease of your own that is completed inside your transaction."""

from typing import Any

import pytest
from user_transactions import (
    OpenAsync,
    OpenBlocking,
    RolledBack,
    Store,
    each_async_driver,
    each_driver,
)

from holdfast import App, JobState, LeaseLost, UsageError
from holdfast.lease import Lease
from holdfast.queue import Queue


@pytest.fixture
def scans(jobs: App[Any]) -> Queue[str]:
    return jobs.queue("scans", str)


def one(scans: Queue[str]) -> Lease[str]:
    scans.enqueue("x", id="a")
    (lease,) = scans.claim()
    return lease


def state(jobs: App[Any]) -> JobState:
    return jobs.control.get("a", queue="scans").state


@each_driver
def test_it_is_completed_by_the_commit(
    jobs: App[Any], scans: Queue[str], store: Store, open_transaction: OpenBlocking
) -> None:
    lease = one(scans)
    with open_transaction(store) as given:
        given.write("scanned")
        lease.complete("clean", transaction=given.transaction)
        assert state(jobs) is JobState.RUNNING
        assert lease.settled
    assert (state(jobs), store.effects()) == (JobState.SUCCEEDED, {"scanned": 1})
    assert jobs.client.handle("a", queue="scans").result() == "clean"


@each_async_driver
async def test_it_is_completed_by_an_awaited_commit(
    store: Store, jobs: App[Any], scans: Queue[str], open_transaction: OpenAsync
) -> None:
    await scans.aenqueue("x", id="a")
    (lease,) = await scans.aclaim()
    async with lease, open_transaction(store) as given:
        await given.write("scanned")
        await lease.acomplete("clean", transaction=given.transaction)
    assert (await jobs.control.aget("a", queue="scans")).state is JobState.SUCCEEDED
    await jobs.aclose()
    assert store.effects() == {"scanned": 1}


@each_driver
def test_after_a_rollback_it_is_tried_again_at_once(
    jobs: App[Any], scans: Queue[str], store: Store, open_transaction: OpenBlocking
) -> None:
    try:
        with one(scans) as lease, open_transaction(store) as given:
            given.write("scanned")
            lease.complete("clean", transaction=given.transaction)
            raise RolledBack
    except RolledBack:
        pass
    assert (state(jobs), store.effects()) == (JobState.RETRYING, {})


@each_driver
def test_a_lease_block_may_end_before_the_transaction(
    jobs: App[Any], scans: Queue[str], store: Store, open_transaction: OpenBlocking
) -> None:
    lease = one(scans)
    with open_transaction(store) as given, lease:
        given.write("scanned")
        lease.complete("clean", transaction=given.transaction)
    assert (state(jobs), store.effects()) == (JobState.SUCCEEDED, {"scanned": 1})


@each_driver
def test_a_lost_lease_raises(jobs: App[Any], scans: Queue[str], store: Store, open_transaction: OpenBlocking) -> None:
    lease = one(scans)
    jobs.control.clear("scans")

    def late() -> None:
        with open_transaction(store) as given:
            given.write("scanned")
            lease.complete(transaction=given.transaction)

    with pytest.raises(LeaseLost):
        late()
    assert (state(jobs), store.effects()) == (JobState.CANCELLED, {})


def test_an_async_connection_in_a_blocking_call_is_refused(jobs: App[Any], scans: Queue[str], store: Store) -> None:
    lease = one(scans)
    session = store.async_sessions()()
    with pytest.raises(UsageError, match="needs an event loop"):
        lease.complete(transaction=session)
    lease.complete()
    assert state(jobs) is JobState.SUCCEEDED
