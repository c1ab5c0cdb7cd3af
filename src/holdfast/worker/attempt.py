"""One attempt while it runs: the lease, how its task is run, and what has come between.

Three threads touch it. The loop runs it. The keeper's thread renews its lease and the watcher's looks at its age; both
only set plain attributes (`renewed`, `abort_reason`) and leave everything else to the loop. A sync handler's thread
reads `abort_reason` through its context, so a flag reaches it even while the loop is blocked.
"""

import asyncio
from typing import Any

from holdfast.context import AbortReason, Context
from holdfast.model.instants import SECOND
from holdfast.model.job import Progress
from holdfast.model.work import Lease, Settlement
from holdfast.worker.plan import Plan


class Attempt:
    """A lease in this worker's hands, from the claim until its settlement was answered."""

    __slots__ = (
        "_context",
        "abort_reason",
        "began",
        "lease",
        "plan",
        "progress",
        "ran",
        "renewed",
        "runner",
        "sent_progress",
        "settlement",
    )

    def __init__(self, lease: Lease, plan: Plan, claimed: int) -> None:
        self.lease = lease
        self.plan = plan
        self.renewed = claimed
        """When the lease was last known to be ours, on the boot clock: the moment the question was sent."""
        self.began: int | None = None
        """When the handler's turn came, on the monotonic clock."""
        self.ran = 0
        """How long the handler took; kept only while somebody listens."""
        self.runner: asyncio.Task[Any] | None = None
        """The task to cancel; None while there is nothing on the loop that could be."""
        self.settlement: Settlement | None = None
        """What to write. Set when the attempt has ended."""
        self.abort_reason: AbortReason | None = None
        self.progress: Progress | None = None
        self.sent_progress: Progress | None = None
        self._context: Context[Any] | None = None

    @property
    def context(self) -> Context[Any]:
        if self._context is None:
            self._context = Context(self)
        return self._context

    @property
    def state(self) -> Any:
        return self.plan.state

    @property
    def worker(self) -> str:
        return self.plan.worker

    def mark(self, reason: AbortReason) -> bool:
        """Say that it has to stop. The first reason stands, but a lost lease outweighs them all.

        From any thread. Answers whether this was news.
        """
        if self.abort_reason is reason or self.settlement is not None:
            return False
        if self.abort_reason is not None and reason is not AbortReason.OWNERSHIP_LOST:
            return False
        self.abort_reason = reason
        return True

    def interrupt(self) -> None:
        """Cancel the handler where that can be done. From the loop's thread only."""
        if self.runner is not None and self.settlement is None:
            self.runner.cancel()


def renewal_age(lease_len: int) -> int:
    """How old a renewal may get before the next: a third of the lease."""
    return lease_len // 3


def fence_age(lease_len: int) -> int:
    """How old the last accepted renewal may get before the attempt has to stop, well before the lease runs out.

    The margin is a second or a sixth of the lease; never more than half of it, which only very short leases would meet.
    """
    return lease_len - min(max(SECOND, lease_len // 6), lease_len // 2)
