"""Checks the index of ready jobs, some entries at a time.

An entry that is out of order hides those behind it from a search: their jobs would wait for ever, without an error.
"""

from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

from holdfast.engines.sqlite.rows import DamagedIndex
from holdfast.engines.sqlite.state import SqliteState
from holdfast.model.instants import FOREVER
from holdfast.model.states import JobState

Entry = tuple[Any, ...]
"""Queue number, task number, rank, due time, arrival. A damaged one may have any values."""


class ReadyIndexCheck:
    """Goes round the queues of a store."""

    def __init__(self, state: SqliteState) -> None:
        self._state = state
        self._last_q = 0

    def run(self, limit: int) -> None:
        """Check about `limit` entries. The next call begins with the next queue."""
        db, left = self._state.db, limit
        self._state.flush()
        while left > 0:
            row = db.one("next_queue", self._last_q)
            if row is None:
                self._last_q = 0
                return
            self._last_q, queue = row
            entries = db.rows("ready_entries", self._last_q, left)
            count = self._state.counts(queue).get(JobState.QUEUED, 0)
            if len(entries) != min(count, left) or not self._is_sound(entries):
                raise DamagedIndex(queue)
            left -= len(entries) + 1

    def _is_sound(self, entries: list[Entry]) -> bool:
        if any(type(value) is not int for entry in entries for value in entry):
            return False
        if any(entry[0] != self._last_q for entry in entries) or any(a >= b for a, b in pairwise(entries)):
            return False
        # A search finds the first entry of each task.
        first_entries = [next(group) for _, group in groupby(entries, key=itemgetter(1))]
        found = [self._state.db.rows("ready", q, t, -FOREVER, 0, 0, 1) for q, t, *_ in first_entries]
        return [rows[0][0] if rows else None for rows in found] == [entry[-1] for entry in first_entries]
