"""Recycling: a worker stops by itself after a number of jobs, or when its memory is above a limit."""

import asyncio
import sys
from mmap import mmap
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from managed_worker import ManagedWorker
from minimal_app import MinimalApp, MinimalTask

from holdfast import App, JobState, events
from holdfast.errors import ConfigError, InvalidOption
from holdfast.readers import byte_size
from holdfast.runtime import SystemRuntime
from holdfast.worker.recycling import resident_memory

MIB = 1_048_576


@pytest.mark.parametrize(("slots", "prefetch"), [(1, 0), (4, 0), (4, 8)])
async def test_a_worker_stops_after_max_jobs_and_runs_at_most_as_many_more_as_it_has_slots(
    slots: int, prefetch: int
) -> None:
    runs: list[int] = []

    async def works() -> None:
        runs.append(1)
        await asyncio.sleep(0)

    app = MinimalApp(MinimalTask(works))
    await app.put(*(app.job("works") for _ in range(60)))
    await app.worker(max_jobs=20, concurrency=slots, prefetch=prefetch).arun()
    assert 20 <= len(runs) < 20 + slots
    counts = (await app.engine.stats("default")).queues[0].counts
    assert counts == {JobState.SUCCEEDED: len(runs), JobState.QUEUED: 60 - len(runs)}


async def test_failures_count_as_jobs_too() -> None:
    async def fails() -> None:
        raise ConnectionError

    app = MinimalApp(MinimalTask(fails))
    await app.put(*(app.job("fails") for _ in range(5)))
    await app.worker(max_jobs=3, concurrency=1).arun()
    assert (await app.engine.stats("default")).queues[0].counts == {JobState.RETRYING: 3, JobState.QUEUED: 2}


async def test_a_worker_stops_when_its_memory_is_above_the_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdfast")
    memory = [50 * MIB]
    monkeypatch.setattr("holdfast.worker.recycling.resident_memory", lambda runtime: memory[0])
    monkeypatch.setattr("holdfast.worker.recycling.INTERVAL_S", 0.01)
    app = MinimalApp()
    stopping = app.record_events(events.WorkerStopping)
    life = asyncio.create_task(app.worker(max_memory="100MiB").arun())
    await app.record_events(events.WorkerStarted).calls(1)
    assert not stopping.seen
    memory[0] = 130 * MIB
    await life
    assert "it has 130 MiB of memory; max_memory is 100 MiB" in caplog.text


async def test_a_limit_below_the_memory_of_an_idle_worker_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"before its first job, and `worker.max_memory` is 1 MiB"):
        await MinimalApp().worker(max_memory=MIB).arun()


@pytest.mark.parametrize("options", [{"max_jobs": -1}, {"max_jobs": 1.5}, {"max_memory": "lots"}, {"max_memory": -1}])
def test_a_limit_that_is_none_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(options))):
        MinimalApp().worker(**options)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1000", 1000), ("512MiB", 512 * MIB), ("512Mi", 512 * MIB), ("2GB", 2 * 10**9), ("1.5 kB", 1500)],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert byte_size(text) == size


@pytest.mark.parametrize("value", ["512M", "1e9", "-1", "", "MiB", True, 1.5, None, 2**63, "9" * 40])
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="512MiB or 2GB"):
        byte_size(value)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is the most that the process has ever used")
def test_the_memory_of_this_process_is_measured() -> None:
    before = resident_memory(SystemRuntime())
    with mmap(-1, 64 * MIB) as more:  # an allocation could be given memory that this process has freed and still holds
        more[::4096] = b"x" * len(more[::4096])
        assert 60 * MIB < resident_memory(SystemRuntime()) - before < 80 * MIB


PROGRAM = """
    from holdfast import App

    jobs = App("sqlite:///jobs.db")
    kept = []

    @jobs.task
    async def works() -> None: ...

    @jobs.task
    def leaks() -> None:
        kept.append(bytearray(b"x") * (16 << 20))
"""


@pytest.mark.parametrize(
    ("task", "option", "reason", "text"),
    [
        ("works", "--max-jobs=10", "max_jobs", "it has run 10 jobs; max_jobs is 10"),
        ("leaks", "--max-memory=150MiB", "max_memory", "MiB of memory; max_memory is 150 MiB"),
    ],
)
def test_a_process_that_is_recycled_tells_its_manager_and_ends_well(
    tmp_path: Path, task: str, option: str, reason: str, text: str
) -> None:
    (tmp_path / "shop.py").write_text(dedent(PROGRAM), encoding="utf-8")
    jobs: App = App(f"sqlite:///{tmp_path}/jobs.db")
    with jobs:
        for _ in range(30):
            jobs.client.task(task).enqueue()
        with ManagedWorker(tmp_path, "shop", option, "--concurrency", "1") as worker:
            assert worker.read_all()[1:] == [{"stopping": reason}, {"stopped": True}]
            assert worker.wait() == 0
            assert text in worker.text()
        counts = jobs.control.stats().counts
    assert counts[JobState.SUCCEEDED] + counts.get(JobState.QUEUED, 0) == 30
    assert counts[JobState.SUCCEEDED] >= 3
