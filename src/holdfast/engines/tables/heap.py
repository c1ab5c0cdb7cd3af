"""A heap whose entries may die where they lie.

Ready jobs, due jobs, lane waiters and finished jobs are each kept in order by such a heap. A job that leaves
(claimed, cancelled, paused) is not searched for: its entry is dead from then on, and is dropped when it
comes to the top. When more than half of a heap is dead it is built anew, so garbage never outgrows the
living and the cost of every operation stays that of a heap, amortised.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

E = TypeVar("E", bound=tuple[object, ...])

FEW = 64
"""Below this many dead entries nothing is rebuilt."""


class LazyHeap(Generic[E]):
    """Entries are tuples; `alive` says whether an entry still stands for something."""

    __slots__ = ("_alive", "_dead", "_entries")

    def __init__(self, alive: Callable[[E], bool]) -> None:
        self._entries: list[E] = []
        self._alive = alive
        self._dead = 0

    def push(self, entry: E) -> None:
        heappush(self._entries, entry)

    def bury(self) -> None:
        """One entry has died."""
        self._dead += 1
        if self._dead > FEW and self._dead * 2 > len(self._entries):
            # Once each: an entry that died and was pushed again is alive in both places.
            self._entries = list(dict.fromkeys(entry for entry in self._entries if self._alive(entry)))
            heapify(self._entries)
            self._dead = 0

    def first(self) -> E | None:
        """The smallest living entry; it stays."""
        entries = self._entries
        while entries:
            if self._alive(entries[0]):
                return entries[0]
            heappop(entries)
            self._dead = max(0, self._dead - 1)
        return None

    def up_to(self, bound: E) -> Iterator[E]:
        """The living entries not above `bound`, in no order: walks only the part of the heap below it."""
        seen = set()
        todo = [0]
        while todo:
            index = todo.pop()
            if index < len(self._entries) and self._entries[index] <= bound:
                entry = self._entries[index]
                if entry not in seen and self._alive(entry):
                    seen.add(entry)
                    yield entry
                todo += (2 * index + 1, 2 * index + 2)

    def living(self) -> set[E]:
        """All of it; for the audit."""
        return {entry for entry in self._entries if self._alive(entry)}
