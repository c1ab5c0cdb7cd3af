"""A CancelledError at every await of the worker, one after the other. Every job ends, and nothing stays behind.

PF3: a cancellation that is not the worker's own is a failure like any other: it is logged, and the step tried again.
"""

import asyncio
import logging
from collections.abc import Iterator

import pytest
from cancel_at import AwaitingEngine, CancellingRuntime
from eventually import eventually
from minimal_app import QUEUE, QUICK, MinimalApp, MinimalTask

from holdfast.model.states import LEASED, TERMINAL, JobState
from holdfast.telemetry import events

JOBS = 6
MAX_AWAITS = 2_000
"""The scenario has fewer."""


def is_service(name: str) -> bool:
    return name.startswith("holdfast ") and name != "holdfast timer"


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
        where = lambda: f"every job to end after await {at}, {scenario.runtime.where}"  # noqa: E731
        await eventually(scenario.all_ended, where(), limit_s=15)
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


@pytest.mark.parametrize("start", range(1, 8))
async def test_no_foreign_cancellation_stops_a_worker(start: int) -> None:
    at = start
    while await cancelled_from_elsewhere(at):
        at += 7 * STRIDE
    assert at > 7


STRIDE = 3


@pytest.mark.parametrize("start", range(1, 8))
async def test_a_worker_that_is_cancelled_leaves_no_lease_behind(start: int) -> None:
    at = start
    while await stopped_by_itself(at):
        at += 7 * STRIDE
    assert at > 7


@pytest.mark.chaos
@pytest.mark.time_limit(900)
@pytest.mark.parametrize("check", [cancelled_from_elsewhere, stopped_by_itself])
async def test_a_cancellation_at_every_await(check: "type[bool]") -> None:
    at = 1
    while await check(at):
        at += 1
    print(f"{check.__name__}: {at} awaits")
