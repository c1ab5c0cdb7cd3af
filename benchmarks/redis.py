"""The Redis part of `make bench-quick`.

On private servers of its own, one for each setting of `appendfsync`: the append-only file is synced once a second or
with each write, and is not rewritten while something is measured. A measure starts on an empty server.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from benchmarks.apps import PAYLOAD, make
from benchmarks.limits import redis_loop
from benchmarks.measure import (
    JOBS,
    PAIRS,
    RAW,
    ROOT,
    Figures,
    alternate,
    batches,
    callers,
    fill,
    finish,
    latency,
    line,
    singles,
    start,
    worker,
)

if TYPE_CHECKING:
    from redis import Redis
    from redis_server import RedisServer

    from holdfast.engine import Engine

SERVER_VARIABLE = "BENCH_REDIS"
"""Chooses one of the servers on this machine, such as redis62; see `redis_binaries` in tests/support."""
MODES = ("everysec", "always")
"""Values of `appendfsync`. Every bar is about the first."""
LANES = 500
MEMORY_JOBS = 100_000
"""Jobs whose memory is measured: enough that the sizes of hash tables do not decide."""
IN_FLIGHT = 100
"""Requests that wait for their answers at a time."""


class Stores:
    """Empty servers, each started when it is first used."""

    def __init__(self) -> None:
        self._servers: dict[str, RedisServer] = {}

    def fresh(self, mode: str = MODES[0]) -> str:
        """The address of an empty server."""
        if mode not in self._servers:
            sys.path.append(str(ROOT / "tests" / "support"))
            from redis_server import AOF_EVERYSEC, private_server

            settings = {"appendfsync": mode, "auto-aof-rewrite-percentage": 0}
            started = private_server(AOF_EVERYSEC | settings, name=os.environ.get(SERVER_VARIABLE))
            print(f"\n    {started.name}, appendfsync {mode}", end="", file=sys.stderr, flush=True)
            self._servers[mode] = started
        self.client(mode).flushall(asynchronous=False)
        return self._servers[mode].url()

    def filled(self, jobs: int, mode: str = MODES[0]) -> str:
        url = self.fresh(mode)
        fill(url, jobs)
        return url

    def client(self, mode: str = MODES[0]) -> "Redis":
        return self._servers[mode].client

    def cpu_s(self, mode: str = MODES[0]) -> float:
        """Seconds of CPU that the server has used."""
        used: dict[str, Any] = self.client(mode).info("cpu")
        return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])

    def calls(self) -> int:
        """Commands that the server has carried out, those of scripts included."""
        commands: dict[str, dict[str, Any]] = self.client().info("commandstats")
        return sum(int(command["calls"]) for command in commands.values())

    def memory(self) -> int:
        used: dict[str, Any] = self.client().info("memory")
        return int(used["used_memory"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers.values():
            server.close()


# Draining


def redis_drain(stores: Stores) -> Figures:
    """One worker process with a hundred slots, beside the pinned loop."""
    figures: Figures = {}
    for mode, key in zip(MODES, ("redis.drain", "redis.drain_always"), strict=True):
        figures |= _drained(stores, key, mode, PAIRS if mode == MODES[0] else 3)
    figures["redis.drain_always.to_everysec"] = figures["redis.drain_always.jobs_s"] / figures["redis.drain.jobs_s"]
    return figures


def _drained(stores: Stores, key: str, mode: str, pairs: int) -> Figures:
    cpu: list[float] = []
    server_cpu: list[float] = []

    def ours(turn: int) -> float:
        url = stores.filled(JOBS, mode)
        before = stores.cpu_s(mode)
        took, used, _ = worker("drain", url)
        cpu.append(used / JOBS * 1e6)
        server_cpu.append((stores.cpu_s(mode) - before) / JOBS * 1e6)
        return JOBS / took

    def bare(turn: int) -> float:
        return redis_loop.drain(stores.fresh(mode), JOBS, RAW)

    rate, limit, ratio = alternate(ours, bare, pairs)
    return {
        f"{key}.jobs_s": rate,
        f"{key}.bare_jobs_s": limit,
        f"{key}.ratio_to_bare": ratio,
        f"{key}.cpu_us_per_job": median(cpu),
        f"{key}.server_cpu_us_per_job": median(server_cpu),
    }


def redis_drain_general(stores: Stores) -> Figures:
    """The same by the general rules alone, and with every job in one of five hundred lanes."""

    def rate(filled: Callable[[], str], program: str) -> float:
        return median(JOBS / worker(program, filled())[0] for _ in range(3))

    def in_lanes() -> str:
        url = stores.fresh()
        _fill_lanes(url, JOBS)
        return url

    return {
        "redis.drain_general.jobs_s": rate(lambda: stores.filled(JOBS), "drain_general"),
        "redis.drain_lanes.jobs_s": rate(in_lanes, "drain"),
    }


def _fill_lanes(url: str, count: int) -> None:
    jobs = make(url)
    with jobs:
        tasks = [jobs.registry["nothing"].using(lane=f"lane-{number}") for number in range(LANES)]
        for _ in range(0, count, LANES):
            jobs.client.enqueue_many([task.draft(PAYLOAD) for task in tasks])


def redis_exchange(stores: Stores) -> Figures:
    """The engine alone: each call settles a hundred jobs and claims the next, as the pinned loop does."""
    rates: list[float] = []
    server_cpu: list[float] = []
    for _ in range(3):
        url = stores.filled(JOBS)
        before = stores.cpu_s()
        rates.append(asyncio.run(_exchanges(url, JOBS)))
        server_cpu.append((stores.cpu_s() - before) / JOBS * 1e6)
    return {
        "redis.exchange.jobs_s": median(rates),
        "redis.exchange.server_cpu_us_per_job": median(server_cpu),
    }


async def _exchanges(url: str, jobs: int) -> float:
    """Settle and claim this many jobs; jobs per second."""
    from holdfast.engines import open_engine

    engine = open_engine(url)
    await engine.open()
    began = time.perf_counter()
    claimed = await _exchange(engine, jobs)
    took = time.perf_counter() - began
    await engine.close()
    if claimed != jobs:
        raise RuntimeError(f"{claimed} jobs were claimed instead of {jobs}")
    return jobs / took


async def _exchange(engine: "Engine", jobs: int) -> int:
    from holdfast.model.states import JobState
    from holdfast.model.work import Claim, Exchange, QueueClaim, Settlement, TaskClaim

    queues = (QueueClaim("default", (TaskClaim(task="nothing", lease_len=30_000_000),)),)
    settlements: tuple[Settlement, ...] = ()
    claimed = turn = 0
    while claimed < jobs or settlements:
        turn += 1
        claim = Claim(claim_id=f"{turn:032d}", worker="bench", queues=queues, limit=redis_loop.BATCH)
        answer = await engine.perform(
            Exchange(settlements=settlements, claim=claim if claimed < jobs else None),
        )
        settlements = tuple(
            Settlement(queue=lease.queue, id=lease.id, token=lease.token, target=JobState.SUCCEEDED, result=b"null")
            for lease in answer.leases
        )
        claimed += len(settlements)
        if claimed < jobs and not settlements:
            break
    return claimed


# Enqueueing


def redis_enqueue(stores: Stores) -> Figures:
    figures: Figures = {}
    for mode, key in zip(MODES, ("redis.enqueue", "redis.enqueue_always"), strict=True):
        figures |= _enqueued(stores, key, mode, PAIRS if mode == MODES[0] else 3)
    return figures


def _enqueued(stores: Stores, key: str, mode: str, pairs: int) -> Figures:
    def fresh() -> str:
        return stores.fresh(mode)

    many, bare_many, many_ratio = alternate(
        lambda turn: batches(fresh(), 20, 1_000), lambda turn: redis_loop.inserts(fresh(), 20, 1_000, RAW), pairs
    )
    awaited, bare_one, awaited_ratio = alternate(
        lambda turn: callers(fresh(), 1), lambda turn: redis_loop.inserts(fresh(), 300, 1, RAW), pairs
    )
    return {
        f"{key}.batch_jobs_s": many,
        f"{key}.bare_batch_jobs_s": bare_many,
        f"{key}.batch_ratio_to_bare": many_ratio,
        f"{key}.one_caller_s": awaited,
        f"{key}.bare_single_s": bare_one,
        f"{key}.one_caller_ratio_to_bare": awaited_ratio,
        f"{key}.single_s": median(singles(fresh()) for _ in range(3)),
        f"{key}.hundred_callers_s": median(callers(fresh(), 100) for _ in range(3)),
    }


# Latency


def redis_latency(stores: Stores) -> Figures:
    figures = latency(stores.fresh(), "redis")
    figures["redis.request.hundred_in_flight_s"] = median(_requests(stores.fresh()) for _ in range(3))
    return figures | _bare_latency(stores.fresh())


def _bare_latency(url: str) -> Figures:
    """Insert and PUBLISH in one script; in another process a claim."""
    process = start("claim", url, of=redis_loop.__name__)
    line(process)
    taken = redis_loop.starts(url, [0.0] * 51 + [2.0] * 5, lambda: line(process))
    finish(process)
    return {
        "redis.start.bare_idle_p50_ms": median(taken[1:51]),
        "redis.start.bare_after_quiet_p50_ms": median(taken[51:]),
    }


def _requests(url: str) -> float:
    """Requests per second with a hundred in flight, answered by a worker in another process."""
    fill(url, 0)
    process = start("serve", url)
    line(process)
    rate = asyncio.run(_in_flight(url, 30))
    finish(process)
    return rate


async def _in_flight(url: str, each: int) -> float:
    jobs = make(url)
    async with jobs:
        stamp = jobs.registry["stamp"]

        async def caller() -> None:
            for _ in range(each):
                await stamp.arequest(time.monotonic_ns())

        await asyncio.gather(*(stamp.arequest(time.monotonic_ns()) for _ in range(IN_FLIGHT)))
        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
        return IN_FLIGHT * each / (time.perf_counter() - began)


# Memory and backlog


def redis_memory(stores: Stores) -> Figures:
    """Bytes of the server's memory per job with a payload of 100 bytes."""
    url = stores.filled(0)
    empty = stores.memory()
    fill(url, MEMORY_JOBS)
    queued = stores.memory()
    asyncio.run(_exchanges(url, MEMORY_JOBS))
    return {
        "redis.memory.queued_bytes": (queued - empty) / MEMORY_JOBS,
        "redis.memory.finished_bytes": (stores.memory() - empty) / MEMORY_JOBS,
    }


class Cost:
    """What claimed jobs cost a server with this many queued ones."""

    def __init__(self, stores: Stores, queued: int, claimed: int) -> None:
        url = stores.filled(queued)
        calls, cpu_s = stores.calls(), stores.cpu_s()
        asyncio.run(_exchanges(url, claimed))
        self.cpu_us = (stores.cpu_s() - cpu_s) / claimed * 1e6
        self.calls = (stores.calls() - calls) / claimed


def flatness(stores: Stores, few: int = 1_000, many: int = 1_000_000, claimed: int = 10_000) -> Figures:
    """Commands and server CPU per claimed job with many queued jobs, and their ratio to those with few.

    Not part of `make bench-quick`, because it enqueues a million jobs: `make bench-backlog` has it.
    """
    of_many = Cost(stores, many, claimed)
    of_few = [Cost(stores, few, few) for _ in range(claimed // few)]
    calls, cpu_us = median(cost.calls for cost in of_few), median(cost.cpu_us for cost in of_few)
    return {
        "redis.flat.calls_per_job": of_many.calls,
        "redis.flat.calls_to_few": of_many.calls / calls,
        "redis.flat.server_cpu_us_per_job": of_many.cpu_us,
        "redis.flat.server_cpu_to_few": of_many.cpu_us / cpu_us,
    }


MEASURES = (
    redis_drain,
    redis_drain_general,
    redis_exchange,
    redis_enqueue,
    redis_latency,
    redis_memory,
)
