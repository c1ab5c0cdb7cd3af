"""Whether the server still has everything that this process has seen of it.

A server may lose acknowledged writes: FLUSHALL, a restart without persistence, a failover to a replica that was behind.
Every answer carries the name of the history (`born`), the number of writes so far (`tip`) and what it was when this run
of the server began (`begin`). `StoreHistory` remembers them for each root and sends them with the next call. The script
compares them before it writes anything (`lua/history.lua`): a call that was sent under the old history is refused, and
raises `HistoryLost` here. The server compares, in the order of the calls. So it does not matter in which order answers
are read from several connections.

The error ends the call, not the engine. The engine emits the event `HistoryLost` once for each lost history, remembers
the new one, and the next call is carried out. Leases from before are refused by their tokens (decision 0028).
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from holdfast.errors import HistoryLost
from holdfast.model.instants import Instant
from holdfast.telemetry import events

_logger = logging.getLogger("holdfast.redis")


MOST_ROOTS = 10_000
"""Of which a process remembers the history. In a cluster each queue is a root; a process that uses more of them forgets
the oldest ones, and does not notice a loss that happened before it uses such a queue again."""
ENDED_HISTORIES = 4  # of one root: those whose late answers may still come


Run = tuple[str, str]
"""A run of the server, and the tip with which it began: a server may become the primary again in the same run."""


class Seen(NamedTuple):
    """The history in the last answer about a root, and the run of the server that gave it."""

    born: str
    tip: int
    run: Run
    others: tuple[tuple[Run, int], ...] = ()
    """Other runs with the highest tip that each has answered, if the server has not compared it yet: during a failover
    answers of the old and of the new primary may come in any order."""

    @property
    def tips(self) -> dict[Run, int]:
        return {self.run: self.tip, **dict(self.others)}


class StoreHistory:
    """Used from any thread: each entry is replaced whole.

    `place` is the address without its login. `now` reads the wall clock.
    """

    def __init__(self, place: str, now: Callable[[], Instant]) -> None:
        self._place = place
        self._now = now
        self._seen: dict[str, Seen] = {}
        self._ended: dict[str, tuple[str, ...]] = {}
        """By root: the names of histories that are lost."""
        self.emit: Callable[[events.StoreEvent], None] | None = None
        """Gets the event of each loss, on the thread of the call that was refused."""

    def seen(self, root: str) -> Seen | None:
        """What this process has seen so far. Pass it to `note` with the answer to a call that was sent afterwards."""
        return self._seen.get(root)

    def options(self, root: str, run: str) -> dict[str, Any]:
        """The options of a call that the script compares. `run`: of the server to which the call goes."""
        seen = self._seen.get(root)
        if seen is None:
            return {"run": run}
        if not seen.others and (seen.run[0] in (run, "") or not run):
            return {"run": run, "born": seen.born, "tip": seen.tip, "begin": seen.run[1]}
        tips = seen.tips
        words = [word for (name, begin), tip in tips.items() for word in (name, begin, tip)]
        return {"run": run, "born": seen.born, "tip": max(tips.values()), "seen": words}

    def note(self, root: str, sent: Seen | None, born: str, tip: int, run: Run) -> None:
        """An answer came. It may be older than the last one: answers of several connections are read in any order.

        `sent`: what this process had seen before it sent the call. The server has compared that.
        """
        seen = self._seen.get(root)
        if seen is None or seen.born != born:
            if born not in self._ended.get(root, ()):
                self._remember(root, Seen(born, tip, run))
        elif seen.run == run and not seen.others:
            if seen.tip < tip:
                self._seen[root] = Seen(born, tip, run)
        else:
            tips = seen.tips
            compared = sent.tips if sent is not None and sent.born == born else {}
            tip = max(tip, tips.pop(run, 0))
            others = tuple((other, high) for other, high in tips.items() if compared.get(other, -1) < high)
            self._seen[root] = Seen(born, tip, run, others)

    def _remember(self, root: str, seen: Seen) -> None:
        if root not in self._seen and len(self._seen) >= MOST_ROOTS:
            with suppress(StopIteration, RuntimeError):  # another thread has changed it: the next call does it
                oldest = next(iter(self._seen))
                self._seen.pop(oldest, None)
                self._ended.pop(oldest, None)
        self._seen[root] = seen

    def lost(self, root: str, found: str, run: str) -> HistoryLost:
        """The error for a call that the script has refused. `found`: the new `born`, `tip` and `begin` (or none)."""
        born, tip, begin = [*found.split(), ""][:3]
        before = self._seen.get(root)
        self._remember(root, Seen(born, int(tip), (run, begin)))
        what = (
            f"The server at {self._place} has lost acknowledged jobs under the keys {root}*: it was emptied, restarted "
            "without its data, or a replica that was behind has taken over."
        )
        if before is not None and before.born != born:  # else another call has reported it
            ended = (*self._ended.get(root, ()), before.born)
            self._ended[root] = tuple(name for name in ended if name != born)[-ENDED_HISTORIES:]
            _logger.error("%s Work goes on with what the server has now.", what)
            if self.emit is not None:
                self.emit(events.HistoryLost(at=self._now(), store=self._place, keys=f"{root}*"))
        return HistoryLost(
            f"{what} This call wrote nothing; the next one goes on with what the server has now. Look up the jobs that "
            "matter by their ids, and enqueue again what is missing.",
            engine="redis",
        )
