"""Worker processes that a test starts, stops, pauses and kills."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from eventually import eventually
from growing_log import whole_lines

SUPPORT = Path(__file__).parent
STOP_LIMIT_S = 20.0
"""Seconds until workers that do not stop are killed."""


class Run(NamedTuple):
    """A line of the log: when, by which process, what."""

    at: int
    pid: int
    what: str
    job: str
    attempt: int
    fence: int


class WorkerProcesses:
    """`size` worker processes on one store. A killed one is replaced.

    `hosts`: a folder. Each process keeps its record there in a folder of its own, so none sees the records of the
    others, as if each ran on another host. `reap_s`: seconds between two looks for dead workers; None: the default, 5.
    """

    def __init__(
        self,
        url: str,
        log: Path,
        *,
        size: int,
        concurrency: int = 20,
        hosts: Path | None = None,
        reap_s: float | None = None,
    ) -> None:
        self.log = log
        self._hosts = hosts
        self._started = 0
        self._environment = {**os.environ, "KILL_URL": url, "KILL_LOG": str(log)}
        if reap_s is not None:
            self._environment["HOLDFAST_WORKER_REAP_INTERVAL"] = str(reap_s)
        self._concurrency = concurrency
        self.processes = [self._start() for _ in range(size)]

    def _start(self) -> "subprocess.Popen[str]":
        program = [sys.executable, str(SUPPORT / "kill_app.py"), str(self._concurrency)]
        environment = self._environment
        if self._hosts is not None:
            self._started += 1
            folder = self._hosts / str(self._started)
            folder.mkdir(parents=True)
            environment = {**environment, "XDG_RUNTIME_DIR": str(folder)}
        return subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True)

    def kill_one(self, pid: int, *, replace: bool = True) -> None:
        """Kill the one with this process id, by SIGKILL."""
        index = [process.pid for process in self.processes].index(pid)
        victim = self.processes[index]
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait(timeout=30)
        if victim.stdout is not None:
            victim.stdout.close()
        if replace:
            self.processes[index] = self._start()
        else:
            del self.processes[index]

    def replace_ended(self) -> int:
        """Start a new one for each that has ended by itself, as a supervisor does. Returns how many."""
        ended = [index for index, process in enumerate(self.processes) if process.poll() is not None]
        for index in ended:
            stdout = self.processes[index].stdout
            if stdout is not None:
                stdout.close()
            self.processes[index] = self._start()
        return len(ended)

    async def kill_runner_of(self, job: str) -> None:
        """Kill the process that runs this job, which must be one that does not end by itself."""
        self.kill_one((await self.first_run(job)).pid)

    async def first_run(self, job: str | None = None) -> Run:
        """Wait until this job, or any, has started. The log is a plain file, so it is read again and again."""
        found: list[Run] = []

        def has_started() -> bool:
            found[:] = [run for run in self.runs() if job in (None, run.job)]
            return bool(found)

        await eventually(has_started, f"{job or 'the first job'} to start", limit_s=60)
        return found[0]

    async def stop_at_once(self, worker: "subprocess.Popen[str]") -> int:
        """Send SIGTERM again and again until the worker has ended. Returns the exit code."""
        while True:
            worker.send_signal(signal.SIGTERM)
            try:
                return await asyncio.to_thread(worker.wait, 0.5)
            except subprocess.TimeoutExpired:
                continue

    def runs(self) -> list[Run]:
        """The lines of the log so far."""
        lines = [line.split() for line in whole_lines(self.log)]
        return [
            Run(int(line[0]), int(line[1]), line[2], line[3], int(line[4]), int(line[5]) if len(line) > 5 else 0)
            for line in lines
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline_s = time.monotonic() + STOP_LIMIT_S
        for worker in self.processes:
            worker.terminate()
        for worker in self.processes:
            while worker.poll() is None:
                try:
                    worker.wait(0.2)
                except subprocess.TimeoutExpired:  # one that has just started ignores the first signals
                    worker.terminate() if time.monotonic() < deadline_s else worker.kill()
            if worker.stdout is not None:
                worker.stdout.close()
