"""The tasks that the benchmark runs, and the processes that run them."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast import App
from holdfast.kinds import KINDS
from holdfast.worker import Worker

PAYLOAD = "x" * 82
"""With the JSON around it, a payload of 100 bytes."""


FINISHED: list[float] = []
"""When `counted` ran, in this process."""


def make(url: str) -> App[Any]:
    jobs: App[Any] = App(url, auto_migrate=True)

    @jobs.task(name="nothing")
    async def nothing(text: str) -> None: ...

    @jobs.task(name="forgotten", retention=0, result_ttl=0)
    async def forgotten(text: str) -> None: ...

    @jobs.task(name="nap")
    async def nap(text: str) -> None:
        await asyncio.sleep(KINDS["short"].takes_s)

    @jobs.task(name="counted")
    async def counted(text: str) -> None:
        FINISHED.append(time.perf_counter())

    @jobs.task(name="stamp")
    async def stamp(sent: int) -> int:
        return time.monotonic_ns() - sent

    return jobs


QUEUES = ("default", "second")
"""The queues of `make_tasks`."""


def make_tasks(url: str, tasks: int, queues: int) -> App[Any]:
    """An App with this many tasks, `task-0`, `task-1` and so on, spread over the first queues of `QUEUES`."""
    jobs: App[Any] = App(url, auto_migrate=True)

    for number in range(tasks):

        @jobs.task(name=f"task-{number}", queue=QUEUES[number % queues])
        async def nothing(text: str) -> None: ...

    return jobs


def drain(url: str) -> None:
    """A worker process that drains the queue and prints what it cost."""
    _drain(make(url), QUEUES[:1])


def drain_general(url: str) -> None:
    """The same without the engine's fast paths."""
    from holdfast import engines

    engines.open_engine = partial(engines.open_engine, fast_paths=False)  # an App looks it up when it opens its engine
    drain(url)


def drain_filled(url: str, count: str) -> None:
    """The same for a store in memory, which is filled before the time is read."""
    jobs = make(url)
    with jobs:
        for _ in range(0, int(count), 1_000):
            jobs.client.enqueue_many([jobs.registry["nothing"].draft(PAYLOAD) for _ in range(1_000)])
        _drain(jobs, QUEUES[:1])


def drain_second(url: str) -> None:
    """The same on the second queue."""
    _drain(make(url), QUEUES[1:])


def drain_tasks(url: str, tasks: str, queues: str) -> None:
    """The same with this many tasks in this many queues."""
    _drain(make_tasks(url, int(tasks), int(queues)), QUEUES[: int(queues)])


def _drain(jobs: App[Any], queues: tuple[str, ...]) -> None:
    with jobs:  # the store is open before the time is read, as the bare loop's connection is
        before = os.times()
        began = time.perf_counter()
        Worker(jobs, queues=list(queues), concurrency=100, until_empty=True).run()
        took = time.perf_counter() - began
        after = os.times()
    cpu = (after.user - before.user) + (after.system - before.system)
    print(f"{took} {cpu} {peak_memory()}", flush=True)


def drain_counted(url: str, last: str) -> None:
    """A worker process that drains `counted` jobs and prints two rates: of all, and of the last ones.

    Time runs from the first end to the last, so a short drain is not judged by how long a worker takes to start.
    """
    jobs = make(url)
    with jobs:
        Worker(jobs, queues=["default"], concurrency=100, until_empty=True).run()
    for count in (len(FINISHED), int(last)):
        print((count - 1) / (FINISHED[-1] - FINISHED[-count]), flush=True)


def open_store(url: str) -> None:
    """Opens a store and asks one question. Prints the seconds that took, and the bytes of a job's record."""
    import msgspec

    from holdfast.engines import open_engine
    from holdfast.model.observe import Find
    from holdfast.model.states import JobState

    async def answer() -> None:
        engine = open_engine(url)
        began = time.perf_counter()
        await engine.open()
        await engine.stats()
        took = time.perf_counter() - began
        found = await engine.find(Find(queue="default", state=JobState.QUEUED))
        sizes = [len(msgspec.msgpack.encode(record)) for record in found.jobs]
        await engine.close()
        print(took, sum(sizes) / len(sizes), flush=True)

    asyncio.run(answer())


def produce(url: str, count: str, batch: str) -> None:
    """A producer: prints when it begins, and ends when all its jobs have ended."""
    jobs = make(url)
    with jobs:
        task = jobs.registry["counted"]
        print("ready", flush=True)
        sys.stdin.readline()
        print(time.perf_counter(), flush=True)
        for _ in range(0, int(count), int(batch)):
            jobs.client.enqueue_many([task.draft(PAYLOAD) for _ in range(int(batch))])
        while any(queue.depth for queue in jobs.control.queues()):
            time.sleep(0.05)


def count_ends(url: str) -> None:
    """A worker process that works until its input ends. Prints how many jobs it ran, and when the last one ended."""
    jobs = make(url)
    with jobs, jobs.worker(queues=["default"], concurrency=100):
        print("ready", flush=True)
        sys.stdin.read()
    print(len(FINISHED), max(FINISHED, default=0.0), flush=True)


def share(url: str) -> None:
    """One of several worker processes that start together and print a line when no job is left."""
    jobs = make(url)
    with jobs:
        print("ready", flush=True)
        sys.stdin.readline()
        Worker(jobs, queues=["default"], concurrency=10, until_empty=True).run()
        print("done", flush=True)


def enqueue(url: str, count: str) -> None:
    """One of several producers that start together, each with one caller."""
    jobs = make(url)
    with jobs:
        task = jobs.registry["nothing"]
        task.enqueue(PAYLOAD)
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(int(count)):
            task.enqueue(PAYLOAD)
        print("done", flush=True)


def pace(url: str, seconds: str, window: str) -> None:
    """A worker process that prints how many `counted` jobs per second it ran in each window."""
    jobs = make(url)
    with jobs:
        began = time.perf_counter()
        with jobs.worker(queues=["default"], concurrency=100):
            time.sleep(float(seconds))
    length = float(window)
    windows = [0] * int(float(seconds) / length)
    for at in FINISHED:
        place = int((at - began) / length)
        if place < len(windows):
            windows[place] += 1
    print(*(count / length for count in windows), flush=True)


def serve(url: str) -> None:
    """A worker process that works until its input ends."""
    jobs = make(url)
    with jobs, jobs.worker(concurrency=100):
        print(current_memory(), flush=True)
        sys.stdin.read()


def peak_memory() -> int:
    return _status("VmHWM:")


def current_memory() -> int:
    return _status("VmRSS:")


def _status(name: str) -> int:
    """Kilobytes, as the kernel counts them."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(name):
                return int(line.split()[1])
    return 0


PROGRAMS: dict[str, Callable[..., None]] = {
    "drain": drain,
    "drain_general": drain_general,
    "drain_filled": drain_filled,
    "drain_tasks": drain_tasks,
    "drain_counted": drain_counted,
    "drain_second": drain_second,
    "open": open_store,
    "produce": produce,
    "count": count_ends,
    "share": share,
    "enqueue": enqueue,
    "pace": pace,
    "serve": serve,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
