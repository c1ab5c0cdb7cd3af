"""A heap with lazy deletion.

Ready jobs, due jobs, jobs that wait in a lane and ended jobs are each kept in order by such a heap. When a job leaves
(claimed, cancelled, paused), its entry is not searched for: it is stale from then on, and is dropped when it comes to
the top. When more than half of the entries are stale, the heap is built again. So stale entries never outnumber the
current ones by much, and every operation costs what it costs on a heap, amortised.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

E = TypeVar("E", bound=tuple[object, ...])

REBUILD_FROM = 64
"""Stale entries. With fewer of them a heap is not built again: it would cost more than it saves."""


class LazyHeap(Generic[E]):
    """Entries are tuples; `is_current` says whether an entry still stands for a job."""

    __slots__ = ("_entries", "_is_current", "_stale")

    def __init__(self, is_current: Callable[[E], bool]) -> None:
        self._entries: list[E] = []
        self._is_current = is_current
        self._stale = 0

    def push(self, entry: E) -> None:
        heappush(self._entries, entry)

    def mark_stale(self) -> None:
        """Count one more stale entry."""
        self._stale += 1
        if self._stale > REBUILD_FROM and self._stale * 2 > len(self._entries):
            # Once each: an entry that became stale and was pushed again is current in both places.
            self._entries = list(dict.fromkeys(entry for entry in self._entries if self._is_current(entry)))
            heapify(self._entries)
            self._stale = 0

    def first(self) -> E | None:
        """The smallest current entry; it stays."""
        entries = self._entries
        while entries:
            if self._is_current(entries[0]):
                return entries[0]
            heappop(entries)
            self._stale = max(0, self._stale - 1)
        return None

    def up_to(self, bound: E) -> Iterator[E]:
        """The current entries not above `bound`, in no order; visits only the part of the heap below it."""
        seen = set()
        todo = [0]
        while todo:
            index = todo.pop()
            if index < len(self._entries) and self._entries[index] <= bound:
                entry = self._entries[index]
                if entry not in seen and self._is_current(entry):
                    seen.add(entry)
                    yield entry
                todo += (2 * index + 1, 2 * index + 2)

    def current_entries(self) -> set[E]:
        """All of them; for the audit."""
        return {entry for entry in self._entries if self._is_current(entry)}
