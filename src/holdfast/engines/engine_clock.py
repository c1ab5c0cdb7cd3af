"""The clock of an engine whose processes run on one host: the host's own clocks, and the time of the last write."""

import logging

from holdfast.model.instants import MINUTE, SECOND, At
from holdfast.runtime import Runtime

log = logging.getLogger("holdfast")

MAX_LEAD_US = 5 * SECOND
"""A clock that is slewed, or set by a time service that works, is never further behind than this."""
MAX_STEP_US = 5 * MINUTE
"""A step forward that is logged. A slewed clock gains less between two writes, unless they are days apart."""


class EngineClock:
    """The clock of one engine. Its time does not go back behind the latest answer or the last commit in the file.

    A lead of more than a few seconds is dropped: the clock was wrong before, and due times would stand still until it
    has caught up. Leases use the boot clock alone. It cannot be set, so only another boot can be ahead of it (PF4).
    """

    def __init__(self, runtime: Runtime, path: str = "") -> None:
        self._runtime = runtime
        self._path = path
        self._last = At(0, 0)
        """The time of the latest answer of any connection of this process."""
        self._reported = 0
        """The stored time whose lead or step was logged: a reader finds it again until the next write."""

    def now(self) -> At:
        return At(self._runtime.wall(), self._runtime.boot())

    def earliest(self, stored: At) -> At:
        """The earliest time of a transaction that has begun; `stored` is the time of the last commit in the file."""
        now = self.now()
        self._report(stored, now)
        last = self._last
        wall = _latest(stored.wall, last.wall, now.wall + MAX_LEAD_US)
        return At(wall, _latest(stored.lease, last.lease, now.lease + MAX_LEAD_US))  # TM3

    def answered(self, at: At) -> None:
        self._last = at

    def _report(self, stored: At, now: At) -> None:
        lead_us = stored.wall - now.wall
        step_us = (now.wall - now.lease) - (stored.wall - stored.lease)
        if stored.wall == self._reported or not stored.lease:
            return
        if lead_us > MAX_LEAD_US:
            self._reported = stored.wall
            log.warning(
                "%s: the last write has a time that is %.0f s ahead of this host's clock. Its lead is dropped: engine "
                "time goes back, and due times follow the clock.",
                self._path,
                lead_us / SECOND,
            )
        elif step_us > MAX_STEP_US and now.lease >= stored.lease:
            self._reported = stored.wall
            log.warning(
                "%s: this host's clock was set forward by %.0f s since the last write. Jobs become due and records are "
                "pruned that much earlier.",
                self._path,
                step_us / SECOND,
            )


def _latest(stored: int, last: int, limit: int) -> int:
    """The later one of the two, without one that is after `limit`; 0 if both are."""
    if stored > limit:
        stored = 0
    return last if stored < last <= limit else stored
