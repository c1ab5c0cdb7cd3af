"""A command as a real process on a pseudo-terminal: what it shows, and how it ends."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LIMIT_S = 60.0
"""A loaded machine takes seconds to start a process."""
COMMAND = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C reaches only processes whose controlling terminal this is
from holdfast.cli import main
main()
"""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\r")


class Terminal:
    """The screen of a running command."""

    def __init__(self, process: "subprocess.Popen[bytes]", descriptor: int) -> None:
        self._process = process
        self._descriptor = descriptor
        self.raw = ""
        """Everything that was written, escapes included."""

    @property
    def text(self) -> str:
        """Everything that was written, without escapes."""
        return ESCAPES.sub("", self.raw)

    def wait_for(self, text: str, *, after: int = 0) -> int:
        """Read until the text appears after this position; return the position behind it."""
        limit = time.monotonic() + LIMIT_S
        while (found := self.text.find(text, after)) < 0:
            if not self._read(limit):
                raise AssertionError(f"{text!r} was not shown:\n{self.text}")
        return found + len(text)

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def end(self) -> int:
        """Read until the command ends; return its exit code."""
        limit = time.monotonic() + LIMIT_S
        while self._read(limit):
            pass
        return self._process.wait(LIMIT_S)

    def _read(self, limit: float) -> bool:
        ready, _, _ = select.select([self._descriptor], [], [], max(0.0, limit - time.monotonic()))
        if not ready:
            raise AssertionError(f"The command did not go on within {LIMIT_S} s:\n{self.text}")
        try:
            data = os.read(self._descriptor, 65_536)
        except OSError:  # the other side is closed: the command has ended
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)


@contextmanager
def on_terminal(*args: str, cwd: Path, **environment: str) -> Iterator[Terminal]:
    """`holdfast ARGS` on a terminal of 100 columns and 40 rows."""
    ours, theirs = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    env |= {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", **environment}
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *args],
        cwd=cwd,
        env=env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)
