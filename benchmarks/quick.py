"""`make bench-quick`: Holdfast beside bare loops on the same machine, in the same run.

Each pair is measured alternately, five times (the longest three times). The figure is the median of the pairwise
ratios, since machines are noisy and absolute numbers travel badly. Prints a table with the bars and writes
`build/bench.json` with flat keys.

`python -m benchmarks.quick postgres sqlite_drain` runs the measures with these names; a word that is no measure's name
stands for all that begin with it. The other figures in the file stay.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import file, huey_peer, postgres, redis
from benchmarks.limits import asyncio_loop, sqlite_loop
from benchmarks.measure import (
    JOBS,
    RAW,
    Figures,
    alternate,
    batches,
    build,
    callers,
    drain_memory,
    fill,
    fill_tasks,
    latency,
    singles_and_cpu_us,
    worker,
)


def main(chosen: list[str]) -> None:
    figures: Figures = {}
    with tempfile.TemporaryDirectory(dir=build()) as folder, postgres.Stores() as stores, redis.Stores() as servers:
        measures: dict[str, Callable[[], Figures]] = {
            **{measure.__name__: partial(measure, Path(folder)) for measure in (*LOCAL, *file.MEASURES)},
            **{measure.__name__: partial(measure, stores) for measure in postgres.MEASURES},
            **{measure.__name__: partial(measure, servers) for measure in redis.MEASURES},
        }
        for name, measure in measures.items():
            if not chosen or any(name == word or (word not in measures and name.startswith(word)) for word in chosen):
                print(f"… {name.replace('_', ' ')}", end="", file=sys.stderr, flush=True)
                began = time.perf_counter()
                figures |= measure()
                print(f" ({time.perf_counter() - began:.0f} s)", file=sys.stderr, flush=True)
    if not figures:
        sys.exit(f"No measure begins with {' or '.join(chosen)}. Measures: {', '.join(measures)}.")
    written = build() / "bench.json"
    # Keys that were not measured now keep their earlier figures.
    earlier: Figures = json.loads(written.read_text()) if chosen and written.exists() else {}
    written.write_text(json.dumps(earlier | figures, indent=2, sort_keys=True) + "\n")
    show(figures)


# Draining


def sqlite_drain(folder: Path) -> Figures:
    return _drained(folder, "drain", lambda url: fill(url, JOBS), lambda url: worker("drain", url))


def sqlite_drain_tasks(folder: Path) -> Figures:
    """Five tasks in two queues, as workers of real applications have them."""
    return _drained(
        folder,
        "drain_five_tasks",
        lambda url: fill_tasks(url, JOBS, 5, 2),
        lambda url: worker("drain_tasks", url, 5, 2),
    )


def _drained(
    folder: Path, key: str, enqueue: Callable[[str], None], drain: Callable[[str], tuple[float, float, float]]
) -> Figures:
    cpu: list[float] = []

    def ours(turn: int) -> float:
        url = f"sqlite:///{folder}/{key}-{turn}.db"
        enqueue(url)
        took, used, _ = drain(url)
        cpu.append(used / JOBS * 1e6)
        return JOBS / took

    def bare(turn: int) -> float:
        return sqlite_loop.drain(folder / f"bare-{key}-{turn}.db", JOBS, RAW)

    rate, limit, ratio = alternate(ours, bare)
    return {
        f"sqlite.{key}.jobs_s": rate,
        f"sqlite.{key}.bare_jobs_s": limit,
        f"sqlite.{key}.ratio_to_bare": ratio,
        f"sqlite.{key}.cpu_us_per_job": median(cpu),
    }


def memory_drain(folder: Path) -> Figures:
    def ours(turn: int) -> float:
        return drain_memory(JOBS * 2)

    def bare(turn: int) -> float:
        return asyncio_loop.drain(JOBS * 2)

    rate, limit, ratio = alternate(ours, bare)
    return {"memory.drain.jobs_s": rate, "memory.drain.bare_jobs_s": limit, "memory.drain.ratio_to_bare": ratio}


# Enqueueing


def sqlite_enqueue(folder: Path) -> Figures:
    cpu: list[float] = []

    def store(name: str) -> str:
        return f"sqlite:///{folder}/{name}.db"

    def blocking(turn: int) -> float:
        rate, cpu_us = singles_and_cpu_us(store(f"single-{turn}"))
        cpu.append(cpu_us)
        return rate

    def bare(name: str, calls: int = 300, batch: int = 1) -> float:
        return sqlite_loop.inserts(folder / f"bare-{name}.db", calls, batch, RAW)

    one, bare_one, one_ratio = alternate(blocking, lambda turn: bare(f"single-{turn}"))
    awaited, _, awaited_ratio = alternate(
        lambda turn: callers(store(f"awaited-{turn}"), 1), lambda turn: bare(f"awaited-{turn}")
    )
    many, _, many_ratio = alternate(
        lambda turn: batches(store(f"batch-{turn}"), 10, 1_000), lambda turn: bare(f"batch-{turn}", 10, 1_000)
    )
    together, _, hundred_to_one = alternate(
        lambda turn: callers(store(f"callers-b{turn}"), 100), lambda turn: callers(store(f"callers-a{turn}"), 1)
    )
    return {
        "sqlite.enqueue.single_s": one,
        "sqlite.enqueue.bare_single_s": bare_one,
        "sqlite.enqueue.single_ratio_to_bare": one_ratio,
        "sqlite.enqueue.single_cpu_us_per_job": median(cpu),
        "sqlite.enqueue.one_caller_s": awaited,
        "sqlite.enqueue.one_caller_ratio_to_bare": awaited_ratio,
        "sqlite.enqueue.batch_jobs_s": many,
        "sqlite.enqueue.batch_ratio_to_bare": many_ratio,
        "sqlite.enqueue.hundred_callers_s": together,
        "sqlite.enqueue.hundred_to_one": hundred_to_one,
    }


def huey_enqueue(folder: Path) -> Figures:
    """A lone enqueue beside the SQLite storage of Huey, which has less to write: no id to find a job by, no state.

    Huey stores one pickled message. `fsync=True` is its documented setting for durable commits; its write-ahead log is
    on by default, so both commit in the same way.
    """
    print(
        "\n    Huey: SqliteHuey(fsync=True), PRAGMA synchronous = FULL, write-ahead log",
        end="",
        file=sys.stderr,
        flush=True,
    )
    cpu: list[float] = []
    huey_cpu: list[float] = []

    def ours(turn: int) -> float:
        rate, cpu_us = singles_and_cpu_us(f"sqlite:///{folder}/beside-huey-{turn}.db")
        cpu.append(cpu_us)
        return rate

    def huey(turn: int) -> float:
        rate, cpu_us = huey_peer.singles_and_cpu_us(folder / f"huey-{turn}.db")
        huey_cpu.append(cpu_us)
        return rate

    rate, peer, ratio = alternate(ours, huey)
    return {
        "huey.enqueue.ours_s": rate,
        "huey.enqueue.huey_s": peer,
        "huey.enqueue.ratio_to_huey": ratio,
        "huey.enqueue.ours_cpu_us_per_job": median(cpu),
        "huey.enqueue.huey_cpu_us_per_job": median(huey_cpu),
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
        for path in folder.glob(f"growth-{count}.db*"):
            os.unlink(path)
    return {"worker.peak_mb_20k": peaks[0], "worker.peak_mb_200k": peaks[1], "worker.growth_mb": peaks[1] - peaks[0]}


LOCAL = (
    sqlite_drain,
    sqlite_drain_tasks,
    memory_drain,
    sqlite_enqueue,
    huey_enqueue,
    sqlite_latency,
    sqlite_growth,
)


class Bar(NamedTuple):
    """What a figure must be. The goal, where there is one, is only printed."""

    sign: str
    limit: float
    goal: float | None = None

    def met(self, figure: float) -> bool:
        return figure >= self.limit if self.sign == ">=" else figure <= self.limit

    def verdict(self, figure: float) -> str:
        goal = "" if self.goal is None else f", goal {self.goal:g}"
        return f"{'met' if self.met(figure) else 'NOT MET'} ({self.sign} {self.limit:g}{goal})"


BARS = {
    "sqlite.drain.ratio_to_bare": Bar(">=", 0.22, goal=0.25),
    "sqlite.drain.cpu_us_per_job": Bar("<=", 35),
    "sqlite.drain_five_tasks.ratio_to_bare": Bar(">=", 0.22, goal=0.25),
    "sqlite.drain_five_tasks.cpu_us_per_job": Bar("<=", 35),
    "memory.drain.ratio_to_bare": Bar(">=", 0.15),
    "file.drain.ratio_to_memory": Bar(">=", 0.50),
    "file.workers.two_and_producer_to_one": Bar(">=", 0.40),
    "file.start.idle_p50_ms": Bar("<=", 3),
    "file.start_up.200k_jobs_s": Bar("<=", 5),
    "file.disk.to_live_data": Bar("<=", 3),
    "sqlite.start.idle_p50_ms": Bar("<=", 3),
    "sqlite.start.after_quiet_p50_ms": Bar("<=", 3),
    "sqlite.request.round_trip_p50_ms": Bar("<=", 2.5),
    "sqlite.enqueue.single_ratio_to_bare": Bar(">=", 0.60),
    "sqlite.enqueue.one_caller_ratio_to_bare": Bar(">=", 0.40),
    "sqlite.enqueue.batch_ratio_to_bare": Bar(">=", 0.28),
    "sqlite.enqueue.hundred_to_one": Bar(">=", 5),
    "postgres.drain_20k.ratio_to_bare": Bar(">=", 0.50),
    "postgres.drain_100k.ratio_to_bare": Bar(">=", 0.50),
    "postgres.take_out.ratio_to_bare": Bar(">=", 0.40),
    "postgres.drain_twenty_tasks.time_to_one": Bar("<=", 1.5),
    "postgres.enqueue.single_ratio_to_bare": Bar(">=", 0.60),
    "postgres.enqueue.one_caller_ratio_to_bare": Bar(">=", 0.80),
    "postgres.enqueue.hundred_callers_ratio_to_bare": Bar(">=", 0.40),
    "postgres.enqueue.eight_to_one": Bar(">=", 5),
    "postgres.start.idle_p50_ms": Bar("<=", 2.9, goal=2.5),
    "postgres.start.after_quiet_to_idle": Bar("<=", 1.3),
    "postgres.request.round_trip_p50_ms": Bar("<=", 4.7, goal=4),
    "postgres.workers.nothing_two_to_one": Bar(">=", 0.9),
    "postgres.workers.ten_ms_two_to_one": Bar(">=", 1.8),
    "postgres.old_snapshot.lowest_ratio_after_6s": Bar(">=", 2),
    "redis.drain.ratio_to_bare": Bar(">=", 0.25),
    "redis.drain.jobs_s": Bar(">=", 20_000, goal=25_000),
    "redis.drain_always.to_everysec": Bar(">=", 0.70),
    "redis.drain_general.jobs_s": Bar(">=", 10_000),
    "redis.drain_lanes.jobs_s": Bar(">=", 6_000),
    "redis.exchange.server_cpu_us_per_job": Bar("<=", 30),
    "redis.enqueue.batch_jobs_s": Bar(">=", 60_000),
    "redis.enqueue.one_caller_s": Bar(">=", 3_500),
    "redis.request.round_trip_p50_ms": Bar("<=", 2.5),
    "redis.request.hundred_in_flight_s": Bar(">=", 3_000),
    "redis.start.idle_p50_ms": Bar("<=", 1.5),
    "redis.start.after_quiet_p50_ms": Bar("<=", 1.5),
    "redis.flat.calls_to_few": Bar("<=", 1.3),
    "redis.flat.server_cpu_to_few": Bar("<=", 1.3),
    "redis.memory.queued_bytes": Bar("<=", 600),
    "redis.memory.finished_bytes": Bar("<=", 750),
    "worker.idle_mb": Bar("<=", 60),
}
KNOWN_GAPS = {"huey.enqueue.ratio_to_huey": 1.0}
"""Where a peer is ahead and we say so: below this figure the gap is printed. It is no bar."""


def show(figures: Figures) -> None:
    width = max(map(len, figures))
    for name in sorted(figures):
        line = f"{name:<{width}}  {figures[name]:>12,.2f}"
        if name in BARS:
            line += f"   {BARS[name].verdict(figures[name])}"
        elif name in KNOWN_GAPS and figures[name] < KNOWN_GAPS[name]:
            line += "   behind (a known gap)"
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
