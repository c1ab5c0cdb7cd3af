"""Enqueueing inside the user's own transaction, over every driver: a job is there if, and only if, that commits."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from user_transactions import (
    STORES,
    OpenAsync,
    OpenBlocking,
    RolledBack,
    Store,
    each_async_driver,
    each_driver,
    each_store,
)

from holdfast import App, BlockingCall, JobNotFound, QueueFull, UsageError, events
from holdfast.queue import Queue
from holdfast.testing import Probe


@dataclass(frozen=True)
class Scan:
    path: str


@pytest.fixture
def ship(jobs: App[Any]) -> Any:
    @jobs.task
    def ship(order: str) -> str:
        return f"shipped {order}"

    return ship


# Commit, or nothing


@each_driver
def test_a_job_and_a_row_of_yours_come_together(
    jobs: App[Any], ship: Any, store: Store, open_transaction: OpenBlocking
) -> None:
    with open_transaction(store) as given:
        given.write("order 1")
        handle = ship.using(transaction=given.transaction).enqueue("1")
        with pytest.raises(JobNotFound):
            handle.refresh()
    assert store.effects() == {"order 1": 1}
    with jobs.worker():
        assert handle.result(timeout=30) == "shipped 1"


@each_driver
def test_neither_is_there_after_a_rollback(
    jobs: App[Any], ship: Any, store: Store, open_transaction: OpenBlocking
) -> None:
    try:
        with open_transaction(store) as given:
            given.write("order 1")
            handle = ship.using(transaction=given.transaction, lane="orders").enqueue("1")
            raise RolledBack
    except RolledBack:
        pass
    assert store.effects() == {}
    with pytest.raises(JobNotFound):
        handle.refresh()


@each_async_driver
async def test_a_job_and_a_row_come_together_on_a_loop(
    jobs: App[Any], ship: Any, store: Store, open_transaction: OpenAsync
) -> None:
    async with open_transaction(store) as given:
        handle = await ship.using(transaction=given.transaction).aenqueue("1")  # ours first, then yours
        await given.write("order 1")
        with pytest.raises(JobNotFound):
            await handle.arefresh()
    assert store.effects() == {"order 1": 1}
    async with jobs.worker():
        assert await handle.aresult(timeout=30) == "shipped 1"
    await jobs.aclose()


@each_async_driver
async def test_neither_is_there_after_a_rollback_on_a_loop(
    jobs: App[Any], ship: Any, store: Store, open_transaction: OpenAsync
) -> None:
    try:
        async with open_transaction(store) as given:
            await given.write("order 1")
            handle = await ship.using(transaction=given.transaction).aenqueue("1")
            raise RolledBack
    except RolledBack:
        pass
    assert store.effects() == {}
    with pytest.raises(JobNotFound):
        await handle.arefresh()
    await jobs.aclose()


@each_driver
def test_every_way_to_enqueue_takes_a_transaction(
    jobs: App[Any], ship: Any, store: Store, open_transaction: OpenBlocking
) -> None:
    scans = jobs.queue("scans", Scan)
    pool = jobs.pool("pool", Scan, lanes=3)
    with open_transaction(store) as given:
        jobs.client.enqueue_many([ship.draft("1"), ship.draft("2")], transaction=given.transaction)
        scans.enqueue(Scan("a"), transaction=given.transaction)
        pool.enqueue(Scan("b"), key="b", transaction=given.transaction)
        assert [jobs.control.status(name).depth for name in ("default", "scans", "pool")] == [0, 0, 0]
    assert [jobs.control.status(name).depth for name in ("default", "scans", "pool")] == [2, 1, 1]


@each_driver
def test_a_refusal_leaves_the_transaction_to_go_on(
    jobs: App[Any], ship: Any, store: Store, open_transaction: OpenBlocking
) -> None:
    scans: Queue[Scan] = jobs.queue("scans", Scan, max_depth=1)
    with open_transaction(store) as given:
        given.write("before")
        scans.enqueue(Scan("a"), transaction=given.transaction)
        with pytest.raises(QueueFull):
            scans.enqueue(Scan("b"), transaction=given.transaction)
        given.write("after")
    assert store.effects() == {"before": 1, "after": 1}
    assert jobs.control.status("scans").depth == 1


@each_driver
def test_one_id_is_one_job_whichever_transaction_commits(
    jobs: App[Any], ship: Any, store: Store, open_transaction: OpenBlocking
) -> None:
    ship.using(id="order-1").enqueue("1")
    with open_transaction(store) as given:
        again = ship.using(id="order-1", transaction=given.transaction).enqueue("1")
        assert not again.created
        assert ship.using(id="order-2", transaction=given.transaction).enqueue("2").created
    assert not ship.using(id="order-2").enqueue("2").created


# After the commit


@each_driver
async def test_an_idle_worker_is_notified_of_the_commit(
    jobs: App[Any], ship: Any, store: Store, open_transaction: OpenBlocking
) -> None:
    """Without waiting for its next look: those are an hour apart here."""

    done = Probe[events.Event]("the listener")
    jobs.bus.on(events.Succeeded, done)
    worker = jobs.worker()
    async with worker:
        assert worker._services is not None
        worker._services.exchanger._poll_s = lambda: 3600.0
        await asyncio.to_thread(ship.enqueue, "first")
        await done.calls(1)

        def commit() -> None:
            with open_transaction(store) as given:
                given.write("order 1")
                ship.using(transaction=given.transaction).enqueue("1")

        await asyncio.to_thread(commit)
        await done.calls(2)
    await jobs.aclose()


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_a_session_publishes_a_new_job_only_after_its_commit(jobs: App[Any], ship: Any, store: Store) -> None:
    heard: list[str] = []
    jobs.on(events.Queued)(lambda event: heard.append(event.job_id))
    with store.sessions()() as session:
        ship.using(transaction=session, id="gone").enqueue("1")
        session.rollback()
        ship.using(transaction=session, id="kept").enqueue("1")
        with session.begin_nested():
            pass
        assert heard == []
        session.commit()
        assert heard == ["kept"]
        session.commit()
    assert heard == ["kept"]


# What is refused


@each_driver
def test_a_result_cannot_be_waited_for_before_the_commit(
    jobs: App[Any], ship: Any, store: Store, open_transaction: OpenBlocking
) -> None:
    with open_transaction(store) as given:
        handle = ship.using(transaction=given.transaction).enqueue("1")
        with pytest.raises(UsageError, match="Commit before"):
            handle.result()
        with pytest.raises(UsageError, match="Commit before"):
            handle.report()
        with pytest.raises(UsageError, match="A request waits"):
            ship.using(transaction=given.transaction).request("1")
        with pytest.raises(UsageError, match="wait_for_room"):
            ship.using(transaction=given.transaction, wait_for_room=1).enqueue("1")
    with jobs.worker():
        assert handle.result(timeout=30) == "shipped 1"


@each_store
def test_a_draft_for_another_transaction_is_refused(jobs: App[Any], ship: Any, store: Store) -> None:
    with store.sessions().begin() as session:
        draft = ship.using(transaction=session).draft("1")
        with pytest.raises(UsageError, match="Pass `transaction` to enqueue_many"):
            jobs.client.enqueue_many([draft])
        jobs.client.enqueue_many([draft], transaction=session)
    assert jobs.control.status("default").depth == 1


@each_async_driver
async def test_a_blocking_method_refuses_what_is_awaited(
    jobs: App[Any], ship: Any, store: Store, open_transaction: OpenAsync
) -> None:
    async with open_transaction(store) as given:
        with pytest.raises(UsageError, match="needs an event loop"):
            await asyncio.to_thread(ship.using(transaction=given.transaction).enqueue, "1")
    assert (await jobs.control.astatus("default")).depth == 0
    await jobs.aclose()


@each_driver
async def test_an_awaited_method_refuses_what_blocks(
    jobs: App[Any], ship: Any, store: Store, open_transaction: OpenBlocking
) -> None:
    with open_transaction(store) as given, pytest.raises(UsageError, match="would block the running event loop"):
        await ship.using(transaction=given.transaction).aenqueue("1")
    assert (await jobs.control.astatus("default")).depth == 0
    await jobs.aclose()


@each_driver
async def test_a_blocking_method_on_a_loop_does_not_advise_the_async_one_alone(
    jobs: App[Any], ship: Any, store: Store, open_transaction: OpenBlocking
) -> None:
    with (
        open_transaction(store) as given,
        pytest.raises(BlockingCall, match="With a sync one, call enqueue"),
    ):
        ship.using(transaction=given.transaction).enqueue("1")
    await jobs.aclose()


@each_store
@pytest.mark.parametrize(
    "given", [object(), "a transaction", 3, App("memory://")], ids=lambda given: type(given).__name__
)
def test_what_is_no_connection_is_refused_and_the_known_ones_named(ship: Any, store: Store, given: object) -> None:
    with pytest.raises(UsageError, match="must be a Session, AsyncSession"):
        ship.using(transaction=given).enqueue("1")


def test_a_memory_store_refuses_transactions(tmp_path: Path) -> None:
    jobs = App("memory://")

    @jobs.task
    def ship(order: str) -> None: ...

    store = Store("sqlite", "", f"{tmp_path}/shop.db")
    refused: list[Callable[..., object]] = [ship.using(transaction=store.sessions()()).enqueue]
    for enqueue in refused:
        with pytest.raises(UsageError, match="memory engine cannot take part"):
            enqueue("1")
    jobs.close()
