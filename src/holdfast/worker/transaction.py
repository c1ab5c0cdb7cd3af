"""The transactions of one attempt: the handler's writes and the end of its job, in one commit.

    ctx.tx               begins with its first use; commits, with the job's end, when the handler returns
    ctx.transaction()    the same for a part of the handler. The commit waits until the handler has returned, or until
                         the next part begins: then the earlier part is committed by itself
    ctx.complete(...)    ends the job inside a transaction that the user commits

If the handler raises, all that is open is rolled back, and the job is settled like any other. If the lease is lost, the
settlement inside the transaction is refused and the transaction is rolled back: no effect without the job's end, no end
without the effect.

Everything is written once, as coroutines. In a handler's thread they never wait for anything but the connection itself,
so they are run there at once (`now`), in the very thread the connection belongs to.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from holdfast.context import AbortReason
from holdfast.core.transaction import adapt_for_call
from holdfast.engine import Engine
from holdfast.errors import BlockingCall, Interrupt, LeaseLost, UsageError
from holdfast.model.instants import SECOND
from holdfast.model.outcome import Outcome, Raised, Succeeded, decide
from holdfast.model.states import JobState
from holdfast.model.text import describe
from holdfast.model.work import Exchange, Settlement, SettleStatus
from holdfast.runtime import Runtime
from holdfast.transactions import LazyTransaction
from holdfast.worker.opened import Opened, of_engine, of_factory

if TYPE_CHECKING:
    from holdfast.worker.attempt import Attempt

T = TypeVar("T")

OVERDRAWN = 5
"""So many budgets, and a transaction that is in everybody's way is taken back."""

_logger = logging.getLogger("holdfast.worker")


class Means(NamedTuple):
    """What a worker has to make transactions with."""

    engine: Engine
    runtime: Runtime


def now(asked: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that has nothing to wait for, in this thread."""
    try:
        asked.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    asked.close()
    raise RuntimeError("A transaction waited for an event loop in a thread that has none.")


def on_loop() -> bool:
    return asyncio._get_running_loop() is not None


class Joint:
    """What an attempt has joined. Used by its handler, and by whoever runs it; watched from another thread."""

    def __init__(self, attempt: "Attempt", means: Means) -> None:
        self._attempt = attempt
        self._means = means
        self._opened: Opened | None = None
        self._in_block = False
        self._by_tx = False
        self._told_here = False
        """The job's end is in the open transaction already."""

    # What a handler asks for

    @property
    def tx(self) -> Any:
        """The task's transaction; in an async handler, of the store's own, something to await."""
        source = self._source
        if source is False:
            task = self._attempt.plan.name
            raise UsageError(f"Task {task!r} has no transaction. Declare it with transaction=True, or a sessionmaker.")
        if on_loop() and source is True:
            return LazyTransaction(self._tx)
        return now(self._tx())

    async def _tx(self) -> Any:
        if self._opened is None:
            await self._open()
            self._by_tx = True
        assert self._opened is not None
        return self._opened.connection

    def block(self) -> "Block":
        return Block(self)

    async def enter(self) -> Any:
        """A part of the handler begins. An earlier one is committed by itself."""
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
            await self.undo(error)
        elif self._told_here:
            await self._commit()

    async def complete(self, result: Any, given: object) -> None:
        """End the job with this result inside the given transaction."""
        if isinstance(given, LazyTransaction):
            given = await given
        user = await adapt_for_call(given)
        here = self._opened is not None and given is self._opened.connection
        if here and self._told_here:
            raise UsageError(f"Job {self._attempt.lease.id!r} has been completed in this transaction already.")
        await self._settle(self._success(result), user)
        self._told_here = here

    @property
    def _source(self) -> Any:
        return getattr(self._attempt.plan.policy, "transaction", False)

    async def _open(self) -> Opened:
        source, means = self._source, self._means
        if callable(source):
            self._opened = await of_factory(source)
        else:
            self._opened = await of_engine(means.engine)
        self._opened.since = means.runtime.monotonic()
        self._told_here = False
        return self._opened

    # How it ends

    async def finish(self, value: Any) -> None:
        """The handler has returned: its writes and the end of its job, in one commit.

        Where the value says that the job has not succeeded, or the attempt was called off, all is undone.
        """
        attempt, opened = self._attempt, self._opened
        if opened is None:
            return
        called_off = attempt.abort_reason in (AbortReason.TIMEOUT, AbortReason.OWNERSHIP_LOST)
        if called_off or isinstance(value, Interrupt) or attempt.settlement is not None:
            await self.undo(None)
            return
        if not self._told_here:
            try:
                success = self._success(value)
            except Exception:  # a result that cannot be stored: the worker will say so
                await self.undo(None)
                return
            try:
                await self._settle(success, await adapt_for_call(opened.connection))
            except BaseException as error:
                await self.undo(error)
                raise
            self._told_here = True
        await self._commit()

    def _success(self, value: Any) -> Settlement:
        plan, lease = self._attempt.plan, self._attempt.lease
        return decide(
            Succeeded(plan.encode(value, lease.codec)),
            lease,
            plan.policy.retry,
            now=0,
            draw=0.0,
            result_ttl=plan.policy.result_ttl,
            retention=plan.policy.retention,
        )

    async def _settle(self, settlement: Settlement, user: object) -> None:
        attempt, before = self._attempt, self._attempt.told
        attempt.told = settlement
        try:
            answer = await self._means.engine.in_transaction(Exchange(settlements=(settlement,)), user)
            if answer.settled[0] is not SettleStatus.APPLIED:
                raise LeaseLost(job_id=settlement.id, queue=settlement.queue)
        except BaseException:
            attempt.told = before
            raise

    async def _commit(self) -> None:
        opened, told_here = self._opened, self._told_here
        self._opened, self._told_here, self._by_tx = None, False, False
        assert opened is not None
        await opened.commit()
        if told_here:
            self._attempt.committed = True

    async def undo(self, error: BaseException | None) -> None:
        """Roll back what is open."""
        opened, told_here = self._opened, self._told_here
        self._opened, self._told_here, self._by_tx, self._in_block = None, False, False, False
        if told_here:
            self._attempt.told = None
        if opened is not None:
            try:
                await opened.rollback(error)
            except Exception:
                _logger.warning("Job %s: its transaction could not be rolled back.", self._lease_id, exc_info=True)

    def abandon(self) -> None:
        """Nobody will end it any more. From any thread."""
        opened = self._opened
        if opened is not None:
            opened.take_back()

    async def judge(self, outcome: Outcome) -> Outcome:
        """The job was ended in a transaction of which it is not known whether it was committed: ask the store."""
        attempt, lease = self._attempt, self._attempt.lease
        stands = False
        try:
            (record,) = (await self._means.engine.get(lease.key)).jobs
            settled = record is not None and record.settled_token == lease.token
            stands = record is None or (settled and record.state is JobState.SUCCEEDED)
        except Exception as trouble:  # the settlement that is sent now changes nothing if the job has ended
            _logger.warning("Job %s: whether it was completed could not be asked: %s", lease.id, trouble)
        if stands:
            attempt.committed = True
            return outcome
        attempt.told = None
        if not isinstance(outcome, Succeeded):
            return outcome
        error = UsageError(
            f"Job {lease.id!r} was completed in a transaction that was not committed when its handler returned, so it "
            "is tried again."
        )
        return Raised(error, describe(error))

    # Watched

    def watch(self) -> None:
        """From the watcher's thread: a transaction that keeps everybody waiting is named, and then taken back."""
        opened, budget = self._opened, self._means.engine.transaction_budget_s
        if opened is None or budget is None or not opened.is_engines:
            return
        age = (self._means.runtime.monotonic() - opened.since) / SECOND
        if age > budget and not opened.warned:
            opened.warned = True
            _logger.warning(
                "Job %s (%s) has held the store's only write lock for %.1f s; everybody waits, renewals too. After "
                "%.0f s it loses it. Do slow things before the transaction.",
                self._lease_id,
                self._attempt.lease.task,
                age,
                OVERDRAWN * budget,
            )
        if age > OVERDRAWN * budget and opened.take_back():
            _logger.error("Job %s held the store's only write lock for too long and has lost it.", self._lease_id)

    @property
    def _lease_id(self) -> str:
        return self._attempt.lease.id

    # For threads

    def complete_now(self, result: Any, given: object) -> None:
        _refuse_loop("ctx.complete", "ctx.acomplete")
        now(self.complete(result, given))

    def finish_now(self, value: Any) -> None:
        now(self.finish(value))

    def undo_now(self, error: BaseException) -> None:
        now(self.undo(error))


class Block:
    """`with ctx.transaction() as connection:` in a thread, `async with` on an event loop."""

    def __init__(self, joint: Joint) -> None:
        self._joint = joint

    def __enter__(self) -> Any:
        _refuse_loop("with", "async with")
        return now(self._joint.enter())

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        now(self._joint.leave(error))

    async def __aenter__(self) -> Any:
        return await self._joint.enter()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._joint.leave(error)


def _refuse_loop(method: str, twin: str) -> None:
    if on_loop():
        said = f"`{method}` would block the running event loop. Use `{twin}` here."
        raise BlockingCall(said, method=method, twin=twin)
