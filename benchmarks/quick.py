"""`make bench-quick`: Holdfast beside bare loops on the same machine, in the same run.

Each pair is measured alternately, at least five times; the figure is the median of the pairwise ratios, since machines
are noisy and absolute numbers travel badly. Prints a table and writes `build/bench.json` with flat keys.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.apps import PAYLOAD, make
from benchmarks.limits import asyncio_loop, sqlite_loop

PAIRS = 5
JOBS = 20_000
RAW = b"x" * 100
ROOT = Path(__file__).parent.parent

Figures = dict[str, float]


def main() -> None:
    figures: Figures = {}
    with tempfile.TemporaryDirectory(dir=build()) as folder:
        for measure in (sqlite_drain, memory_drain, sqlite_enqueue, sqlite_latency, sqlite_growth):
            print(f"… {measure.__name__.replace('_', ' ')}", file=sys.stderr, flush=True)
            figures |= measure(Path(folder))
    (build() / "bench.json").write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n")
    show(figures)


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


# Draining


def sqlite_drain(folder: Path) -> Figures:
    cpu: list[float] = []

    def ours(turn: int) -> float:
        url = f"sqlite:///{folder}/drain-{turn}.db"
        fill(url, JOBS)
        took, used, _ = worker("drain", url)
        cpu.append(used / JOBS * 1e6)
        return JOBS / took

    def bare(turn: int) -> float:
        return sqlite_loop.drain(folder / f"bare-drain-{turn}.db", JOBS, RAW)

    rate, limit, ratio = alternate(ours, bare)
    return {
        "sqlite.drain.jobs_s": rate,
        "sqlite.drain.bare_jobs_s": limit,
        "sqlite.drain.ratio_to_bare": ratio,
        "sqlite.drain.cpu_us_per_job": median(cpu),
    }


def fill(url: str, count: int) -> None:
    jobs = make(url)
    with jobs:
        task = jobs.registry["nothing"]
        for _ in range(0, count, 1_000):
            jobs.client.enqueue_many([task.draft(PAYLOAD) for _ in range(1_000)])


def worker(what: str, url: str) -> tuple[float, float, float]:
    program = [sys.executable, "-m", "benchmarks.apps", what, url]
    answer = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
    took, cpu, memory = map(float, answer.stdout.split())
    return took, cpu, memory


def memory_drain(folder: Path) -> Figures:
    def ours(turn: int) -> float:
        return asyncio.run(drain_memory(JOBS * 2))

    def bare(turn: int) -> float:
        return asyncio_loop.drain(JOBS * 2)

    rate, limit, ratio = alternate(ours, bare)
    return {"memory.drain.jobs_s": rate, "memory.drain.bare_jobs_s": limit, "memory.drain.ratio_to_bare": ratio}


async def drain_memory(count: int) -> float:
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


def sqlite_enqueue(folder: Path) -> Figures:
    def single(turn: int) -> float:
        jobs = make(f"sqlite:///{folder}/single-{turn}.db")
        with jobs:
            task = jobs.registry["nothing"]
            return per_second(300, lambda: task.enqueue(PAYLOAD))

    def bare_single(turn: int) -> float:
        return sqlite_loop.inserts(folder / f"bare-single-{turn}.db", 300, 1, RAW)

    def batch(turn: int) -> float:
        jobs = make(f"sqlite:///{folder}/batch-{turn}.db")
        with jobs:
            task = jobs.registry["nothing"]
            many = jobs.client.enqueue_many
            return 1_000 * per_second(10, lambda: many([task.draft(PAYLOAD) for _ in range(1_000)]))

    def bare_batch(turn: int) -> float:
        return sqlite_loop.inserts(folder / f"bare-batch-{turn}.db", 10, 1_000, RAW)

    one, _, one_ratio = alternate(single, bare_single)
    many, _, many_ratio = alternate(batch, bare_batch)
    alone, together, _ = alternate(
        lambda turn: asyncio.run(callers(folder / f"callers-a{turn}.db", 1)),
        lambda turn: asyncio.run(callers(folder / f"callers-b{turn}.db", 100)),
    )
    return {
        "sqlite.enqueue.single_s": one,
        "sqlite.enqueue.single_ratio_to_bare": one_ratio,
        "sqlite.enqueue.batch_jobs_s": many,
        "sqlite.enqueue.batch_ratio_to_bare": many_ratio,
        "sqlite.enqueue.one_caller_s": alone,
        "sqlite.enqueue.hundred_callers_s": together,
        "sqlite.enqueue.hundred_to_one": together / alone,
    }


def per_second(calls: int, call: Callable[[], Any]) -> float:
    call()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return calls / (time.perf_counter() - began)


async def callers(path: Path, count: int) -> float:
    """Enqueues per second of so many concurrent callers in one process."""
    jobs = make(f"sqlite:///{path}")
    async with jobs:
        task = jobs.registry["nothing"]
        each = 200 if count == 1 else 30

        async def caller() -> None:
            for _ in range(each):
                await task.aenqueue(PAYLOAD)

        await task.aenqueue(PAYLOAD)
        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(count)))
        return count * each / (time.perf_counter() - began)


# Latency and memory


def sqlite_latency(folder: Path) -> Figures:
    """From enqueue to the first line of the handler, in an idle worker of another process."""
    url = f"sqlite:///{folder}/latency.db"
    fill(url, 0)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.apps", "serve", url],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    idle = float(process.stdout.readline())
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
    process.communicate("", timeout=30)
    return {
        "sqlite.start.idle_p50_ms": median(soon),
        "sqlite.start.after_quiet_p50_ms": median(quiet),
        "sqlite.request.round_trip_p50_ms": median(trips),
        "worker.idle_mb": idle / 1024,
    }


def sqlite_growth(folder: Path) -> Figures:
    """The worker's memory after a tenth of the jobs and after all of them."""
    peaks = []
    for count in (20_000, 200_000):
        url = f"sqlite:///{folder}/growth-{count}.db"
        fill(url, count)
        peaks.append(worker("drain", url)[2] / 1024)
        for file in folder.glob(f"growth-{count}.db*"):
            os.unlink(file)
    return {"worker.peak_mb_20k": peaks[0], "worker.peak_mb_200k": peaks[1], "worker.growth_mb": peaks[1] - peaks[0]}


BARS: dict[str, tuple[str, float]] = {
    "sqlite.drain.ratio_to_bare": (">=", 0.15),
    "memory.drain.ratio_to_bare": (">=", 0.15),
    "sqlite.drain.cpu_us_per_job": ("<=", 60),
    "sqlite.start.idle_p50_ms": ("<=", 3),
    "sqlite.start.after_quiet_p50_ms": ("<=", 3),
    "sqlite.enqueue.single_ratio_to_bare": (">=", 0.70),
    "sqlite.enqueue.batch_ratio_to_bare": (">=", 0.30),
    "sqlite.enqueue.hundred_to_one": (">=", 5),
    "worker.idle_mb": ("<=", 60),
}


def show(figures: Figures) -> None:
    width = max(map(len, figures))
    for name in sorted(figures):
        line = f"{name:<{width}}  {figures[name]:>12,.2f}"
        if name in BARS:
            sign, bar = BARS[name]
            met = figures[name] >= bar if sign == ">=" else figures[name] <= bar
            line += f"   {'met' if met else 'NOT MET'} ({sign} {bar})"
        print(line)


if __name__ == "__main__":
    main()
