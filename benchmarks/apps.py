"""The tasks that the benchmark runs, and the processes that run them."""

import os
import sys
import time
from typing import Any

from holdfast import App
from holdfast.worker import Worker

PAYLOAD = "x" * 82
"""With the JSON around it, a payload of 100 bytes."""


def make(url: str) -> App[Any]:
    jobs: App[Any] = App(url)

    @jobs.task(name="nothing")
    async def nothing(text: str) -> None: ...

    @jobs.task(name="stamp")
    async def stamp(sent: int) -> int:
        return time.monotonic_ns() - sent

    return jobs


def drain(url: str) -> None:
    """A worker process that works until nothing is left, and says what it cost."""
    jobs = make(url)
    before = os.times()
    began = time.perf_counter()
    Worker(jobs, queues=["default"], concurrency=100, until_empty=True).run()
    took = time.perf_counter() - began
    after = os.times()
    cpu = (after.user - before.user) + (after.system - before.system)
    print(f"{took} {cpu} {peak_memory()}", flush=True)


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


if __name__ == "__main__":
    {"drain": drain, "serve": serve}[sys.argv[1]](sys.argv[2])
