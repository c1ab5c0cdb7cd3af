"""One attempt, from a lease to an outcome.

    decode → set the context → middleware → handler → outcome

Whatever a handler returns or raises becomes an `Outcome`, and `on_done` is called with it exactly once. Only
GeneratorExit passes through: the event loop is being closed.

A handler may have completed its job inside a transaction of its own: then the record is read, to see if it committed.
"""

import logging
from collections.abc import Callable

from holdfast.errors import Aborted
from holdfast.model.outcome import Outcome
from holdfast.runtime import Runtime
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.outcomes import raised, returned, undecodable

_logger = logging.getLogger("holdfast.worker")

OnDone = Callable[[LeasedAttempt, Outcome], None]
"""Called when an attempt has ended."""


class Executor:
    """Runs the handlers of attempts."""

    def __init__(self, runtime: Runtime, *, on_done: OnDone, watch_deadline: Callable[[LeasedAttempt], None]) -> None:
        self._monotonic = runtime.monotonic
        self._on_done = on_done
        self._watch_deadline = watch_deadline

    async def run(self, attempt: LeasedAttempt) -> None:
        """Run one attempt to its end. Never raises an error of the handler."""
        plan, lease = attempt.plan, attempt.lease
        attempt.began_at = self._monotonic()
        if attempt.abort_reason is not None:  # it was aborted before it started
            self._on_done(attempt, raised(attempt, Aborted(attempt.abort_reason.value)))
            return
        if plan.timeout_us is not None or lease.given.timeout is not None:
            self._watch_deadline(attempt)
        try:
            args, kwargs = plan.decode(lease.payload, lease.codec)
        except Exception as error:
            self._on_done(attempt, undecodable(error))
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
                await attempt.used_transactions.rollback(error)
            outcome = raised(attempt, error)
            if attempt.committed:
                _logger.warning("Job %s was completed before its handler raised this.", lease.id, exc_info=error)
        else:
            outcome = returned(attempt, value)
        if attempt.transaction_settlement is not None and not attempt.committed:
            outcome = await attempt.transactions.confirm_outcome(outcome)
        self._on_done(attempt, outcome)
