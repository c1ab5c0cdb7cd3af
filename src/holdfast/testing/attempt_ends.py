"""How attempts ended, and the error that a test should see for each."""

import asyncio
from dataclasses import dataclass

from holdfast.errors import Interrupt, JobFailed
from holdfast.model.states import JobState, Reason
from holdfast.model.work import Settlement
from holdfast.worker.attempt import LeasedAttempt


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt. `error`: what the handler raised, if it did."""

    attempt: LeasedAttempt
    settlement: Settlement
    error: BaseException | None


def error_of(end: AttemptEnd) -> BaseException | None:
    """The error that a test should see for an attempt. None: it did not fail, or its handler chose this end."""
    settlement, error, lease = end.settlement, end.error, end.attempt.lease
    if settlement.target not in (JobState.RETRYING, JobState.FAILED) or isinstance(error, Interrupt):
        return None
    if settlement.reason is Reason.TIMEOUT:
        shown: BaseException = TimeoutError("" if settlement.error is None else settlement.error.message)
    elif error is None:  # the arguments could not be decoded, or the result not encoded
        reason = "" if settlement.reason is None else settlement.reason.value
        return JobFailed(
            job_id=lease.id, task=lease.task, attempts=lease.attempt, reason=reason, error=settlement.error
        )
    elif isinstance(error, SystemExit | KeyboardInterrupt | asyncio.CancelledError | GeneratorExit):
        shown = RuntimeError(
            f"The handler raised {type(error).__name__}."
        )  # raised as it is, it would end the test run
        shown.__cause__ = error
    else:
        shown = error
    shown.add_note(f"Raised by job {lease.id} ({lease.task}) at attempt {lease.attempt}.")
    return shown
