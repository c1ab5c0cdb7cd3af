"""What is the memory engine's own: threads, event loops, bells. What it does with jobs is the contract's affair."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from eventually import idle

from holdfast.engine import Engine, Subscription
from holdfast.engines import open_engine
from holdfast.engines.memory import MemoryEngine
from holdfast.model.instants import MINUTE
from holdfast.model.job import Given, JobKey, KeyScope
from holdfast.model.observe import Audit, Stats
from holdfast.model.operate import Cancel
from holdfast.model.produce import Enqueue, EnqueueStatus, Group, GroupAccepted, NewJob, Parent
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Exchange, QueueClaim, Renewal, RenewStatus, Settlement, SettleStatus, TaskClaim
from holdfast.runtime import SystemRuntime

PATIENCE = 30.0


@pytest.fixture
def engine() -> MemoryEngine:
    return MemoryEngine("memory://", SystemRuntime())


def enqueue(*ids: str) -> Enqueue:
    return Enqueue(groups=(Group(tuple(NewJob(queue="q", id=id, task="t") for id in ids)),))


def claim(claim_id: str, limit: int = 1) -> Exchange:
    queues = (QueueClaim("q", (TaskClaim(task="t", lease_len=MINUTE),)),)
    return Exchange(claim=Claim(claim_id=claim_id, worker=claim_id, queues=queues, limit=limit))


# --- Threads ---


async def test_threads_share_the_jobs_without_overlap(engine: MemoryEngine) -> None:
    ids = [f"{number}" for number in range(2_000)]
    engine.perform_now(enqueue(*ids[:1_000]))
    engine.perform_now(enqueue(*ids[1_000:]))
    together = threading.Barrier(4)

    def work(name: str) -> list[str]:
        taken: list[str] = []
        together.wait(PATIENCE)
        for turn in range(1_000):
            leases = engine.perform_now(claim(f"{name}-{turn}", limit=3)).leases
            if not leases:
                break
            settlements = tuple(
                Settlement(queue="q", id=lease.id, token=lease.token, target=JobState.SUCCEEDED) for lease in leases
            )
            assert set(engine.perform_now(Exchange(settlements=settlements)).settled) == {SettleStatus.APPLIED}
            taken += [lease.id for lease in leases]
        return taken

    with ThreadPoolExecutor(4) as threads:
        shares = list(threads.map(work, "abcd"))
    assert sorted(id for share in shares for id in share) == sorted(ids)
    assert (await engine.audit()) == ()


def test_threads_that_enqueue_one_id_make_one_job(engine: MemoryEngine) -> None:
    together = threading.Barrier(4)

    def produce(_: int) -> list[str]:
        together.wait(PATIENCE)
        return [engine.perform_now(enqueue(f"{n}")).groups[0].jobs[0].status for n in range(200)]  # type: ignore[union-attr]

    with ThreadPoolExecutor(4) as threads:
        answers = [status for share in threads.map(produce, range(4)) for status in share]
    assert answers.count("created") == 200


def test_the_renewal_connection_renews_without_a_loop(engine: MemoryEngine) -> None:
    engine.perform_now(enqueue("a"))
    (lease,) = engine.perform_now(claim("c")).leases
    renewal_connection = engine.renewal_connection()
    (renewed,) = renewal_connection.renew([Renewal("q", "a", lease.token)]).jobs
    assert renewed.status is RenewStatus.HELD
    assert renewal_connection.heartbeat(WorkerRecord(worker="w")).stop is False
    renewal_connection.close()


# --- Bells ---


async def heard(subscription: Subscription, timeout: float = PATIENCE) -> frozenset[str]:
    return await subscription.wait(timeout)


async def test_a_notification_from_another_thread_wakes_a_waiter(engine: MemoryEngine) -> None:
    with engine.subscribe("queue:q") as subscription:
        waiting = asyncio.ensure_future(heard(subscription))
        await idle()
        await asyncio.to_thread(engine.perform_now, enqueue("a"))
        assert (await waiting) == {"queue:q"}


def test_a_notification_reaches_every_loop(engine: MemoryEngine) -> None:
    ready = threading.Barrier(3)

    def listen(_: int) -> frozenset[str]:
        async def wait() -> frozenset[str]:
            with engine.subscribe("queue:q") as subscription:
                ready.wait(PATIENCE)
                return await heard(subscription)

        return asyncio.run(wait())

    with ThreadPoolExecutor(2) as threads:
        listeners = threads.map(listen, range(2))
        ready.wait(PATIENCE)
        engine.perform_now(enqueue("a"))
        assert list(listeners) == [{"queue:q"}, {"queue:q"}]


async def test_a_notification_before_the_wait_is_not_lost(engine: MemoryEngine) -> None:
    with engine.subscribe("queue:q", "room:q") as subscription:
        await engine.perform(enqueue("a"))
        assert [await heard(subscription), await heard(subscription, 0)] == [{"queue:q"}, frozenset()]


async def test_other_topics_do_not_wake_a_subscription(engine: MemoryEngine) -> None:
    with engine.subscribe("queue:r") as subscription:
        await engine.perform(enqueue("a"))
        assert (await heard(subscription, 0)) == frozenset()


@pytest.mark.parametrize("closing", ["engine", "subscription"])
async def test_closing_wakes_a_waiter_with_nothing(engine: MemoryEngine, closing: str) -> None:
    subscription = engine.subscribe("queue:q")
    waiting = asyncio.ensure_future(heard(subscription))
    await idle()
    if closing == "engine":
        await engine.close()
        await engine.close()
    else:
        subscription.close()
    assert (await waiting) == frozenset()


def test_an_address_opens_it() -> None:
    engine: Engine = open_engine("memory://")
    assert isinstance(engine, MemoryEngine)
    assert not engine.capabilities.durable


# N1
async def test_what_no_other_worker_can_claim_notifies_no_queue(engine: MemoryEngine) -> None:
    """A success, and a later retry: the owner learns of the due time with its next claim."""
    engine.perform_now(enqueue("a", "b"))
    a, b = engine.perform_now(claim("c", limit=2)).leases
    with engine.subscribe("queue:q") as subscription:
        for lease, target, delay in ((a, JobState.SUCCEEDED, 0), (b, JobState.RETRYING, MINUTE)):
            settlement = Settlement(queue="q", id=lease.id, token=lease.token, target=target, delay=delay)
            assert engine.perform_now(Exchange(settlements=(settlement,))).settled == (SettleStatus.APPLIED,)
        assert await subscription.wait(0) == frozenset()


# --- Errors in the middle of a command ---


def test_a_command_that_raises_leaves_nothing_behind(engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals = dict.fromkeys((1, 2))
    with monkeypatch.context() as patch:
        patch.setattr(engine._ledger.state, "new_arrival", lambda queue: arrivals.popitem()[0])
        with pytest.raises(KeyError):
            engine.perform_now(enqueue("a", "b", "c"))
    assert engine.perform_now(Stats()).queues == ()
    engine.perform_now(enqueue("a"))
    assert [lease.id for lease in engine.perform_now(claim("c", limit=9)).leases] == ["a"]
    assert engine.perform_now(Audit()).problems == ()


def test_a_key_is_taken_again_after_its_job_was_replaced_by_a_command_that_raises(
    engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = NewJob(queue="q", id="a", task="t", unique_key="k", key_scope=KeyScope.FOREVER, given=Given(result_ttl=0))
    engine.perform_now(Enqueue(groups=(Group((keyed,)),)))
    (lease,) = engine.perform_now(claim("c")).leases
    done = Settlement(queue="q", id="a", token=lease.token, target=JobState.SUCCEEDED)
    engine.perform_now(Exchange(settlements=(done,)))
    arrivals = dict.fromkeys((2,))
    with monkeypatch.context() as patch:
        patch.setattr(engine._ledger.state, "new_arrival", lambda queue: arrivals.popitem()[0])
        with pytest.raises(KeyError):
            engine.perform_now(enqueue("a", "b"))
    again = NewJob(queue="q", id="c", task="t", unique_key="k")
    (answer,) = engine.perform_now(Enqueue(groups=(Group((again,)),))).groups
    assert isinstance(answer, GroupAccepted)
    assert [(job.status, job.id) for job in answer.jobs] == [(EnqueueStatus.DUPLICATE, "a")]


def test_an_edge_is_there_again_after_a_command_that_raises(
    engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = NewJob(queue="q", id="p", task="t")
    child = NewJob(
        queue="q", id="c", task="t", parents=(Parent(JobKey("q", "p")),), given=Given(retention=0, result_ttl=0)
    )
    engine.perform_now(Enqueue(groups=(Group((parent, child)),)))
    engine.perform_now(Cancel(queue="q", ids=("c",)))
    engine.perform_now(Enqueue(groups=(Group((child,)),)))
    before = engine._ledger.state.children("q", "p")
    engine.perform_now(Cancel(queue="q", ids=("c",)))
    arrivals = dict.fromkeys((7,))
    with monkeypatch.context() as patch:
        patch.setattr(engine._ledger.state, "new_arrival", lambda queue: arrivals.popitem()[0])
        with pytest.raises(KeyError):
            engine.perform_now(Enqueue(groups=(Group((child, NewJob(queue="q", id="d", task="t"))),)))
    assert engine._ledger.state.children("q", "p") == before
