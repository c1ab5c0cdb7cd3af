"""Bells: hints that it is worth looking. Judged only where an engine says that it pushes them."""

import asyncio

import pytest

from holdfast.engine import Subscription
from holdfast.model.instants import HOUR, MINUTE
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, after, cancelled, fail, new_job, release, retry, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee
from holdfast.testing.contract.interleave import pass_turns
from holdfast.testing.probes import TIMEOUT_S, until


def listen(bench: Bench, *topics: str) -> Subscription:
    if not bench.engine.capabilities.push:
        pytest.skip(f"not offered: the {bench.engine.scheme} engine does not push topics")
    return bench.engine.subscribe(*topics)


async def hears(subscription: Subscription, *topics: str) -> None:
    """All of these ring, at once or one after the other."""
    heard: set[str] = set()
    while not heard >= set(topics):
        rung = await subscription.wait(TIMEOUT_S)
        assert rung, f"Waited {TIMEOUT_S:g} s for {sorted(set(topics) - heard)}."
        heard |= rung


@guarantee(Guarantee.BELLS)
async def test_a_new_job_rings_its_queue(bench: Bench) -> None:
    with listen(bench, f"queue:{QUEUE}", "queue:other") as subscription:
        await bench.put(new_job())
        assert await subscription.wait(TIMEOUT_S) == frozenset({f"queue:{QUEUE}"})


# N5
@guarantee(Guarantee.BELLS)
async def test_a_bell_that_rang_before_the_wait_is_not_missed(bench: Bench) -> None:
    with listen(bench, f"queue:{QUEUE}") as subscription:
        waiting = asyncio.gather(subscription.wait(TIMEOUT_S))
        await pass_turns(3)
        await bench.put(new_job("a"))
        (heard,) = await waiting
        assert heard == frozenset({f"queue:{QUEUE}"})


# N1
@guarantee(Guarantee.BELLS)
async def test_a_scheduled_job_rings_so_that_waiters_can_set_their_alarm(bench: Bench) -> None:
    with listen(bench, f"queue:{QUEUE}") as subscription:
        await bench.put(new_job(delay=HOUR))
        await hears(subscription, f"queue:{QUEUE}")


# N1
@guarantee(Guarantee.BELLS)
@pytest.mark.parametrize(
    "what", ["release", "requeue", "trigger", "resume lane", "resume queue", "lane", "child", "due", "promote"]
)
async def test_whatever_makes_a_job_ready_rings_its_queue(bench: Bench, what: str) -> None:
    await bench.put(new_job("first", lane="lane"), new_job("parent"))
    lease, parent = await bench.take(2)
    await bench.put(new_job("dead"), new_job("later", delay=MINUTE), new_job("second", lane="lane"))
    await bench.put(new_job("child", parents=after("parent")))
    if what == "resume queue":
        await bench.engine.pause(QUEUE)
    await bench.engine.cancel(QUEUE, "dead")
    await bench.engine.pause(QUEUE, "paused")
    await bench.put(new_job("held", lane="paused"))
    now = (await bench.engine.now()).wall

    with listen(bench, f"queue:{QUEUE}") as subscription:
        match what:
            case "release":
                await bench.settle(release(lease))
            case "requeue":
                await bench.engine.requeue(QUEUE, "dead")
            case "trigger":
                await bench.engine.trigger(QUEUE, "later")
            case "resume lane":
                await bench.engine.resume(QUEUE, "paused")
            case "resume queue":
                await bench.engine.resume(QUEUE)
            case "lane":
                await bench.settle(succeed(lease))
            case "child":
                await bench.settle(succeed(parent))
            case "due":
                await bench.engine.amend(QUEUE, "later", due=now)
            case "promote":
                bench.clock.advance(minutes=2)
                await bench.take(0)
        await hears(subscription, f"queue:{QUEUE}")


# N2, N3
@guarantee(Guarantee.BELLS)
@pytest.mark.parametrize("end", [succeed, fail, cancelled])
async def test_an_end_rings_for_room_and_for_everyone_who_waits(bench: Bench, end: object) -> None:
    await bench.put(new_job(reply="p1"))
    await bench.put(new_job(reply="p2"))
    lease = await bench.take_one()
    assert callable(end)

    with listen(bench, f"room:{QUEUE}", "reply:p1", "reply:p2", "reply:p3") as subscription:
        await bench.settle(end(lease))
        await hears(subscription, f"room:{QUEUE}", "reply:p1", "reply:p2")


@guarantee(Guarantee.BELLS)
async def test_everyone_who_waits_is_told_of_a_job_that_is_deleted_as_it_ends(bench: Bench) -> None:
    await bench.put(new_job(reply="p1"))
    await bench.put(new_job(reply="p2"))
    lease = await bench.take_one()

    with listen(bench, "reply:p1", "reply:p2") as subscription:
        await bench.settle(succeed(lease, result_ttl=0, retention=0))
        await hears(subscription, "reply:p1", "reply:p2")


@guarantee(Guarantee.BELLS)
@pytest.mark.parametrize("what", ["cancel", "clear", "expire", "parent"])
async def test_a_waiter_is_told_of_an_end_without_a_run(bench: Bench, what: str) -> None:
    """E-P13"""
    await bench.put(new_job("parent"))
    lease = await bench.take_one()
    expires = (await bench.engine.now()).wall + MINUTE
    await bench.put(new_job("child", parents=after("parent"), reply="p1", expires=expires))

    with listen(bench, f"room:{QUEUE}", "reply:p1") as subscription:
        match what:
            case "cancel":
                await bench.engine.cancel(QUEUE, "child")
            case "clear":
                await bench.engine.clear(QUEUE)
            case "expire":
                bench.clock.advance(minutes=2)
                await bench.engine.prune()
            case "parent":
                await bench.settle(fail(lease))
        await hears(subscription, f"room:{QUEUE}", "reply:p1")
    assert await bench.state("child") is JobState.CANCELLED


# N4
@guarantee(Guarantee.BELLS)
async def test_a_request_to_cancel_rings_the_owner(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.take_one(worker="w")

    with listen(bench, "worker:w") as subscription:
        await bench.engine.cancel(QUEUE, "a")
        await hears(subscription, "worker:w")


# N4
@guarantee(Guarantee.BELLS)
async def test_a_request_to_stop_rings_the_worker(bench: Bench) -> None:
    await bench.engine.heartbeat(WorkerRecord(worker="w"))

    with listen(bench, "worker:w") as subscription:
        await bench.engine.stop_worker("w")
        await hears(subscription, "worker:w")


@guarantee(Guarantee.BELLS)
async def test_every_listener_hears(bench: Bench) -> None:
    with listen(bench, f"queue:{QUEUE}") as one, listen(bench, f"queue:{QUEUE}", "queue:other") as two:
        await bench.put(new_job())
        await hears(one, f"queue:{QUEUE}")
        await hears(two, f"queue:{QUEUE}")


@guarantee(Guarantee.BELLS)
async def test_a_wait_that_hears_nothing_ends_with_its_time(bench: Bench) -> None:
    with listen(bench, "queue:silent") as subscription:
        await bench.put(new_job())
        assert await subscription.wait(0.01) == frozenset()


@guarantee(Guarantee.BELLS)
async def test_closing_a_subscription_wakes_whoever_waits(bench: Bench) -> None:
    subscription = listen(bench, "queue:silent")
    waiting = asyncio.gather(subscription.wait(TIMEOUT_S))
    await pass_turns(3)

    subscription.close()

    (heard,) = await asyncio.wait_for(waiting, TIMEOUT_S)
    assert heard == frozenset()


@guarantee(Guarantee.BELLS)
async def test_a_worker_that_looks_at_each_bell_misses_no_job(bench: Bench) -> None:
    """E-Q21"""
    ids = [f"job-{number}" for number in range(20)]
    done: list[str] = []

    async def produce() -> None:
        for id in ids:
            await bench.put(new_job(id))
            await pass_turns(2)

    async def work() -> None:
        async def look() -> list[str]:
            for lease in await bench.take(3):
                await bench.settle(retry(lease) if lease.attempt == 1 and lease.id == "job-7" else succeed(lease))
                done.append(lease.id)
            return done

        with listen(bench, f"queue:{QUEUE}") as subscription:
            await until(subscription, look, holds=lambda seen: set(seen) == set(ids), what="all jobs to run")

    await asyncio.gather(work(), produce())
    assert sorted(set(done)) == sorted(ids)
