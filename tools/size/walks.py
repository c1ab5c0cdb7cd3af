"""What the main paths pass through: calls, functions and files of the package, counted by the profiler of Python.

    lone enqueue        one blocking enqueue on a warm SQLite store, in the thread of the caller
    claim to settle     one plain job in a batch of 100, in the threads of a worker and its store; calls: a share of all
    kill to rerun       from the kill of a worker to the second run of its job, in those of another worker

The last one takes a second, so its calls also depend on the time.
"""

import asyncio
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from benchmarks import postgres, redis

from holdfast import App, Context
from tools.size.code_lines import PACKAGE

TASK = "nothing"
BATCH = 100
WARM_CALLS = 50
LIMIT_S = 60.0
SETTLED_S = 0.3
"""After the last run of a batch: the worker settles it meanwhile."""

KILLED = """
import sys
from tools.size.walks import app_at

jobs = app_at(sys.argv[1], lambda attempt: print("runs", flush=True), hold=True)
jobs.worker().run()
"""


class Walk(NamedTuple):
    name: str
    calls: int
    functions: int
    files: int


class Counting:
    """Counts the calls of functions of the package while `on`."""

    def __init__(self) -> None:
        self.on = False
        self.calls: Counter[tuple[str, int]] = Counter()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            self.calls[frame.f_code.co_filename, frame.f_code.co_firstlineno] += 1

    @contextmanager
    def of_threads(self) -> Iterator[None]:
        """In all threads that start meanwhile."""
        threading.setprofile(self)
        try:
            yield
        finally:
            self.on = False
            threading.setprofile(None)

    def walk(self, name: str, share: int = 1) -> Walk:
        return Walk(name, round(self.calls.total() / share), len(self.calls), len({file for file, _ in self.calls}))


def app_at(url: str, on_run: Callable[[int], object], *, hold: bool = False) -> App[Any]:
    """An App with one task, whose handler calls `on_run` with the attempt. `hold`: then it waits for ever."""
    jobs: App[Any] = App(url, auto_migrate=True)

    @jobs.task(name=TASK, backoff=0)
    async def nothing(ctx: Context) -> None:
        on_run(ctx.attempt)
        if hold:
            await asyncio.Event().wait()

    return jobs


def lone_enqueue(url: str) -> Walk:
    counting = Counting()
    with app_at(url, lambda attempt: None) as jobs:
        task = jobs.registry[TASK]
        for _ in range(WARM_CALLS):
            task.enqueue()
        sys.setprofile(counting)
        counting.on = True
        task.enqueue()
        counting.on = False
        sys.setprofile(None)
    return counting.walk("lone enqueue, SQLite")


def claim_to_settle(name: str, url: str) -> Walk:
    """The worker first runs a batch that is not counted. The jobs wait in a paused queue until all are there."""
    counting = Counting()
    runs = threading.Semaphore(0)
    with counting.of_threads(), app_at(url, lambda attempt: runs.release()) as jobs:
        task = jobs.registry[TASK]
        with jobs.worker(concurrency=BATCH):
            for counted in (False, True):
                jobs.control.pause(task.queue)
                jobs.client.enqueue_many([task.draft() for _ in range(BATCH)])
                counting.on = counted
                jobs.control.resume(task.queue)
                for _ in range(BATCH):
                    assert runs.acquire(timeout=LIMIT_S)
                time.sleep(SETTLED_S)
                counting.on = False
    return counting.walk(f"claim to settle, {name}", BATCH)


def kill_to_rerun(url: str) -> Walk:
    counting, ran_again = Counting(), threading.Event()
    with counting.of_threads(), app_at(url, lambda attempt: ran_again.set()) as jobs:
        handle = jobs.registry[TASK].enqueue()
        held = subprocess.Popen(
            [sys.executable, "-c", KILLED, url], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
        )
        try:
            assert held.stdout is not None
            assert held.stdout.readline() == b"runs\n"
            with jobs.worker():
                counting.on = True
                held.send_signal(signal.SIGKILL)
                assert ran_again.wait(LIMIT_S), f"Job {handle.id} did not run again."
                counting.on = False
        finally:
            held.kill()
            held.communicate()
    return counting.walk("kill to rerun, SQLite")


def walks() -> Iterator[Walk]:
    with tempfile.TemporaryDirectory() as folder, postgres.Stores() as databases, redis.Stores() as servers:
        yield lone_enqueue(f"sqlite:///{folder}/enqueue.db")
        yield claim_to_settle("SQLite", f"sqlite:///{folder}/settle.db")
        yield claim_to_settle("PostgreSQL", databases.fresh())
        yield claim_to_settle("Redis", servers.fresh())
        yield kill_to_rerun(f"sqlite:///{folder}/killed.db")
