"""A manager process that a test starts, and its children."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from eventually import eventually
from growing_log import whole_lines
from worker_processes import Run

from holdfast.engine import Engine
from holdfast.model.records import WorkerRecord

SUPPORT = Path(__file__).parent


class ManagerProcess:
    """`holdfast manager` with the tasks of `kill_app`, or of another module. At the end it is stopped, or killed.

    `output`: a descriptor for its standard output and error, in place of files.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        *options: str,
        target: str = "kill_app",
        cwd: Path = SUPPORT,
        command: str = "manager",
        environment: Mapping[str, str] | None = None,
        wrapper: tuple[str, ...] = (),
        output: int | None = None,
    ) -> None:
        self.log = folder / "runs"
        self._number = len(list(folder.glob("manager-*")))
        self._stderr = folder / f"manager-{self._number}.err"
        self._stdout = folder / f"manager-{self._number}.out"
        variables = {**os.environ, "KILL_URL": url, "KILL_LOG": str(self.log), **(environment or {})}
        argv = [*wrapper, sys.executable, "-m", "holdfast", command, target, *options]
        with self._stderr.open("wb") as stderr, self._stdout.open("wb") as stdout:
            self.process = subprocess.Popen(
                argv, cwd=cwd, env=variables, stdout=output or stdout, stderr=output or stderr
            )

    @property
    def errors(self) -> str:
        return self._stderr.read_text()

    @property
    def output(self) -> str:
        return self._stdout.read_text()

    def runs(self) -> list[Run]:
        lines = [line.split() for line in whole_lines(self.log)] if self.log.exists() else []
        return [
            Run(int(line[0]), int(line[1]), line[2], line[3], int(line[4]), int(line[5]) if len(line) > 5 else 0)
            for line in lines
        ]

    def child_pids(self) -> list[int]:
        """Processes whose parent is the manager, as the kernel knows them; zombies are not counted."""
        try:
            text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
            return [pid for pid in map(int, text.split()) if not is_zombie(pid)]
        except OSError:
            return []

    async def record(self, engine: Engine) -> WorkerRecord | None:
        """The manager's record in the store."""
        workers = (await engine.workers()).workers
        return next((one for one in workers if one.max_children and one.pid == self.process.pid), None)

    async def wait_for_children(self, engine: Engine, count: int, limit_s: float = 60.0) -> list[WorkerRecord]:
        """Wait until this number of children works, and no other process is left. Returns their records."""
        found: list[WorkerRecord] = []

        async def is_so() -> bool:
            assert self.process.poll() is None, self.errors
            record = await self.record(engine)
            names = () if record is None else record.children
            workers = (await engine.workers()).workers
            pids = self.child_pids()
            found[:] = [worker for worker in workers if worker.worker in names and worker.pid in pids]
            return len(found) == len(pids) == count

        await eventually(is_so, f"{count} children of the manager", limit_s=limit_s)
        return found

    async def wait_for_text(self, text: str, limit_s: float = 60.0) -> None:
        await eventually(lambda: text in self.errors, f"{text!r} in the manager's log", limit_s=limit_s)

    async def wait_ended(self, limit_s: float = 60.0) -> int:
        await eventually(lambda: self.process.poll() is not None, "the end of the manager", limit_s=limit_s)
        return self.process.returncode

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                pids = self.child_pids()
                self.process.kill()
                self.process.wait()
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
        if error is not None:
            print(self.errors[-5_000:])


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
