"""The harness under an App: in coroutines, beside a worker, and out again."""

import asyncio
from pathlib import Path

import pytest
from shop_app import NOWHERE, Shop

from holdfast import (
    App,
    BlockingCall,
    JobState,
    UsageError,
    WaitTimeout,
)
from holdfast.testing import Harness, harness

# --- Both colours ---


async def test_in_a_coroutine_a_drain_is_awaited(shop: Shop, h: Harness) -> None:
    handle = await shop.waits.aenqueue("it")
    with pytest.raises(BlockingCall, match="adrain"):
        h.drain()
    assert (await h.adrain()).succeeded == 1
    assert await handle.aresult() == "IT"
    assert h.assert_enqueued(shop.waits, "it").state is JobState.SUCCEEDED


async def test_a_request_and_the_drain_that_answers_it_may_run_side_by_side(shop: Shop, h: Harness) -> None:
    answer, drained = await asyncio.gather(shop.waits.arequest("it"), h.adrain())
    assert (answer, drained.succeeded) == ("IT", 1)


async def test_a_running_job_can_be_cancelled(shop: Shop, h: Harness) -> None:
    running = asyncio.Event()

    @shop.jobs.task
    async def stays() -> None:
        running.set()
        await asyncio.Event().wait()

    handle = await stays.aenqueue()
    drain = asyncio.create_task(h.adrain())
    await running.wait()
    assert (await handle.acancel("enough")).answer == "requested"
    assert (await drain).cancelled == 1
    assert (await handle.arefresh()).state is JobState.CANCELLED


async def test_one_drain_at_a_time(shop: Shop, h: Harness) -> None:
    @shop.jobs.task
    async def drains() -> None:
        await h.adrain()

    await drains.aenqueue()
    with pytest.raises(UsageError, match="already runs jobs"):
        await h.adrain()


def test_waiting_for_a_job_that_nothing_will_run_is_refused(shop: Shop, h: Harness) -> None:
    handle = shop.plain.enqueue("it")
    with pytest.raises(UsageError, match="nothing in this test will run it"):
        handle.result()
    with pytest.raises(UsageError, match=r"drain\(\)"):
        shop.plain.request("it")
    assert [job.id for job in h.enqueued()] == [handle.id]
    h.drain()
    assert handle.result() == "IT"


def test_a_worker_may_run_in_the_harness(shop: Shop, h: Harness) -> None:
    with shop.jobs.worker():
        assert shop.plain.request("it") == "IT"
    with pytest.raises(UsageError, match="nothing in this test will run it"):
        shop.plain.request("again")


def test_an_impatient_wait_inside_a_handler_ends_in_real_time(shop: Shop, h: Harness) -> None:
    @shop.jobs.task
    def asks() -> str:
        try:
            return shop.plain.using(delay=60, wait=0.01).request("tomorrow")
        except WaitTimeout:
            return "gave up waiting"

    handle = asks.enqueue()
    h.drain()
    assert handle.result() == "gave up waiting"


# --- In and out ---


def test_afterwards_the_app_is_on_its_own_store_again(tmp_path: Path) -> None:
    jobs = App(f"sqlite:///{tmp_path / 'jobs.db'}")

    @jobs.task
    def task(name: str) -> None: ...

    with jobs:
        before = task.enqueue("real")
        with harness(jobs) as h:
            task.enqueue("fake")
            assert [job.arguments for job in h.enqueued(task)] == [(["fake"], {})]
        assert [job.id for job in jobs.control.find()] == [before.id]


def test_a_test_that_fails_swaps_back_as_well(shop: Shop) -> None:
    own = shop.jobs.runtime

    def failing_test(h: Harness) -> None:
        shop.fails.enqueue("it")
        h.drain()

    with pytest.raises(ValueError, match="it"), harness(shop.jobs) as h:
        failing_test(h)
    assert shop.jobs.runtime is own
    told = len(h.events)
    with harness(shop.jobs) as again:
        assert again.enqueued() == []
        shop.plain.enqueue("it")
        assert len(h.events) == told


def test_code_that_closes_the_app_does_not_get_at_the_real_store(shop: Shop, h: Harness) -> None:
    with shop.jobs:
        shop.plain.enqueue("inside")
    shop.plain.enqueue("after")

    async def serve() -> None:
        async with shop.jobs:
            await shop.waits.aenqueue("on a loop")

    asyncio.run(serve())
    assert h.drain().succeeded == 3
    assert shop.jobs.engine.scheme == "memory"


def test_an_app_that_was_open_before_is_open_after(tmp_path: Path) -> None:
    jobs = App(f"sqlite:///{tmp_path / 'jobs.db'}")
    jobs.open()
    engine = jobs.engine
    with harness(jobs):
        jobs.open()
        jobs.close()
    assert jobs.engine is engine
    jobs.close()


def test_two_apps_have_two_harnesses() -> None:
    one, two = Shop(), Shop()
    with harness(one.jobs) as first, harness(two.jobs) as second:
        one.plain.enqueue("one")
        two.plain.enqueue("two")
        first.clock.advance(days=1)

        assert second.clock.now() < first.clock.now()
        assert first.drain().succeeded == 1
        assert (one.ran, two.ran) == (["one"], [])
        with pytest.raises(UsageError, match="belongs to another App"):
            first.assert_enqueued(two.plain, "two")
        second.assert_enqueued(two.plain, "two")


def test_a_harness_inside_a_harness_is_refused(shop: Shop, h: Harness) -> None:
    shop.plain.enqueue("it")
    with pytest.raises(UsageError, match="in a harness already"), harness(shop.jobs):
        pytest.fail("It was let in.")
    assert h.drain().succeeded == 1


def test_modules_that_the_app_names_are_imported() -> None:
    with pytest.raises(ModuleNotFoundError), harness(App(NOWHERE, modules=["no_such_module"])):
        pytest.fail("It was let in.")
