"""The app of the tests with a sick worker: no descriptors left, a disk that takes seconds for a sync, a long pause."""

import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

from holdfast import App, Context

jobs: App[Any] = App(os.environ["SICK_URL"])
FOLDER = Path(os.environ["SICK_FOLDER"])
LEASE_S = float(os.environ.get("SICK_LEASE_S", "2"))


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def wait_for(name: str) -> None:
    """Wait until the test has created this file."""
    while not (FOLDER / name).exists():
        pause(0.02)


def note_start(ctx: Context) -> None:
    (FOLDER / f"{ctx.job.id}-{ctx.attempt}-{os.getpid()}").touch()


@jobs.task(name="steady", lease=LEASE_S)
def steady(ctx: Context, seconds: float) -> int:
    note_start(ctx)
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        pause(0.05)
    return ctx.attempt


@jobs.task(name="greedy", lease=LEASE_S)
def greedy(ctx: Context, seconds: float) -> int:
    """Use up all descriptors for some time, once the other jobs have started."""
    wait_for("greedy-may-begin")
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pause(seconds)
    finally:
        for descriptor in taken:
            os.close(descriptor)
    return ctx.attempt


@jobs.task(name="waiting", lease=LEASE_S)
def waiting(ctx: Context) -> int:
    note_start(ctx)
    wait_for(f"end-{ctx.attempt}")
    return ctx.attempt


def slow_sync(seconds: float) -> None:
    """Let every commit of SQLite that waits for the disk take this long, while it holds the gate."""
    from holdfast.engines.sqlite.writer import Writer

    commit = Writer._commit

    def slow_commit(self: Writer) -> None:
        written = self._state.db.written
        commit(self)
        if written and self.connection.execute("PRAGMA synchronous").fetchone()[0] == 2:
            pause(seconds)

    Writer._commit = slow_commit  # type: ignore[method-assign]


if __name__ == "__main__":
    fault, value = sys.argv[1:]
    if fault == "descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(value), int(value)))
    elif fault == "slow-sync":
        slow_sync(float(value))

    jobs.worker(concurrency=8, signals=True).run()
