"""The exchange: the only hot call. It settles what has ended and claims for the slots that are free, in one round trip.

Batches form by themselves. While an exchange is in flight, outcomes and free slots gather, and the next one takes them
all (in bounded pieces). A lone job is settled at once, a hundred short ones share a commit. Where a store takes several
writers, a large batch is settled by one call while another one claims, side by side (decision 0010).

    handlers end ──► outbox ─┐                    ┌─► news: events, hooks, empty queues
    slots free up ─► claim  ─┴─► engine.exchange ─┴─► leases ─► runner
"""

import logging
from collections.abc import Callable, Sequence

from holdfast.context import AbortReason
from holdfast.model.instants import SECOND, At
from holdfast.model.outcome import CancelledByHandler, Outcome, Refused, Released, Succeeded, decide
from holdfast.model.states import JobState, Reason
from holdfast.model.text import describe
from holdfast.model.work import Claim, ExchangeAnswer, Lease, Settlement, SettleStatus, Start, StartStatus
from holdfast.runtime import Runtime
from holdfast.service import Service, breathe
from holdfast.worker.attempt import Attempt, fence_age
from holdfast.worker.claims import Claims
from holdfast.worker.courier import Courier
from holdfast.worker.execute import Executor
from holdfast.worker.news import News
from holdfast.worker.outbox import Outbox
from holdfast.worker.plan import Plan
from holdfast.worker.runner import Runner
from holdfast.worker.slots import Slots

SHORTEST_LOOK = 0.001
SECOND_LOOK = 0.1
"""After the first that finds nothing: who enqueued just as this worker began to listen may not have told it."""
MANY = 32
"""So many outcomes are worth a call of their own."""

_logger = logging.getLogger("holdfast.worker")


class Exchanger(Service):
    """Between the slots and the engine."""

    name = "exchange"

    def __init__(
        self,
        runtime: Runtime,
        *,
        courier: Courier,
        slots: Slots,
        claims: Claims,
        plans: dict[str, Plan],
        news: News,
        poll: float,
        timed: Callable[[Attempt], None],
        told_to_stop: Callable[[Attempt], None],
        found_nothing: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(runtime)
        self._courier = courier
        self._slots = slots
        self._claims = claims
        self._plans = plans
        self._news = news
        self._poll = poll
        self._told_to_stop = told_to_stop
        self._found_nothing = found_nothing
        """Called when nothing runs, nothing is under way, and a claim has brought nothing."""
        self._runner = Runner(runtime, Executor(runtime, done=self.done, timed=timed))
        self._outbox = Outbox()
        self._started: list[Attempt] = []
        self._accepting = True
        self._in_flight = 0
        self._telling = 0
        self._looked = False
        self.beside: Service | None = None
        """Claims while this one settles."""
        self.progress: Callable[[], None] | None = None
        """Called when something has ended or was settled. Set while the worker stops."""
        self._seen = At(0, 0)
        self._seen_at = 0

    @property
    def settling(self) -> bool:
        """Something has ended and is not settled yet, may come back from an exchange under way, or is being told of."""
        return bool(self._outbox) or self._in_flight > 0 or self._telling > 0

    def engine_now(self) -> int:
        """The engine's wall clock, as far as it can be known without asking."""
        return self._seen.wall + self.runtime.monotonic() - self._seen_at

    # What comes from the handlers

    def done(self, attempt: Attempt, outcome: Outcome) -> None:
        """A handler has ended. Its slot is free; its outcome goes out with the next exchange."""
        attempt.runner = None
        self._slots.end(attempt)
        if attempt.abort_reason is AbortReason.OWNERSHIP_LOST and not attempt.committed:
            self._slots.drop(attempt)  # whoever has the job now will settle it
        elif attempt.settlement is None:  # else it was given back already, as the worker stopped
            if self._news.listening and attempt.began is not None:
                attempt.ran = self.runtime.monotonic() - attempt.began
            attempt.settlement = self._decide(attempt, outcome)
            self._outbox.put(attempt)
        self.waker.wake()
        if self.progress is not None:
            self.progress()

    def give_back(self, attempt: Attempt, outcome: Outcome = Released()) -> None:  # noqa: B008 - frozen
        """Settle a lease whose handler never began."""
        attempt.settlement = self._decide(attempt, outcome)
        self._outbox.put(attempt)
        self.waker.wake()

    def _decide(self, attempt: Attempt, outcome: Outcome) -> Settlement:
        if attempt.committed and attempt.told is not None:
            return attempt.told  # the store has it already, and will say so
        policy = attempt.plan.policy
        simple = type(outcome) is Succeeded  # then neither clock nor dice matter
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
            return decide(Refused(Reason.ERROR, describe(error)), attempt.lease, policy.retry, now=0, draw=0.0)

    # One exchange

    async def tick(self) -> float | None:
        if self._accepting:
            self._call_up()
        apart = False
        if self.beside is not None and len(self._outbox) >= MANY:
            apart = True
            self.beside.wake()
            await breathe()  # the claim goes out first: handlers wait for it
        batch = self._outbox.next_batch()
        started, self._started = [attempt for attempt in self._started if attempt.settlement is None], []
        claim = self._claims.make() if self._accepting and not apart else None
        if claim is None and not batch and not started:
            self._notice_nothing()
            return None
        delay = await self._exchange(batch, started, claim)
        if claim is not None:  # else a claim beside this one may not have seen what has just been let go
            self._notice_nothing()
        return delay

    async def claim_beside(self) -> None:
        """Only claim, while a large batch is being settled."""
        claim = self._claims.make() if self._accepting else None
        if claim is not None:
            await self._exchange([], [], claim)
            if self._slots.free:
                self.wake()  # there was less than asked for: when to look again is up to us

    async def _exchange(self, batch: list[Attempt], started: list[Attempt], claim: Claim | None) -> float | None:
        """One round trip; answers when to look again."""
        settlements: Sequence[Settlement] = [a.settlement for a in batch if a.settlement is not None]
        starts = [Start(attempt.lease.queue, attempt.lease.id, attempt.lease.token) for attempt in started]
        self._news.refresh()
        sent = self.runtime.boot()
        room = 0 if claim is None else claim.limit
        self._slots.promised += room
        self._in_flight += 1
        try:
            answer, settlements = await self._courier.send(settlements, starts, claim)
        except BaseException:
            self._outbox.put_back(batch)
            self._started = started + self._started
            raise
        finally:
            self._in_flight -= 1
            self._slots.promised -= room
        self._seen, self._seen_at = answer.at, self.runtime.monotonic()
        self._settled(batch, settlements, answer)
        for attempt, status in zip(started, answer.started, strict=True):
            self._heard(attempt, status)
        self._arrived(answer.leases, sent)
        self._telling += 1
        try:
            await self._news.after(settlements, answer)
        finally:
            self._telling -= 1
        if self.progress is not None:
            self.progress()
        return self._next_look(claim, answer)

    def _settled(self, batch: list[Attempt], settlements: Sequence[Settlement], answer: ExchangeAnswer) -> None:
        held, news = self._slots.held, self._news
        told = news.listening
        for attempt, settlement, settled in zip(batch, settlements, answer.settled, strict=True):
            held.pop(settlement.token, None)
            if told or settled is not SettleStatus.APPLIED or settlement.target is not JobState.SUCCEEDED:
                news.settled(attempt, settlement, settled, answer.at.wall)

    def _heard(self, attempt: Attempt, status: StartStatus) -> None:
        """What the engine says to the start of a prefetched job. It runs already, so a pause comes too late for it."""
        if status is StartStatus.LOST:
            self.abort(attempt, AbortReason.OWNERSHIP_LOST)
        elif status is StartStatus.CANCEL:
            self.abort(attempt, AbortReason.CANCEL)

    def _arrived(self, leases: Sequence[Lease], sent: int) -> None:
        if not leases:
            return
        plans, slots = self._plans, self._slots
        late = self.runtime.boot() - sent
        ready: list[Attempt] = []
        for lease in leases:
            attempt = Attempt(lease, plans[lease.task], sent)
            if not self._accepting or (late > SECOND and late > fence_age(lease.lease_len)):
                slots.held[lease.token] = attempt
                self.give_back(attempt)  # the worker stops, or the answer took so long that this lease is old
            elif slots.admit(attempt):
                ready.append(attempt)
        if ready:
            self._news.started(ready, self._seen.wall)
            self._runner.run(ready)
        if slots.assigned:
            self._news.assigned(leases, self._seen.wall)

    def _call_up(self) -> None:
        """Run what waited. The start of a prefetched job is told with this exchange, and nobody waits for that."""
        called = self._slots.call_up()
        if called:
            self._started += [attempt for attempt in called if attempt.lease.state is JobState.ASSIGNED]
            self._news.started(called, self.engine_now())
            self._runner.run(called)

    def _notice_nothing(self) -> None:
        if self._found_nothing is None or self._in_flight or self._outbox:
            return
        if self._accepting and self._slots.idle:
            self._found_nothing()

    def _next_look(self, claim: Claim | None, answer: ExchangeAnswer) -> float | None:
        if self._outbox:
            return 0
        if claim is None or not self._slots.free:
            return None
        poll = self._poll if self._looked else min(self._poll, SECOND_LOOK)
        self._looked = True
        if answer.next_due is None:
            return poll
        return min(poll, max(SHORTEST_LOOK, (answer.next_due - answer.at.wall) / SECOND))

    # Stopping what runs

    def abort(self, attempt: Attempt, reason: AbortReason) -> None:
        """Tell an attempt to stop. From the loop's thread only."""
        if attempt.mark(reason):
            self.interrupt(attempt)

    def interrupt(self, attempt: Attempt) -> None:
        """The attempt has been marked, perhaps by another thread: now reach it."""
        lost = attempt.abort_reason is AbortReason.OWNERSHIP_LOST
        if lost:
            self._news.ownership_lost(attempt, self.engine_now())
        if self._slots.take_back(attempt):
            if lost:
                self._slots.drop(attempt)
            else:
                wanted = attempt.abort_reason is not AbortReason.CANCEL
                self.give_back(attempt, Released() if wanted else CancelledByHandler())
        attempt.interrupt()
        self._told_to_stop(attempt)

    def hold(self, attempt: Attempt) -> None:
        """Its queue or lane is paused: give it back if it has not begun."""
        if attempt.settlement is None and self._slots.take_back(attempt):
            self.give_back(attempt)

    def stop_accepting(self) -> None:
        """No further claims; what waits for its turn is given back."""
        self._accepting = False
        for attempt in self._runner.withdraw():
            self._slots.end(attempt)
            self.give_back(attempt)
        for attempt in self._slots.withdraw():
            self.give_back(attempt)
        self.waker.wake()


class Beside(Service):
    """Claims while the exchanger settles, for stores that take several writers."""

    name = "claim"

    def __init__(self, runtime: Runtime, exchanger: Exchanger) -> None:
        super().__init__(runtime)
        self._exchanger = exchanger

    async def tick(self) -> float | None:
        await self._exchanger.claim_beside()
        return None
