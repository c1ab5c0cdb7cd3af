"""How attempts came out, as a test wants to hear of it."""

import asyncio
from dataclasses import dataclass

from holdfast.errors import Interrupt, JobFailed
from holdfast.model.states import JobState, Reason
from holdfast.model.work import Settlement
from holdfast.worker.attempt import LeasedAttempt


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt came out. `error` is what the handler raised, where it did."""

    attempt: LeasedAttempt
    settlement: Settlement
    error: BaseException | None


def error_of(end: AttemptEnd) -> BaseException | None:
    """What a test should see of an attempt that failed; None: its handler ended as it meant to."""
    settlement, error, lease = end.settlement, end.error, end.attempt.lease
    if settlement.target not in (JobState.RETRYING, JobState.FAILED) or isinstance(error, Interrupt):
        return None
    if settlement.reason is Reason.TIMEOUT:
        seen: BaseException = TimeoutError("" if settlement.error is None else settlement.error.message)
    elif error is None:  # there was nothing to call, or nothing to store
        reason = "" if settlement.reason is None else settlement.reason.value
        return JobFailed(
            job_id=lease.id, task=lease.task, attempts=lease.attempt, reason=reason, error=settlement.error
        )
    elif isinstance(error, SystemExit | KeyboardInterrupt | asyncio.CancelledError | GeneratorExit):
        seen = RuntimeError(f"The handler raised {type(error).__name__}.")  # as it stands it would end more than a test
        seen.__cause__ = error
    else:
        seen = error
    seen.add_note(f"Raised by job {lease.id} ({lease.task}) at attempt {lease.attempt}.")
    return seen
