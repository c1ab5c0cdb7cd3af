"""Where a claim begins to scan the index of ready jobs.

The index keeps entries of claimed jobs until vacuum removes them, and vacuum removes nothing that an old snapshot may
still see. One client that leaves a transaction open is enough: every claim then scans the entries of all jobs claimed
since, and the rate falls steadily. So, when a scan has met many dead entries, the next claims of this engine begin at
the first job of the claim before. A job that became ready before that point meanwhile (a higher priority, a retry, a
release) is found by a scan from the beginning, which happens at intervals and whenever a claim came back short.

With few dead entries, which is the normal case, every claim scans from the beginning and the order is exact.
"""

from holdfast.model.instants import MILLISECOND
from holdfast.model.work import Claim, ExchangeAnswer

DEAD_ENTRIES = 5_000
"""Dead entries in one scan, from which on a cursor pays."""
WHOLE_SCAN_INTERVAL_US = 250 * MILLISECOND
"""The shortest time between two scans from the beginning; the engine's `order_slack`."""
WHOLE_SCAN_US_PER_ENTRY = 6
"""Microseconds between scans from the beginning, per dead entry: so they take a twentieth of the time."""

Cursor = tuple[int, int, int]
"""The place of a job in the index: -priority, due, arrival."""


class ClaimCursors:
    """Per queue, for one engine object. A race between two claims costs one scan at most."""

    def __init__(self) -> None:
        self._cursors: dict[str, Cursor] = {}
        self._whole_at: dict[str, int] = {}
        """When to scan from the beginning again."""

    def of(self, claim: Claim | None, now_us: int) -> dict[str, Cursor]:
        """The cursors for a claim. With shares per task every scan has to be whole."""
        if claim is None or not self._cursors:
            return {}
        return {
            wanted.queue: cursor
            for wanted in claim.queues
            if (cursor := self._cursors.get(wanted.queue)) is not None
            and now_us < self._whole_at[wanted.queue]
            and all(task.limit is None for task in wanted.tasks)
        }

    def learn(self, claim: Claim, used: dict[str, Cursor], answer: ExchangeAnswer, scanned: int, now_us: int) -> None:
        """Take from an answer where the next claim begins. `used`: the cursors of this claim. `now_us`: monotonic."""
        dead = scanned - len(answer.leases)
        if not self._cursors and dead < DEAD_ENTRIES:
            return
        firsts: dict[str, Cursor] = {}
        for lease in answer.leases:
            firsts.setdefault(lease.queue, (-lease.priority, lease.due, lease.arrival))
        for wanted in claim.queues:
            name = wanted.queue
            if name in used:
                if name in firsts:
                    self._cursors[name] = firsts[name]
            elif dead < DEAD_ENTRIES or name not in firsts:
                self._cursors.pop(name, None)
            else:
                self._cursors[name] = firsts[name]
                self._whole_at[name] = now_us + max(WHOLE_SCAN_INTERVAL_US, WHOLE_SCAN_US_PER_ENTRY * dead)
