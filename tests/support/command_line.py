"""The command line inside the test's process: run a command, get its exit code and what it printed."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from due_worker import DueWorker

from holdfast import App, GiveUp, Retry
from holdfast.cli import main


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The lines of `--json`."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Answer]


def run_command(capsys: pytest.CaptureFixture[str], *args: str) -> Answer:
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit:
        main(args)
    out, err = capsys.readouterr()
    assert isinstance(exit.value.code, int)
    return Answer(exit.value.code, out, err)


def forget_modules(folder: Path) -> None:
    """Of this folder only: a driver that is imported twice (asyncpg) may bring down the process."""
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]


class Shell:
    """An App on a SQLite file, and commands on the same file."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.path = folder / "jobs.db"
        self.url = f"sqlite:///{self.path}"
        self.app: App[Any] = App(self.url)
        self._run = run

        @self.app.task
        async def works(value: object = None) -> object:
            return value

        @self.app.task
        async def gives_up(value: str = "") -> None:
            raise GiveUp(value or "no use")

        @self.app.task
        async def retries(value: str = "") -> None:
            raise Retry("later", delay=3600)

        self.works, self.gives_up, self.retries = works, gives_up, retries

    def work(self) -> None:
        """Run all jobs that are due."""
        DueWorker(self.app).run()

    def state(self, job_id: str, queue: str = "default") -> str:
        return self.app.control.get(job_id, queue=queue).state.value

    def __call__(self, *args: str) -> Answer:
        return self._run(*args, "--url", self.url)
