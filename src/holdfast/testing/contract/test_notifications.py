"""Notifications: hints that a claim or a read may find something new. Tested only if the engine has `push`."""

import asyncio

import pytest

from holdfast.engine import Subscription
from holdfast.model.instants import HOUR, MINUTE
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import (
    QUEUE,
    after,
    confirm_cancel,
    fail,
    new_job,
    reap,
    release,
    retry,
    snooze,
    succeed,
)
from holdfast.testing.contract.guarantees import Guarantee, guarantee
from holdfast.testing.contract.interleave import pass_turns
from holdfast.testing.probes import TIMEOUT_S, until


def subscribe(bench: Bench, *topics: str) -> Subscription:
    if not bench.engine.capabilities.push:
        pytest.skip(f"not offered: the {bench.engine.scheme} engine does not push notifications")
    return bench.engine.subscribe(*topics)


async def wait_for_topics(subscription: Subscription, *topics: str) -> None:
    """Wait until all of these topics were notified, in one or in several waits."""
    received_topics: set[str] = set()
    while not received_topics >= set(topics):
        topics_now = await subscription.wait(TIMEOUT_S)
        assert topics_now, f"Waited {TIMEOUT_S:g} s for {sorted(set(topics) - received_topics)}."
        received_topics |= topics_now


@guarantee(Guarantee.NOTIFICATIONS)
async def test_a_new_job_notifies_its_queue(bench: Bench) -> None:
    with subscribe(bench, f"queue:{QUEUE}", "queue:other") as subscription:
        await bench.put(new_job())
        assert await subscription.wait(TIMEOUT_S) == frozenset({f"queue:{QUEUE}"})


# N5
@guarantee(Guarantee.NOTIFICATIONS)
async def test_a_subscriber_that_already_waits_is_notified(bench: Bench) -> None:
    with subscribe(bench, f"queue:{QUEUE}") as subscription:
        waiting = asyncio.gather(subscription.wait(TIMEOUT_S))
        await pass_turns(3)
        await bench.put(new_job("a"))
        (received_topics,) = await waiting
        assert received_topics == frozenset({f"queue:{QUEUE}"})


# N1
@guarantee(Guarantee.NOTIFICATIONS)
async def test_a_scheduled_job_notifies_its_queue_so_that_subscribers_can_set_a_timer(bench: Bench) -> None:
    with subscribe(bench, f"queue:{QUEUE}") as subscription:
        await bench.put(new_job(delay=HOUR))
        await wait_for_topics(subscription, f"queue:{QUEUE}")


# N1
@guarantee(Guarantee.NOTIFICATIONS)
@pytest.mark.parametrize(
    "what", ["release", "requeue", "trigger", "resume lane", "resume queue", "lane", "child", "due", "promote"]
)
async def test_every_change_that_makes_a_job_ready_notifies_its_queue(bench: Bench, what: str) -> None:
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

    with subscribe(bench, f"queue:{QUEUE}") as subscription:
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
        await wait_for_topics(subscription, f"queue:{QUEUE}")


# N1
@guarantee(Guarantee.NOTIFICATIONS)
@pytest.mark.parametrize("what", ["retry", "snooze", "loss", "later loss"])
async def test_a_settlement_after_which_a_job_runs_again_notifies_its_queue(bench: Bench, what: str) -> None:
    """No claim follows in the same call: other workers have to look. A reaper claims nothing, so they also have to
    learn of a job that falls due later."""
    await bench.put(new_job())
    lease = await bench.take_one(worker="dead")
    await bench.engine.disown("dead")
    (lost,) = await bench.expired()

    with subscribe(bench, f"queue:{QUEUE}") as subscription:
        match what:
            case "retry":
                await bench.settle(retry(lease))
            case "snooze":
                await bench.settle(snooze(lease))
            case "loss":
                await bench.settle(reap(lost))
            case "later loss":
                await bench.settle(reap(lost, delay=HOUR))
        await wait_for_topics(subscription, f"queue:{QUEUE}")


# N2, N3
@guarantee(Guarantee.NOTIFICATIONS)
@pytest.mark.parametrize("end", [succeed, fail, confirm_cancel])
async def test_an_end_notifies_the_room_topic_and_every_caller_that_waits(bench: Bench, end: object) -> None:
    await bench.put(new_job(reply="p1"))
    await bench.put(new_job(reply="p2"))
    lease = await bench.take_one()
    assert callable(end)

    with subscribe(bench, f"room:{QUEUE}", "reply:p1", "reply:p2", "reply:p3") as subscription:
        await bench.settle(end(lease))
        await wait_for_topics(subscription, f"room:{QUEUE}", "reply:p1", "reply:p2")


@guarantee(Guarantee.NOTIFICATIONS)
async def test_every_caller_that_waits_is_notified_of_a_job_that_is_deleted_as_it_ends(bench: Bench) -> None:
    await bench.put(new_job(reply="p1"))
    await bench.put(new_job(reply="p2"))
    lease = await bench.take_one()

    with subscribe(bench, "reply:p1", "reply:p2") as subscription:
        await bench.settle(succeed(lease, result_ttl=0, retention=0))
        await wait_for_topics(subscription, "reply:p1", "reply:p2")


@guarantee(Guarantee.NOTIFICATIONS)
@pytest.mark.parametrize("what", ["cancel", "clear", "expire", "parent"])
async def test_a_caller_that_waits_is_notified_of_an_end_without_a_run(bench: Bench, what: str) -> None:
    """E-P13"""
    await bench.put(new_job("parent"))
    lease = await bench.take_one()
    expires = (await bench.engine.now()).wall + MINUTE
    await bench.put(new_job("child", parents=after("parent"), reply="p1", expires=expires))

    with subscribe(bench, f"room:{QUEUE}", "reply:p1") as subscription:
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
        await wait_for_topics(subscription, f"room:{QUEUE}", "reply:p1")
    assert await bench.state("child") is JobState.CANCELLED


# N4
@guarantee(Guarantee.NOTIFICATIONS)
async def test_a_cancel_request_notifies_the_owner(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.take_one(worker="w")

    with subscribe(bench, "worker:w") as subscription:
        await bench.engine.cancel(QUEUE, "a")
        await wait_for_topics(subscription, "worker:w")


# N4
@guarantee(Guarantee.NOTIFICATIONS)
async def test_a_stop_request_notifies_the_worker(bench: Bench) -> None:
    await bench.engine.heartbeat(WorkerRecord(worker="w"))

    with subscribe(bench, "worker:w") as subscription:
        await bench.engine.stop_worker("w")
        await wait_for_topics(subscription, "worker:w")


@guarantee(Guarantee.NOTIFICATIONS)
async def test_every_subscriber_is_notified(bench: Bench) -> None:
    with subscribe(bench, f"queue:{QUEUE}") as one, subscribe(bench, f"queue:{QUEUE}", "queue:other") as two:
        await bench.put(new_job())
        await wait_for_topics(one, f"queue:{QUEUE}")
        await wait_for_topics(two, f"queue:{QUEUE}")


@guarantee(Guarantee.NOTIFICATIONS)
async def test_a_wait_without_a_notification_ends_with_its_timeout(bench: Bench) -> None:
    with subscribe(bench, "queue:silent") as subscription:
        await bench.put(new_job())
        assert await subscription.wait(0.01) == frozenset()


@guarantee(Guarantee.NOTIFICATIONS)
async def test_closing_a_subscription_ends_its_waits(bench: Bench) -> None:
    subscription = subscribe(bench, "queue:silent")
    waiting = asyncio.gather(subscription.wait(TIMEOUT_S))
    await pass_turns(3)

    subscription.close()

    (received_topics,) = await asyncio.wait_for(waiting, TIMEOUT_S)
    assert received_topics == frozenset()


@guarantee(Guarantee.NOTIFICATIONS)
async def test_a_worker_that_claims_after_each_notification_misses_no_job(bench: Bench) -> None:
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

        with subscribe(bench, f"queue:{QUEUE}") as subscription:
            await until(subscription, look, holds=lambda seen: set(seen) == set(ids), what="all jobs to run")

    await asyncio.gather(work(), produce())
    assert sorted(set(done)) == sorted(ids)
