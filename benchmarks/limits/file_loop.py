"""The bare loop of appended files: write what a batch of 100 jobs changes, wait for the disk, and so on.

Nothing is decided, encoded or read. So this is what the disk allows at most to a journal that is synced before each
answer.
"""

import os
import time
from pathlib import Path

BATCH = 100
CHANGED_BYTES = 300
"""Per job and turn: a claim and an end, each with the names, the token and the times of the job."""


def drain(path: Path, jobs: int) -> float:
    """Jobs per second: each turn appends the ends of the last hundred and the claims of the next, then syncs."""
    changes = b"x" * CHANGED_BYTES * BATCH
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    began = time.perf_counter()
    for _ in range(0, jobs, BATCH):
        os.write(file, changes)
        os.fsync(file)
    took = time.perf_counter() - began
    os.close(file)
    return jobs / took


def inserts(path: Path, calls: int, batch: int, payload: bytes) -> float:
    """Jobs per second in batches of this size, each synced."""
    changes = (payload + b"x" * 100) * batch
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    began = time.perf_counter()
    for _ in range(calls):
        os.write(file, changes)
        os.fsync(file)
    took = time.perf_counter() - began
    os.close(file)
    return calls * batch / took
