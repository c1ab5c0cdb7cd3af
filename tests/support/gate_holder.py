"""A process that holds the gate of a SQLite file inside a transaction until it is killed."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = """
import sys
from holdfast.engines import open_engine
engine = open_engine(sys.argv[1])
engine.open_now()
with engine.transaction():
    print("inside", flush=True)
    sys.stdin.readline()
engine.close_now()
print("outside", flush=True)
"""


class GateHolder:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.pid = process.pid

    def leave(self) -> None:
        """End its transaction."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "outside\n"


@contextmanager
def gate_holder(path: Path) -> Iterator[GateHolder]:
    command = [sys.executable, "-c", PROGRAM, f"sqlite:///{path}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "inside\n"
            yield GateHolder(process)
        finally:
            process.kill()
