"""Which transaction has SQLite's write lock, in words for the user.

Our writers pass the gate first, so only a transaction that did not pass it can be in the way: one of another program,
or one of the user's own code in this process. The second case is easily made: a session is open, and a job is enqueued
without `transaction=`. Then the call waits for the transaction, and the transaction for the call.

The kernel says which process has locked the file. A writer of another process may be at the gate meanwhile and wait for
the same transaction: it holds the gate, and is not the cause.
"""

import os

from holdfast.errors import EngineUnavailable
from holdfast.file_locks import LockHolder

WAL_WRITE_LOCK_BYTE = 120
"""Of the file `-shm`: the writer of a write-ahead log has locked it."""
RESERVED_LOCK_BYTE = 0x40000001
"""Of the database: a writer has locked it, before the file is switched to a write-ahead log."""

ADVICE = (
    "If it is the session or connection around this call, enqueue as a part of it, with `using(transaction=session)`. "
    "Otherwise commit it sooner."
)


def holder_of(path: str) -> LockHolder:
    """The process whose transaction has the write lock; pid 0 if the system does not say."""
    path = os.path.realpath(path)
    holder = LockHolder.of_byte(f"{path}-shm", WAL_WRITE_LOCK_BYTE)
    return holder if holder.pid else LockHolder.of_byte(path, RESERVED_LOCK_BYTE)


def locked_for_too_long(path: str) -> EngineUnavailable:
    """The error after a whole wait: it names the process."""
    holder = holder_of(path)
    if holder.is_this_process:
        return EngineUnavailable(
            f"{path} was locked for too long by a transaction that your own code has open in this process. Nothing was "
            f"written. {ADVICE}"
        )
    if holder.pid:
        return EngineUnavailable(
            f"Process {holder.pid} ({holder.program}) has locked {path} for too long. Nothing was written. It keeps a "
            "transaction open."
        )
    return EngineUnavailable(
        f"A transaction has locked {path} for too long. Nothing was written. Find the program that keeps it open. "
        f"{ADVICE}"
    )


def gate_holder_waits(path: str, gate_path: str) -> bool:
    """True if the process that holds the gate waits for a transaction of another process."""
    in_gate, writer = LockHolder.of(gate_path), holder_of(path)
    return bool(in_gate.pid and writer.pid and in_gate.pid != writer.pid)
