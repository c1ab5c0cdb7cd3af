"""Worker processes with much to do get SIGTERM. Each ends in time, leaves no lease, and no job pays for it."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from steady_workers import QUEUE, Fleet, Store, leases_of

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.model.instants import SECOND
from holdfast.model.job import Given
from holdfast.model.observe import Find
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import JobState

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")

GRACE_S = 0.3
LONGEST_S = 0.6
"""Half of the jobs that run at a signal take longer than the grace."""


async def enqueue(engine: Engine, random: Random, first: int, count: int) -> list[str]:
    ids = [f"job{number}" for number in range(first, first + count)]
    jobs = [
        NewJob(
            queue=QUEUE,
            id=id,
            task=random.choice(("pause", "pause", "pause_thread")),
            payload=f"[[{random.choice((0.001, random.random() * LONGEST_S)):.3f}],{{}}]".encode(),
            given=Given(lease_len=30 * SECOND, max_attempts=1),
        )
        for id in ids
    ]
    await engine.enqueue(Group(tuple(jobs)))
    return ids


async def stop_many(store: Store, log: Path, *, count: int, parallel: int, backlog: int, seed: int) -> None:
    """Start and stop `count` workers, `parallel` at a time; then let one finish what is left."""
    random, fleet = Random(seed), Fleet(log, "--grace", f"{GRACE_S}s", "-c", "20")
    engine = open_engine(store.url, **store.options)
    await engine.open()
    ids = await enqueue(engine, random, 0, backlog)
    took_s: list[float] = []
    remaining = iter(range(count))
    top_up = asyncio.Lock()

    async def one_after_the_other() -> None:
        for _ in remaining:
            async with top_up:
                if (await engine.stats(QUEUE)).queues[0].counts.get(JobState.QUEUED, 0) < backlog:
                    ids.extend(await enqueue(engine, random, len(ids), backlog))
            name, process = fleet.start()
            try:
                await wait_for_work(engine, name, process)
                await asyncio.sleep(random.random() * 0.5)
                process.send_signal(signal.SIGTERM)
                sent_s = time.monotonic()
                code = await asyncio.to_thread(process.wait, 60)
                took_s.append(time.monotonic() - sent_s)
                # Exit code 0: it was not ended by force, so it took less than the grace and ten seconds.
                assert code == 0, log.read_text(encoding="utf-8")[-4_000:]
                assert await leases_of(engine, name) == []
                names = [record.worker for record in (await engine.workers()).workers]
                assert not any(worker.startswith(f"{name}-") for worker in names)
            finally:
                process.kill()
                process.wait()

    await asyncio.gather(*(one_after_the_other() for _ in range(parallel)))
    _, process = fleet.start()
    try:
        while (await engine.stats(QUEUE)).queues[0].totals.finished < len(ids):
            await asyncio.sleep(0.05)
            assert process.poll() is None, log.read_text(encoding="utf-8")[-4_000:]
    finally:
        process.terminate()
        process.wait(60)
    await check(engine, ids)
    await engine.close()
    took_s.sort()
    released = log.read_text(encoding="utf-8").count("released")
    print(f"{count} stops, {len(ids)} jobs, {released} released", end="; ")
    print(f"exit after {took_s[len(took_s) // 2]:.2f} s (median), {took_s[-1]:.2f} s (longest); grace {GRACE_S} s")


async def wait_for_work(engine: Engine, name: str, process: "subprocess.Popen[bytes]") -> None:
    """Until the worker holds jobs."""
    end_s = time.monotonic() + 60
    while not await leases_of(engine, name):
        assert process.poll() is None
        assert time.monotonic() < end_s, f"{name} has claimed nothing"
        await asyncio.sleep(0.02)


async def check(engine: Engine, ids: Sequence[str]) -> None:
    """Every job has succeeded in its first attempt. With max_attempts=1 a release that cost one would fail it."""
    stats = (await engine.stats(QUEUE)).queues[0]
    assert stats.counts == {JobState.SUCCEEDED: len(ids)}
    cursor = None
    seen = 0
    while True:
        found = await engine.find(Find(queue=QUEUE, state=JobState.SUCCEEDED, limit=1_000, cursor=cursor))
        seen += len(found.jobs)
        assert {(job.attempt, job.losses) for job in found.jobs} <= {(1, 0)}
        cursor = found.cursor
        if cursor is None:
            break
    assert seen == len(ids)
    assert await engine.audit() == ()


@pytest.mark.parametrize("steady_store", ["sqlite", "postgres"], indirect=True)
async def test_workers_that_are_stopped_under_load_lose_nothing(steady_store: Store, tmp_path: Path) -> None:
    await stop_many(steady_store, tmp_path / "log", count=2, parallel=2, backlog=100, seed=1)


@pytest.mark.chaos
@pytest.mark.time_limit(900)
async def test_two_hundred_stops_under_load_lose_nothing(steady_store: Store, tmp_path: Path) -> None:
    await stop_many(steady_store, tmp_path / "log", count=200, parallel=4, backlog=400, seed=2)
