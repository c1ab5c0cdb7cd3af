"""Stores whose processes run on one host and share files: SQLite and the file engine."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gate_holder import GateHolder


class HostStore(NamedTuple):
    """An empty store in a folder."""

    scheme: str
    url: str
    gate: Path
    timeout_setting: str
    """The environment variable that limits the wait for the gate."""

    @classmethod
    def of(cls, scheme: str, folder: Path) -> "HostStore":
        if scheme == "sqlite":
            path = folder / "jobs.db"
            return cls(scheme, f"sqlite:///{path}", Path(f"{path}-gate"), "HOLDFAST_SQLITE_BUSY_TIMEOUT")
        path = folder / "jobs"
        return cls(scheme, f"file://{path}", path / "holdfast" / "gate", "HOLDFAST_FILE_LOCK_TIMEOUT")


HOLD = """
import fcntl, sys
with open(sys.argv[1], "ab") as gate:
    fcntl.flock(gate, fcntl.LOCK_EX)
    print("inside", flush=True)
    sys.stdin.readline()
print("outside", flush=True)
"""


@contextmanager
def holder_of_gate(gate: Path) -> Iterator[GateHolder]:
    """A process that holds a gate, as one does that was stopped in the middle of a write."""
    command = [sys.executable, "-c", HOLD, str(gate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "inside\n"
            yield GateHolder(process)
        finally:
            process.kill()
