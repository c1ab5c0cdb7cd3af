"""Waiting: by push, missing no end; many waiters share one look, and each hears how its job ended."""

import asyncio
import gc
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from eventually import eventually, idle
from failing_engine import FailingEngine, fail_times
from manual_worker import fail, settle, succeed, succeed_now, take

from holdfast import App, EngineUnavailable, JobCancelled, JobFailed, JobNotFound, JobState, Task, WaitTimeout
from holdfast.model.command import A, Command
from holdfast.model.observe import Get
from holdfast.model.produce import Enqueue
from holdfast.model.states import Reason
from holdfast.runtime import SystemRuntime


@pytest.fixture
def jobs() -> App[object]:
    return App("memory://")


@pytest.fixture
def double(jobs: App[object]) -> Task[[int], int]:
    @jobs.task
    def double(n: int) -> int:
        return 2 * n

    return double


@pytest.fixture
def only_bells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks because time has passed, looks too late for these tests."""
    monkeypatch.setattr("holdfast.core.waiting.POLL_WITH_PUSH_S", 600.0)


def waited_for(jobs: App[Any]) -> int:
    return len(jobs._store.process.per_loop().end_listener._waiters)


# By push


@pytest.mark.usefixtures("only_bells")
async def test_a_waiter_is_notified_when_the_job_ends(jobs: App[object], double: Task[[int], int]) -> None:
    handle = await double.aenqueue(21)
    waiting = asyncio.ensure_future(handle.aresult())
    await eventually(lambda: waited_for(jobs))
    await succeed(jobs, double, 42)
    assert (await waiting) == 42


# PF3
@pytest.mark.parametrize("began", [True, False])
async def test_a_waiter_is_notified_although_other_code_cancelled_the_listener(
    jobs: App[object], double: Task[[int], int], began: bool
) -> None:
    handle = await double.aenqueue(21)
    waiting = asyncio.ensure_future(handle.aresult())
    listener = jobs._store.process.per_loop().end_listener
    while listener._listener is None:  # noqa: ASYNC110 - one turn more, and it has begun
        await asyncio.sleep(0)
    if began:
        await idle()
    listener._listener.cancel()
    await idle()
    await succeed(jobs, double, 42)
    async with asyncio.timeout(30):
        assert (await waiting) == 42


@pytest.mark.usefixtures("only_bells")
async def test_a_request_is_an_enqueue_and_a_wait(jobs: App[object], double: Task[[int], int]) -> None:
    asked = asyncio.ensure_future(double.arequest(21))
    await eventually(lambda: waited_for(jobs))
    await succeed(jobs, double, 42)
    assert (await asked) == 42


@pytest.mark.usefixtures("only_bells")
async def test_a_request_from_a_thread_is_answered_too(jobs: App[object], double: Task[[int], int]) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(double.request, 21)

        async def is_there() -> bool:
            return (await jobs.control.astats()).due == 1

        await jobs.aopen()
        await eventually(is_there)
        await succeed(jobs, double, 42)
        assert asked.result(20) == 42


class InstantEngine(FailingEngine):
    """Each job has ended before its enqueue returns, as with a very fast worker."""

    def __init__(self, app: App[Any], task: Task[..., Any]) -> None:
        super().__init__(SystemRuntime())
        self.app, self.task = app, task

    async def perform(self, command: Command[A]) -> A:
        answer = self.perform_now(command)
        if isinstance(command, Enqueue) and command.groups[0].jobs[0].task == self.task.name:
            await succeed(self.app, self.task, 42)
            for _ in range(10):  # everybody who listens has heard of it by now
                await asyncio.sleep(0)
        return answer


@pytest.mark.usefixtures("only_bells")
async def test_an_end_before_the_answer_to_the_enqueue_is_not_missed(
    jobs: App[object], double: Task[[int], int]
) -> None:
    with jobs.swapped(InstantEngine(jobs, double), jobs.runtime):
        other = await jobs.client.task("other").aenqueue()
        busy = asyncio.ensure_future(other.aresult())  # keeps the listener awake
        await eventually(lambda: waited_for(jobs))
        answers = [await double.arequest(21) for _ in range(5)]
        busy.cancel()
        assert answers == [42] * 5


@pytest.mark.usefixtures("only_bells")
async def test_many_waiters_share_one_look(jobs: App[object], double: Task[[int], int]) -> None:
    engine = FailingEngine(SystemRuntime())

    with jobs.swapped(engine, jobs.runtime):
        asked = [asyncio.ensure_future(double.arequest(n)) for n in range(100)]
        await eventually(lambda: waited_for(jobs) == 100)
        engine.commands.clear()
        leases = [await take(jobs, double) for _ in range(100)]
        for lease in leases:
            await settle(jobs, lease, JobState.SUCCEEDED, result=b"1")
        answers = list(await asyncio.gather(*asked))
        looks = sum(isinstance(command, Get) for command in engine.commands)
    assert answers == [1] * 100
    assert looks <= 3


@pytest.mark.usefixtures("only_bells")
async def test_several_waiters_for_one_job_are_all_notified(jobs: App[object], double: Task[[int], int]) -> None:
    first = asyncio.ensure_future(double.using(id="x").arequest(21))
    await eventually(lambda: waited_for(jobs))
    second = asyncio.ensure_future(double.using(id="x").arequest(21))
    third = asyncio.ensure_future(double.handle("x").aresult())
    waiters = jobs._store.process.per_loop().end_listener._waiters
    await eventually(lambda: [len(answers) for answers in waiters.values()] == [3])
    assert [queue.depth for queue in await jobs.control.aqueues()] == [1]
    await succeed(jobs, double, 42)
    assert list(await asyncio.gather(first, second, third)) == [42] * 3


async def test_a_waiter_polls_in_case_a_notification_is_lost(
    jobs: App[object], double: Task[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.waiting.POLL_WITH_PUSH_S", 0.01)

    asked = asyncio.ensure_future(double.arequest(21))
    await eventually(lambda: waited_for(jobs))
    monkeypatch.setattr(jobs.engine, "_topics", type("WithoutNotifications", (), {"notify": lambda *_: None})())
    await succeed(jobs, double, 42)
    assert (await asked) == 42


async def test_a_store_that_fails_for_a_while_does_not_end_a_wait(
    jobs: App[object], double: Task[[int], int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.core.waiting.POLL_WITH_PUSH_S", 0.01)
    engine = FailingEngine(SystemRuntime())

    with caplog.at_level(logging.WARNING, "holdfast"), jobs.swapped(engine, jobs.runtime):
        asked = asyncio.ensure_future(double.arequest(21))
        await eventually(lambda: waited_for(jobs))
        engine.before = fail_times(3, Get, lambda: EngineUnavailable(engine="memory"))
        await succeed(jobs, double, 42)
        assert (await asked) == 42
    assert "The store answers again" in caplog.text


async def test_the_subscription_ends_with_the_last_waiter(jobs: App[object], double: Task[[int], int]) -> None:
    asked = asyncio.ensure_future(double.arequest(21))
    await eventually(lambda: waited_for(jobs))
    waiting = jobs._store.process.per_loop().end_listener
    assert waiting._listener is not None
    await succeed(jobs, double, 42)
    await asked
    await eventually(lambda: waiting._listener is None)
    assert waiting._waiters == {}


async def test_loops_that_come_and_go_leave_no_listener_behind(jobs: App[object], double: Task[[int], int]) -> None:
    for _ in range(5):
        with pytest.raises(WaitTimeout):
            await double.using(wait=0).arequest(1)
    gc.collect()
    assert len(jobs.engine._topics._subscriptions) <= 1  # type: ignore[attr-defined]


# What a request may end with


def test_a_finished_duplicate_is_answered_at_once(jobs: App[object], double: Task[[int], int]) -> None:
    double.using(id="x").enqueue(21)
    succeed_now(jobs, double, 42)
    assert double.using(id="x").request(21) == 42
    assert [queue.depth for queue in jobs.control.queues()] == [0]


async def test_none_is_a_result_to_ask_for(jobs: App[object]) -> None:
    @jobs.task
    def quiet() -> None: ...

    asked: asyncio.Future[Any] = asyncio.ensure_future(quiet.using(id="x").arequest())
    await eventually(lambda: waited_for(jobs))
    await succeed(jobs, quiet, None)
    again: Any = quiet.using(id="x")
    assert [await asked, await again.arequest()] == [None, None]


async def test_a_request_raises_how_the_job_ended(jobs: App[object], double: Task[[int], int]) -> None:
    asked = [asyncio.ensure_future(double.using(id=name).arequest(1)) for name in ("a", "b", "c")]
    await eventually(lambda: waited_for(jobs) == 3)
    await fail(jobs, double, Reason.GAVE_UP)
    await jobs.control.acancel("b", reason="no")
    await succeed(jobs, double, 2, result_ttl=0, retention=0)
    assert [type(each) for each in list(await asyncio.gather(*asked, return_exceptions=True))] == [
        JobFailed,
        JobCancelled,
        JobNotFound,
    ]


def test_a_request_waits_no_longer_than_its_timeout(jobs: App[object], double: Task[[int], int]) -> None:
    with pytest.raises(WaitTimeout) as late:
        double.using(wait=0.01).request(21)
    assert late.value.waited == 0.01
    assert [queue.depth for queue in jobs.control.queues()] == [1]


def test_the_settings_say_how_long_a_request_waits_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_REQUEST_TIMEOUT", "10ms")
    jobs = App("memory://")

    @jobs.task
    def slow() -> None: ...

    with pytest.raises(WaitTimeout):
        slow.request()


async def test_an_app_that_closes_ends_every_wait(jobs: App[object], double: Task[[int], int]) -> None:
    asked = asyncio.ensure_future(double.arequest(21))
    await eventually(lambda: waited_for(jobs))
    await jobs.aclose()
    (ended,) = await asyncio.gather(asked, return_exceptions=True)
    assert isinstance((ended if isinstance(ended, BaseException) else None), EngineUnavailable)
