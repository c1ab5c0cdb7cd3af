"""A CancelledError at every await of the worker, one after the other. Every job ends, and nothing stays behind.

PF3: a cancellation that is not the worker's own is a failure like any other: it is logged, and the step tried again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from cancel_at import AwaitingEngine, CancellingRuntime
from eventually import eventually
from failing_engine import FailingEngine
from minimal_app import QUEUE, QUICK, MinimalApp, MinimalTask

from holdfast.context import CURRENT
from holdfast.model.job import JobKey
from holdfast.model.retry import RetryPolicy
from holdfast.model.states import LEASED, TERMINAL, JobState
from holdfast.model.work import Expired, Settlement
from holdfast.runtime import SystemRuntime
from holdfast.telemetry import events

Check = Callable[[int], Awaitable[bool]]
"""Runs a scenario with a cancellation at this await. False: it has fewer awaits."""

JOBS = 6
MAX_AWAITS = 2_000
"""The scenario has fewer."""


def is_service(name: str) -> bool:
    """True for the tasks of the worker, but not for the task of the whole worker: its cancellation is the worker's."""
    return name.startswith("holdfast ") and not name.startswith("holdfast worker")


class Scenario:
    """A worker with handlers of each kind, a dead-letter hook and listeners, over a store whose calls suspend."""

    def __init__(self, at: int) -> None:
        self.runtime = CancellingRuntime(at, is_service)
        self.hooks: list[str] = []

        async def quick() -> None: ...

        async def slow() -> None:
            await asyncio.sleep(0)

        def plain() -> None: ...

        async def broken() -> None:
            raise ValueError("broken")

        async def on_dead_letter(job: object, error: object) -> None:
            await asyncio.sleep(0)
            self.hooks.append("hook")

        failing = MinimalTask(broken, retry=QUICK)
        failing.dead_letter_hooks.append(on_dead_letter)
        self.app = MinimalApp(
            MinimalTask(quick, retry=QUICK),
            MinimalTask(slow, retry=QUICK),
            MinimalTask(plain, retry=QUICK),
            failing,
            runtime=self.runtime,
            engine=AwaitingEngine("memory://", self.runtime),
            poll_interval=0.05,
            grace=5,
        )
        self.app.bus.on(events.QueueEmpty, lambda event: None)

        async def listener(event: events.Event) -> None:
            await asyncio.sleep(0)

        self.app.bus.on(events.Succeeded, listener)

    async def enqueue(self) -> None:
        names = ("quick", "slow", "plain", "broken", "quick", "slow")
        assert len(names) == JOBS
        await self.app.put(*(self.app.job(name) for name in names))

    async def all_ended(self) -> bool:
        counts = await self.app.counts()
        return sum(counts.get(state, 0) for state in TERMINAL) == JOBS

    async def leased(self) -> int:
        counts = await self.app.counts()
        return sum(counts.get(state, 0) for state in LEASED)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("holdfast").setLevel(logging.NOTSET)


async def cancelled_from_elsewhere(at: int) -> bool:
    """False: the scenario has fewer awaits."""
    scenario = Scenario(at)
    app, worker = scenario.app, scenario.app.worker(concurrency=4)
    await app.engine.open()
    async with worker:
        services = worker._services
        assert services is not None
        await scenario.enqueue()

        def where() -> str:
            return f"after await {at}, {scenario.runtime.where}"

        await eventually(scenario.all_ended, f"every job to end, {where()}", limit_s=15)
        await eventually(lambda: not services.slots.busy and not services.slots.reserved, f"free slots, {where()}")
        await eventually(lambda: not services.slots.attempts, f"no lease held, {where()}")
        assert not await scenario.leased(), where()
        await app.put(app.job("quick", id="last"))  # the services still run
        await eventually(lambda: _is_done(app, "last"), f"one more job, {where()}", limit_s=15)
        assert not [task for task in services.supervisor._tasks.values() if task.done()], where()
    return bool(scenario.runtime.where)


async def _is_done(app: MinimalApp, id: str) -> bool:
    return (await app.look(id)).state is JobState.SUCCEEDED


async def stopped_by_itself(at: int) -> bool:
    """The worker's own task is cancelled at this await. False: the scenario has fewer awaits."""
    scenario = Scenario(at)
    app = scenario.app
    await app.engine.open()
    await scenario.enqueue()
    worker = app.worker(concurrency=4, until_empty=True)
    running = asyncio.create_task(worker.arun())

    def cancel_worker() -> None:
        running.cancel()

    scenario.runtime.act = cancel_worker
    await asyncio.wait({running})
    assert not await scenario.leased(), f"a lease is left after await {at}, {scenario.runtime.where}"
    (queue,) = (await app.engine.stats(QUEUE)).queues
    assert sum(queue.counts.values()) == JOBS
    assert not (await app.engine.workers()).workers, scenario.runtime.where
    left = [task.get_name() for task in asyncio.all_tasks() if is_service(task.get_name())]
    assert not left, f"{left} still run after await {at}, {scenario.runtime.where}"
    await app.drain()
    assert await scenario.all_ended()
    return bool(scenario.runtime.where)


STRIDE = 3
"""The short form takes every third await."""


async def cancel_at_each(check: Check, stride: int) -> None:
    at = 1
    while await check(at):
        at += stride
        assert at < MAX_AWAITS
    assert at > 50
    print(f"{check.__name__}: {at} awaits")


async def test_no_foreign_cancellation_stops_a_worker() -> None:
    await cancel_at_each(cancelled_from_elsewhere, STRIDE)


async def test_a_worker_that_is_cancelled_leaves_no_lease_behind() -> None:
    await cancel_at_each(stopped_by_itself, STRIDE)


@pytest.mark.chaos
@pytest.mark.time_limit(900)
@pytest.mark.parametrize("check", [cancelled_from_elsewhere, stopped_by_itself])
async def test_a_cancellation_at_every_await(check: Check) -> None:
    await cancel_at_each(check, 1)


# One behaviour each


async def test_a_hook_that_awaits_a_cancelled_task_does_not_stop_the_other_hooks() -> None:
    async def broken() -> None:
        raise ValueError("broken")

    ran: list[str] = []

    async def cancelled_hook(job: object, error: object) -> None:
        task = asyncio.create_task(asyncio.sleep(10))
        task.cancel()
        await task

    async def hook(job: object, error: object) -> None:
        ran.append("hook")

    failing = MinimalTask(broken, retry=QUICK)
    failing.dead_letter_hooks += [cancelled_hook, hook]
    app = MinimalApp(failing, poll_interval=0.05)
    async with app.worker():
        await app.enqueue("broken")
        await eventually(lambda: ran, "the second hook")


async def test_a_listener_that_touches_a_cancelled_future_does_not_stop_the_exchange() -> None:
    async def quick() -> None: ...

    app = MinimalApp(MinimalTask(quick))
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    app.bus.on(events.Succeeded, lambda event: cancelled.result())
    async with app.worker():
        for number in range(3):
            await app.enqueue("quick", id=f"job-{number}")
            await eventually(partial(_is_done, app, f"job-{number}"), "the job")


async def test_a_handler_that_cancels_its_own_task_does_not_cancel_the_next_handler() -> None:
    async def cancels() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def suspends() -> None:
        await asyncio.sleep(0)

    once = RetryPolicy(max_attempts=1)
    app = MinimalApp(MinimalTask(cancels, retry=once), MinimalTask(suspends, retry=once))
    await app.put(*(app.job(name) for name in ("cancels", "suspends", "cancels", "suspends")))
    await app.drain(concurrency=4)
    assert await app.counts() == {JobState.SUCCEEDED: 4}


async def test_a_handler_that_cancels_every_task_of_the_loop_does_not_stop_the_worker() -> None:
    test = asyncio.current_task()

    async def cancels_all() -> None:
        for task in asyncio.all_tasks() - {test, asyncio.current_task()}:
            if not task.get_name().startswith("holdfast worker"):
                task.cancel()

    async def quick() -> None:
        await asyncio.sleep(0)

    app = MinimalApp(MinimalTask(cancels_all), MinimalTask(quick, retry=QUICK), poll_interval=0.05)
    async with app.worker(concurrency=3):
        for number in range(3):
            await app.put(app.job("cancels_all"), app.job("quick", id=f"job-{number}"))
            await eventually(partial(_is_done, app, f"job-{number}"), "the job")


async def test_a_worker_that_lost_a_service_stops_and_says_so() -> None:
    class WorstError(BaseException):
        pass

    async def quick() -> None: ...

    app = MinimalApp(MinimalTask(quick))

    def fail(command: object) -> BaseException | None:
        return WorstError() if isinstance(command, Expired) else None

    app.engine = engine = FailingEngine(app.runtime)
    engine.before = fail
    with pytest.raises(RuntimeError, match="service 'reaper' ended"):
        await app.worker().arun()


async def test_a_cancellation_while_the_worker_checks_a_transaction_leaks_no_slot() -> None:
    runtime = SystemRuntime()
    handlers: list[asyncio.Task[Any]] = []

    class CancellingEngine(AwaitingEngine):
        async def get(self, *keys: JobKey) -> Any:
            while handlers:
                handlers.pop().cancel()  # the handler has returned; its task now asks for the record
            return await super().get(*keys)

    async def completes() -> None:
        attempt: Any = CURRENT.get()
        task = asyncio.current_task()
        assert task is not None
        lease = attempt.lease
        # As `ctx.complete` does, in a transaction that is not committed.
        attempt.transaction_settlement = Settlement(
            queue=lease.queue, id=lease.id, token=lease.token, target=JobState.SUCCEEDED
        )
        handlers.append(task)

    task = MinimalTask(completes, retry=RetryPolicy(max_attempts=1))
    app = MinimalApp(task, runtime=runtime, engine=CancellingEngine("memory://", runtime))
    async with app.worker() as worker:
        services = worker._services
        assert services is not None
        await app.enqueue("completes", id="job")

        async def has_failed() -> bool:
            return await app.counts() == {JobState.FAILED: 1}

        await eventually(has_failed, "the end of the job")
        await eventually(lambda: not services.slots.attempts and services.slots.busy == 0, "the slot")
        assert not handlers, "The check was not cancelled."
