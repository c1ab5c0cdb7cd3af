"""The app of the kill tests: each run leaves a line in a file that the queue does not own."""

import asyncio
import os
import select
import signal
import sys
import time
from typing import Any

from holdfast import App, Context

jobs: App[Any] = App(os.environ["KILL_URL"])
LOG = os.environ["KILL_LOG"]
while os.path.exists(os.environ.get("KILL_NO_START", "")):  # a test lets no process start while this file exists
    select.select([], [], [], 0.02)  # waits


def note(*words: object) -> None:
    """One write, one line: whole lines even from processes that are killed."""
    line = " ".join(map(str, (time.monotonic_ns(), os.getpid(), *words))) + "\n"
    log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, line.encode())
    os.close(log)


@jobs.task(name="work", max_attempts=50)
async def work(ctx: Context, number: int) -> int:
    note("start", ctx.job.id, ctx.attempt, ctx.fence)
    await asyncio.sleep(0.002)
    note("end", ctx.job.id, ctx.attempt)
    return number * 2


@jobs.task(name="slow", max_attempts=50, max_losses=50)
async def slow(ctx: Context, seconds: float) -> int:
    note("start", ctx.job.id, ctx.attempt, ctx.fence)
    await asyncio.sleep(seconds)
    note("end", ctx.job.id, ctx.attempt)
    return 2


@jobs.task(name="hold", max_attempts=5)
async def hold(ctx: Context) -> int:
    """The first run waits for ever; the next one ends at once."""
    note("start", ctx.job.id, ctx.attempt, ctx.fence)
    if ctx.attempt == 1:
        await asyncio.get_running_loop().create_future()
    return ctx.attempt


@jobs.task(name="poison", max_attempts=5, max_losses=2, backoff=0)
async def poison(ctx: Context) -> None:
    """Kills its worker."""
    note("start", ctx.job.id, ctx.attempt, ctx.fence)
    os.kill(os.getpid(), signal.SIGKILL)


@jobs.task(name="segfault")
async def segfault(ctx: Context) -> None:
    """Kills its worker, as code with a bad pointer does."""
    note("start", ctx.job.id, ctx.attempt, ctx.fence)
    os.kill(os.getpid(), signal.SIGSEGV)


@jobs.task(name="healthy")
async def healthy(ctx: Context) -> None:
    note("start", ctx.job.id, ctx.attempt, ctx.fence)
    await asyncio.sleep(0.05)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # in force again when the worker has ended: tests send it repeatedly
    print("ready", flush=True)
    jobs.worker(concurrency=int(sys.argv[1]), signals=True).run()
