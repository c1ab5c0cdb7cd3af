"""A cancellation at every await of a caller that pulls jobs: no job stays leased to nobody."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cancel_at import CancellingRuntime

from holdfast import App, JobState
from holdfast.queue import Queue

BATCH = 4
MAX_AWAITS = 200

Pull = Callable[[Queue[int]], Coroutine[Any, Any, None]]


async def claim(numbers: Queue[int]) -> None:
    (lease,) = await numbers.aclaim()
    async with lease:
        pass


async def claim_and_wait(numbers: Queue[int]) -> None:
    (lease,) = await numbers.aclaim(1, wait=5)
    async with lease:
        pass


async def stream(numbers: Queue[int]) -> None:
    leases = numbers.leases(batch=BATCH, until_empty=True).__aiter__()
    try:
        async for lease in leases:
            async with lease:
                pass
    finally:
        await leases.aclose()  # type: ignore[attr-defined]


@pytest.fixture(params=["memory", "sqlite", "file", "postgres", "redis"])
def pulled(request: pytest.FixtureRequest, tmp_path: Path) -> App[Any]:
    if request.param in ("postgres", "redis"):
        url, namespace = request.getfixturevalue(f"{request.param}_store")()
        return App(url, namespace=namespace)
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db", "file": f"file://{tmp_path}/jobs"}
    return App(urls[request.param])


@asynccontextmanager
async def open_queue(app: App[Any]) -> AsyncIterator[Queue[int]]:
    async with app:
        numbers = app.queue("numbers", int)
        async for lease in numbers.leases(until_empty=True):  # the heartbeat and the upkeep are not part of the test
            await lease.acomplete()
        yield numbers


async def leased(app: App[Any]) -> int:
    (stats,) = (await app.engine.stats("numbers")).queues
    return stats.counts.get(JobState.RUNNING, 0) + stats.counts.get(JobState.ASSIGNED, 0)


async def cancelled_at(app: App[Any], numbers: Queue[int], pull: Pull, at: int) -> bool:
    """Cancel the caller at this await. False: it has fewer awaits."""
    for number in range(BATCH):
        await numbers.aenqueue(number)
    steps = CancellingRuntime(at, lambda name: True)
    caller = asyncio.create_task(steps._watched(pull(numbers), "the caller"))
    cancelled = []

    def cancel() -> None:
        cancelled.append(caller.cancel())

    steps.act = cancel
    await asyncio.wait({caller})
    assert caller.cancelled() == bool(cancelled) or caller.exception() is None
    assert await leased(app) == 0, f"A job is leased to nobody after await {at}, {steps.where}."
    await numbers.aclear()
    return bool(steps.where)


@pytest.mark.parametrize("pull", [claim, claim_and_wait, stream])
async def test_no_job_stays_leased_to_a_caller_that_was_cancelled(pulled: App[Any], pull: Pull) -> None:
    async with open_queue(pulled) as numbers:
        at = 1
        while await cancelled_at(pulled, numbers, pull, at):
            at += 1
            assert at < MAX_AWAITS
        print(f"{at} awaits")
    assert at > 1


async def test_forty_claims_that_are_cancelled_at_once_leave_no_lease_behind(pulled: App[Any]) -> None:
    async with open_queue(pulled) as numbers:
        for number in range(40):
            await numbers.aenqueue(number)
        callers = [asyncio.create_task(numbers.aclaim(1, lease=30)) for _ in range(40)]
        await asyncio.sleep(0.001)
        for caller in callers:
            caller.cancel()
        await asyncio.wait(callers)
        kept = [lease for caller in callers if not caller.cancelled() for lease in caller.result()]
        assert await leased(pulled) == len(kept)
        for lease in kept:
            await lease.arelease()
