"""What `make bench-quick` measures on the file engine: beside memory, which has the same rules and no disk, and beside
a bare loop that appends and syncs."""

from pathlib import Path
from statistics import median

from benchmarks.limits import file_loop
from benchmarks.measure import (
    JOBS,
    RAW,
    Figures,
    alternate,
    batches,
    callers,
    fill,
    finish,
    latency,
    line,
    singles_and_cpu_us,
    start,
    worker,
)

LIVE_JOBS = 200_000
"""Jobs of a store whose start is measured."""
ENDED_JOBS = 100_000
"""Jobs that come and go in it before its size on disk is measured."""
PRODUCED_BATCH = 100
"""Jobs per call of the producer."""


def file_drain(folder: Path) -> Figures:
    """One worker process with a hundred slots, beside one that has its jobs in memory."""
    cpu: list[float] = []
    bare: list[float] = []

    def ours(turn: int) -> float:
        url = f"file://{folder}/drain-{turn}"
        fill(url, JOBS)
        took, used, _ = worker("drain", url)
        cpu.append(used / JOBS * 1e6)
        bare.append(file_loop.drain(folder / f"bare-drain-{turn}", JOBS))
        return JOBS / took

    rate, memory, ratio = alternate(ours, lambda turn: JOBS / worker("drain_filled", "memory://", JOBS)[0])
    return {
        "file.drain.jobs_s": rate,
        "file.drain.memory_jobs_s": memory,
        "file.drain.ratio_to_memory": ratio,
        "file.drain.bare_jobs_s": median(bare),
        "file.drain.ratio_to_bare": rate / median(bare),
        "file.drain.cpu_us_per_job": median(cpu),
    }


def file_workers(folder: Path) -> Figures:
    """Two workers and one producer, which begin with an empty store, beside one worker that drains a full one."""

    def three(turn: int) -> float:
        url = f"file://{folder}/three-{turn}"
        fill(url, 0)
        workers = [start("count", url) for _ in range(2)]
        producer = start("produce", url, JOBS, PRODUCED_BATCH)
        for process in (*workers, producer):
            line(process)
        assert producer.stdin is not None
        producer.stdin.write("go\n")
        producer.stdin.flush()
        began = float(line(producer))
        finish(producer)  # it ends when no job is left
        ends = [finish(process).split() for process in workers]
        ended = sum(int(count) for count, _ in ends)
        if ended != JOBS:
            raise RuntimeError(f"{ended} jobs were run instead of {JOBS}")
        return JOBS / (max(float(last) for _, last in ends) - began)

    def one(turn: int) -> float:
        url = f"file://{folder}/one-{turn}"
        fill(url, JOBS, "counted")
        return JOBS / worker("drain", url)[0]

    rate, alone, ratio = alternate(three, one, 3)
    return {
        "file.workers.two_and_producer_jobs_s": rate,
        "file.workers.one_jobs_s": alone,
        "file.workers.two_and_producer_to_one": ratio,
    }


def file_enqueue(folder: Path) -> Figures:
    cpu: list[float] = []

    def store(name: str) -> str:
        return f"file://{folder}/{name}"

    def blocking(turn: int) -> float:
        rate, cpu_us = singles_and_cpu_us(store(f"single-{turn}"))
        cpu.append(cpu_us)
        return rate

    def bare(name: str, calls: int = 300, batch: int = 1) -> float:
        return file_loop.inserts(folder / f"bare-{name}", calls, batch, RAW)

    one, bare_one, one_ratio = alternate(blocking, lambda turn: bare(f"single-{turn}"))
    many, _, many_ratio = alternate(
        lambda turn: batches(store(f"batch-{turn}"), 10, 1_000), lambda turn: bare(f"batch-{turn}", 10, 1_000)
    )
    together, _, hundred_to_one = alternate(
        lambda turn: callers(store(f"callers-b{turn}"), 100), lambda turn: callers(store(f"callers-a{turn}"), 1), 3
    )
    return {
        "file.enqueue.single_s": one,
        "file.enqueue.bare_single_s": bare_one,
        "file.enqueue.single_ratio_to_bare": one_ratio,
        "file.enqueue.single_cpu_us_per_job": median(cpu),
        "file.enqueue.batch_jobs_s": many,
        "file.enqueue.batch_ratio_to_bare": many_ratio,
        "file.enqueue.hundred_callers_s": together,
        "file.enqueue.hundred_to_one": hundred_to_one,
    }


def file_latency(folder: Path) -> Figures:
    return latency(f"file://{folder}/latency", "file")


def file_start(folder: Path) -> Figures:
    """How long a process takes to open a store with many live jobs, and how large such a store is."""
    path = folder / "start"
    url = f"file://{path}"
    fill(url, LIVE_JOBS)
    answers = [finish(start("open", url)).split() for _ in range(3)]
    fill(url, ENDED_JOBS, "forgotten", queue="second")
    worker("drain_second", url)
    used = _used_bytes(path)
    return {
        "file.start_up.200k_jobs_s": median(float(seconds) for seconds, _ in answers),
        "file.disk.bytes_per_live_job": used / LIVE_JOBS,
        "file.disk.to_live_data": used / LIVE_JOBS / float(answers[0][1]),
    }


def _used_bytes(folder: Path) -> int:
    """Of the disk, by all files of a store."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


MEASURES = (file_drain, file_workers, file_enqueue, file_latency, file_start)
