"""`make bench-quick`: Holdfast beside bare loops on the same machine, in the same run.

Each pair is measured alternately, at least five times; the figure is the median of the pairwise ratios, since machines
are noisy and absolute numbers travel badly. Prints a table and writes `build/bench.json` with flat keys.

`python -m benchmarks.quick postgres sqlite_drain` measures only what begins with one of these words, and
leaves the other figures in the file alone.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import postgres
from benchmarks.apps import PAYLOAD, make
from benchmarks.limits import asyncio_loop, sqlite_loop
from benchmarks.measure import JOBS, RAW, Figures, alternate, batches, build, callers, fill, latency, singles, worker


def main(chosen: list[str]) -> None:
    figures: Figures = {}
    with tempfile.TemporaryDirectory(dir=build()) as folder, postgres.Stores() as stores:
        measures: dict[str, Callable[[], Figures]] = {
            **{measure.__name__: partial(measure, Path(folder)) for measure in LOCAL},
            **{measure.__name__: partial(measure, stores) for measure in postgres.MEASURES},
        }
        for name, measure in measures.items():
            if not chosen or name.startswith(tuple(chosen)):
                print(f"… {name.replace('_', ' ')}", file=sys.stderr, flush=True)
                figures |= measure()
    if not figures:
        sys.exit(f"No measure begins with {' or '.join(chosen)}. Measures: {', '.join(measures)}.")
    written = build() / "bench.json"
    # Keys that were not measured now keep their earlier figures.
    earlier: Figures = json.loads(written.read_text()) if chosen and written.exists() else {}
    written.write_text(json.dumps(earlier | figures, indent=2, sort_keys=True) + "\n")
    show(figures)


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
    def store(name: str) -> str:
        return f"sqlite:///{folder}/{name}.db"

    one, _, one_ratio = alternate(
        lambda turn: singles(store(f"single-{turn}")),
        lambda turn: sqlite_loop.inserts(folder / f"bare-single-{turn}.db", 300, 1, RAW),
    )
    many, _, many_ratio = alternate(
        lambda turn: batches(store(f"batch-{turn}"), 10, 1_000),
        lambda turn: sqlite_loop.inserts(folder / f"bare-batch-{turn}.db", 10, 1_000, RAW),
    )
    alone, together, _ = alternate(
        lambda turn: callers(store(f"callers-a{turn}"), 1), lambda turn: callers(store(f"callers-b{turn}"), 100)
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


# Latency and memory


def sqlite_latency(folder: Path) -> Figures:
    figures = latency(f"sqlite:///{folder}/latency.db", "sqlite")
    figures["worker.idle_mb"] = figures.pop("sqlite.worker.idle_mb")
    return figures


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


LOCAL = (sqlite_drain, memory_drain, sqlite_enqueue, sqlite_latency, sqlite_growth)

BARS: dict[str, tuple[str, float]] = {
    "sqlite.drain.ratio_to_bare": (">=", 0.15),
    "memory.drain.ratio_to_bare": (">=", 0.15),
    "sqlite.drain.cpu_us_per_job": ("<=", 60),
    "sqlite.start.idle_p50_ms": ("<=", 3),
    "sqlite.start.after_quiet_p50_ms": ("<=", 3),
    "sqlite.enqueue.single_ratio_to_bare": (">=", 0.70),
    "sqlite.enqueue.batch_ratio_to_bare": (">=", 0.30),
    "sqlite.enqueue.hundred_to_one": (">=", 5),
    "postgres.drain.ratio_to_bare": (">=", 0.50),
    "postgres.take_out.ratio_to_bare": (">=", 0.40),
    "postgres.enqueue.hundred_callers_ratio_to_bare": (">=", 0.40),
    "postgres.enqueue.eight_to_one": (">=", 5),
    "postgres.start.idle_p50_ms": ("<=", 3.5),
    "postgres.start.after_quiet_p50_ms": ("<=", 3.5),
    "postgres.workers.nothing_two_to_one": (">=", 0.9),
    "postgres.workers.ten_ms_two_to_one": (">=", 1.8),
    "postgres.old_snapshot.lowest_ratio_after_6s": (">=", 2),
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
    main(sys.argv[1:])
