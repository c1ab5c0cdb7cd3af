"""One attempt, from a lease to an outcome.

    decode → set the context → middleware → handler → outcome

Everything a handler can do to us ends here: whatever it raises, returns or swallows becomes an `Outcome`, and `done` is
called with it exactly once. Only the end of the coroutine itself (its event loop goes away under it) passes through.

A handler may have ended its job inside a transaction; the store is asked whether that was committed.
"""

import logging
from collections.abc import Callable

from holdfast.errors import Aborted
from holdfast.model.outcome import Outcome
from holdfast.runtime import Runtime
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.outcomes import raised, returned, undecodable

_logger = logging.getLogger("holdfast.worker")

Done = Callable[[LeasedAttempt, Outcome], None]
"""Told when an attempt has ended, and how."""


class Executor:
    """Runs attempts, one call each."""

    def __init__(self, runtime: Runtime, *, done: Done, watch_deadline: Callable[[LeasedAttempt], None]) -> None:
        self._monotonic = runtime.monotonic
        self._done = done
        self._watch_deadline = watch_deadline

    async def run(self, attempt: LeasedAttempt) -> None:
        """Run one attempt to its end. Never raises for what the handler does."""
        plan, lease = attempt.plan, attempt.lease
        attempt.began_at = self._monotonic()
        if attempt.abort_reason is not None:  # it was called off before its turn came
            self._done(attempt, raised(attempt, Aborted(attempt.abort_reason.value)))
            return
        if plan.timeout is not None or lease.given.timeout is not None:
            self._watch_deadline(attempt)
        try:
            args, kwargs = plan.decode(lease.payload, lease.codec)
        except Exception as error:
            self._done(attempt, undecodable(error))
            return
        try:
            if plan.bare_handler is not None:
                value = await plan.bare_handler(*args, **kwargs)
                if attempt.used_transactions is not None:
                    await attempt.used_transactions.finish(value)
            else:
                value = await plan.call(attempt, args, kwargs)
        except GeneratorExit:
            if attempt.used_transactions is not None:
                attempt.used_transactions.abandon()
            raise
        except BaseException as error:
            if attempt.used_transactions is not None:
                await attempt.used_transactions.undo(error)
            outcome = raised(attempt, error)
            if attempt.committed:
                _logger.warning("Job %s had been completed when this was raised.", lease.id, exc_info=error)
        else:
            outcome = returned(attempt, value)
        if attempt.transaction_settlement is not None and not attempt.committed:
            outcome = await attempt.transactions.judge(outcome)
        self._done(attempt, outcome)
