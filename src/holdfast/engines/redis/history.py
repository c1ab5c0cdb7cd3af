"""Whether the server still has everything that this process has seen of it.

A server may lose acknowledged writes: FLUSHALL, a restart without persistence, a failover to a replica that was behind.
Every answer carries the name of the history (`born`) and the number of writes so far (`tip`). `StoreHistory` remembers
both for each root and sends them with the next call. The script compares them before it writes anything
(`lua/history.lua`): a call that was sent under the old history is refused, and raises `HistoryLost` here. The server
compares, in the order of the calls. So it does not matter in which order answers are read from several connections.

The error ends the call, not the engine. The engine emits the event `HistoryLost` once for each lost history, remembers
the new one, and the next call is carried out. Leases from before are refused by their tokens (decision 0028).
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from holdfast.errors import HistoryLost
from holdfast.model.instants import Instant
from holdfast.telemetry import events

_logger = logging.getLogger("holdfast.redis")


class Seen(NamedTuple):
    """The history in the last answer about a root, and the run of the server that gave it."""

    born: str
    tip: int
    run: str


class StoreHistory:
    """Used from any thread: each entry is replaced whole.

    `place` is the address without its login. `now` reads the wall clock.
    """

    def __init__(self, place: str, now: Callable[[], Instant]) -> None:
        self._place = place
        self._now = now
        self._seen: dict[str, Seen] = {}
        self._ended: set[tuple[str, str]] = set()
        """Root and name of histories that are lost."""
        self.emit: Callable[[events.StoreEvent], None] | None = None
        """Gets the event of each loss, on the thread of the call that was refused."""

    def options(self, root: str, run: str) -> dict[str, str | int]:
        """The options of a call that the script compares. `run`: of the server to which the call goes."""
        seen = self._seen.get(root)
        if seen is None:
            return {"run": run}
        if seen.run in (run, "") or not run:
            return {"run": run, "born": seen.born, "tip": seen.tip}
        return {"run": run, "born": seen.born, "tip": seen.tip, "seen_run": seen.run}

    def note(self, root: str, born: str, tip: int, run: str) -> None:
        """An answer came. It may be older than the last one: answers of several connections are read in any order."""
        seen = self._seen.get(root)
        if seen is not None and seen.born == born:
            if seen.tip < tip or seen.run != run:
                self._seen[root] = Seen(born, tip, run)
        elif (root, born) not in self._ended:
            self._seen[root] = Seen(born, tip, run)

    def lost(self, root: str, found: str, run: str) -> HistoryLost:
        """The error for a call that the script has refused. `found`: the new `born` and `tip`, as it sent them."""
        born, _, tip = found.partition(" ")
        before = self._seen.get(root)
        self._seen[root] = Seen(born, int(tip), run)
        self._ended.discard((root, born))
        what = (
            f"The server at {self._place} has lost acknowledged jobs under the keys {root}*: it was emptied, restarted "
            "without its data, or a replica that was behind has taken over."
        )
        if before is not None and before.born != born:  # else another call has reported it
            self._ended.add((root, before.born))
            _logger.error("%s Work goes on with what the server has now.", what)
            if self.emit is not None:
                self.emit(events.HistoryLost(at=self._now(), store=self._place, keys=f"{root}*"))
        return HistoryLost(
            f"{what} This call wrote nothing; the next one goes on with what the server has now. Look up the jobs that "
            "matter by their ids, and enqueue again what is missing.",
            engine="redis",
        )
