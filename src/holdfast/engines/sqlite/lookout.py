"""The lookout: notices commits that nobody rings for.

When a user commits a transaction of theirs over a connection that cannot tell, no bell rings. Such a transaction leaves
a sign in the database. While somebody in this process waits for a bell, a thread looks every 25 milliseconds: first
whether anybody has written at all, which costs next to nothing, and only then at the sign. If that has changed, whoever
waits for work, for room or for an answer is woken to look.
"""

import logging
import sqlite3
from typing import Any

from holdfast.engines.sqlite.connection import connect
from holdfast.engines.sqlite.statements import load
from holdfast.engines.sqlite.transactor import Place
from holdfast.engines.topics import Topics
from holdfast.errors import HoldfastError
from holdfast.runtime import Runtime

PERIOD = 0.025
KINDS = ("queue:", "room:", "reply:")
AFTER_TROUBLE = 1.0

log = logging.getLogger("holdfast")


class Lookout:
    """A thread with a connection of its own, which starts with the first who waits and sleeps while nobody does."""

    def __init__(self, place: Place, runtime: Runtime, topics: Topics) -> None:
        self._place = place
        self._runtime = runtime
        self._topics = topics
        self._lock = runtime.lock()
        self._awake = runtime.event()
        self._stopped = runtime.event()
        self._thread: Any = None
        self._seen: object = None
        """The sign as it was last seen. None: never."""
        topics.on_wait = self._wake

    def _wake(self) -> None:
        self._awake.set()
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = self._runtime.thread(self._main, name="holdfast-sqlite-lookout")

    def close(self) -> None:
        self._topics.on_wait = None
        with self._lock:
            self._stopped.set()
        self._awake.set()
        if self._thread is not None:
            self._thread.join()

    def _main(self) -> None:
        while not self._stopped.is_set():
            try:
                self._watch()
            except (sqlite3.Error, HoldfastError) as error:
                log.debug("The lookout of %s stumbled: %s", self._place.path, error)
                self._stopped.wait(AFTER_TROUBLE)

    def _watch(self) -> None:
        sign = load("statements.sql", self._place.namespace)["joins"]
        db = connect(self._place.path, self._place.durability, read_only=True, busy_timeout=self._place.busy_timeout)
        try:
            version: object = None
            while not self._stopped.is_set():
                if not self._topics.has_waiter:
                    self._awake.clear()
                    if not self._topics.has_waiter:  # else somebody has just come
                        self._awake.wait()
                now = db.execute("PRAGMA data_version").fetchone()
                if now != version:
                    version = now
                    self._look(db.execute(sign).fetchone() or ())
                self._stopped.wait(PERIOD)
        finally:
            db.close()

    def _look(self, found: object) -> None:
        before, self._seen = self._seen, found
        if before is not None and found != before:
            self._topics.notify_kinds(*KINDS)
