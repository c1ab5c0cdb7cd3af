"""Worker processes that a test starts, stops, pauses and kills."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import NamedTuple, Self

SUPPORT = Path(__file__).parent


class Run(NamedTuple):
    """A line of the log: when, by which process, what."""

    at: int
    pid: int
    what: str
    job: str
    attempt: int
    fence: int


class Fleet:
    """So many worker processes on one store; every killed one is replaced."""

    def __init__(self, url: str, log: Path, *, size: int, concurrency: int = 20, seed: int = 0) -> None:
        self.log = log
        self._environment = {**os.environ, "KILL_URL": url, "KILL_LOG": str(log)}
        self._concurrency = concurrency
        self._random = Random(seed)
        self.workers = [self._start() for _ in range(size)]

    def _start(self) -> "subprocess.Popen[str]":
        program = [sys.executable, str(SUPPORT / "kill_app.py"), str(self._concurrency)]
        return subprocess.Popen(program, env=self._environment, stdout=subprocess.PIPE, text=True)

    def kill_one(self, *, replace: bool = True) -> int:
        """Kill -9 one of them at random; answers its process id."""
        index = self._random.randrange(len(self.workers))
        victim = self.workers[index]
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait(timeout=30)
        if victim.stdout is not None:
            victim.stdout.close()
        if replace:
            self.workers[index] = self._start()
        else:
            del self.workers[index]
        return victim.pid

    async def first_run(self) -> Run:
        """Wait until something runs. The log is a plain file, so it is looked at again and again."""
        pause = asyncio.Event()
        while not (runs := self.runs()):
            with suppress(TimeoutError):
                await asyncio.wait_for(pause.wait(), 0.02)
        return runs[0]

    async def stop_at_once(self, worker: "subprocess.Popen[str]") -> int:
        """SIGTERM, and again until it has ended; answers the exit code."""
        while True:
            worker.send_signal(signal.SIGTERM)
            try:
                return await asyncio.to_thread(worker.wait, 0.5)
            except subprocess.TimeoutExpired:
                continue

    def runs(self) -> list[Run]:
        """What has run so far."""
        if not self.log.exists():
            return []
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [
            Run(int(line[0]), int(line[1]), line[2], line[3], int(line[4]), int(line[5]) if len(line) > 5 else 0)
            for line in lines
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(timeout=20)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            if worker.stdout is not None:
                worker.stdout.close()
