"""Claims while the exchanger settles. Used where the store takes several writers and nothing but slots limits a claim.

Where handlers take less time than a claim, store and handlers would take turns. So the next claim is sent before the
jobs of the last one run ("claim ahead"): when its answer comes, they have ended and their slots are free. This is done
only while the jobs of a whole claim have all ended shortly after it. If they take longer for once, the jobs claimed
ahead wait for a slot, and after a short time they are released for other workers (decision 0044).
"""

from holdfast.model.instants import MILLISECOND, SECOND, Micros, Seconds
from holdfast.model.work import Claim
from holdfast.runtime import Runtime
from holdfast.service import Service
from holdfast.worker.exchange import Exchanger
from holdfast.worker.slots import Slots

AHEAD_WITHIN_US: Micros = 20 * MILLISECOND
"""Claim ahead if all jobs of a claim have ended this soon after its answer: before the answer of the next claim."""
AHEAD_UP_TO = 3
"""Leases per slot. With more, the store is slower with settlements than with claims, and no claim is sent ahead."""
RELEASE_AFTER_S: Seconds = 0.1
"""Jobs that were claimed ahead and wait this long for a slot are released."""


class ParallelClaim(Service):
    """The second of two services that call `exchange`; the exchanger wakes it."""

    name = "claim"

    def __init__(self, runtime: Runtime, exchanger: Exchanger, slots: Slots) -> None:
        super().__init__(runtime)
        self._exchanger = exchanger
        self._slots = slots
        self._answered_at: Micros = 0
        """When the last claim was answered, on the monotonic clock."""
        self._ended_count = 0
        """How many attempts had ended then."""

    async def tick(self) -> float | None:
        self._exchanger.start_waiting()  # slots may be free: the exchanger does it when its exchange is answered
        self._release_waiting()
        claim = first = self._exchanger.next_claim()
        while claim is not None:
            await self._exchanger.exchange([], [], claim)
            claim = self._exchanger.next_claim(claim.limit) if self._handlers_are_short(claim) else None
        if first is not None and self._slots.free_slots:
            self._exchanger.wake()  # fewer jobs than free slots: let the exchanger decide when to poll again
        return RELEASE_AFTER_S if self._slots.assigned else None

    def _handlers_are_short(self, claim: Claim) -> bool:
        """True if the jobs of the claim before have all ended soon, and this claim has brought as many as it may."""
        slots, now = self._slots, self.runtime.monotonic()
        soon = now - self._answered_at <= AHEAD_WITHIN_US and slots.ended_count - self._ended_count >= claim.limit
        self._answered_at, self._ended_count = now, slots.ended_count
        full = slots.busy == claim.limit == slots.size and not slots.assigned
        return soon and full and len(slots.attempts) <= AHEAD_UP_TO * slots.size

    def _release_waiting(self) -> None:
        """Release the jobs that were claimed ahead, if they have waited for a slot too long."""
        if self.runtime.monotonic() - self._answered_at >= RELEASE_AFTER_S * SECOND:
            for attempt in tuple(self._slots.assigned):
                self._exchanger.release_unstarted(attempt)
