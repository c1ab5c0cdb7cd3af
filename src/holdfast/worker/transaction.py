"""The transactions of one attempt: the handler's writes and the settlement of its job, in one commit.

    ctx.tx               begins at its first use; commits, with the settlement, when the handler returns
    ctx.transaction()    the same for a part of the handler. It commits when the handler returns, with the settlement,
                         or when the next part begins, without it
    ctx.complete(...)    writes the settlement into a transaction that the user commits

If the handler raises, open transactions are rolled back, and the job is settled as usual. If the lease is lost, the
store refuses the settlement, and the transaction is rolled back. So the writes that commit together with the settlement
are stored if and only if the job has succeeded.

All methods are coroutines. In a handler's thread there is no event loop, and they wait for nothing but the connection.
So `run_sync` runs them there to their end, in the thread that the connection belongs to.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from holdfast.context import AbortReason
from holdfast.core.transaction import adapt_for_call
from holdfast.engine import Engine
from holdfast.errors import BlockingCall, Interrupt, LeaseLost, UsageError
from holdfast.model.instants import SECOND, Instant
from holdfast.model.outcome import Outcome, Raised, Returned, decide
from holdfast.model.states import JobState
from holdfast.model.text import describe, shown
from holdfast.model.work import Exchange, Settlement, SettleStatus
from holdfast.runtime import Runtime
from holdfast.transactions import LazyTransaction
from holdfast.worker.open_transaction import OpenTransaction, open_on_engine, open_session
from holdfast.worker.outcomes import with_progress

if TYPE_CHECKING:
    from holdfast.worker.attempt import LeasedAttempt

T = TypeVar("T")

TAKE_BACK_AFTER_BUDGETS = 5
"""A transaction that blocks all other writers is rolled back after this many times the engine's budget."""

_logger = logging.getLogger("holdfast.worker")


class TransactionEnvironment(NamedTuple):
    """What transactions are made with."""

    engine: Engine
    runtime: Runtime
    on_settle: "Callable[[LeasedAttempt], object]" = lambda attempt: None
    """Called, from any thread, when a settlement was written into a transaction, before its commit."""


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, in this thread."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    coroutine.close()
    raise RuntimeError("A transaction needed an event loop in a thread that has none.")


def on_loop() -> bool:
    return asyncio._get_running_loop() is not None


class AttemptTransactions:
    """The transactions of one attempt. Its handler and its executor use it; the loop watcher's thread checks it."""

    def __init__(self, attempt: "LeasedAttempt", environment: TransactionEnvironment) -> None:
        self._attempt = attempt
        self._environment = environment
        self._opened: OpenTransaction | None = None
        self._in_block = False
        self._by_tx = False
        self._has_settlement = False
        """True if the open transaction already contains the settlement."""
        self.settled_at: Instant | None = None
        """The time that the store has recorded for the end of the job."""
        self.reported = False
        """True once the end of the job was reported."""

    # Called by the handler

    @property
    def tx(self) -> Any:
        """The task's transaction. In an async handler a transaction of the store must be awaited."""
        source = self._source
        if source is False:
            task = self._attempt.plan.name
            raise UsageError(f"Task {task!r} has no transaction. Declare it with transaction=True, or a sessionmaker.")
        if on_loop() and source is True:
            return LazyTransaction(self._tx)
        return run_sync(self._tx())

    async def _tx(self) -> Any:
        if self._opened is None:
            await self._open()
            self._by_tx = True
        assert self._opened is not None
        return self._opened.connection

    def block(self) -> "TransactionBlock":
        return TransactionBlock(self)

    async def enter(self) -> Any:
        """`with ctx.transaction()` begins. An earlier part is committed now, without the settlement."""
        if self._in_block:
            raise UsageError("A `ctx.transaction()` is open already. Use its connection.")
        if self._by_tx and self._opened is not None:
            raise UsageError("This attempt has its transaction already: use `ctx.tx`.")
        if self._opened is not None:
            await self._commit()
        opened = await self._open()
        self._in_block = True
        return opened.connection

    async def leave(self, error: BaseException | None) -> None:
        self._in_block = False
        if error is not None:
            await self.rollback(error)
        elif self._has_settlement:
            await self._commit()

    async def complete(self, result: Any, given: object) -> None:
        """Write a successful settlement with this result into the given transaction."""
        if isinstance(given, LazyTransaction):
            given = await given
        user = await adapt_for_call(given)
        here = self._opened is not None and given is self._opened.connection
        if here and self._has_settlement:
            raise UsageError(f"Job {self._attempt.lease.id!r} has been completed in this transaction already.")
        await self._settle(self._success(result), user)
        self._has_settlement = here

    @property
    def _source(self) -> Any:
        return getattr(self._attempt.plan.policy, "transaction", False)

    async def _open(self) -> OpenTransaction:
        source, environment = self._source, self._environment
        if callable(source):
            self._opened = await open_session(source)
        else:
            self._opened = await open_on_engine(environment.engine)
        self._opened.began_at = environment.runtime.monotonic()
        self._has_settlement = False
        return self._opened

    # Commit and roll back

    async def finish(self, value: Any) -> None:
        """The handler has returned: commit its writes together with the settlement.

        If the value is an interrupt, or the attempt was aborted, roll back instead.
        """
        attempt, opened = self._attempt, self._opened
        if opened is None:
            return
        aborted = attempt.abort_reason in (AbortReason.TIMEOUT, AbortReason.OWNERSHIP_LOST)
        if aborted or isinstance(value, Interrupt) or attempt.settlement is not None:
            await self.rollback(None)
            return
        if not self._has_settlement:
            try:
                success = self._success(value)
            except Exception:  # a result that cannot be stored: the worker fails the job
                await self.rollback(None)
                return
            try:
                await self._settle(success, await adapt_for_call(opened.connection))
            except BaseException as error:
                await self.rollback(error)
                raise
            self._has_settlement = True
        await self._commit()

    def _success(self, value: Any) -> Settlement:
        plan, lease = self._attempt.plan, self._attempt.lease
        settlement = decide(
            Returned(plan.encode(value, lease.codec)),
            lease,
            plan.policy.retry,
            now=0,
            draw=0.0,
            result_ttl=plan.policy.result_ttl,
            retention=plan.policy.retention,
        )
        return with_progress(self._attempt, settlement)

    async def _settle(self, settlement: Settlement, user: object) -> None:
        attempt, before = self._attempt, self._attempt.transaction_settlement
        attempt.transaction_settlement = settlement
        try:
            answer = await self._environment.engine.in_transaction(Exchange(settlements=(settlement,)), user)
            if answer.settled[0] is not SettleStatus.APPLIED:
                raise LeaseLost(job_id=settlement.id, queue=settlement.queue)
            self._note_settlement(answer.at.wall)
        except BaseException:
            attempt.transaction_settlement = before
            raise

    def _note_settlement(self, at: Instant) -> None:
        attempt = self._attempt
        self.settled_at = at
        if attempt.began_at is not None:
            attempt.ran_us = self._environment.runtime.monotonic() - attempt.began_at
        self._environment.on_settle(attempt)

    @property
    def may_have_committed(self) -> bool:
        """True if only the commit can have ended the job: its lease has not expired, so no reaper has taken it."""
        age_us = self._environment.runtime.boot() - self._attempt.renewed_at
        return self._attempt.committed or age_us < self._attempt.lease.lease_len

    async def _commit(self) -> None:
        opened, _has_settlement = self._opened, self._has_settlement
        self._opened, self._has_settlement, self._by_tx = None, False, False
        assert opened is not None
        await opened.commit()
        if _has_settlement:
            self._attempt.committed = True

    async def rollback(self, error: BaseException | None) -> None:
        """Roll back the open transaction, if there is one."""
        opened, _has_settlement = self._opened, self._has_settlement
        self._opened, self._has_settlement, self._by_tx, self._in_block = None, False, False, False
        if _has_settlement:
            self._attempt.transaction_settlement = None
        if opened is not None:
            try:
                await opened.rollback(error)
            except Exception:
                _logger.warning("Job %s: its transaction could not be rolled back.", self._lease_id, exc_info=True)

    def abandon(self) -> None:
        """Roll back a transaction that no code will end any more. Call from any thread."""
        opened = self._opened
        if opened is not None:
            opened.take_back()

    async def confirm_outcome(self, outcome: Outcome) -> Outcome:
        """Ask the store whether the transaction that contains the settlement was committed; return the outcome."""
        attempt, lease = self._attempt, self._attempt.lease
        committed, record = False, None
        try:
            (record,) = (await self._environment.engine.get(lease.job_key)).jobs
            settled = record is not None and record.settled_token == lease.token
            committed = record is None or (settled and record.state is JobState.SUCCEEDED)
        except Exception as trouble:  # if the job has ended, the worker's own settlement changes nothing
            _logger.warning(
                "Job %s: the store could not be asked whether the job was completed: %s", shown(lease.id), trouble
            )
        if committed:
            self.settled_at = None if record is None else record.finished
            attempt.committed = True
            return outcome
        attempt.transaction_settlement = None
        if not isinstance(outcome, Returned):
            return outcome
        error = UsageError(
            f"Job {lease.id!r} was completed in a transaction that was not committed when its handler returned, so it "
            "runs again. Commit before the handler returns."
        )
        return Raised(error, describe(error))

    # Called by the loop watcher

    def watch(self) -> None:
        """Warn about a transaction that blocks all other writers; roll it back if it goes on. Call from any thread."""
        opened, budget = self._opened, self._environment.engine.transaction_budget_s
        if opened is None or budget is None or not opened.is_engines:
            return
        age_s = (self._environment.runtime.monotonic() - opened.began_at) / SECOND
        if age_s > budget and not opened.warned:
            opened.warned = True
            _logger.warning(
                "Job %s (%s) has held the store's only write lock for %.1f s; all other writers wait, lease renewals "
                "too. After %.0f s its transaction is rolled back. Do slow work before the transaction.",
                self._lease_id,
                shown(self._attempt.lease.task),
                age_s,
                TAKE_BACK_AFTER_BUDGETS * budget,
            )
        if age_s > TAKE_BACK_AFTER_BUDGETS * budget and opened.take_back():
            _logger.error(
                "Job %s held the store's only write lock for too long. Its transaction was rolled back.", self._lease_id
            )

    @property
    def _lease_id(self) -> str:
        return shown(self._attempt.lease.id)

    # The same for sync handlers

    def complete_sync(self, result: Any, given: object) -> None:
        _refuse_loop("ctx.complete", "ctx.acomplete")
        run_sync(self.complete(result, given))

    def finish_sync(self, value: Any) -> None:
        run_sync(self.finish(value))

    def rollback_sync(self, error: BaseException) -> None:
        run_sync(self.rollback(error))


class TransactionBlock:
    """`with ctx.transaction() as connection:` in a thread, `async with` on an event loop."""

    def __init__(self, transactions: AttemptTransactions) -> None:
        self._transactions = transactions

    def __enter__(self) -> Any:
        _refuse_loop("with", "async with")
        return run_sync(self._transactions.enter())

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        run_sync(self._transactions.leave(error))

    async def __aenter__(self) -> Any:
        return await self._transactions.enter()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._transactions.leave(error)


def _refuse_loop(method: str, twin: str) -> None:
    if on_loop():
        message = f"`{method}` would block the running event loop. Use `{twin}` here."
        raise BlockingCall(message, method=method, twin=twin)
