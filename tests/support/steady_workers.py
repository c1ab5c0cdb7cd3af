"""Processes of `holdfast worker` with the jobs of `steady_app`, on a store of any engine that processes share."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from host_stores import HostStore

from holdfast.engine import Engine
from holdfast.model.observe import Find
from holdfast.model.states import JobState

QUEUE = "default"
COMMAND = (sys.executable, "-m", "holdfast", "worker", "steady_app", "--no-lines")


class Store(NamedTuple):
    url: str
    options: dict[str, Any]

    @classmethod
    def of(cls, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, folder: Path) -> "Store":
        """An empty store; the worker processes learn its address and its namespace from the environment."""
        options: dict[str, Any] = {}
        if kind in ("sqlite", "file"):
            url = HostStore.of(kind, folder).url
        else:
            url, options["namespace"] = request.getfixturevalue(f"{kind}_store")()
            monkeypatch.setenv("HOLDFAST_NAMESPACE", options["namespace"])
        if kind == "redis":
            options["durability"] = "none"
        monkeypatch.setenv("STEADY_URL", url)
        return cls(url, options)


class Fleet:
    """Starts worker processes, each with a name of its own. Their logs go to one file."""

    def __init__(self, log: Path, *options: str, **environment: str) -> None:
        self._log = log
        self._options = options
        self._environment = environment
        self._started = 0

    def start(self) -> tuple[str, "subprocess.Popen[bytes]"]:
        self._started += 1
        name = f"worker{self._started}"
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [*COMMAND, "--name", name, *self._options],
                cwd=self._log.parent,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return name, process

    @contextmanager
    def running(self) -> Iterator[str]:
        """A worker, by the beginning of its name; at the end it is stopped."""
        name, process = self.start()
        try:
            yield name
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()


async def leases_of(engine: Engine, name: str) -> list[str]:
    """The jobs that are leased to the worker."""
    return [
        job.id
        for state in (JobState.RUNNING, JobState.ASSIGNED)
        for job in (await engine.find(Find(queue=QUEUE, state=state, limit=1_000))).jobs
        if job.owner.startswith(f"{name}-")
    ]
