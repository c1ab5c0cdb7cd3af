"""Pause a process with SIGSTOP while it does not hold the gate of its store.

A process that is paused in the middle of a write keeps the gate, and no other process can write. So it is continued and
paused again until the gate is free.
"""

import fcntl
import os
import signal
from pathlib import Path


def pause_process(pid: int, store: Path) -> None:
    """Send SIGSTOP to a process that uses this SQLite file or folder, between two of its writes."""
    gate_path = store / "holdfast" / "gate" if store.is_dir() else f"{store}-gate"
    while True:
        os.kill(pid, signal.SIGSTOP)
        with open(gate_path, "ab") as gate:
            try:
                fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                os.kill(pid, signal.SIGCONT)
                os.sched_yield()
