"""The poller: notices commits for which no notification is sent.

A user may commit a transaction over a driver that has no commit callback. Such a transaction increments a counter in
the database (`count_user_commit`). While a task of this process waits for a notification, a thread polls every 25
milliseconds. It first reads `PRAGMA data_version`, which costs a few microseconds and reads no page; only if that has
changed, it reads the counter. If the counter has changed, every waiter for work, for room or for a reply is woken.
"""

import logging
import sqlite3
from typing import Any

from holdfast.engines.sqlite.connection import connect
from holdfast.engines.sqlite.connections_at_fork import CONNECTIONS
from holdfast.engines.sqlite.statements import load
from holdfast.engines.sqlite.store import StoreOptions
from holdfast.engines.topics import Topics
from holdfast.errors import HoldfastError
from holdfast.runtime import Runtime

POLL_INTERVAL_S = 0.025
"""A waiter learns of such a commit after this time at most."""
RETRY_AFTER_S = 1.0
"""Pause after an error, such as a file that cannot be read."""
TOPIC_KINDS = ("queue:", "room:", "reply:")
"""The kinds of topics that a commit of a user can concern."""

log = logging.getLogger("holdfast")


class CommitPoller:
    """A thread with a connection of its own. It starts with the first waiter and sleeps while there is none."""

    def __init__(self, store: StoreOptions, runtime: Runtime, topics: Topics) -> None:
        self._store = store
        self._runtime = runtime
        self._topics = topics
        self._lock = runtime.lock()
        self._awake = runtime.event()
        self._stopped = runtime.event()
        self._thread: Any = None
        self._counter: object = None
        """The counter as it was last read. None: never read."""
        topics.on_wait = self._wake

    def _wake(self) -> None:
        self._awake.set()
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = self._runtime.thread(self._main, name="holdfast-sqlite-poller")

    def close(self) -> None:
        self._topics.on_wait = None
        with self._lock:
            self._stopped.set()
        self._awake.set()
        if self._thread is not None:
            self._thread.join()  # no limit: a poll only reads, and each read has SQLite's limit

    def _main(self) -> None:
        while not self._stopped.is_set():
            try:
                self._poll()
            except (sqlite3.Error, HoldfastError) as error:
                log.debug("The poller of %s failed and starts again: %s", self._store.path, error)
                self._stopped.wait(RETRY_AFTER_S)

    def _poll(self) -> None:
        read_counter = load("statements.sql", self._store.namespace)["user_commits"]
        db = connect(self._store, read_only=True)
        in_use = CONNECTIONS.in_use(db)
        try:
            last_version: object = None
            while not self._stopped.is_set():
                if not self._topics.has_waiter:
                    self._awake.clear()
                    if not self._topics.has_waiter:  # a waiter may have come before `clear`
                        self._awake.wait()  # no limit: `close` sets it
                with in_use:
                    version = db.execute("PRAGMA data_version").fetchone()
                    counter = db.execute(read_counter).fetchone() or () if version != last_version else self._counter
                last_version = version
                self._compare(counter)
                self._stopped.wait(POLL_INTERVAL_S)
        finally:
            with in_use:
                db.close()

    def _compare(self, counter: object) -> None:
        before, self._counter = self._counter, counter
        if before is not None and counter != before:
            self._topics.notify_kinds(*TOPIC_KINDS)
