"""Python code blocks the event loop of a worker for many leases: the keeper's thread renews them, and none is lost."""

import asyncio
import time
from pathlib import Path

import pytest
from steady_workers import QUEUE, Fleet, Store, leases_of

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.model.instants import SECOND
from holdfast.model.job import Given, JobKey
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import JobState

SHORTEST_LEASE_S = 2
"""Of a task."""
BESIDE = 5
"""Jobs that wait in the same worker while its loop is blocked."""


async def wait_until_leased(engine: Engine, name: str, count: int) -> None:
    end_s = time.monotonic() + 60
    while len(await leases_of(engine, name)) < count:
        assert time.monotonic() < end_s, f"{name} has not claimed {count} jobs"
        await asyncio.sleep(0.02)


async def block(store: Store, log: Path, *, lease_s: int, blocked_s: float) -> None:
    """A second worker with free slots reaps five times a second: it would take a job whose lease has expired."""
    engine = open_engine(store.url, **store.options)
    await engine.open()
    given = Given(lease_len=lease_s * SECOND, max_attempts=1)
    tasks = ["pause_beside"] * BESIDE + ["block"]
    payload = f"[[{blocked_s}],{{}}]".encode()
    jobs = [
        NewJob(queue=QUEUE, id=f"job{number}", task=task, payload=payload, given=given)
        for number, task in enumerate(tasks)
    ]
    fleet = Fleet(log, HOLDFAST_WORKER_REAP_INTERVAL="0.2")
    with fleet.running() as name:
        await engine.enqueue(Group(tuple(jobs)))
        await wait_until_leased(engine, name, len(jobs))
        with fleet.running() as other:
            end_s = time.monotonic() + 120
            while (await engine.stats(QUEUE)).queues[0].totals.finished < len(jobs):
                assert time.monotonic() < end_s, log.read_text(encoding="utf-8")[-4_000:]
                assert await leases_of(engine, other) == []
                await asyncio.sleep(0.05)
    records = [job for job in (await engine.get(*(JobKey(QUEUE, job.id) for job in jobs))).jobs if job is not None]
    await engine.close()
    assert [(job.state, job.attempt, job.losses) for job in records] == [(JobState.SUCCEEDED, 1, 0)] * len(jobs)
    text = log.read_text(encoding="utf-8")
    assert "The event loop has been blocked" in text
    assert "lease is lost" not in text


@pytest.mark.parametrize("steady_store", ["sqlite"], indirect=True)
async def test_a_loop_that_is_blocked_for_longer_than_a_lease_loses_none(steady_store: Store, tmp_path: Path) -> None:
    """The disk of a busy machine may need seconds for a renewal, which comes after a third of the lease."""
    await block(steady_store, tmp_path / "log", lease_s=5, blocked_s=6)


@pytest.mark.chaos
@pytest.mark.time_limit(180)
async def test_a_loop_that_is_blocked_for_ten_leases_loses_none(steady_store: Store, tmp_path: Path) -> None:
    await block(steady_store, tmp_path / "log", lease_s=SHORTEST_LEASE_S, blocked_s=10 * SHORTEST_LEASE_S)
