"""What to claim: jobs of the tasks this worker has handlers for, from its queues, for the free slots.

The order of the queues rotates from claim to claim, so that a busy queue cannot starve the others; with `strict` it
stays as given. Each claim names every task in every queue, because a job may be enqueued to another queue than its
task's own. An alias of a task is claimed like a task of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from holdfast.model.work import Claim, QueueClaim, TaskClaim
from holdfast.runtime import Runtime
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.slots import Slots
from holdfast.worker.suspects import Suspects


class Claims:
    """Builds the claims of a worker."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        worker: str,
        queues: Sequence[str],
        plans: Iterable[ExecutionPlan],
        slots: Slots,
        prefetch: int = 0,
        strict: bool = False,
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._runtime = runtime
        self._worker = worker
        self._queues = tuple(queues)
        self._plans = tuple(plans)
        self._slots = slots
        self.suspects = Suspects(runtime, slots)
        self._prefetch = prefetch
        self._strict = strict
        self.is_paused = is_paused
        """True while the worker must not claim: it could not renew the leases."""
        self._turn = 0
        self._by_plan = tuple((plan, tuple(_task_claims(plan))) for plan in self._plans)
        self._task_claims = tuple(claim for _, claims in self._by_plan for claim in claims)
        self._limited = any(plan.limit is not None for plan in self._plans) or bool(slots.queue_limits)
        self._claims_without_limits = tuple(QueueClaim(queue, self._task_claims) for queue in self._queues)

    @property
    def simple(self) -> bool:
        """True if only the number of free slots limits a claim."""
        return not self._limited and not self._prefetch

    def make(self, ahead: int = 0) -> Claim | None:
        """A claim for the free slots, `ahead` more, and the prefetch.

        None if there is nothing to claim for, or claims are paused.
        """
        limit = self._slots.free_slots + ahead
        prefetch = max(0, self._prefetch - len(self._slots.assigned))
        if self.suspects.one_by_one:
            limit, prefetch = min(limit, 1), 0
        if not limit + prefetch or not self._task_claims or self._slots.closed or self.is_paused():
            return None
        if self.suspects.present:
            return None
        queues = self._rotated(self._with_limits() if self._limited else self._claims_without_limits)
        return Claim(
            claim_id=self._runtime.new_claim_id(), worker=self._worker, queues=queues, limit=limit, prefetch=prefetch
        )

    def _with_limits(self) -> tuple[QueueClaim, ...]:
        tasks = tuple(
            claim
            for plan, claims in self._by_plan
            if plan.free_slots != 0
            for claim in (claims if plan.limit is None else _task_claims(plan))
        )
        return tuple(
            QueueClaim(queue, tasks, free_slots)
            for queue in self._queues
            if (free_slots := self._slots.queue_free_slots(queue)) is None or free_slots > 0
        )

    def _rotated(self, queues: tuple[QueueClaim, ...]) -> tuple[QueueClaim, ...]:
        if self._strict or len(queues) < 2:
            return queues
        self._turn = (self._turn + 1) % len(queues)
        return queues[self._turn :] + queues[: self._turn]


def _task_claims(plan: ExecutionPlan) -> Iterator[TaskClaim]:
    """One for each name of the task. They share its free slots, rounded up: each name can always get one job, and at
    most one job for each alias waits in a slot until the task is below its limit."""
    retry, free_slots = plan.policy.retry, plan.free_slots
    for name in plan.names:
        yield TaskClaim(
            task=name,
            lease_len=plan.policy.lease,
            max_attempts=retry.max_attempts or 0,
            max_losses=retry.max_losses,
            limit=None if free_slots is None else -(-free_slots // len(plan.names)),
        )
