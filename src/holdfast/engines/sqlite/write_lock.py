"""SQLite's write lock: how our connections take it, and which transaction holds it if they cannot.

Our writers pass the gate first, so only a transaction that did not pass it can be in the way: one of another program,
or one of the user's own code in this process. The second case is easily made: a session is open, and a job is enqueued
without `transaction=`. Then the call waits for the transaction, and the transaction for the call.

The kernel says which process has locked the file. If it is this one, and each of its threads waits for Holdfast, no
thread is left that could end the transaction. Then the error comes at once, else after the whole wait.
"""

import sqlite3

from holdfast.engines.sqlite.store import StoreOptions
from holdfast.errors import EngineUnavailable, UsageError
from holdfast.file_locks import LockHolder
from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime, every_thread_waits

WAL_WRITE_LOCK_BYTE = 120
"""Of the file `-shm`: the writer of a write-ahead log has locked it."""
RESERVED_LOCK_BYTE = 0x40000001
"""Of the database: a writer has locked it, before the file is switched to a write-ahead log."""
STEP_S = 0.5
"""A wait for the lock is checked after each step."""
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
WAITING_IN = frozenset({"holdfast.blocking", "holdfast.engines.sqlite.command_thread"})
"""The modules in which the threads of callers wait."""

ADVICE = (
    "If it is the session or connection around this call, enqueue as a part of it, with `using(transaction=session)`. "
    "Otherwise commit it sooner."
)


def begin_write(db: sqlite3.Connection, store: StoreOptions, runtime: Runtime) -> None:
    """Begin a transaction with the write lock. The busy timeout of the connection is one step."""
    wait: LockWait | None = None
    while True:
        try:
            db.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            wait = wait or LockWait(store, runtime, waited_s=STEP_S)
            if wait.is_over:
                raise
        wait.check()


def wait_in_steps(db: sqlite3.Connection, store: StoreOptions) -> None:
    """Set the busy timeout of a connection for `begin_write`."""
    db.execute(f"PRAGMA busy_timeout = {round(min(STEP_S, store.busy_timeout_s) * 1_000)}")


class LockWait:
    """A wait for the write lock."""

    def __init__(self, store: StoreOptions, runtime: Runtime, *, waited_s: float = 0.0) -> None:
        self._path = store.path
        self._runtime = runtime
        began_us = runtime.monotonic() - round(waited_s * SECOND)
        self._ends_at_us = began_us + round(store.busy_timeout_s * SECOND)
        self._checks_at_us = began_us + round(STEP_S * SECOND)

    @property
    def is_over(self) -> bool:
        return self._runtime.monotonic() >= self._ends_at_us

    def check(self) -> None:
        """`UsageError` if the wait cannot end. Looked at after each step."""
        now_us = self._runtime.monotonic()
        if now_us < self._checks_at_us:
            return
        self._checks_at_us = now_us + round(STEP_S * SECOND)
        if holder_of(self._path).is_this_process and every_thread_waits(OWN_THREADS, WAITING_IN):
            raise UsageError(
                f"This call would wait for itself: {self._path} is locked by a transaction that your own code has "
                "open, a session or a connection, and no thread is left to commit it. Nothing was written. Enqueue as "
                "a part of that transaction, with `using(transaction=session)`, or commit it first."
            )


def holder_of(path: str) -> LockHolder:
    """The process whose transaction has the write lock; pid 0 if the system does not say."""
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


def is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
