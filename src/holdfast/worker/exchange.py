"""The exchange: the worker's main call. One round trip settles what has ended and claims jobs for the free slots.

Batches form by themselves. While an exchange is in flight, outcomes and free slots collect, and the next exchange takes
them all, up to a limit. A single job is settled at once; a hundred short ones share a commit. If the store takes
several writers, one call settles a large batch while a second call claims in parallel (decision 0010).

    handlers end ──► unsettled ─┐                    ┌─► reporter: events, hooks, empty queues
    slots free up ─► claims    ─┴─► engine.exchange ─┴─► leases ─► runner
"""

import logging
from collections.abc import Callable, Sequence

from holdfast.context import AbortReason
from holdfast.model.check import MAX_SETTLEMENTS
from holdfast.model.instants import SECOND, At, Instant, Micros, Seconds
from holdfast.model.outcome import (
    LOSSES_REPORTED_UP_TO_ATTEMPT,
    CancelledByHandler,
    LostLease,
    Outcome,
    Released,
    Returned,
    Snoozed,
    decide,
)
from holdfast.model.retry import RetryPolicy
from holdfast.model.states import JobState
from holdfast.model.text import shown
from holdfast.model.work import Claim, ExchangeAnswer, Lease, Settlement, SettleStatus, Start, StartStatus
from holdfast.runtime import Runtime
from holdfast.service import Service, yield_to_loop
from holdfast.worker.attempt import LeasedAttempt, fence_age
from holdfast.worker.claims import Claims
from holdfast.worker.execute import Executor
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.outcomes import settlement_of
from holdfast.worker.reporting import Reporter
from holdfast.worker.resend import BusySettlements, Resender
from holdfast.worker.runner import AttemptRunner
from holdfast.worker.slots import Slots
from holdfast.worker.unsettled import UnsettledAttempts

MIN_POLL_S: Seconds = 0.001
"""The shortest pause before a job that is nearly due: the loop must not spin."""
SECOND_POLL_S: Seconds = 0.1
"""Pause after the first claim that finds nothing: a job enqueued while the worker was subscribing sent no
notification to it."""
SETTLE_SEPARATELY_FROM = 32
"""From this many outcomes on, settle and claim in two parallel calls."""
UNUSABLE_LEASE_DELAY_US: Micros = 60 * SECOND
"""A job that this worker cannot even start is given back for this long, so that it is not claimed again at once."""

_logger = logging.getLogger("holdfast.worker")


class Exchanger(Service):
    """Settles and claims for the slots of one worker."""

    name = "exchange"

    def __init__(
        self,
        runtime: Runtime,
        *,
        resender: Resender,
        slots: Slots,
        claims: Claims,
        plans: dict[str, ExecutionPlan],
        reporter: Reporter,
        poll_s: Callable[[], Seconds],
        watch_deadline: Callable[[LeasedAttempt], None],
        on_abort: Callable[[LeasedAttempt], None],
    ) -> None:
        super().__init__(runtime)
        self._resender = resender
        self._slots = slots
        self._claims = claims
        self.suspects = claims.suspects
        self._plans = plans
        self._reporter = reporter
        self._poll_s = poll_s
        self._on_abort = on_abort
        self.on_idle: Callable[[], object] | None = None
        """Called when nothing runs, no exchange is in flight, and a claim has found no job."""
        self._runner = AttemptRunner(
            runtime, Executor(runtime, on_done=self.attempt_ended, watch_deadline=watch_deadline)
        )
        self._unsettled = UnsettledAttempts()
        self.busy_settlements = BusySettlements(runtime, resender, self._report_answer)
        self._unusable: list[Settlement] = []
        """Give back the leases that could not become attempts."""
        self._unanswered_claims: list[Claim] = []
        """Claims whose call was cancelled. Sent again, they return what they took. Their slots stay reserved."""
        self._started: list[LeasedAttempt] = []
        self._accepting = True
        self._in_flight = 0
        self._reports_in_flight = 0
        self._polled_before = False
        self.parallel_claim: Service | None = None
        """The service that claims while this one settles; None where the store takes one writer at a time."""
        self.on_progress: Callable[[], None] | None = None
        """Called when an attempt has ended or was settled. Set while the worker stops."""
        self._engine_at, self._engine_at_read = At(0, 0), 0

    @property
    def has_unsettled(self) -> bool:
        """True while an ended attempt is not settled, an exchange is in flight, or its events are being reported."""
        waiting = self._unsettled or self._unanswered_claims or self._unusable or self.busy_settlements
        return bool(waiting) or self._in_flight > 0 or self._reports_in_flight > 0

    def engine_now(self) -> Instant:
        """The engine's wall clock, computed from its last answer and the time since."""
        return self._engine_at.wall + self.runtime.monotonic() - self._engine_at_read

    # Ends of attempts

    def attempt_ended(self, attempt: LeasedAttempt, outcome: Outcome) -> None:
        """A handler has ended. Its slot is free; the next exchange sends its outcome."""
        attempt.loop_task = None
        self._slots.end(attempt)
        if attempt.abort_reason is AbortReason.OWNERSHIP_LOST and not attempt.committed:
            self._report_loss(attempt, LostLease())
        elif attempt.settlement is None:  # else the stopping worker has released it already
            if self._reporter.has_listeners and attempt.began_at is not None:
                attempt.ran_us = self.runtime.monotonic() - attempt.began_at
            attempt.settlement = self._decide(attempt, outcome)
            self._unsettled.put(attempt)
            if attempt.committed:
                self._reporter.committed(attempt)
        self.waker.wake()
        if self.on_progress is not None:
            self.on_progress()

    def _report_loss(self, attempt: LeasedAttempt, loss: LostLease) -> None:
        """The lease could not be kept, but the worker lives: that is no death of a worker (A8)."""
        if attempt.lease.attempt > LOSSES_REPORTED_UP_TO_ATTEMPT:
            return self._slots.drop(attempt)  # A9: a reaper settles it
        self._slots.attempts[attempt.lease.token] = attempt
        self.settle_unstarted(attempt, loss)

    def settle_unstarted(self, attempt: LeasedAttempt, outcome: Outcome = Released()) -> None:  # noqa: B008 - frozen
        """Settle a lease whose handler never started, or has no outcome that counts."""
        attempt.settlement = self._decide(attempt, outcome)
        self._unsettled.put(attempt)
        self.waker.wake()

    def _decide(self, attempt: LeasedAttempt, outcome: Outcome) -> Settlement:
        if type(outcome) is Returned:  # then the clock and the random number are not used
            return settlement_of(attempt, outcome, now=0, draw=0.0)
        return settlement_of(attempt, outcome, now=self.engine_now(), draw=self.runtime.random())

    # One exchange

    async def tick(self) -> float | None:
        if self._unusable:
            await self._give_back_unusable()
        self.start_waiting()
        in_parallel = self.parallel_claim is not None and len(self._unsettled) >= SETTLE_SEPARATELY_FROM
        if in_parallel and self.parallel_claim is not None:
            self.parallel_claim.wake()
            await yield_to_loop()  # send the claim first: free slots wait for it
        batch = self._unsettled.next_batch()
        started, self._started = [attempt for attempt in self._started if attempt.settlement is None], []
        claim = None if in_parallel else self.next_claim()
        if claim is None and not batch and not started:
            self._check_idle()
            return self.suspects.next_check_s
        delay = await self.exchange(batch, started, claim)
        if claim is not None:  # else the parallel claim may have run before this settled
            self._check_idle()
        return delay

    def next_claim(self, ahead: int = 0) -> Claim | None:
        """A claim whose answer was lost, or a new one. None: there is nothing to claim for.

        `ahead`: slots that are taken now and will be free when the claim is answered.
        """
        if self._unanswered_claims:
            claim = self._unanswered_claims.pop()
            self._slots.reserved -= claim.limit
            return claim
        return self._claims.make(ahead) if self._accepting else None

    async def exchange(
        self, batch: list[LeasedAttempt], started: list[LeasedAttempt], claim: Claim | None
    ) -> float | None:
        """One round trip; returns the seconds until the next poll."""
        settlements: Sequence[Settlement] = [a.settlement for a in batch if a.settlement is not None]
        starts = [Start(attempt.lease.queue, attempt.lease.id, attempt.lease.token) for attempt in started]
        self._reporter.refresh()
        sent_at = self.runtime.boot()
        reserved = 0 if claim is None else claim.limit
        self._slots.reserved += reserved
        self._in_flight += 1
        try:
            answer, settlements = await self._resender.send(settlements, starts, claim)
        except BaseException as error:
            self._unsettled.put_back(batch)
            self._started = started + self._started
            if claim is not None and not isinstance(error, Exception):  # cancelled: the store may have taken jobs
                self._unanswered_claims.append(claim)
                self._slots.reserved += reserved
            raise
        finally:
            self._in_flight -= 1
            self._slots.reserved -= reserved
        self._engine_at, self._engine_at_read = answer.at, self.runtime.monotonic()
        self._report_settled(batch, settlements, answer)
        for attempt, status in zip(started, answer.started, strict=True):
            self._apply_start_status(attempt, status)
        self._start_leases(answer.leases, sent_at)
        if self.suspects.present:
            self.waker.wake()  # perhaps it may start now
        await self._report_empty(settlements, answer)
        return self._next_poll(claim, answer)

    async def _report_answer(
        self, batch: list[LeasedAttempt], settlements: Sequence[Settlement], answer: ExchangeAnswer
    ) -> None:
        """The engine has answered settlements that were busy before."""
        self._report_settled(batch, settlements, answer)
        await self._report_empty(settlements, answer)
        self.waker.wake()  # the worker may be idle now

    async def _report_empty(self, settlements: Sequence[Settlement], answer: ExchangeAnswer) -> None:
        self._reports_in_flight += 1
        try:
            await self._reporter.after_exchange(settlements, answer)
        finally:
            self._reports_in_flight -= 1
        if self.on_progress is not None:
            self.on_progress()

    def _report_settled(
        self, batch: list[LeasedAttempt], settlements: Sequence[Settlement], answer: ExchangeAnswer
    ) -> None:
        attempts, reporter = self._slots.attempts, self._reporter
        has_listeners = reporter.has_listeners
        for attempt, settlement, status in zip(batch, settlements, answer.settled, strict=True):
            if status is SettleStatus.BUSY:
                self.busy_settlements.put(attempt)  # the keeper renews its lease meanwhile
                continue
            attempts.pop(settlement.token, None)
            if status is SettleStatus.LOST and attempt.abort_reason is not AbortReason.OWNERSHIP_LOST:
                reporter.ownership_lost(attempt, answer.at.wall)
                attempt.abort_reason = AbortReason.OWNERSHIP_LOST
                self._report_loss(attempt, LostLease(started=attempt.began_at is not None))
            elif has_listeners or status is not SettleStatus.APPLIED or settlement.target is not JobState.SUCCEEDED:
                try:
                    reporter.settled(attempt, settlement, status, answer.at.wall)
                except Exception:  # the other jobs of this answer do not depend on it
                    _logger.exception("The end of job %s could not be reported.", shown(attempt.lease.id))

    def _apply_start_status(self, attempt: LeasedAttempt, status: StartStatus) -> None:
        """Apply the engine's answer to the start of a prefetched job. It runs already, so a pause has no effect."""
        if status is StartStatus.LOST:
            self.abort(attempt, AbortReason.OWNERSHIP_LOST)
        elif status is StartStatus.CANCEL:
            self.abort(attempt, AbortReason.CANCEL)
        elif status is StartStatus.BUSY:
            self._started.append(attempt)  # the next exchange sends it again

    def _start_leases(self, leases: Sequence[Lease], sent_at: Micros) -> None:
        if not leases:
            return
        plans, slots = self._plans, self._slots
        late_us = self.runtime.boot() - sent_at
        ready: list[LeasedAttempt] = []
        one_by_one = self.suspects.one_by_one
        suspect = self.suspects.choose(leases, plans)
        if suspect is not None:
            self._give_back_unstarted()
        elif one_by_one:
            self.waker.wake()  # claim for the other slots, too
        apart = suspect is not None or self.suspects.present
        for lease in leases:
            plan = plans.get(lease.task)
            if plan is None:
                self._refuse(lease)
                continue
            attempt = LeasedAttempt(lease, plan, sent_at)
            late = late_us > SECOND and late_us > fence_age(lease.lease_len)
            if not self._accepting or late or (apart and lease is not suspect):
                slots.attempts[lease.token] = attempt
                # The worker stops, or the lease is nearly over because the answer took so long, or nothing may start.
                self.settle_unstarted(attempt)
            elif lease is suspect:
                self.suspects.admit(attempt)
            elif slots.admit(attempt):
                ready.append(attempt)
        if ready:
            self._report_started(ready, self._engine_at.wall)
            self._runner.run(ready)
        if slots.assigned:
            self._reporter.assigned(leases, self._engine_at.wall)

    def _report_started(self, attempts: list[LeasedAttempt], at: Instant) -> None:
        try:
            self._reporter.started(attempts, at)
        except Exception:  # they run all the same
            _logger.exception("The start of %d jobs could not be reported.", len(attempts))

    def _refuse(self, lease: Lease) -> None:
        """The store gave a job of a task that was not claimed: its record is damaged. Only this lease is given back."""
        _logger.error(
            "Job %s of queue %s was claimed, but its record names the task %r, which this worker does not have. Its "
            "record may be damaged. It is given back, and tried again in %d s.",
            shown(lease.id),
            shown(lease.queue),
            shown(lease.task),
            UNUSABLE_LEASE_DELAY_US // SECOND,
        )
        outcome = Snoozed(UNUSABLE_LEASE_DELAY_US, None, "The worker does not have the task that the record names.")
        self._unusable.append(decide(outcome, lease, RetryPolicy(), now=0, draw=0.0))
        self.waker.wake()

    async def _give_back_unusable(self) -> None:
        """In a call of their own: the store may refuse a damaged record, and then the lease expires."""
        settlements = self._unusable[:MAX_SETTLEMENTS]
        try:
            await self._resender.send(settlements)
        except Exception:
            _logger.exception("%d leases could not be given back; they will expire.", len(settlements))
        del self._unusable[: len(settlements)]

    def start_waiting(self) -> None:
        """Start the waiting attempts that may start now. The next exchange sends their starts to the store."""
        startable = self._slots.pop_startable() if self._accepting and not self.suspects.waits else ()
        if startable:
            self.suspects.note_start()
            self._started += [attempt for attempt in startable if attempt.lease.state is JobState.ASSIGNED]
            self._report_started(startable, self.engine_now())
            self._runner.run(startable)

    def _check_idle(self) -> None:
        if self.on_idle is None or self.has_unsettled or self._claims.is_paused():
            return
        if self._accepting and self._slots.idle:
            self.on_idle()

    def _next_poll(self, claim: Claim | None, answer: ExchangeAnswer) -> float | None:
        if self._unsettled or self._unusable:
            return 0
        if claim is None or not self._slots.free_slots:
            return None
        poll_s = self._poll_s() if self._polled_before else min(self._poll_s(), SECOND_POLL_S)
        self._polled_before = True
        if answer.next_due is None:
            return poll_s
        return min(poll_s, max(MIN_POLL_S, (answer.next_due - answer.at.wall) / SECOND))

    # Aborting

    def abort(self, attempt: LeasedAttempt, reason: AbortReason) -> None:
        """Abort an attempt. Call from the loop's thread only."""
        if attempt.mark(reason):
            self.interrupt(attempt)

    def interrupt(self, attempt: LeasedAttempt) -> None:
        """Stop an attempt that was marked, perhaps by another thread. Call from the loop's thread only."""
        lost = attempt.abort_reason is AbortReason.OWNERSHIP_LOST
        if lost:
            self._reporter.ownership_lost(attempt, self.engine_now())
        if self._slots.take_back(attempt):
            if lost:
                self._report_loss(attempt, LostLease(started=False))
            else:
                cancelled = attempt.abort_reason is AbortReason.CANCEL
                self.settle_unstarted(attempt, CancelledByHandler() if cancelled else Released())
        attempt.interrupt()
        self._on_abort(attempt)

    def release_unstarted(self, attempt: LeasedAttempt) -> None:
        """Its queue or lane is paused: release it if its handler has not started."""
        if attempt.settlement is None and self._slots.take_back(attempt):
            self.settle_unstarted(attempt)

    async def take_unanswered(self) -> None:
        """Get the leases of claims whose call was cancelled, so that they can be released. The worker ends."""
        while self._unanswered_claims:
            await self.exchange([], [], self.next_claim())
        if self._unusable:
            await self._give_back_unusable()

    def stop_accepting(self) -> None:
        """Claim nothing more, and release the attempts that have not started."""
        self._accepting = False
        self._give_back_unstarted()
        self.waker.wake()

    def _give_back_unstarted(self) -> None:
        for attempt in self._runner.take_back_all():
            self._slots.end(attempt)
            self.settle_unstarted(attempt)
        for attempt in self._slots.take_back_all():
            self.settle_unstarted(attempt)
