"""Timeouts of attempts: one service for all of them, and nothing to pay for attempts that have none."""

from collections.abc import Callable

from holdfast.context import AbortReason
from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime
from holdfast.service import Service
from holdfast.worker.attempt import Attempt
from holdfast.worker.outcomes import timeout_of
from holdfast.worker.slots import Slots


class Deadlines(Service):
    """Aborts attempts that have run for longer than they may."""

    name = "deadlines"

    def __init__(self, runtime: Runtime, slots: Slots, abort: Callable[[Attempt, AbortReason], None]) -> None:
        super().__init__(runtime)
        self._slots = slots
        self._abort = abort
        self._next: int | None = None

    def watch(self, attempt: Attempt) -> None:
        """An attempt begins. Most have no timeout, or one later than what is waited for anyway."""
        deadline = deadline_of(attempt)
        if deadline is not None and (self._next is None or deadline < self._next):
            self._next = deadline
            self.wake()

    async def tick(self) -> float | None:
        now = self.runtime.monotonic()
        self._next = None
        for attempt in list(self._slots.held.values()):
            deadline = deadline_of(attempt)
            if deadline is None or attempt.settlement is not None or attempt.abort_reason is not None:
                continue
            if deadline <= now:
                self._abort(attempt, AbortReason.TIMEOUT)
            elif self._next is None or deadline < self._next:
                self._next = deadline
        return None if self._next is None else (self._next - now) / SECOND


def deadline_of(attempt: Attempt) -> int | None:
    """When it has to be done, on the monotonic clock."""
    timeout = timeout_of(attempt)
    return None if timeout is None or attempt.began is None else attempt.began + timeout
