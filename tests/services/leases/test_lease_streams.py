"""Leases as a stream: claimed a batch at a time, handed out one by one, and given back when nobody wants them."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from eventually import eventually
from failing_engine import FailingEngine

from holdfast import App, EngineUnavailable, InvalidOption, Job, JobState, events
from holdfast.queue import Queue
from holdfast.runtime import SystemRuntime


@pytest.fixture
def numbers(jobs: App[object]) -> Queue[int]:
    return jobs.queue("numbers", int)


def fill(numbers: Queue[int], count: int) -> None:
    for n in range(count):
        numbers.enqueue(n, id=f"{n}")


def states(jobs: App[object], count: int) -> list[str]:
    return [jobs.control.get(f"{n}", queue="numbers").state.value for n in range(count)]


def look(jobs: App[object], id: str) -> Job:
    return jobs.control.get(id, queue="numbers")


def test_a_loop_until_empty_sees_everything_in_order(jobs: App[object], numbers: Queue[int]) -> None:
    with jobs:
        fill(numbers, 25)
        seen = []
        for lease in numbers.leases(batch=10, until_empty=True):
            with lease:
                seen.append(lease.payload)
        assert seen == list(range(25))
        assert numbers.status().succeeded == 25
        assert list(numbers.leases(until_empty=True)) == []


async def test_an_async_loop_until_empty_does_the_same(jobs: App[object], numbers: Queue[int]) -> None:
    async with jobs:
        for n in range(25):
            await numbers.aenqueue(n)
        seen = []
        async for lease in numbers.leases(batch=10, until_empty=True):
            async with lease:
                seen.append(lease.payload)
        assert seen == list(range(25))
        assert (await numbers.astatus()).succeeded == 25


def test_what_waits_for_its_turn_is_assigned_and_begins_with_the_end_of_the_one_before(
    jobs: App[object], numbers: Queue[int]
) -> None:
    with jobs:
        fill(numbers, 4)
        stream = iter(numbers.leases(batch=3, until_empty=True))
        first = next(stream)
        assert states(jobs, 4) == ["running", "assigned", "assigned", "queued"]
        first.complete()
        assert states(jobs, 4) == ["succeeded", "running", "assigned", "queued"]
        second, third = next(stream), next(stream)
        assert states(jobs, 4) == ["succeeded", "running", "running", "queued"]
        assert (second.payload, third.payload) == (1, 2)
        second.complete()
        third.complete()
        next(stream).complete()
        assert states(jobs, 4) == ["succeeded"] * 4
        assert next(stream, None) is None


def test_a_batch_costs_one_write_per_job_and_one_for_the_claim() -> None:
    jobs, runtime = App("memory://"), SystemRuntime()
    engine = FailingEngine(runtime)
    with jobs.swapped(engine, runtime):
        numbers = jobs.queue("numbers", int)
        fill(numbers, 10)
        for lease in numbers.leases(batch=10, until_empty=True):
            lease.complete()
        claims = [exchange for exchange in engine.exchanges if exchange.claim is not None]
        settled = [exchange for exchange in engine.exchanges if exchange.settlements]
        assert (len(claims), len(settled), len(engine.exchanges)) == (2, 10, 12)


def test_what_is_left_of_a_batch_goes_back_when_the_loop_is_left(jobs: App[object], numbers: Queue[int]) -> None:
    with jobs:
        fill(numbers, 5)
        for lease in numbers.leases(batch=5):
            lease.complete()
            if lease.payload == 1:
                break
        assert states(jobs, 5) == ["succeeded", "succeeded", "queued", "queued", "queued"]
        assert [look(jobs, f"{n}").attempt for n in range(5)] == [1, 1, 0, 0, 0]
        assert [lease.attempt for lease in numbers.claim(5)] == [1, 1, 1]


async def test_what_is_left_of_a_batch_goes_back_from_an_async_loop_too(jobs: App[object], numbers: Queue[int]) -> None:
    async with jobs:
        for n in range(5):
            await numbers.aenqueue(n, id=f"{n}")

        async def consume() -> None:
            async for lease in numbers.leases(batch=5):
                async with lease:
                    raise ValueError(lease.payload)

        with pytest.raises(ValueError, match="0"):
            await consume()

        async def all_back() -> bool:
            return (await numbers.astatus()).counts == {JobState.RETRYING: 1, JobState.QUEUED: 4}

        await eventually(all_back)


def test_closing_the_app_releases_leases_that_were_not_handed_out(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    jobs, other = App(url), App(url)
    numbers = jobs.queue("numbers", int)
    with other:
        with jobs:
            fill(numbers, 4)
            stream = iter(numbers.leases(batch=4))
            first = next(stream)
        assert states(other, 4) == ["running", "queued", "queued", "queued"]
        del stream
        assert not jobs._store.process.open  # what was given back is not given back again
        first.complete()
        assert states(other, 4) == ["succeeded", "queued", "queued", "queued"]
        jobs.close()


def test_a_loop_waits_for_work_until_it_is_closed(jobs: App[object], numbers: Queue[int]) -> None:
    seen: list[int] = []
    leases = numbers.leases()

    def consume() -> None:
        for lease in leases:
            with lease:
                seen.append(lease.payload)
                if lease.payload == 2:
                    leases.close()

    with jobs:
        thread = threading.Thread(target=consume)
        thread.start()
        fill(numbers, 3)
        thread.join(20)
        assert not thread.is_alive()
        assert seen == [0, 1, 2]


async def test_a_loop_that_waits_ends_when_the_app_is_closed(jobs: App[object], numbers: Queue[int]) -> None:
    async with jobs:

        async def consume() -> None:
            async for _ in numbers.leases():
                pass

        waiting = asyncio.create_task(consume())
        await eventually(lambda: jobs._pull_workers.current()._registered)
    with pytest.raises(EngineUnavailable, match="closed"):
        await waiting
    await jobs.aclose()


def test_a_loop_ends_when_an_operator_stops_the_puller(jobs: App[object], numbers: Queue[int]) -> None:
    with jobs:
        fill(numbers, 3)
        for lease in numbers.leases(batch=3):
            lease.complete()
            jobs._pull_workers.current().info.request_stop()
        assert states(jobs, 3) == ["succeeded", "queued", "queued"]


def test_what_waits_in_a_queue_that_is_paused_is_given_back(jobs: App[object], numbers: Queue[int]) -> None:
    with jobs:
        fill(numbers, 3)
        seen = []
        for lease in numbers.leases(batch=3, until_empty=True):
            seen.append(lease.payload)
            numbers.pause()
            lease.complete()
        assert seen == [0]
        assert states(jobs, 3) == ["succeeded", "queued", "queued"]


def test_what_is_cancelled_or_lost_while_it_waits_is_not_handed_out(jobs: App[object], numbers: Queue[int]) -> None:
    with jobs:
        for n in range(4):
            numbers.enqueue(n, id=f"{n}", lane=f"lane-{n}")
        seen = []
        for lease in numbers.leases(batch=4, until_empty=True):
            seen.append(lease.payload)
            if lease.payload == 0:
                jobs.control.cancel("1", queue="numbers")
                jobs.control.clear("numbers", lane="lane-2")
            lease.complete()
        assert seen == [0, 3]
        assert states(jobs, 4) == ["succeeded", "cancelled", "cancelled", "succeeded"]


def test_threads_may_work_on_the_leases_of_one_loop(jobs: App[object], numbers: Queue[int]) -> None:
    with jobs:
        fill(numbers, 60)
        with ThreadPoolExecutor(4) as handler_threads:
            for lease in numbers.leases(batch=20, until_empty=True):
                handler_threads.submit(lease.complete, lease.payload * 2)
        assert numbers.status().succeeded == 60
        assert jobs.client.handle("7", queue="numbers").result() == 14
        assert jobs._pull_workers.current().slots.attempts == {}


def test_each_lease_of_a_stream_begins_with_an_event_when_its_turn_has_come(
    jobs: App[object], numbers: Queue[int]
) -> None:
    told: list[str] = []
    jobs.on(events.JobEvent)(lambda event: told.append(f"{type(event).__name__} {event.job_id}"))
    fill(numbers, 2)
    for lease in numbers.leases(until_empty=True):
        lease.complete()
    assert told == ["Queued 0", "Queued 1", "Started 0", "Started 1", "Succeeded 0", "Succeeded 1"]


def test_a_batch_is_a_whole_number(numbers: Queue[int]) -> None:
    for wrong in (0, 1.5, 10_000):
        with pytest.raises(InvalidOption, match="batch"):
            numbers.leases(batch=wrong)  # type: ignore[arg-type]
