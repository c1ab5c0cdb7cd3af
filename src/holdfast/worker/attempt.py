"""One attempt in this process: its lease, the plan by which it runs, and its state so far.

Three threads use it. The event loop runs it. The keeper's thread renews its lease and the loop watcher's thread checks
the lease's age; these two only set plain attributes (`renewed_at`, `abort_reason`) and leave the rest to the loop. A
sync handler's thread reads `abort_reason` through its context, so an abort reaches it even while the loop is blocked.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.context import AbortReason, Context
from holdfast.errors import UsageError
from holdfast.model.instants import SECOND, Micros
from holdfast.model.job import ProgressRecord
from holdfast.model.work import Lease, Settlement
from holdfast.worker.execution_plan import ExecutionPlan

if TYPE_CHECKING:
    from holdfast.worker.transaction import AttemptTransactions


class LeasedAttempt:
    """An attempt from the claim of its lease until the store has answered its settlement."""

    __slots__ = (
        "_context",
        "abort_reason",
        "began_at",
        "committed",
        "error",
        "lease",
        "loop_task",
        "plan",
        "progress",
        "ran_us",
        "renewed_at",
        "reported_progress",
        "sent_progress",
        "settlement",
        "transaction_settlement",
        "used_transactions",
    )

    def __init__(self, lease: Lease, plan: ExecutionPlan, claimed_at: Micros) -> None:
        self.lease = lease
        self.plan = plan
        self.renewed_at = claimed_at
        """When the last accepted claim or renewal was sent, on the boot clock. The lease runs from then or later."""
        self.began_at: Micros | None = None
        """When the handler was started, on the monotonic clock."""
        self.ran_us: Micros = 0
        """How long the handler took; measured only while a listener wants it."""
        self.loop_task: asyncio.Task[Any] | None = None
        """The asyncio task that runs the handler. None while there is none that can be cancelled."""
        self.settlement: Settlement | None = None
        """What to write to the store. Set when the attempt has ended."""
        self.used_transactions: AttemptTransactions | None = None
        """Its transactions. None until the handler asks for one."""
        self.transaction_settlement: Settlement | None = None
        """The settlement that was written inside a transaction of the handler's."""
        self.committed = False
        """True once that transaction is known to be committed: the job has ended."""
        self.error: BaseException | None = None
        """The exception by which it has failed, if it was raised in this process. Removed when the end is reported."""
        self.abort_reason: AbortReason | None = None
        self.progress: ProgressRecord | None = None
        self.sent_progress: ProgressRecord | None = None
        self.reported_progress: ProgressRecord | None = None
        """The last one that listeners got."""
        self._context: Context[Any] | None = None

    @property
    def context(self) -> Context[Any]:
        if self._context is None:
            self._context = Context(self)
        return self._context

    @property
    def transactions(self) -> "AttemptTransactions":
        if self.used_transactions is None:
            if self.plan.transaction_environment is None:
                raise UsageError("There is no worker here to make transactions. Use `lease.complete(transaction=...)`.")
            from holdfast.worker.transaction import AttemptTransactions

            self.used_transactions = AttemptTransactions(self, self.plan.transaction_environment)
        return self.used_transactions

    @property
    def renewable(self) -> bool:
        """True if its lease is to be renewed. A transaction with its settlement may lock its record: then it is not."""
        return self.abort_reason is not AbortReason.OWNERSHIP_LOST and self.transaction_settlement is None

    @property
    def state(self) -> Any:
        return self.plan.state

    @property
    def worker(self) -> str:
        return self.plan.worker

    def mark(self, reason: AbortReason) -> bool:
        """Set why it has to stop. The first reason stays, but a lost lease replaces any other.

        Call from any thread. True if the reason is new.
        """
        if self.abort_reason is reason or self.settlement is not None or self.committed:
            return False
        if self.transaction_settlement is not None and reason is AbortReason.OWNERSHIP_LOST:
            return False  # the store answers the same when the handler's transaction has just been committed
        if self.abort_reason is not None and reason is not AbortReason.OWNERSHIP_LOST:
            return False
        self.abort_reason = reason
        return True

    def interrupt(self) -> None:
        """Cancel the handler if it can be cancelled. Call from the loop's thread only."""
        if self.loop_task is not None and self.settlement is None:
            self.loop_task.cancel()


def renewal_age(lease_us: Micros) -> Micros:
    """The age of a renewal at which the next one is sent: a third of the lease."""
    return lease_us // 3


def fence_age(lease_us: Micros) -> Micros:
    """The age of the last accepted renewal at which the attempt has to stop, before the lease expires.

    The margin is a second or a sixth of the lease, whichever is longer, but at most half of the lease.
    """
    return lease_us - min(max(SECOND, lease_us // 6), lease_us // 2)
