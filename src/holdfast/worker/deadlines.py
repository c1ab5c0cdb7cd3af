"""Time limits of attempts: one service for all of them, and nothing to pay for attempts that have none.

Two kinds. An attempt with a timeout is aborted when that has passed. And one that was told to stop, for whatever
reason, is expected to; if it still runs after a while, people are told once. It keeps its slot and its lease: nothing
in Python can end a thread, or a coroutine that swallows its cancellation.
"""

import logging
from collections.abc import Callable

from holdfast.context import AbortReason
from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime
from holdfast.service import Service
from holdfast.worker.attempt import Attempt
from holdfast.worker.outcomes import timeout_of
from holdfast.worker.slots import Slots

STUBBORN_AFTER = 5 * SECOND
"""How long an attempt that was told to stop may go on before people are told."""

_logger = logging.getLogger("holdfast.worker")


class Deadlines(Service):
    """Aborts attempts that have run for longer than they may, and names those that do not stop."""

    name = "deadlines"

    def __init__(self, runtime: Runtime, slots: Slots, abort: Callable[[Attempt, AbortReason], None]) -> None:
        super().__init__(runtime)
        self._slots = slots
        self._abort = abort
        self._told: dict[Attempt, int] = {}
        self._next: int | None = None

    def watch(self, attempt: Attempt) -> None:
        """An attempt with a timeout begins. Most of them end before that, and another one is waited for anyway."""
        deadline = deadline_of(attempt)
        if deadline is not None:
            self._look_at(deadline)

    def told_to_stop(self, attempt: Attempt) -> None:
        """An attempt was aborted."""
        if attempt.began is not None and attempt.settlement is None:
            self._told[attempt] = self.runtime.monotonic()
            self._look_at(self._told[attempt] + STUBBORN_AFTER)

    def _look_at(self, when: int) -> None:
        if self._next is None or when < self._next:
            self._next = when
            self.wake()

    async def tick(self) -> float | None:
        now = self.runtime.monotonic()
        times = [*self._timeouts(now), *self._stubborn(now)]
        self._next = min(times, default=None)
        return None if self._next is None else (self._next - now) / SECOND

    def _timeouts(self, now: int) -> list[int]:
        """Abort what is over time; the deadlines still to come."""
        coming = []
        for attempt in list(self._slots.held.values()):
            deadline = deadline_of(attempt)
            if deadline is None or attempt.settlement is not None or attempt.abort_reason is not None:
                continue
            if deadline <= now:
                self._abort(attempt, AbortReason.TIMEOUT)
            else:
                coming.append(deadline)
        return coming

    def _stubborn(self, now: int) -> list[int]:
        """Name what does not stop; when to look at the others."""
        coming = []
        for attempt, told in list(self._told.items()):
            if attempt.settlement is not None or attempt.lease.token not in self._slots.held:
                del self._told[attempt]
            elif told + STUBBORN_AFTER <= now:
                del self._told[attempt]
                lease = attempt.lease
                _logger.warning(
                    "Job %s (%s) was told to stop (%s) and still runs. It keeps its slot until it returns.",
                    lease.id,
                    lease.task,
                    attempt.abort_reason,
                )
            else:
                coming.append(told + STUBBORN_AFTER)
        return coming


def deadline_of(attempt: Attempt) -> int | None:
    """When it has to be done, on the monotonic clock."""
    timeout = timeout_of(attempt)
    return None if timeout is None or attempt.began is None else attempt.began + timeout
