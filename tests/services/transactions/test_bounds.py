"""Transactions that end in an unusual way: by a returned interrupt, a stop, or a lease that is not kept."""

import asyncio
import threading
from typing import Any

import psycopg
import pytest
from postgres import FAST, PostgresServer
from postgres_cluster import Cluster
from user_transactions import Store, each_store

from holdfast import App, Context, GiveUp, JobState
from holdfast.transactions import adapt


def insert(store: Store, connection: Any) -> None:
    mark = "?" if store.kind == "sqlite" else "%s"
    connection.execute(f"INSERT INTO {store.table} VALUES ({mark})", ("a",))


@each_store
def test_an_interrupt_that_is_returned_commits_nothing(jobs: App[Any], store: Store) -> None:
    @jobs.task(transaction=True)
    def work(ctx: Context) -> object:
        insert(store, ctx.tx)
        return GiveUp("no use")

    with jobs.worker():
        report = work.enqueue().report(timeout=30)
    assert report.outcome is JobState.FAILED
    assert store.effects() == {}


def test_a_worker_that_stops_takes_the_write_lock_back_from_a_handler_that_does_not(
    jobs: App[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Else the release of its job would wait for the handler's transaction."""
    holds, go_on = threading.Event(), threading.Event()

    @jobs.task
    def work(ctx: Context) -> None:
        with ctx.transaction():
            holds.set()
            go_on.wait(60)

    async def first() -> None:
        async with jobs.worker(grace=0):
            assert await asyncio.to_thread(holds.wait, 30)

    handle = work.enqueue()
    try:
        asyncio.run(first())
        assert not go_on.is_set()
        assert handle.refresh().state is JobState.QUEUED
        assert "could not be released" not in caplog.text
    finally:
        go_on.set()


@each_store
def test_a_lease_completed_in_a_transaction_is_not_renewed(jobs: App[Any], store: Store) -> None:
    """The renewal would wait for the lock of that transaction."""
    scans = jobs.queue("scans", str)
    scans.enqueue("x", id="a")
    (lease,) = scans.claim()
    lease._wait_for_turn()  # from now on it is renewed
    attempts = jobs._pull_workers.current().slots.attempts
    assert len(attempts) == 1
    with store.sessions().begin() as session:
        lease.complete("clean", transaction=session)
        assert attempts == {}


def test_databases_of_two_servers_have_different_identities(postgres_server: PostgresServer) -> None:
    """Also the first database of each, which has the same number everywhere."""
    cluster = Cluster.make(FAST)
    try:
        with (
            psycopg.connect(postgres_server.url("postgres")) as ours,
            psycopg.connect(f"{cluster.address}/postgres") as another,
        ):
            assert adapt(ours).identity() != adapt(another).identity()
    finally:
        cluster.leave(last=True)
