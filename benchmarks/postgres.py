"""The PostgreSQL part of `make bench-quick`.

On a private server of its own, as PostgreSQL comes: `fsync` and `synchronous_commit` are on. Every store is a database
of its own, so that no measure meets the rows of another.
"""

import asyncio
import sys
from collections.abc import Callable
from itertools import count
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Self

from benchmarks.limits import postgres_loop
from benchmarks.measure import (
    PAIRS,
    RAW,
    ROOT,
    Figures,
    alternate,
    batches,
    callers,
    fill,
    fill_tasks,
    finish,
    latency,
    line,
    singles,
    start,
    together,
    worker,
)

if TYPE_CHECKING:
    from postgres import PostgresServer

JOBS = 20_000
"""In a drain. Starting and stopping the worker takes a tenth of the time."""
MANY_JOBS = 100_000
"""In a drain from a backlog: starting and stopping do not count."""
OLD = 14
"""Seconds for which an old snapshot is held."""
FASTEST = 35_000
"""Jobs per second. A store is filled so that a worker this fast does not run out of jobs."""


class Stores:
    """Empty databases on one server, which starts with the first of them."""

    def __init__(self) -> None:
        self._server: PostgresServer | None = None
        self._numbers = count(1)

    def fresh(self) -> str:
        """The address of an empty database."""
        if self._server is None:
            sys.path.append(str(ROOT / "tests" / "support"))
            from postgres import private_server

            self._server = private_server()
        name = f"bench_{next(self._numbers)}"
        self._server.execute(f"CREATE DATABASE {name}")
        return self._server.url(name)

    def drop(self, url: str) -> None:
        """Remove a database that is not needed any more."""
        assert self._server is not None
        self._server.execute(f"DROP DATABASE {url.rpartition('/')[2]}")

    def filled(self, jobs: int, task: str) -> str:
        """The address of a database with this many jobs, vacuumed and analysed as in the bare loops."""
        url = self.fresh()
        fill(url, jobs, task)
        asyncio.run(postgres_loop.tidy_up(url))
        return url

    def filled_tasks(self, jobs: int, tasks: int) -> str:
        """The same, with the jobs spread over this many tasks of one queue."""
        url = self.fresh()
        fill_tasks(url, jobs, tasks, 1)
        asyncio.run(postgres_loop.tidy_up(url))
        return url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()


# Draining


def postgres_drain(stores: Stores) -> Figures:
    """Rows kept: one worker process with a hundred slots, beside the pinned loop."""
    return _drained(stores, "postgres.drain_20k", "nothing", postgres_loop.drain, JOBS)


def postgres_drain_many(stores: Stores) -> Figures:
    """The same from a backlog. `make bench-backlog` has more sizes, and stores with other statistics."""
    return _drained(stores, "postgres.drain_100k", "nothing", postgres_loop.drain, MANY_JOBS, pairs=3)


def postgres_take_out(stores: Stores) -> Figures:
    """Nothing kept: retention and result TTL of 0, beside a loop that deletes finished rows."""
    return _drained(stores, "postgres.take_out", "forgotten", postgres_loop.take_out, JOBS)


def _drained(
    stores: Stores, key: str, task: str, loop: Callable[[str, int, bytes], float], jobs: int, pairs: int = PAIRS
) -> Figures:
    cpu: list[float] = []

    def ours(turn: int) -> float:
        took, used, _ = worker("drain", stores.filled(jobs, task))
        cpu.append(used / jobs * 1e6)
        return jobs / took

    def bare(turn: int) -> float:
        return loop(stores.fresh(), jobs, RAW)

    rate, limit, ratio = alternate(ours, bare, pairs)
    return {
        f"{key}.jobs_s": rate,
        f"{key}.bare_jobs_s": limit,
        f"{key}.ratio_to_bare": ratio,
        f"{key}.cpu_us_per_job": median(cpu),
    }


def postgres_drain_tasks(stores: Stores) -> Figures:
    """Twenty tasks in one queue, beside one task."""

    def rate(tasks: int) -> float:
        return JOBS / worker("drain_tasks", stores.filled_tasks(JOBS, tasks), tasks, 1)[0]

    one, twenty, one_to_twenty = alternate(lambda turn: rate(1), lambda turn: rate(20))
    return {
        "postgres.drain_twenty_tasks.one_task_jobs_s": one,
        "postgres.drain_twenty_tasks.jobs_s": twenty,
        "postgres.drain_twenty_tasks.time_to_one": one_to_twenty,
    }


def postgres_workers(stores: Stores) -> Figures:
    """Two worker processes with ten slots each on one store, beside one."""

    def rate(task: str, jobs: int, workers: int) -> float:
        return jobs / together("share", [stores.filled(jobs, task)] * workers)

    def compared(name: str, task: str, jobs: int, pairs: int = PAIRS) -> Figures:
        two, one, ratio = alternate(lambda turn: rate(task, jobs, 2), lambda turn: rate(task, jobs, 1), pairs)
        return {
            f"postgres.workers.{name}_one_jobs_s": one,
            f"postgres.workers.{name}_two_jobs_s": two,
            f"postgres.workers.{name}_two_to_one": ratio,
        }

    return compared("nothing", "nothing", 10_000) | compared("ten_ms", "nap", 4_000, pairs=3)


# Enqueueing


def postgres_enqueue(stores: Stores) -> Figures:
    one, bare_one, one_ratio = alternate(
        lambda turn: singles(stores.fresh()), lambda turn: postgres_loop.inserts(stores.fresh(), 300, 1, RAW)
    )
    awaited, _, awaited_ratio = alternate(
        lambda turn: callers(stores.fresh(), 1), lambda turn: postgres_loop.inserts(stores.fresh(), 300, 1, RAW)
    )
    many, bare_many, many_ratio = alternate(
        lambda turn: batches(stores.fresh(), 50, 100), lambda turn: postgres_loop.inserts(stores.fresh(), 50, 100, RAW)
    )
    hundred, _, hundred_to_one = alternate(
        lambda turn: callers(stores.fresh(), 100), lambda turn: callers(stores.fresh(), 1)
    )
    _, _, hundred_to_bare = alternate(
        lambda turn: callers(stores.fresh(), 100), lambda turn: postgres_loop.inserts(stores.fresh(), 30, 100, RAW)
    )
    eight, single, eight_to_one = alternate(
        lambda turn: producers(stores.fresh(), 8), lambda turn: producers(stores.fresh(), 1)
    )
    bare_eight, bare_alone, bare_eight_to_one = alternate(
        lambda turn: bare_producers(stores.fresh(), 8), lambda turn: bare_producers(stores.fresh(), 1)
    )
    return {
        "postgres.enqueue.single_s": one,
        "postgres.enqueue.bare_single_s": bare_one,
        "postgres.enqueue.single_ratio_to_bare": one_ratio,
        "postgres.enqueue.batch_jobs_s": many,
        "postgres.enqueue.bare_batch_jobs_s": bare_many,
        "postgres.enqueue.batch_ratio_to_bare": many_ratio,
        "postgres.enqueue.one_caller_s": awaited,
        "postgres.enqueue.one_caller_ratio_to_bare": awaited_ratio,
        "postgres.enqueue.hundred_callers_s": hundred,
        "postgres.enqueue.hundred_to_one": hundred_to_one,
        "postgres.enqueue.hundred_callers_ratio_to_bare": hundred_to_bare,
        "postgres.enqueue.one_process_s": single,
        "postgres.enqueue.eight_processes_s": eight,
        "postgres.enqueue.eight_to_one": eight_to_one,
        "postgres.enqueue.bare_one_process_s": bare_alone,
        "postgres.enqueue.bare_eight_processes_s": bare_eight,
        "postgres.enqueue.bare_eight_to_one": bare_eight_to_one,
    }


def producers(url: str, processes: int, each: int = 300) -> float:
    """Enqueues per second of this many processes with one caller each."""
    fill(url, 0)
    return processes * each / together("enqueue", [url] * processes, each)


def bare_producers(url: str, processes: int, each: int = 300) -> float:
    """The same with bare inserts."""
    postgres_loop.prepare(url)
    return processes * each / together("insert", [url] * processes, each, of=postgres_loop.__name__)


# Latency


def postgres_latency(stores: Stores) -> Figures:
    return latency(stores.fresh(), "postgres") | _bare_latency(stores.fresh())


def _bare_latency(url: str) -> Figures:
    """Insert, commit, NOTIFY; in another process a claim and its commit."""
    postgres_loop.prepare(url)
    process = start("claim", url, of=postgres_loop.__name__)
    line(process)
    taken = postgres_loop.starts(url, [0.0] * 51 + [2.0] * 5, lambda: line(process))
    finish(process)
    return {
        "postgres.start.bare_idle_p50_ms": median(taken[1:51]),
        "postgres.start.bare_after_quiet_p50_ms": median(taken[51:]),
    }


# A long transaction of another client


def postgres_old_snapshot(stores: Stores) -> Figures:
    """Jobs per second over time while another client holds an old snapshot, beside the pinned loop under one too."""
    window = postgres_loop.WINDOW
    bare = postgres_loop.drain_over_time(stores.fresh(), 500_000, RAW, OLD)
    ours = asyncio.run(_paced(stores.filled(OLD * FASTEST, "counted"), window))
    figures: Figures = {}
    ratios = []
    for number, (mine, theirs) in enumerate(zip(ours, bare, strict=False), start=1):
        at = f"{int(number * window):02}s"
        print(f"\n    {at}  {mine:>9,.0f} jobs/s, bare {theirs:>9,.0f}", end="", file=sys.stderr, flush=True)
        figures[f"postgres.old_snapshot.jobs_s_at_{at}"] = mine
        figures[f"postgres.old_snapshot.bare_jobs_s_at_{at}"] = theirs
        ratios.append(mine / theirs)
    figures["postgres.old_snapshot.lowest_ratio_after_6s"] = min(ratios[int(6 / window) :])
    return figures


async def _paced(url: str, window: float) -> list[float]:
    other = await postgres_loop.old_snapshot(url)
    process = start("pace", url, OLD, window)
    output = await asyncio.to_thread(finish, process)
    await other.close()
    return [float(rate) for rate in output.split()]


MEASURES = (
    postgres_drain,
    postgres_drain_many,
    postgres_drain_tasks,
    postgres_take_out,
    postgres_workers,
    postgres_enqueue,
    postgres_latency,
    postgres_old_snapshot,
)
