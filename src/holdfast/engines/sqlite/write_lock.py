"""SQLite's write lock: how our connections take it. `lock_holder.py` says which transaction is in the way."""

import sqlite3

from holdfast.engines.sqlite.lock_holder import check_wait_can_end
from holdfast.engines.sqlite.store import StoreOptions
from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime

STEP_S = 0.5
"""A wait for the lock is checked after each step."""


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
        check_wait_can_end(self._path)


def is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
