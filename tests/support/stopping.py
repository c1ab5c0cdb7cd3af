"""Stop a process with SIGSTOP where it is in nobody's way.

Caught in the middle of a write it would keep the turn at SQLite's gate for as long as it sleeps, and whoever waits for
what others do meanwhile would wait for ever. So it is let go again until it sleeps outside.
"""

import fcntl
import os
import signal
from pathlib import Path


def put_to_sleep(pid: int, store: Path) -> None:
    """SIGSTOP for a process that uses this SQLite file, while it is not writing to it."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        with open(f"{store}-gate", "ab") as gate:
            try:
                fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                os.kill(pid, signal.SIGCONT)
                os.sched_yield()
