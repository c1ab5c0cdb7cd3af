"""A lease: a job that your own code has claimed. Read the payload, do the work, then settle it.

    for lease in scans.leases():
        with lease:
            lease.complete(scan(lease.payload))

The verbs are those that a handler can raise, under the same policy. Each ends the lease. At the end of a `with` block
the job is completed; if the block raises, the job is retried or failed by policy, and the exception is raised again.
Inside such a block, and from `queue.leases()`, the lease is renewed in the background; a lease from `queue.claim()`
expires after the length of the claim, unless you `renew` it.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from contextvars import Token
from dataclasses import replace
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

from holdfast.blocking import ALLOW, blocking, run_coroutine
from holdfast.context import CURRENT, AbortReason
from holdfast.core.connection import StoreConnection
from holdfast.core.transaction import perform_in_transaction
from holdfast.declare.payload import PayloadTask
from holdfast.durations import Duration
from holdfast.errors import (
    Aborted,
    BlockingCall,
    Cancel,
    GiveUp,
    HoldfastError,
    Interrupt,
    LeaseLost,
    Retry,
    Snooze,
    UsageError,
    duration_us,
)
from holdfast.isolation.handler_errors import unwrapped
from holdfast.model.instants import At
from holdfast.model.outcome import CancelledByHandler, Outcome, Released, RetryRequested, Returned, decide
from holdfast.model.states import JobState
from holdfast.model.text import describe, shown
from holdfast.model.work import Exchange, Renewal, RenewStatus, Settlement, SettleStatus, Start, StartStatus
from holdfast.pull.worker import PullWorker, locked_error
from holdfast.transactions import UserConnection
from holdfast.views import Job, moment
from holdfast.worker.attempt import LeasedAttempt, fence_age
from holdfast.worker.outcomes import raised, with_progress

T = TypeVar("T")
R = TypeVar("R")

LOST = "lost"

_logger = logging.getLogger("holdfast.pull")


class Lease(Generic[T]):
    """The lease of one attempt on `payload`, the value that was enqueued. It must not be shared between threads."""

    def __init__(
        self,
        store: StoreConnection,
        pull_worker: PullWorker,
        task: PayloadTask[T],
        attempt: LeasedAttempt,
        payload: T,
        at: At,
    ) -> None:
        """`at`: the engine's time when it was claimed."""
        self._store = store
        self._pull_worker = pull_worker
        self._task = task
        self._attempt = attempt
        self._verb = ""
        """The verb that settled it; empty: not settled yet."""
        self._expires = at.wall + attempt.lease.lease_expires - at.lease - attempt.renewed_at
        self._outer: list[Token[Any]] = []
        self._transaction: UserConnection | None = None
        self._following: Callable[[], Lease[T] | None] = lambda: None
        self.payload = payload
        if attempt.lease.state is JobState.RUNNING:
            self._begins(at.wall)

    # Facts

    @property
    def job(self) -> Job:
        """The job as it was when this attempt began."""
        job = Job.from_lease(self._attempt.lease, self._store.codec_named)
        return replace(job, state=JobState.RUNNING) if self._begun else job

    @property
    def attempt(self) -> int:
        """Which run of the job this is, from 1."""
        return self._attempt.lease.attempt

    @property
    def fence(self) -> int:
        """Grows with every lease of this job and this lane: give it to systems that can refuse a smaller one."""
        return self._attempt.lease.fence

    @property
    def expires_at(self) -> datetime:
        """When another worker may take the job, unless the lease is renewed before."""
        return moment(self._expires + self._attempt.renewed_at)

    @property
    def settled(self) -> bool:
        """True if one of the verbs has ended it."""
        return bool(self._verb) or self._attempt.transaction_settlement is not None

    @property
    def aborted(self) -> bool:
        """True if the work should stop: the lease is lost or about to be, or the job has a cancel request."""
        return self.abort_reason is not None

    @property
    def abort_reason(self) -> AbortReason | None:
        attempt = self._attempt
        if self._store.runtime.boot() - attempt.renewed_at >= fence_age(attempt.lease.lease_len):
            attempt.mark(AbortReason.OWNERSHIP_LOST)
        return attempt.abort_reason

    def check(self) -> None:
        """Raise `Aborted` once the work should stop."""
        reason = self.abort_reason
        if reason is not None:
            raise Aborted(reason.value)

    def progress(self, fraction: float, note: str = "") -> None:
        """Report progress from 0 to 1. It is stored within about a second, and the last one with the job's end."""
        self._attempt.context.progress(fraction, note)

    # Verbs

    async def acomplete(self, /, result: Any = None, *, transaction: Any | None = None) -> None:
        """End the job as succeeded, with this result; with `transaction`: if, and only if, that one commits."""
        self._check_open("complete")
        outcome = Returned(self._task.encode_result(result, self._attempt.lease.codec))
        if transaction is None:
            await self._settle("completed", outcome)
        else:
            await self._settle_in(transaction, outcome)

    complete = blocking(acomplete)

    async def aretry(self, /, error: str | BaseException = "", *, delay: Duration | None = None) -> None:
        """End the attempt as failed: the job is tried again after `delay` or the back-off, while attempts are left."""
        if isinstance(error, str):
            outcome = raised(self._attempt, Retry(error, delay=delay))
        elif delay is None:
            outcome = self._outcome_of(error)
        else:
            outcome = RetryRequested("", duration_us(delay, "delay"), describe(error))
        await self._settle("retried", outcome)

    retry = blocking(aretry)

    async def asnooze(self, /, *, delay: Duration | None = None, at: datetime | None = None) -> None:
        """Postpone the job: it can be claimed again after `delay` or at `at`. Costs no attempt."""
        await self._settle("snoozed", raised(self._attempt, Snooze(delay=delay, at=at)))

    snooze = blocking(asnooze)

    async def agive_up(self, /, reason: str) -> None:
        """End the job as failed, even if attempts are left: it is a dead letter."""
        await self._settle("given up", raised(self._attempt, GiveUp(reason)))

    give_up = blocking(agive_up)

    async def acancel(self, /, reason: str = "") -> None:
        """End the job as cancelled."""
        await self._settle("cancelled", raised(self._attempt, Cancel(reason)))

    cancel = blocking(acancel)

    async def arelease(self, /) -> None:
        """Release the job for another worker. Costs no attempt."""
        await self._settle("released", Released())

    release = blocking(arelease)

    async def arenew(self, /) -> None:
        """Extend the lease by its whole length from now."""
        self._check_open("renew")
        attempt, lease = self._attempt, self._attempt.lease
        progress, sent_at = attempt.progress, self._store.runtime.boot()
        engine = await self._store.engine()
        new_progress = None if progress is attempt.sent_progress else progress
        (renewed,) = (await engine.renew(Renewal(lease.queue, lease.id, lease.token, new_progress))).jobs
        if renewed.status is RenewStatus.LOST:
            self._lose()
            self._check_open("renew")
        if renewed.status is RenewStatus.BUSY:
            raise locked_error(lease.id, lease.queue)
        attempt.renewed_at, attempt.sent_progress = sent_at, progress
        if renewed.status is RenewStatus.CANCEL:
            attempt.mark(AbortReason.CANCEL)

    renew = blocking(arenew)

    def _check_open(self, verb: str) -> None:
        lease = self._attempt.lease
        if self._verb == LOST:
            raise LeaseLost(job_id=lease.id, queue=lease.queue)
        if self._verb:
            raise UsageError(f"Cannot {verb} job {lease.id!r}: this lease was {self._verb} already.")

    def _lose(self) -> None:
        self._attempt.mark(AbortReason.OWNERSHIP_LOST)
        self._pull_worker.drop(self._attempt)
        self._verb = LOST

    async def _settle(self, verb: str, outcome: Outcome) -> None:
        """Write the settlement; if that fails, the lease stays open and the verb may be called again."""
        self._check_open("settle")
        attempt, runtime = self._attempt, self._store.runtime
        settlement = self._decide(outcome)
        engine = await self._store.engine()
        following = self._following()  # the next lease starts with the same write
        starts = () if following is None else (following._start,)
        answer = await engine.exchange((settlement,), starts)
        if answer.settled[0] is SettleStatus.BUSY:
            raise locked_error(settlement.id, settlement.queue)
        self._verb = verb
        self._pull_worker.drop(attempt)
        attempt.settlement = settlement
        attempt.ran_us = 0 if attempt.began_at is None else runtime.monotonic() - attempt.began_at
        if following is not None and answer.started == (StartStatus.STARTED,):
            following._begins(answer.at.wall)
        reporter = self._pull_worker.reporter(engine)
        reporter.settled(attempt, settlement, answer.settled[0], answer.at.wall)
        await reporter.after_exchange((settlement,), answer)
        if answer.settled[0] in (SettleStatus.LOST, SettleStatus.GONE):
            self._lose()
            self._check_open("settle")

    def _decide(self, outcome: Outcome) -> Settlement:
        policy, runtime = self._attempt.plan.policy, self._store.runtime
        settlement = decide(
            outcome,
            self._attempt.lease,
            policy.retry,
            now=runtime.wall(),
            draw=runtime.random(),
            result_ttl=policy.result_ttl,
            retention=policy.retention,
            failed_retention=policy.failed_retention,
        )
        return with_progress(self._attempt, settlement)

    async def _settle_in(self, transaction: Any, outcome: Outcome) -> None:
        """The user commits. The lease is no longer renewed; without a commit it expires."""
        settlement = self._decide(outcome)
        answer, user = await perform_in_transaction(self._store, Exchange(settlements=(settlement,)), transaction)
        if answer.settled[0] is not SettleStatus.APPLIED:
            self._lose()
            self._check_open("settle")
        self._pull_worker.drop(self._attempt)
        self._attempt.transaction_settlement = settlement
        self._transaction = user
        reporter = self._pull_worker.reporter(self._store.process.engine)
        user.after_commit(lambda: reporter.settled(self._attempt, settlement, SettleStatus.APPLIED, answer.at.wall))

    async def _stands(self) -> bool:
        """True if the transaction in which it was completed is committed, or still open."""
        lease = self._attempt.lease
        if self._transaction is not None and self._transaction.is_open:  # a read here could wait for it
            return True
        (record,) = (await (await self._store.engine()).get(lease.job_key)).jobs
        return record is None or record.settled_token == lease.token

    # Start

    def _wait_for_turn(self) -> None:
        """Renew it while it waits for its turn."""
        self._pull_worker.keep(self._attempt, unstarted=True)

    async def _give_back(self) -> None:
        """Release it unused. Called by its stream or by the App that closes; only the first call counts."""
        if self._pull_worker.mark_started(self._attempt):
            await self.arelease()

    @property
    def _start(self) -> Start:
        lease = self._attempt.lease
        return Start(lease.queue, lease.id, lease.token)

    @property
    def _begun(self) -> bool:
        """True once it has started; a prefetched lease starts when its turn comes."""
        return self._attempt.began_at is not None

    def _begins(self, at: int) -> None:
        if self._attempt.began_at is None:
            self._attempt.began_at = self._store.runtime.monotonic()
            self._pull_worker.reporter(self._pull_worker.info.engine).started((self._attempt,), at)

    async def _begin(self, following: "Callable[[], Lease[T] | None]") -> bool:
        """Start it. False: it could not be started, and has been settled or lost."""
        self._following = following
        self._pull_worker.mark_started(self._attempt)
        if self._begun:
            return True
        engine = await self._store.engine()
        answer = await engine.exchange((), (self._start,))
        match answer.started[0]:
            case StartStatus.STARTED:
                self._begins(answer.at.wall)
                return True
            case StartStatus.LOST:
                self._lose()
            case StartStatus.CANCEL:
                await self._settle("cancelled", CancelledByHandler())
            case StartStatus.HOLD:
                await self.arelease()
            case StartStatus.BUSY:
                raise locked_error(self._start.id, self._start.queue)
        return False

    # A block

    def __enter__(self) -> Self:
        self._refuse_loop()
        return self._enter()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._exit()
        run_coroutine(self._left(error), self._store.loop_thread)

    async def __aenter__(self) -> Self:
        return self._enter()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._exit()
        try:
            await self._left(error)
        except asyncio.CancelledError:  # the outcome of the block is written all the same
            await self._pull_worker.run_through(lambda: self._left(error))
            raise

    def _refuse_loop(self) -> None:
        if asyncio._get_running_loop() is not None and os.environ.get(ALLOW) != "1":
            raise BlockingCall(
                "`with lease:` would block the running event loop. Use `async with` here.",
                method="with",
                twin="async with",
            )

    def _enter(self) -> Self:
        if not self._verb:
            self._pull_worker.keep(self._attempt)
        self._outer.append(CURRENT.set(self._attempt))
        return self

    def _exit(self) -> None:
        token = self._outer.pop()
        try:
            CURRENT.reset(token)
        except ValueError:  # entered in another context, as a generator may have been
            _logger.debug("The block of job %s ended in another context than it began.", shown(self._attempt.lease.id))

    async def _left(self, error: BaseException | None) -> None:
        if self._verb:
            return
        if self._attempt.transaction_settlement is not None:
            if await self._stands():
                self._verb = "completed"
                return
            self._attempt.transaction_settlement = None
            error = error or UsageError("The transaction in which this job was completed was not committed.")
        if error is None:
            await self.acomplete()
            return
        try:
            await self._settle("retried", self._outcome_of(error))
        except HoldfastError as trouble:  # the error of the block is the one to raise
            _logger.warning("The outcome of job %s could not be written: %s", shown(self._attempt.lease.id), trouble)

    def _outcome_of(self, error: BaseException) -> Outcome:
        """By policy; but an exception that ends the program or the asyncio task releases the job."""
        error = unwrapped(error)
        return raised(self._attempt, error) if isinstance(error, Exception | Interrupt) else Released()

    def __del__(self) -> None:
        if not getattr(self, "_verb", "unmade") and self._attempt.transaction_settlement is None:
            self._pull_worker.drop(self._attempt)
            if self._begun and not self._pull_worker.mark_started(self._attempt):
                _logger.warning(
                    "The lease on job %s was dropped without being settled: it expires, and costs an attempt.",
                    shown(self._attempt.lease.id),
                )

    def __repr__(self) -> str:
        lease = self._attempt.lease
        return f"<Lease on job {lease.id!r} of queue {lease.queue!r}, attempt {lease.attempt}>"
