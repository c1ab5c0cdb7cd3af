"""One attempt, from a lease to an outcome.

    decode → set the context → middleware → handler → outcome

Every way out of a handler becomes an `Outcome`, and `on_done` is called with it exactly once. There is one exception:
the event loop was closed while the handler waited.

A handler may have completed its job inside a transaction of its own: then the record is read, to see if it committed.
"""

import asyncio
import logging
from collections.abc import Callable

from holdfast import forks
from holdfast.errors import Aborted, Interrupt
from holdfast.isolation.child_error import ChildError
from holdfast.isolation.handler_errors import HandlerExit, unwrapped
from holdfast.model.instants import Seconds
from holdfast.model.outcome import Outcome, Raised
from holdfast.model.text import ErrorInfo, describe, shown
from holdfast.runtime import Runtime
from holdfast.service import ignore_cancellation, run_through
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.outcomes import raised, returned, undecodable

_logger = logging.getLogger("holdfast.worker")

ROLLBACK_TIMEOUT_S: Seconds = 30.0
"""A rollback that takes longer is abandoned; the attempt ends without it."""

OnDone = Callable[[LeasedAttempt, Outcome], None]
"""Called when an attempt has ended."""


class Executor:
    """Runs the handlers of attempts."""

    def __init__(self, runtime: Runtime, *, on_done: OnDone, watch_deadline: Callable[[LeasedAttempt], None]) -> None:
        self._runtime = runtime
        self._monotonic = runtime.monotonic
        self._on_done = on_done
        self._watch_deadline = watch_deadline

    async def run(self, attempt: LeasedAttempt) -> None:
        """Run one attempt to its end. Never raises an error of the handler."""
        plan, lease, depth = attempt.plan, attempt.lease, forks.depth
        attempt.began_at = self._monotonic()
        try:
            if attempt.abort_reason is not None:  # it was aborted before it started
                outcome = raised(attempt, Aborted(attempt.abort_reason.value))
            else:
                if plan.timeout_us is not None or lease.given.timeout is not None:
                    self._watch_deadline(attempt)
                try:
                    args, kwargs = plan.decode(lease.payload, lease.codec)
                except BaseException as error:
                    attempt.error = error
                    outcome = undecodable(error, _described(attempt, error))
                else:
                    try:
                        if plan.bare_handler is not None:
                            value = await plan.bare_handler(*args, **kwargs)
                            if forks.depth != depth:
                                forks.end_child()
                            if attempt.used_transactions is not None:
                                await attempt.used_transactions.finish(value)
                        else:
                            value = await plan.call(attempt, args, kwargs)
                    except BaseException as error:
                        if forks.depth != depth:
                            forks.end_child(error)
                        if _loop_closes(error):
                            raise
                        outcome = await self._handler_raised(attempt, error)
                    else:
                        outcome = returned(attempt, value)
                if attempt.transaction_settlement is not None and not attempt.committed:
                    outcome = await self._confirm(attempt, outcome)
        except BaseException as error:
            if _loop_closes(error):
                if attempt.used_transactions is not None:
                    attempt.used_transactions.abandon()
                raise
            outcome = _unreadable(attempt, error)
        self._on_done(attempt, outcome)

    async def _handler_raised(self, attempt: LeasedAttempt, error: BaseException) -> Outcome:
        if attempt.used_transactions is not None:
            attempt.loop_task = None  # the handler has ended: an abort must not cancel the rollback
            rollback = attempt.used_transactions.rollback
            name, limit_s = "holdfast end of transaction", ROLLBACK_TIMEOUT_S
            await run_through(self._runtime, lambda: rollback(error), name=name, timeout_s=limit_s)
        info = _described(attempt, unwrapped(error))
        if attempt.committed:
            _logger.warning(
                "Job %s was completed before its handler raised this: %s", shown(attempt.lease.id), info.traceback
            )
        return raised(attempt, error, info)

    async def _confirm(self, attempt: LeasedAttempt, outcome: Outcome) -> Outcome:
        attempt.loop_task = None
        while True:
            try:
                return await attempt.transactions.confirm_outcome(outcome)
            except asyncio.CancelledError:  # it was meant for the handler, which has ended: ask the store again
                ignore_cancellation()


def _described(attempt: LeasedAttempt, error: BaseException) -> ErrorInfo:
    """The error as text."""
    if attempt.plan.is_isolated and isinstance(error, ChildError | Interrupt | asyncio.CancelledError):
        info: ErrorInfo | None = error.__dict__.get("info") or error.__dict__.get("child_info")
        if info is not None:  # described in the process of the handler
            return info
    return describe(error)


def _loop_closes(error: BaseException) -> bool:
    """True if the event loop was closed while the handler waited. A handler may also raise GeneratorExit itself."""
    return issubclass(type(error), GeneratorExit) and asyncio._get_running_loop() is None


def _unreadable(attempt: LeasedAttempt, error: BaseException) -> Outcome:
    """The error of the handler cannot be inspected, such as one whose `__class__` raises. It counts as a failure."""
    kind = type.__repr__(type(error))
    _logger.error("Job %s: its handler ended with an error that cannot be read (%s).", shown(attempt.lease.id), kind)
    message = f"The handler ended with an error that cannot be read: {kind}."
    return Raised(HandlerExit(message), ErrorInfo("builtins.BaseException", message, ""))
