"""Time limits of attempts. One service watches all of them; an attempt without a timeout costs nothing here.

The service does two things. It aborts an attempt when its timeout has passed. And it logs a warning, once, for an
attempt that was aborted (for any reason) and still runs some seconds later. Such an attempt keeps its slot and its
lease: Python cannot end a thread, or a coroutine that swallows its cancellation.
"""

import logging
from collections.abc import Callable

from holdfast.context import AbortReason
from holdfast.model.instants import SECOND, Micros
from holdfast.model.text import shown
from holdfast.runtime import Runtime
from holdfast.service import Service
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.outcomes import timeout_of
from holdfast.worker.slots import Slots

WARN_STILL_RUNNING_AFTER_US: Micros = 5 * SECOND
"""An aborted attempt may run on for this long before a warning is logged."""

_logger = logging.getLogger("holdfast.worker")


class Deadlines(Service):
    """Aborts attempts whose timeout has passed, and warns about aborted attempts that do not stop."""

    name = "deadlines"

    def __init__(self, runtime: Runtime, slots: Slots, abort: Callable[[LeasedAttempt, AbortReason], None]) -> None:
        super().__init__(runtime)
        self._slots = slots
        self._abort = abort
        self._aborted_at: dict[LeasedAttempt, Micros] = {}
        """Aborted attempts that still run, and when each was aborted, on the monotonic clock."""
        self._next: Micros | None = None
        """When the next tick is due, on the monotonic clock."""

    def watch(self, attempt: LeasedAttempt) -> None:
        """An attempt with a timeout begins. Wakes the service only if this deadline is earlier than the next tick."""
        deadline = deadline_of(attempt)
        if deadline is not None:
            self._wake_at(deadline)

    def on_abort(self, attempt: LeasedAttempt) -> None:
        """An attempt was aborted: check later whether it has stopped."""
        if attempt.began_at is not None and attempt.settlement is None:
            self._aborted_at[attempt] = self.runtime.monotonic()
            self._wake_at(self._aborted_at[attempt] + WARN_STILL_RUNNING_AFTER_US)

    def _wake_at(self, when: Micros) -> None:
        if self._next is None or when < self._next:
            self._next = when
            self.wake()

    async def tick(self) -> float | None:
        now = self.runtime.monotonic()
        times = [*self._abort_overdue(now), *self._warn_still_running(now)]
        self._next = min(times, default=None)
        return None if self._next is None else (self._next - now) / SECOND

    def _abort_overdue(self, now: Micros) -> list[Micros]:
        """Abort the attempts whose deadline has passed; return the deadlines to come."""
        coming = []
        for attempt in list(self._slots.attempts.values()):
            deadline = deadline_of(attempt)
            if deadline is None or attempt.settlement is not None or attempt.abort_reason is not None:
                continue
            if deadline <= now:
                self._abort(attempt, AbortReason.TIMEOUT)
            else:
                coming.append(deadline)
        return coming

    def _warn_still_running(self, now: Micros) -> list[Micros]:
        """Warn about aborted attempts that still run; return when to check the others."""
        coming = []
        for attempt, aborted_at in list(self._aborted_at.items()):
            if attempt.settlement is not None or attempt.lease.token not in self._slots.attempts:
                del self._aborted_at[attempt]
            elif aborted_at + WARN_STILL_RUNNING_AFTER_US <= now:
                del self._aborted_at[attempt]
                lease = attempt.lease
                _logger.warning(
                    "Job %s (%s) was aborted (%s) and still runs. It keeps its slot until it returns.",
                    shown(lease.id),
                    shown(lease.task),
                    attempt.abort_reason,
                )
            else:
                coming.append(aborted_at + WARN_STILL_RUNNING_AFTER_US)
        return coming


def deadline_of(attempt: LeasedAttempt) -> Micros | None:
    """When its timeout passes, on the monotonic clock. None: it has no timeout, or has not begun."""
    timeout_us = timeout_of(attempt)
    return None if timeout_us is None or attempt.began_at is None else attempt.began_at + timeout_us
