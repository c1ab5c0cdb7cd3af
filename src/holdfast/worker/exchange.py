"""The exchange: the only hot call. It settles what has ended and claims for the slots that are free, in one round trip.

Batches form by themselves. While an exchange is in flight, outcomes and free slots gather, and the next one takes them
all (in bounded pieces). A lone job is settled at once, a hundred short ones share a commit. Where a store takes several
writers, a large batch is settled by one call while another one claims, side by side (decision 0010).

    handlers end ──► outbox ─┐                    ┌─► reporter: events, hooks, empty queues
    slots free up ─► claim  ─┴─► engine.exchange ─┴─► leases ─► runner
"""

import logging
from collections.abc import Callable, Sequence

from holdfast.context import AbortReason
from holdfast.model.instants import SECOND, At
from holdfast.model.outcome import CancelledByHandler, NotRetryable, Outcome, Released, Returned, decide
from holdfast.model.states import JobState, Reason
from holdfast.model.text import describe
from holdfast.model.work import Claim, ExchangeAnswer, Lease, Settlement, SettleStatus, Start, StartStatus
from holdfast.runtime import Runtime
from holdfast.service import Service, breathe
from holdfast.worker.attempt import LeasedAttempt, fence_age
from holdfast.worker.claims import Claims
from holdfast.worker.execute import Executor
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.reporting import Reporter
from holdfast.worker.resend import Resender
from holdfast.worker.runner import AttemptRunner
from holdfast.worker.slots import Slots
from holdfast.worker.unsettled import UnsettledAttempts

MIN_POLL_S = 0.001
SECOND_POLL_S = 0.1
"""After the first that finds nothing: who enqueued just as this worker began to listen may not have told it."""
SETTLE_SEPARATELY_FROM = 32
"""So many outcomes are worth a call of their own."""

_logger = logging.getLogger("holdfast.worker")


class Exchanger(Service):
    """Between the slots and the engine."""

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
        poll: float,
        watch_deadline: Callable[[LeasedAttempt], None],
        on_abort: Callable[[LeasedAttempt], None],
        on_idle: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(runtime)
        self._resender = resender
        self._slots = slots
        self._claims = claims
        self._plans = plans
        self._reporter = reporter
        self._poll = poll
        self._on_abort = on_abort
        self._on_idle = on_idle
        """Called when nothing runs, nothing is under way, and a claim has brought nothing."""
        self._runner = AttemptRunner(runtime, Executor(runtime, done=self.done, watch_deadline=watch_deadline))
        self._unsettled = UnsettledAttempts()
        self._started: list[LeasedAttempt] = []
        self._accepting = True
        self._in_flight = 0
        self._reports_in_flight = 0
        self._polled_before = False
        self.parallel_claim: Service | None = None
        """Claims while this one settles."""
        self.on_progress: Callable[[], None] | None = None
        """Called when something has ended or was settled. Set while the worker stops."""
        self._engine_at = At(0, 0)
        self._engine_at_read = 0

    @property
    def has_unsettled(self) -> bool:
        """Something has ended and is not settled yet, may come back from an exchange under way, or is being told of."""
        return bool(self._unsettled) or self._in_flight > 0 or self._reports_in_flight > 0

    def engine_now(self) -> int:
        """The engine's wall clock, as far as it can be known without asking."""
        return self._engine_at.wall + self.runtime.monotonic() - self._engine_at_read

    # What comes from the handlers

    def done(self, attempt: LeasedAttempt, outcome: Outcome) -> None:
        """A handler has ended. Its slot is free; its outcome goes out with the next exchange."""
        attempt.loop_task = None
        self._slots.end(attempt)
        if attempt.abort_reason is AbortReason.OWNERSHIP_LOST and not attempt.committed:
            self._slots.drop(attempt)  # whoever has the job now will settle it
        elif attempt.settlement is None:  # else it was given back already, as the worker stopped
            if self._reporter.listening and attempt.began_at is not None:
                attempt.ran_us = self.runtime.monotonic() - attempt.began_at
            attempt.settlement = self._decide(attempt, outcome)
            self._unsettled.put(attempt)
        self.waker.wake()
        if self.on_progress is not None:
            self.on_progress()

    def give_back(self, attempt: LeasedAttempt, outcome: Outcome = Released()) -> None:  # noqa: B008 - frozen
        """Settle a lease whose handler never began."""
        attempt.settlement = self._decide(attempt, outcome)
        self._unsettled.put(attempt)
        self.waker.wake()

    def _decide(self, attempt: LeasedAttempt, outcome: Outcome) -> Settlement:
        if attempt.committed and attempt.transaction_settlement is not None:
            return attempt.transaction_settlement  # the store has it already, and will say so
        policy = attempt.plan.policy
        simple = type(outcome) is Returned  # then neither clock nor dice matter
        try:
            return decide(
                outcome,
                attempt.lease,
                policy.retry,
                now=0 if simple else self.engine_now(),
                draw=0.0 if simple else self.runtime.random(),
                result_ttl=policy.result_ttl,
                retention=policy.retention,
                failed_retention=policy.failed_retention,
            )
        except Exception as error:  # an exception class that cannot even be compared
            _logger.exception("Job %s: its outcome could not be judged, so it fails.", attempt.lease.id)
            return decide(NotRetryable(Reason.ERROR, describe(error)), attempt.lease, policy.retry, now=0, draw=0.0)

    # One exchange

    async def tick(self) -> float | None:
        if self._accepting:
            self._start_waiting()
        apart = False
        if self.parallel_claim is not None and len(self._unsettled) >= SETTLE_SEPARATELY_FROM:
            apart = True
            self.parallel_claim.wake()
            await breathe()  # the claim goes out first: handlers wait for it
        batch = self._unsettled.next_batch()
        started, self._started = [attempt for attempt in self._started if attempt.settlement is None], []
        claim = self._claims.make() if self._accepting and not apart else None
        if claim is None and not batch and not started:
            self._check_idle()
            return None
        delay = await self._exchange(batch, started, claim)
        if claim is not None:  # else a claim beside this one may not have seen what has just been let go
            self._check_idle()
        return delay

    async def claim_in_parallel(self) -> None:
        """Only claim, while a large batch is being settled."""
        claim = self._claims.make() if self._accepting else None
        if claim is not None:
            await self._exchange([], [], claim)
            if self._slots.free_slots:
                self.wake()  # there was less than asked for: when to look again is up to us

    async def _exchange(
        self, batch: list[LeasedAttempt], started: list[LeasedAttempt], claim: Claim | None
    ) -> float | None:
        """One round trip; answers when to look again."""
        settlements: Sequence[Settlement] = [a.settlement for a in batch if a.settlement is not None]
        starts = [Start(attempt.lease.queue, attempt.lease.id, attempt.lease.token) for attempt in started]
        self._reporter.refresh()
        sent = self.runtime.boot()
        room = 0 if claim is None else claim.limit
        self._slots.reserved += room
        self._in_flight += 1
        try:
            answer, settlements = await self._resender.send(settlements, starts, claim)
        except BaseException:
            self._unsettled.put_back(batch)
            self._started = started + self._started
            raise
        finally:
            self._in_flight -= 1
            self._slots.reserved -= room
        self._engine_at, self._engine_at_read = answer.at, self.runtime.monotonic()
        self._report_settled(batch, settlements, answer)
        for attempt, status in zip(started, answer.started, strict=True):
            self._apply_start_status(attempt, status)
        self._start_leases(answer.leases, sent)
        self._reports_in_flight += 1
        try:
            await self._reporter.after(settlements, answer)
        finally:
            self._reports_in_flight -= 1
        if self.on_progress is not None:
            self.on_progress()
        return self._next_poll(claim, answer)

    def _report_settled(
        self, batch: list[LeasedAttempt], settlements: Sequence[Settlement], answer: ExchangeAnswer
    ) -> None:
        held, reporter = self._slots.attempts, self._reporter
        told = reporter.listening
        for attempt, settlement, settled in zip(batch, settlements, answer.settled, strict=True):
            held.pop(settlement.token, None)
            if told or settled is not SettleStatus.APPLIED or settlement.target is not JobState.SUCCEEDED:
                reporter.settled(attempt, settlement, settled, answer.at.wall)

    def _apply_start_status(self, attempt: LeasedAttempt, status: StartStatus) -> None:
        """What the engine says to the start of a prefetched job. It runs already, so a pause comes too late for it."""
        if status is StartStatus.LOST:
            self.abort(attempt, AbortReason.OWNERSHIP_LOST)
        elif status is StartStatus.CANCEL:
            self.abort(attempt, AbortReason.CANCEL)

    def _start_leases(self, leases: Sequence[Lease], sent: int) -> None:
        if not leases:
            return
        plans, slots = self._plans, self._slots
        late = self.runtime.boot() - sent
        ready: list[LeasedAttempt] = []
        for lease in leases:
            attempt = LeasedAttempt(lease, plans[lease.task], sent)
            if not self._accepting or (late > SECOND and late > fence_age(lease.lease_len)):
                slots.attempts[lease.token] = attempt
                self.give_back(attempt)  # the worker stops, or the answer took so long that this lease is old
            elif slots.admit(attempt):
                ready.append(attempt)
        if ready:
            self._reporter.started(ready, self._engine_at.wall)
            self._runner.run(ready)
        if slots.assigned:
            self._reporter.assigned(leases, self._engine_at.wall)

    def _start_waiting(self) -> None:
        """Run what waited. The start of a prefetched job is told with this exchange, and nobody waits for that."""
        startable = self._slots.pop_startable()
        if startable:
            self._started += [attempt for attempt in startable if attempt.lease.state is JobState.ASSIGNED]
            self._reporter.started(startable, self.engine_now())
            self._runner.run(startable)

    def _check_idle(self) -> None:
        if self._on_idle is None or self._in_flight or self._unsettled:
            return
        if self._accepting and self._slots.idle:
            self._on_idle()

    def _next_poll(self, claim: Claim | None, answer: ExchangeAnswer) -> float | None:
        if self._unsettled:
            return 0
        if claim is None or not self._slots.free_slots:
            return None
        poll = self._poll if self._polled_before else min(self._poll, SECOND_POLL_S)
        self._polled_before = True
        if answer.next_due is None:
            return poll
        return min(poll, max(MIN_POLL_S, (answer.next_due - answer.at.wall) / SECOND))

    # StopRequest what runs

    def abort(self, attempt: LeasedAttempt, reason: AbortReason) -> None:
        """Tell an attempt to stop. From the loop's thread only."""
        if attempt.mark(reason):
            self.interrupt(attempt)

    def interrupt(self, attempt: LeasedAttempt) -> None:
        """The attempt has been marked, perhaps by another thread: now reach it."""
        lost = attempt.abort_reason is AbortReason.OWNERSHIP_LOST
        if lost:
            self._reporter.ownership_lost(attempt, self.engine_now())
        if self._slots.take_back(attempt):
            if lost:
                self._slots.drop(attempt)
            else:
                wanted = attempt.abort_reason is not AbortReason.CANCEL
                self.give_back(attempt, Released() if wanted else CancelledByHandler())
        attempt.interrupt()
        self._on_abort(attempt)

    def release_unstarted(self, attempt: LeasedAttempt) -> None:
        """Its queue or lane is paused: give it back if it has not begun."""
        if attempt.settlement is None and self._slots.take_back(attempt):
            self.give_back(attempt)

    def stop_accepting(self) -> None:
        """No further claims; what waits for its turn is given back."""
        self._accepting = False
        for attempt in self._runner.take_back_all():
            self._slots.end(attempt)
            self.give_back(attempt)
        for attempt in self._slots.take_back_all():
            self.give_back(attempt)
        self.waker.wake()


class ParallelClaim(Service):
    """Claims while the exchanger settles, for stores that take several writers."""

    name = "claim"

    def __init__(self, runtime: Runtime, exchanger: Exchanger) -> None:
        super().__init__(runtime)
        self._exchanger = exchanger

    async def tick(self) -> float | None:
        await self._exchanger.claim_in_parallel()
        return None
