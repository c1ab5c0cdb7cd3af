"""What a drain raises, and what it does not."""

import asyncio

import pytest
from shop_app import Shop

from holdfast import (
    Cancel,
    GiveUp,
    JobFailed,
    JobState,
    Retry,
)
from holdfast.model.produce import Group, NewJob
from holdfast.testing import Drained, Harness

# --- What is raised ---


def test_an_error_of_a_handler_fails_the_test_and_its_job_is_settled(shop: Shop, h: Harness) -> None:
    handle = shop.fails.enqueue("first")
    shop.plain.enqueue("second")

    with pytest.raises(ValueError, match="first") as caught:
        h.drain()
    assert caught.value.__notes__ == [f"Raised by job {handle.id} (fails) at attempt 1."]
    assert caught.traceback[-1].name == "fails"
    assert handle.refresh().state is JobState.RETRYING
    assert shop.ran == ["first"]
    assert h.drain().succeeded == 1


def test_with_until_only_the_error_that_ends_a_job_is_raised(shop: Shop, h: Harness) -> None:
    handle = shop.fails.enqueue("three times")
    assert h.drain(until=10).retried == 2
    with pytest.raises(ValueError, match="three times"):
        h.drain(until=10)
    assert handle.refresh().state is JobState.FAILED


def test_what_handlers_say_with_an_interrupt_is_no_error(shop: Shop, h: Harness) -> None:
    @shop.jobs.task(max_attempts=1)
    async def ends(how: str) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(says(how))

    async def says(how: str) -> None:
        raise {"retry": Retry("once more"), "give up": GiveUp("card expired"), "cancel": Cancel()}[how]

    for how in ("retry", "give up", "cancel"):
        ends.enqueue(how)
    assert h.drain() == Drained(failed=2, cancelled=1)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_what_would_end_more_than_a_test_is_wrapped(shop: Shop, h: Harness, kind: type[BaseException]) -> None:
    @shop.jobs.task
    async def leaves() -> None:
        raise kind

    leaves.enqueue()
    with pytest.raises(RuntimeError, match=f"The handler raised {kind.__name__}") as caught:
        h.drain()
    assert isinstance(caught.value.__cause__, kind)


def test_a_failing_assertion_in_a_handler_fails_the_test(shop: Shop, h: Harness) -> None:
    @shop.jobs.task
    def checks() -> None:
        pytest.fail("not what it should be")

    checks.enqueue()
    with pytest.raises(pytest.fail.Exception, match="not what it should be"):
        h.drain()


def test_a_payload_that_does_not_fit_and_a_result_that_cannot_be_stored_fail_the_test(shop: Shop, h: Harness) -> None:
    @shop.jobs.task
    def unstorable() -> object:
        return object()

    async def put(task: str, payload: bytes) -> None:
        await shop.jobs.engine.enqueue(Group((NewJob(queue="default", id=task, task=task, payload=payload),)))

    asyncio.run(put("plain", b"[[1, 2, 3], {}]"))
    with pytest.raises(JobFailed, match="undecodable"):
        h.drain()
    unstorable.enqueue()
    with pytest.raises(JobFailed, match="at attempt 1: error"):
        h.drain()


def test_a_handler_that_waits_for_a_job_that_fails_is_given_back(shop: Shop, h: Harness) -> None:
    @shop.jobs.task
    async def asks() -> None:
        await shop.fails.arequest("broken")

    handle = asks.enqueue()
    with pytest.raises(ValueError, match="broken"):
        h.drain()
    job = handle.refresh()
    assert (job.state, job.attempt) == (JobState.QUEUED, 0)


def test_the_reason_of_a_wait_does_not_name_the_store_that_the_test_replaced(shop: Shop, h: Harness) -> None:
    handle = shop.plain.enqueue("first")
    assert handle.id == h.enqueued(shop.plain)[0].id
    assert shop.jobs.control.why(handle.id).text == "No live worker on the store of this test."
