"""Pause a process with SIGSTOP while it does not hold the gate of its SQLite file.

A process that is paused in the middle of a write keeps the gate, and no other process can write. So it is continued and
paused again until the gate is free.
"""

import fcntl
import os
import signal
from pathlib import Path


def pause_process(pid: int, store: Path) -> None:
    """Send SIGSTOP to a process that uses this SQLite file, between two of its writes."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        with open(f"{store}-gate", "ab") as gate:
            try:
                fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                os.kill(pid, signal.SIGCONT)
                os.sched_yield()
