"""One attempt while it runs: the lease, how its task is run, and what has come between.

Three threads touch it. The loop runs it. The keeper's thread renews its lease and the watcher's looks at its age; both
only set plain attributes (`renewed`, `abort_reason`) and leave everything else to the loop. A sync handler's thread
reads `abort_reason` through its context, so a flag reaches it even while the loop is blocked.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.context import AbortReason, Context
from holdfast.errors import UsageError
from holdfast.model.instants import SECOND
from holdfast.model.job import Progress
from holdfast.model.work import Lease, Settlement
from holdfast.worker.execution_plan import ExecutionPlan

if TYPE_CHECKING:
    from holdfast.worker.transaction import AttemptTransactions


class LeasedAttempt:
    """A lease in this worker's hands, from the claim until its settlement was answered."""

    __slots__ = (
        "_context",
        "abort_reason",
        "began_at",
        "committed",
        "lease",
        "loop_task",
        "plan",
        "progress",
        "ran_us",
        "renewed_at",
        "sent_progress",
        "settlement",
        "transaction_settlement",
        "used_transactions",
    )

    def __init__(self, lease: Lease, plan: ExecutionPlan, claimed_at: int) -> None:
        self.lease = lease
        self.plan = plan
        self.renewed_at = claimed_at
        """When the lease was last known to be ours, on the boot clock: the moment the question was sent."""
        self.began_at: int | None = None
        """When the handler's turn came, on the monotonic clock."""
        self.ran_us = 0
        """How long the handler took; kept only while somebody listens."""
        self.loop_task: asyncio.Task[Any] | None = None
        """The task to cancel; None while there is nothing on the loop that could be."""
        self.settlement: Settlement | None = None
        """What to write. Set when the attempt has ended."""
        self.used_transactions: AttemptTransactions | None = None
        """Its transactions, if its handler has asked for any."""
        self.transaction_settlement: Settlement | None = None
        """The end of the job as it stands in a transaction of the handler's."""
        self.committed = False
        """That transaction is committed: the job has ended, whatever happens now."""
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
    def transactions(self) -> "AttemptTransactions":
        if self.used_transactions is None:
            if self.plan.transaction_support is None:
                raise UsageError("There is no worker here to make transactions. Use `lease.complete(transaction=...)`.")
            from holdfast.worker.transaction import AttemptTransactions

            self.used_transactions = AttemptTransactions(self, self.plan.transaction_support)
        return self.used_transactions

    @property
    def renewable(self) -> bool:
        """Whether its lease is to be renewed. Not while its end stands in a transaction, which may hold its record."""
        return self.abort_reason is not AbortReason.OWNERSHIP_LOST and self.transaction_settlement is None

    @property
    def state(self) -> Any:
        return self.plan.state

    @property
    def worker(self) -> str:
        return self.plan.worker

    def mark(self, reason: AbortReason) -> bool:
        """Say that it has to stop. The first reason stands, but a lost lease outweighs them all.

        From any thread. Answers whether this was reporter.
        """
        if self.abort_reason is reason or self.settlement is not None or self.committed:
            return False
        if self.transaction_settlement is not None and reason is AbortReason.OWNERSHIP_LOST:
            return False  # it looks the same when the handler's transaction has just been committed
        if self.abort_reason is not None and reason is not AbortReason.OWNERSHIP_LOST:
            return False
        self.abort_reason = reason
        return True

    def interrupt(self) -> None:
        """Cancel the handler where that can be done. From the loop's thread only."""
        if self.loop_task is not None and self.settlement is None:
            self.loop_task.cancel()


def renewal_age(lease_len: int) -> int:
    """How old a renewal may get before the next: a third of the lease."""
    return lease_len // 3


def fence_age(lease_len: int) -> int:
    """How old the last accepted renewal may get before the attempt has to stop, well before the lease runs out.

    The margin is a second or a sixth of the lease; never more than half of it, which only very short leases would meet.
    """
    return lease_len - min(max(SECOND, lease_len // 6), lease_len // 2)
