"""A worker process that runs `isolated_app.py`: its jobs, its log and its child processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from eventually import eventually
from growing_log import whole_lines

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import TERMINAL, JobState

SUPPORT = Path(__file__).parent
QUEUE = "default"
SECRET = "s3cret-of-the-store"


def is_alive(pid: int) -> bool:
    """False also for a zombie, which only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class IsolatedWorker:
    """The worker, the engine of the test, and the folder in which handlers leave files."""

    def __init__(self, process: "subprocess.Popen[bytes]", engine: Engine, folder: Path) -> None:
        self.process = process
        self.engine = engine
        self.folder = folder

    # Jobs

    async def enqueue(self, *jobs: tuple[str, str, list[Any]]) -> None:
        """Jobs as (id, task, arguments)."""
        for start in range(0, len(jobs), 500):
            new = [
                NewJob(queue=QUEUE, id=id, task=task, payload=json.dumps([args, {}]).encode())
                for id, task, args in jobs[start : start + 500]
            ]
            await self.engine.enqueue(Group(tuple(new)))

    async def records(self, ids: Iterable[str]) -> dict[str, JobRecord]:
        answer = await self.engine.get(*(JobKey(QUEUE, id) for id in ids))
        return {record.id: record for record in answer.jobs if record is not None}

    async def ended(
        self, ids: Iterable[str], limit_s: float = 100.0, states: frozenset[JobState] = TERMINAL
    ) -> dict[str, JobRecord]:
        """Wait until all of these jobs have ended, or are in one of these states."""
        ids = list(ids)
        found: dict[str, JobRecord] = {}

        async def have_ended() -> bool:
            assert self.process.poll() is None, f"the worker ended: {self.log()}"
            found.update(await self.records(ids))
            return all(id in found and found[id].state in states for id in ids)

        with self.engine.subscribe(f"room:{QUEUE}") as subscription:
            async with asyncio.timeout(limit_s):
                while not await have_ended():
                    await subscription.wait(0.2)
        return found

    async def run(self, task: str, *args: Any, id: str | None = None) -> JobRecord:
        """Run one job to its end."""
        id = id or f"{task}-{os.urandom(4).hex()}"
        await self.enqueue((id, task, list(args)))
        return (await self.ended([id]))[id]

    async def result(self, task: str, *args: Any) -> Any:
        record = await self.run(task, *args)
        assert record.state == "succeeded", (record.reason, record.last_error)
        assert record.result is not None
        return json.loads(record.result)

    # Processes

    def children(self) -> set[int]:
        """The living child processes of the worker."""
        found: set[int] = set()
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            found.update(map(int, path.read_text().split()))
        return {pid for pid in found if is_alive(pid)}

    def zombies(self) -> set[int]:
        found: set[int] = set()
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            found.update(map(int, path.read_text().split()))
        return {pid for pid in found if not is_alive(pid)}

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def noted(self, name: str) -> list[str]:
        """The lines that handlers have written to this file."""
        path = self.folder / name
        return whole_lines(path) if path.exists() else []

    async def noted_pids(self, name: str, number: int = 1) -> list[int]:
        def is_noted() -> bool:
            assert self.process.poll() is None, f"the worker ended: {self.log()}"
            return len(self.noted(name)) >= number

        await eventually(is_noted, f"{number} lines in {name}", limit_s=60)
        return [int(line.split()[0]) for line in self.noted(name)]

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


@asynccontextmanager
async def isolated_worker(
    folder: Path, *, app: str = "isolated_app", concurrency: int = 8, grace: float = 5
) -> AsyncIterator[IsolatedWorker]:
    """A worker on a SQLite file. Its address stands in several variables, as in many deployments."""
    url = f"sqlite:///{folder}/{SECRET}.db"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "ISOLATED_URL": url,
        "ISOLATED_FOLDER": str(folder),
        "HOLDFAST_URL": url,
        "HOLDFAST_WORKER_REAP_INTERVAL": "0.5",
        "OTHER_COPY": f"store={url}",
        "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(),  # the same for all processes
        "TMPDIR": str(folder / "tmp"),  # what children leave there
    }
    (folder / "tmp").mkdir(exist_ok=True)
    program = [sys.executable, "-m", "holdfast", "worker", f"{app}:jobs", "--grace", str(grace)]
    engine = open_engine(url)
    await engine.open()
    with (folder / "log").open("wb") as log, (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [*program, "-c", str(concurrency)], env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=log
        )
        worker = IsolatedWorker(process, engine, folder)
        try:
            yield worker
        finally:
            left = worker.children()
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait, 30)
            await engine.close()
            await eventually(lambda: not any(map(is_alive, left)), "the children of the worker to end")
