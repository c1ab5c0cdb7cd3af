"""`holdfast worker` as the child of a manager: the test holds the other end of its channel."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

LIMIT_S = 60.0
"""Seconds after which a process that hangs is killed, and its test fails."""

RUN = """
import sys
import holdfast.worker.forced_exit as forced_exit

forced_exit.MARGIN_S = float(sys.argv.pop(1))
from holdfast.cli import main

main()
"""


class ManagedWorker:
    """A worker process with a channel. Its output goes to a file."""

    def __init__(
        self,
        folder: Path,
        *args: str,
        environment: Mapping[str, str] | None = None,
        margin_s: float = 10.0,
    ) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        env = {**kept, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})}
        self.log = folder / f"worker-{os.urandom(4).hex()}.log"
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(LIMIT_S)
        self._messages = self.channel.makefile("rb")
        command = ["worker", *args, "--manager-fd", str(theirs.fileno())]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN, str(margin_s), *command],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        theirs.close()

    def read(self) -> dict[str, Any]:
        """The next message. Empty: the channel has ended."""
        line = self._messages.readline()
        message: dict[str, Any] = json.loads(line) if line else {}
        return message

    def read_all(self) -> list[dict[str, Any]]:
        """All messages until the channel ends."""
        messages = []
        while message := self.read():
            messages.append(message)
        return messages

    def send(self, message: object) -> None:
        self.channel.sendall(json.dumps(message).encode() + b"\n")

    def leave(self) -> None:
        """Close this end, as the death of a manager does."""
        self._messages.close()
        self.channel.close()

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)

    def signal_group(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.leave()
        if error is not None:
            error.add_note(f"The worker has printed:\n{self.text()}")
