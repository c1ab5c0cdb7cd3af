"""Slots: room for so many attempts, and the register of every lease this worker answers for.

A lease is `held` from the claim until its settlement was answered; the keeper renews all of them. It takes a slot from
when its turn comes until its handler has ended. Beside those that run there are two kinds of waiting: `assigned` leases
were claimed ahead of need and take no slot; `parked` ones have a slot, but their task runs as often as it may.
"""

from collections import Counter, deque
from collections.abc import Mapping

from holdfast.model.states import JobState
from holdfast.worker.attempt import Attempt


class Slots:
    """Changed on the loop's thread only. Other threads may take a copy of `held`."""

    def __init__(self, size: int, queue_limits: Mapping[str, int] | None = None) -> None:
        self.size = size
        self.queue_limits = dict(queue_limits or {})
        self.held: dict[str, Attempt] = {}
        self.busy = 0
        self.promised = 0
        """Asked for by a claim that is under way."""
        self.assigned: deque[Attempt] = deque()
        self.parked: deque[Attempt] = deque()
        self._per_queue: Counter[str] = Counter()

    @property
    def free(self) -> int:
        return self.size - self.busy - self.promised

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits to."""
        return not self.busy and not self.assigned

    def queue_room(self, queue: str) -> int | None:
        """How many more attempts of this queue there is room for. None: as many as there are slots."""
        limit = self.queue_limits.get(queue)
        return None if limit is None else max(0, limit - self._per_queue[queue])

    def admit(self, attempt: Attempt) -> bool:
        """Register a new lease. Answers whether its handler may begin at once."""
        self.held[attempt.lease.token] = attempt
        attempt.plan.taken += 1
        if attempt.lease.state is JobState.ASSIGNED:
            self.assigned.append(attempt)
            return False
        self._occupy(attempt)
        if attempt.plan.full:
            self.parked.append(attempt)
            return False
        attempt.plan.running += 1
        return True

    def call_up(self) -> list[Attempt]:
        """Those waiting whose turn has come: parked ones first, then assigned ones while there is room."""
        if not self.parked and not self.assigned:
            return []
        called: list[Attempt] = []
        for attempt in tuple(self.parked):
            if not attempt.plan.full:
                self.parked.remove(attempt)
                attempt.plan.running += 1
                called.append(attempt)
        for attempt in tuple(self.assigned):
            if not self.free:
                break
            if not attempt.plan.full and self.queue_room(attempt.lease.queue) != 0:
                self.assigned.remove(attempt)
                self._occupy(attempt)
                attempt.plan.running += 1
                called.append(attempt)
        return called

    def withdraw(self) -> list[Attempt]:
        """Take back all that wait; their slots are free again, their leases still held."""
        waiting = [*self.parked, *self.assigned]
        for attempt in self.parked:
            self._vacate(attempt)
        for attempt in waiting:
            attempt.plan.taken -= 1
        self.parked.clear()
        self.assigned.clear()
        return waiting

    def take_back(self, attempt: Attempt) -> bool:
        """Take one back that waits. False: it does not, or no longer."""
        if attempt in self.assigned:
            self.assigned.remove(attempt)
        elif attempt in self.parked:
            self.parked.remove(attempt)
            self._vacate(attempt)
        else:
            return False
        attempt.plan.taken -= 1
        return True

    def end(self, attempt: Attempt) -> None:
        """Its handler has ended: the slot is free, the lease still held."""
        attempt.plan.running -= 1
        attempt.plan.taken -= 1
        self._vacate(attempt)

    def _occupy(self, attempt: Attempt) -> None:
        self.busy += 1
        if self.queue_limits:
            self._per_queue[attempt.lease.queue] += 1

    def _vacate(self, attempt: Attempt) -> None:
        self.busy -= 1
        if self.queue_limits:
            self._per_queue[attempt.lease.queue] -= 1

    def drop(self, attempt: Attempt) -> None:
        """The lease is settled or lost: nobody has to renew it any more."""
        self.held.pop(attempt.lease.token, None)
