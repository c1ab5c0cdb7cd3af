"""Measuring, whatever the engine: pairs taken alternately, worker processes, callers, latency.

Everything takes the address of an empty store.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.apps import PAYLOAD, make, make_tasks

PAIRS = 5
JOBS = 20_000
RAW = b"x" * 100
ROOT = Path(__file__).parent.parent

Figures = dict[str, float]


def build() -> Path:
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    return folder


def alternate(
    ours: Callable[[int], float], bare: Callable[[int], float], pairs: int = PAIRS
) -> tuple[float, float, float]:
    """Medians of ours, of the bare loop, and of the ratios of neighbours."""
    mine, theirs = [], []
    for turn in range(pairs):
        theirs.append(bare(turn))
        mine.append(ours(turn))
    return median(mine), median(theirs), median(a / b for a, b in zip(mine, theirs, strict=True))


# Worker processes


def fill(url: str, count: int, task: str = "nothing", queue: str = "default") -> None:
    jobs = make(url)
    with jobs:
        drained = jobs.registry[task].using(queue=queue)
        for _ in range(0, count, 1_000):
            jobs.client.enqueue_many([drained.draft(PAYLOAD) for _ in range(1_000)])


def fill_tasks(url: str, count: int, tasks: int, queues: int) -> None:
    """This many jobs in all, the tasks in turn."""
    jobs = make_tasks(url, tasks, queues)
    with jobs:
        registered = [jobs.registry[f"task-{number}"] for number in range(tasks)]
        for _ in range(0, count, 1_000):
            jobs.client.enqueue_many([registered[number % tasks].draft(PAYLOAD) for number in range(1_000)])


def start(what: str, url: str, *more: object, of: str = "benchmarks.apps") -> "subprocess.Popen[str]":
    """A process that runs one of a module's programs."""
    program = [sys.executable, "-m", of, what, url, *map(str, more)]
    return subprocess.Popen(program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    text = process.stdout.readline()
    if not text:
        raise RuntimeError(f"process {process.pid} of the benchmark ended without printing anything")
    return text


def finish(process: "subprocess.Popen[str]") -> str:
    text, _ = process.communicate("", timeout=600)
    if process.returncode != 0:
        raise RuntimeError(f"a process of the benchmark ended with {process.returncode}")
    return text


def worker(what: str, url: str, *more: object) -> tuple[float, float, float]:
    """Seconds, seconds of CPU and kilobytes at the peak of a worker process."""
    took, cpu, memory = map(float, finish(start(what, url, *more)).split())
    return took, cpu, memory


def together(what: str, urls: list[str], *more: object, of: str = "benchmarks.apps") -> float:
    """Seconds from the common start until the last of these processes has finished."""
    processes = [start(what, url, *more, of=of) for url in urls]
    for process in processes:
        line(process)
    began = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        line(process)
    took = time.perf_counter() - began
    for process in processes:
        finish(process)
    return took


def drain_memory(count: int) -> float:
    """Jobs per second of a worker on the memory engine, in this process."""
    return asyncio.run(_drain_memory(count))


async def _drain_memory(count: int) -> float:
    from holdfast.worker import Worker

    jobs = make("memory://")
    async with jobs:
        task = jobs.registry["nothing"]
        for _ in range(0, count, 1_000):
            await jobs.client.aenqueue_many([task.draft(PAYLOAD) for _ in range(1_000)])
        began = time.perf_counter()
        await Worker(jobs, concurrency=100, until_empty=True).arun()
        return count / (time.perf_counter() - began)


# Enqueueing


def per_second(calls: int, call: Callable[[], Any]) -> float:
    call()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return calls / (time.perf_counter() - began)


def per_second_and_cpu_us(calls: int, call: Callable[[], Any]) -> tuple[float, float]:
    """Calls per second, and microseconds of CPU per call in all threads of this process."""
    call()
    cpu_s = time.process_time()
    rate = per_second(calls, call)
    return rate, (time.process_time() - cpu_s) / (calls + 1) * 1e6


def singles(url: str, calls: int = 300) -> float:
    """Enqueues per second, one after the other."""
    return singles_and_cpu_us(url, calls)[0]


def singles_and_cpu_us(url: str, calls: int = 300) -> tuple[float, float]:
    """Enqueues per second, one after the other, and microseconds of CPU for each."""
    jobs = make(url)
    with jobs:
        task = jobs.registry["nothing"]
        return per_second_and_cpu_us(calls, lambda: task.enqueue(PAYLOAD))


def batches(url: str, calls: int, size: int) -> float:
    """Jobs per second in batches of this size."""
    jobs = make(url)
    with jobs:
        task = jobs.registry["nothing"]
        many = jobs.client.enqueue_many
        return size * per_second(calls, lambda: many([task.draft(PAYLOAD) for _ in range(size)]))


def callers(url: str, count: int) -> float:
    """Enqueues per second of this many concurrent callers in one process."""
    return asyncio.run(_callers(url, count))


async def _callers(url: str, count: int) -> float:
    jobs = make(url)
    async with jobs:
        task = jobs.registry["nothing"]
        each = 200 if count == 1 else 30

        async def caller() -> None:
            for _ in range(each):
                await task.aenqueue(PAYLOAD)

        for _ in range(3):  # open all connections and prepare their statements
            await asyncio.gather(*(task.aenqueue(PAYLOAD) for _ in range(count)))
        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(count)))
        return count * each / (time.perf_counter() - began)


# Latency


def latency(url: str, engine: str) -> Figures:
    """From enqueue to the first line of the handler, in an idle worker of another process."""
    fill(url, 0)
    process = start("serve", url)
    idle = float(line(process))
    jobs = make(url)
    with jobs:
        stamp = jobs.registry["stamp"]
        stamp.request(time.monotonic_ns())
        soon = [stamp.request(time.monotonic_ns()) / 1e6 for _ in range(50)]
        quiet = []
        for _ in range(5):
            time.sleep(2)
            quiet.append(stamp.request(time.monotonic_ns()) / 1e6)
        trips = []
        for _ in range(50):
            began = time.perf_counter()
            stamp.request(time.monotonic_ns())
            trips.append((time.perf_counter() - began) * 1e3)
    finish(process)
    return {
        f"{engine}.start.idle_p50_ms": median(soon),
        f"{engine}.start.after_quiet_p50_ms": median(quiet),
        f"{engine}.start.after_quiet_to_idle": median(quiet) / median(soon),
        f"{engine}.request.round_trip_p50_ms": median(trips),
        f"{engine}.worker.idle_mb": idle / 1024,
    }
