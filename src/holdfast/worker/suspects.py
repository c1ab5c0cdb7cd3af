"""Suspects: jobs that have lost a worker. Each starts apart from all others, so that its next loss is only its own.

When a worker dies, all its jobs count a loss, and one of them may be the cause. Started together again, they would
count the next losses together, too, and all would fail. So a worker takes one suspect at a time:

1. A claim brings a suspect. The worker gives back all jobs that have not started, and claims nothing.
2. The suspect waits in its slot until the worker holds no other job, but no longer than `_apart_us`.
3. It starts. The worker claims again when it has ended, or has run for `_apart_us`.

A worker that is killed from outside leaves suspects, too, and most jobs that kill do it at once. So the time is short
after the first loss; it grows with each loss, for jobs that kill later. The attempts of an isolated handler are no
suspects: they cannot kill the worker.
"""

from collections.abc import Sequence

from holdfast.model.instants import SECOND, Micros, Seconds
from holdfast.model.work import Lease
from holdfast.runtime import Runtime
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.slots import Slots

APART_US: Micros = 2 * SECOND
"""After the first loss; 8 s after the second, 32 s from the third on. It is limited: nothing else starts meanwhile."""


class Suspects:
    """The suspect of one worker. Used from the loop's thread only."""

    def __init__(self, runtime: Runtime, slots: Slots) -> None:
        self._runtime = runtime
        self._slots = slots
        self._attempt: LeasedAttempt | None = None
        self._starts_by: Micros = 0
        """When it starts at the latest, on the monotonic clock."""
        self._apart_until: Micros = 0
        self.enabled = True
        """False: there are none. The test kit runs a second job only while the first one waits for it."""
        self.one_by_one = False
        """True from a suspect to the next job that is none. More than one suspect in a claim is given back anyway."""

    def choose(self, leases: Sequence[Lease], plans: dict[str, ExecutionPlan]) -> Lease | None:
        """The lease that must start apart, if there is none yet: the first suspect of these."""
        if self.present or not self.enabled:
            return None
        for lease in leases:
            if lease.losses and (plan := plans.get(lease.task)) is not None and not plan.is_isolated:
                self.one_by_one = True
                return lease
        self.one_by_one = False
        return None

    def admit(self, attempt: LeasedAttempt) -> None:
        """Hold the chosen one. It gets a slot and waits there."""
        self._slots.admit(attempt, waits=True)
        self._attempt = attempt
        apart_us = _apart_us(attempt.lease.losses)
        self._starts_by = self._runtime.monotonic() + apart_us
        self._apart_until = self._starts_by + apart_us

    def note_start(self) -> None:
        """It starts now, if there is one."""
        if self._attempt is not None:
            started_until = self._runtime.monotonic() + _apart_us(self._attempt.lease.losses)
            self._apart_until = min(self._apart_until, started_until)

    @property
    def present(self) -> bool:
        """True while nothing else may start."""
        attempt = self._attempt
        if attempt is None:
            return False
        is_held = attempt.settlement is None and attempt.lease.token in self._slots.attempts
        if not is_held or self._runtime.monotonic() >= self._apart_until:
            self._attempt = None
            return False
        return True

    @property
    def waits(self) -> bool:
        """True while it must not start, because other jobs would count its loss."""
        return self.present and len(self._slots.attempts) > 1 and self._runtime.monotonic() < self._starts_by

    @property
    def next_check_s(self) -> Seconds | None:
        """Seconds until it may start, or others beside it. None: there is no suspect."""
        if not self.present:
            return None
        at = self._starts_by if self.waits else self._apart_until
        return max(0, at - self._runtime.monotonic()) / SECOND


def _apart_us(losses: int) -> Micros:
    return APART_US << 2 * (min(losses, 3) - 1)
