"""Slots: how many attempts may run at once; and all attempts whose leases this worker holds.

A lease is in `attempts` from the claim until the store has answered its settlement; the keeper renews all of them. An
attempt takes a slot from when it may start until its handler has ended. Two kinds of attempts wait. Those in `assigned`
were prefetched, or claimed ahead (`parallel_claim.py`), and take no slot. Those in `waiting_in_slot` have one, but
their task has reached its `concurrency`, or they must start apart (`suspects.py`).
"""

from collections import Counter, deque
from collections.abc import Mapping

from holdfast.model.states import JobState
from holdfast.worker.attempt import LeasedAttempt


class Slots:
    """Changed on the event loop's thread only. Other threads may copy `attempts`."""

    def __init__(self, size: int, queue_limits: Mapping[str, int] | None = None) -> None:
        self.size = size
        self.queue_limits = dict(queue_limits or {})
        self.attempts: dict[str, LeasedAttempt] = {}
        self.busy = 0
        self.reserved = 0
        """Slots that a claim in flight may fill."""
        self.assigned: deque[LeasedAttempt] = deque()
        self.waiting_in_slot: deque[LeasedAttempt] = deque()
        self._per_queue: Counter[str] = Counter()
        self.ended_count = 0
        """Attempts whose handlers have ended."""
        self.closed = False
        """True: no job is claimed for a slot, and no attempt starts that waits or comes now."""

    @property
    def free_slots(self) -> int:
        return max(0, self.size - self.busy - self.reserved)

    @property
    def idle(self) -> bool:
        """True if no attempt runs or waits to start."""
        return not self.busy and not self.assigned

    def queue_free_slots(self, queue: str) -> int | None:
        """How many more attempts of this queue may run. None: the queue has no limit of its own."""
        limit = self.queue_limits.get(queue)
        return None if limit is None else max(0, limit - self._per_queue[queue])

    def admit(self, attempt: LeasedAttempt, *, waits: bool = False) -> bool:
        """Add a new lease. True if its handler may start at once, which it must not if it `waits`."""
        self.attempts[attempt.lease.token] = attempt
        attempt.plan.held_count += 1
        if attempt.lease.state is JobState.ASSIGNED or self.busy >= self.size or self.closed:
            self.assigned.append(attempt)
            return False
        self._occupy(attempt)
        if waits or attempt.plan.full:
            self.waiting_in_slot.append(attempt)
            return False
        attempt.plan.running_count += 1
        return True

    def pop_startable(self) -> list[LeasedAttempt]:
        """Remove and return the waiting attempts that may start: first `waiting_in_slot`, then `assigned`."""
        if (not self.waiting_in_slot and not self.assigned) or self.closed:
            return []
        startable: list[LeasedAttempt] = []
        for attempt in tuple(self.waiting_in_slot):
            if not attempt.plan.full:
                self.waiting_in_slot.remove(attempt)
                attempt.plan.running_count += 1
                startable.append(attempt)
        for attempt in tuple(self.assigned):
            if self.busy >= self.size or (attempt.lease.state is JobState.ASSIGNED and not self.free_slots):
                break
            if not attempt.plan.full and self.queue_free_slots(attempt.lease.queue) != 0:
                self.assigned.remove(attempt)
                self._occupy(attempt)
                attempt.plan.running_count += 1
                startable.append(attempt)
        return startable

    def take_back_all(self) -> list[LeasedAttempt]:
        """Remove and return all waiting attempts. Their slots are free again; their leases are still held."""
        waiting = [*self.waiting_in_slot, *self.assigned]
        for attempt in self.waiting_in_slot:
            self._vacate(attempt)
        for attempt in waiting:
            attempt.plan.held_count -= 1
        self.waiting_in_slot.clear()
        self.assigned.clear()
        return waiting

    def take_back(self, attempt: LeasedAttempt) -> bool:
        """Remove an attempt that waits. False: it does not wait (any more)."""
        if attempt in self.assigned:
            self.assigned.remove(attempt)
        elif attempt in self.waiting_in_slot:
            self.waiting_in_slot.remove(attempt)
            self._vacate(attempt)
        else:
            return False
        attempt.plan.held_count -= 1
        return True

    def end(self, attempt: LeasedAttempt) -> None:
        """Its handler has ended: free the slot. The lease is still held."""
        attempt.plan.running_count -= 1
        attempt.plan.held_count -= 1
        self.ended_count += 1
        self._vacate(attempt)

    def close(self) -> None:
        """The worker is about to stop."""
        self.closed = True

    def _occupy(self, attempt: LeasedAttempt) -> None:
        self.busy += 1
        if self.queue_limits:
            self._per_queue[attempt.lease.queue] += 1

    def _vacate(self, attempt: LeasedAttempt) -> None:
        self.busy -= 1
        if self.queue_limits:
            self._per_queue[attempt.lease.queue] -= 1

    def drop(self, attempt: LeasedAttempt) -> None:
        """The lease is settled or lost: stop renewing it."""
        self.attempts.pop(attempt.lease.token, None)
