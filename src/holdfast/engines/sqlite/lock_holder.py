"""Which transaction has SQLite's write lock, in words for the user.

Our writers pass the gate first, so only a transaction that did not pass it can be in the way: one of another program,
or one of the user's own code in this process. The second case is easily made: a session is open, and a job is enqueued
without `transaction=`. Then the call waits for the transaction, and the transaction for the call.

The kernel says which process has locked the file. If it is this one, and each of its threads waits for Holdfast, no
thread is left that could end the transaction. The same is true if the waiting thread's own functions have the only open
transaction of the process, as in a web server, where other threads run. Then the error comes at once, else after the
whole wait. A writer of
another process may be at the gate meanwhile and wait for the same transaction: it holds the gate, and is not the cause.
"""

import os

from holdfast.engines.sqlite.connections_at_fork import CONNECTIONS
from holdfast.errors import EngineUnavailable, UsageError
from holdfast.file_locks import LockHolder
from holdfast.runtime import waiting_threads
from holdfast.transactions.in_stack import only_callers_can_commit

WAL_WRITE_LOCK_BYTE = 120
"""Of the file `-shm`: the writer of a write-ahead log has locked it."""
RESERVED_LOCK_BYTE = 0x40000001
"""Of the database: a writer has locked it, before the file is switched to a write-ahead log."""
OWN_THREADS = (
    "holdfast-sqlite-",
    "holdfast-gate",
    "holdfast-notifications",
    "holdfast-feed",
    "holdfast-events-out",
    "holdfast-loop",
    "holdfast blocking call",
)
"""How the names of threads begin that never have a transaction of the user."""
WAITING_IN = frozenset({"holdfast.blocking", "holdfast.engines.command_thread"})
"""The modules in which the threads of callers wait."""

ADVICE = (
    "If it is the session or connection around this call, enqueue as a part of it, with `using(transaction=session)`. "
    "Otherwise commit it sooner."
)


def holder_of(path: str) -> LockHolder:
    """The process whose transaction has the write lock; pid 0 if the system does not say."""
    path = os.path.realpath(path)
    holder = LockHolder.of_byte(f"{path}-shm", WAL_WRITE_LOCK_BYTE)
    return holder if holder.pid else LockHolder.of_byte(path, RESERVED_LOCK_BYTE)


def check_wait_can_end(path: str) -> None:
    """`UsageError` if this process has the lock, and no code that could release it can run."""
    # Asked before and after, because a transaction of an engine may begin or end meanwhile. It ends without the caller.
    was_ours = CONNECTIONS.any_in_transaction()
    if not holder_of(path).is_this_process or was_ours or CONNECTIONS.any_in_transaction():
        return
    all_wait, callers = waiting_threads(OWN_THREADS, WAITING_IN)
    if all_wait or only_callers_can_commit(callers):
        raise UsageError(
            f"This call would wait for itself: {path} is locked by a transaction that your own code has "
            "open, a session or a connection, and no other code can commit it. Nothing was written. Enqueue as "
            "a part of that transaction, with `using(transaction=session)`, or commit it first."
        )


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
