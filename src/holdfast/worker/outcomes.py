"""Turns the return value or exception of a handler into an `Outcome`.

A handler can end in more ways than returning and raising. It may raise an `Interrupt`, also from inside a task group,
or return one. It may raise SystemExit or KeyboardInterrupt: that fails the job, not the worker. The worker may cancel
it, for one of four reasons, and the handler may then still return, raise something else, or go on.
"""

import asyncio
import logging
from types import TracebackType
from typing import Any

from holdfast.context import AbortReason
from holdfast.errors import (
    Aborted,
    Cancel,
    CorruptRecord,
    GiveUp,
    Interrupt,
    InvalidArguments,
    PayloadTooLarge,
    Retry,
    Snooze,
)
from holdfast.isolation.child_error import ChildError
from holdfast.isolation.handler_errors import policy_error, unwrapped
from holdfast.model import check
from holdfast.model.instants import SECOND, Instant, Micros
from holdfast.model.outcome import (
    CancelledByHandler,
    DoesNotFit,
    GaveUp,
    NotRetryable,
    Outcome,
    Raised,
    Released,
    RetryRequested,
    Returned,
    Snoozed,
    TimedOut,
    decide,
    decide_success,
)
from holdfast.model.states import Reason
from holdfast.model.text import ErrorInfo, describe, shown
from holdfast.model.work import Settlement
from holdfast.worker.attempt import LeasedAttempt

_logger = logging.getLogger("holdfast.worker")


def returned(attempt: LeasedAttempt, value: Any) -> Outcome:
    """The handler returned `value`."""
    if isinstance(value, Interrupt):
        return raised(attempt, value)
    if attempt.abort_reason is AbortReason.TIMEOUT:
        return _timed_out(attempt, None, None)
    try:
        return Returned(attempt.plan.encode(value, attempt.lease.codec))
    except PayloadTooLarge as error:
        attempt.error, reason = error, Reason.RESULT_TOO_LARGE
    except InvalidArguments as error:
        message = f"The result of job {attempt.lease.id!r} cannot be stored. {error}"
        attempt.error, reason = InvalidArguments(message, task=error.task, field=error.field), Reason.ERROR
    except Exception as error:
        attempt.error, reason = error, Reason.ERROR
    return NotRetryable(reason, describe(attempt.error))


def undecodable(error: BaseException, info: ErrorInfo | None = None) -> Outcome:
    """The stored payload cannot be decoded into arguments. Its bytes stay in the record.

    Bytes that cannot be read stay so. Sound data that does not fit may fit a worker with other code.
    """
    info = describe(error) if info is None else info
    if isinstance(error, CorruptRecord):
        return NotRetryable(Reason.UNDECODABLE, info)
    return DoesNotFit(info)


def raised(attempt: LeasedAttempt, error: BaseException, info: ErrorInfo | None = None) -> Outcome:
    """The handler, or its middleware, raised. `info` describes the unwrapped error; None: it is described here."""
    inner = unwrapped(error)
    if info is None:
        info = describe(inner)
    error = inner
    if attempt.abort_reason is AbortReason.TIMEOUT:
        return _timed_out(attempt, info, error.__traceback__)
    if isinstance(error, ChildError):
        return error.outcome
    attempt.error = error
    match error:
        case Retry():
            return RetryRequested(check.note(error.reason), error.delay, info)
        case Snooze():
            return Snoozed(error.delay, error.at, check.note(error.reason))
        case GiveUp():
            return GaveUp(check.note(error.reason), info)
        case Cancel():
            return CancelledByHandler(check.note(error.reason))
        case Aborted() | asyncio.CancelledError() if attempt.abort_reason is AbortReason.CANCEL:
            return CancelledByHandler()
        case Aborted() | asyncio.CancelledError() if attempt.abort_reason is AbortReason.SHUTDOWN:
            return Released()
    return Raised(policy_error(error, attempt.plan.policy.retry), info)


def _timed_out(attempt: LeasedAttempt, info: ErrorInfo | None, frames: TracebackType | None) -> TimedOut:
    stored = timeout_info(attempt, info)
    attempt.error = TimeoutError(stored.message).with_traceback(frames)
    return TimedOut(stored)


def timeout_info(attempt: LeasedAttempt, info: ErrorInfo | None) -> ErrorInfo:
    """What is stored about a timeout: its length, and where the handler was when it was cancelled."""
    timeout_us = timeout_of(attempt) or 0
    trace = "" if info is None else info.traceback
    return ErrorInfo(
        "builtins.TimeoutError", f"The attempt ran longer than its timeout of {timeout_us / SECOND:g} s.", trace
    )


def timeout_of(attempt: LeasedAttempt) -> Micros | None:
    """The timeout given at enqueue, or else the task's own."""
    given = attempt.lease.given.timeout
    return attempt.plan.policy.timeout if given is None else given


def settlement_of(attempt: LeasedAttempt, outcome: Outcome, *, now: Instant, draw: float) -> Settlement:
    """What to write for this outcome, by the policy of the attempt's task."""
    if attempt.committed and attempt.transaction_settlement is not None:
        return attempt.transaction_settlement  # it is stored already, and the store answers `applied`
    policy = attempt.plan.policy
    if type(outcome) is Returned:
        success = decide_success(outcome.result, attempt.lease, policy.result_ttl, policy.retention)
        return success if attempt.progress is attempt.sent_progress else with_progress(attempt, success)
    try:
        settlement = decide(
            outcome,
            attempt.lease,
            policy.retry,
            now=now,
            draw=draw,
            result_ttl=policy.result_ttl,
            retention=policy.retention,
            failed_retention=policy.failed_retention,
        )
    except BaseException as error:  # such as an exception class whose comparison raises
        info = describe(error)
        _logger.error(
            "Job %s: the retry policy could not be applied to its outcome, so it fails: %s",
            shown(attempt.lease.id),
            info.traceback,
        )
        settlement = decide(NotRetryable(Reason.ERROR, info), attempt.lease, policy.retry, now=0, draw=0.0)
    return with_progress(attempt, settlement)


def with_progress(attempt: LeasedAttempt, settlement: Settlement) -> Settlement:
    """The settlement with the progress that no renewal has sent."""
    latest = attempt.progress
    return settlement if latest is attempt.sent_progress else settlement.with_progress(latest)
