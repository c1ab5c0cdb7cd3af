"""A worker that dies at a chosen point: what has happened by then stays, and nothing after it does."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import App, Context, InvalidOption, JobState, Next, UsageError, events
from holdfast.model.states import Reason
from holdfast.testing import CrashPoint, Drained, Harness, harness

jobs = App[Any]("sqlite:///there/is/no/such/folder/jobs.db")
did: list[str] = []


@jobs.task
def child(name: str) -> None: ...


@jobs.task
def plain(name: str) -> str:
    did.append(f"{name} began")
    try:
        child.enqueue(name)
        did.append(f"{name} enqueued")
    finally:
        child.enqueue(f"finally {name}")
    return name


@jobs.task
async def waits(name: str) -> str:
    did.append(f"{name} began")
    try:
        await asyncio.sleep(0)
        did.append(f"{name} waited")
        await child.aenqueue(name)
    finally:
        await child.aenqueue(f"finally {name}")
    return name


@jobs.task(lease=5)
def quiet(name: str) -> str:
    did.append(f"{name} ran")
    return name


@pytest.fixture
def h() -> Iterator[Harness]:
    did.clear()
    with harness(jobs) as made:
        yield made


def children(h: Harness) -> list[str]:
    return [(job.arguments or ([], {}))[0][0] for job in h.enqueued(child)]


# --- The four points ---


def test_after_the_claim_the_handler_has_not_begun(h: Harness) -> None:
    handle = plain.enqueue("it")
    with h.crash("after_claim"):
        assert h.drain() == Drained(left=1, crashed=True)

    job = handle.refresh()
    assert (job.state, job.attempt, job.worker) == (JobState.RUNNING, 1, "harness-1")
    assert did == []


def test_a_plain_function_dies_where_it_would_first_change_the_store(h: Harness) -> None:
    plain.enqueue("it")
    with h.crash("in_handler"):
        assert h.drain() == Drained(left=1, crashed=True)

    assert did == ["it began"]
    assert children(h) == []


def test_a_coroutine_dies_where_it_first_waits(h: Harness) -> None:
    waits.enqueue("it")
    with h.crash("in_handler"):
        assert h.drain() == Drained(left=1, crashed=True)

    assert did == ["it began"]
    assert children(h) == []


def test_a_handler_that_does_neither_dies_at_its_end(h: Harness) -> None:
    handle = quiet.enqueue("it")
    with h.crash("in_handler"):
        assert h.drain().crashed

    assert did == ["it ran"]
    assert handle.refresh().state is JobState.RUNNING


@pytest.mark.parametrize("task", [plain, waits])
def test_before_the_settlement_all_that_the_handler_did_is_done(h: Harness, task: Any) -> None:
    handle = task.enqueue("it")
    with h.crash("before_settle"):
        assert h.drain() == Drained(left=3, crashed=True)

    assert handle.refresh().state is JobState.RUNNING
    assert children(h) == ["it", "finally it"]
    assert not [event for event in h.events if isinstance(event, events.Succeeded)]


def test_after_the_settlement_the_job_has_ended_and_no_event_was_published(h: Harness) -> None:
    first, second = quiet.enqueue("first"), quiet.enqueue("second")
    with h.crash("after_settle"):
        assert h.drain() == Drained(succeeded=1, left=1, crashed=True)

    assert not [event for event in h.events if isinstance(event, events.Succeeded)]
    assert first.result() == "first"
    assert second.refresh().state is JobState.QUEUED
    assert h.drain() == Drained(succeeded=1)


@pytest.mark.parametrize("point", ["after_claim", "in_handler", "before_settle"])
@pytest.mark.parametrize("task", [plain, waits, quiet])
def test_the_job_is_reaped_when_its_lease_runs_out_and_run_again(h: Harness, task: Any, point: CrashPoint) -> None:
    handle = task.enqueue("it")
    with h.crash(point):
        assert h.drain().crashed
    assert h.drain().reaped == 0
    h.clock.advance(4.9 if task is quiet else 29.9)
    assert h.drain().reaped == 0

    assert h.drain(until=60).reaped == 1
    job = handle.refresh()
    assert [attempt.outcome for attempt in job.attempts] == ["worker_lost", "succeeded"]
    assert [attempt.worker for attempt in job.attempts] == ["harness-1", "harness-4"]
    assert handle.result() == "it"


def test_a_job_that_kills_its_workers_fails_in_the_end(h: Harness) -> None:
    @jobs.task(name="poison", max_losses=2)
    def poison() -> None: ...

    handle = poison.enqueue()
    with h.crash("in_handler"):
        assert h.drain().crashed
        assert h.drain(until=60) == Drained(reaped=1, left=1, crashed=True)
    assert h.drain(until=60) == Drained(failed=1, reaped=1)
    assert handle.refresh().reason is Reason.WORKER_LOST


# --- What else belongs to the worker ---


def test_middleware_and_lifespan_of_a_dead_worker_do_not_reach_the_store() -> None:
    unwound: list[str] = []

    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        try:
            yield
        finally:
            unwound.append("lifespan")
            await note.aenqueue("lifespan")

    app = App(jobs._store.url, lifespan=resources)

    @app.task
    async def note(what: str) -> None: ...

    @app.task
    async def works() -> None:
        await asyncio.Event().wait()

    @app.middleware
    async def around(ctx: Context, proceed: Next) -> object:
        try:
            return await proceed()
        finally:
            unwound.append("middleware")
            await note.aenqueue("middleware")

    with harness(app) as h:
        works.enqueue()
        with h.crash("in_handler"):
            assert h.drain() == Drained(left=1, crashed=True)
        h.assert_not_enqueued(note)
    assert unwound == ["middleware", "lifespan"]


def test_a_handler_that_catches_everything_is_cut_off_all_the_same(h: Harness) -> None:
    @jobs.task(name="stubborn")
    def stubborn() -> str:
        for _ in range(3):
            try:
                child.enqueue("it")
            except BaseException:
                did.append("caught")
        return "done"

    handle = stubborn.enqueue()
    with h.crash("in_handler"):
        assert h.drain() == Drained(left=1, crashed=True)
    assert did == ["caught"] * 3
    assert children(h) == []
    assert handle.refresh().state is JobState.RUNNING


def test_a_coroutine_that_waits_while_it_unwinds_is_left_there(h: Harness) -> None:
    @jobs.task(name="slow_to_leave")
    async def slow_to_leave() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            await asyncio.Event().wait()

    slow_to_leave.enqueue()
    with h.crash("in_handler"):
        assert h.drain() == Drained(left=1, crashed=True)


def test_a_handler_that_waits_for_the_one_that_dies_dies_with_it(h: Harness) -> None:
    @jobs.task(name="asks")
    async def asks() -> str:
        return await quiet.arequest("it")

    handle = asks.enqueue()
    with h.crash("before_settle"):
        assert h.drain() == Drained(left=2, crashed=True)
    assert handle.refresh().state is JobState.RUNNING
    assert h.drain(until=60) == Drained(succeeded=3, reaped=2)


async def test_in_a_coroutine_a_worker_dies_as_well(h: Harness) -> None:
    await waits.aenqueue("it")
    with h.crash("in_handler"):
        assert (await h.adrain()).crashed
    await child.aenqueue("the test itself is not cut off")
    assert (await h.adrain(until=60)).reaped == 1


# --- The block ---


def test_without_work_no_worker_is_killed(h: Harness) -> None:
    with h.crash("before_settle"):
        assert h.drain() == Drained()


def test_after_the_block_workers_live(h: Harness) -> None:
    quiet.enqueue("it")
    with pytest.raises(ZeroDivisionError), h.crash("before_settle"):
        raise ZeroDivisionError
    assert h.drain() == Drained(succeeded=1)


def test_a_point_that_does_not_exist_is_refused(h: Harness) -> None:
    with pytest.raises(InvalidOption, match="The crash points are after_claim, in_handler"), h.crash("later"):  # type: ignore[arg-type]
        pytest.fail("It was let in.")


def test_two_points_at_once_are_refused(h: Harness) -> None:
    with h.crash("after_claim"), pytest.raises(UsageError, match="after_claim"), h.crash("in_handler"):
        pytest.fail("It was let in.")
