"""In the child: one attempt, from the stored payload to the answer for the worker.

    decode → generator middleware → handler → encode, or describe the exception and apply the retry policy

An async handler runs on the event loop of the child, a plain one in its handler thread. Both have the context and the
log fields of an attempt in the worker. The policy is applied here because the exception is here: `retry_on` and
`give_up_on` compare its class, and a back-off function gets the exception itself.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast import forks
from holdfast.context import CURRENT, AbortReason, Context
from holdfast.core import isolated
from holdfast.errors import (
    Aborted,
    Cancel,
    CorruptRecord,
    GiveUp,
    Interrupt,
    InvalidArguments,
    InvalidOption,
    PayloadTooLarge,
    Retry,
    Snooze,
    dotted_name,
)
from holdfast.isolation.frames import CallAnswer, CallInterrupted, CallRaised, CallRefused, CallReturned
from holdfast.isolation.handler_errors import policy_error, unwrapped
from holdfast.isolation.surrounds import enter_all, is_surround
from holdfast.model import check
from holdfast.model.job import ProgressRecord
from holdfast.model.retry import Computed, RetryPolicy, delay
from holdfast.model.text import ERROR_BYTES, ErrorInfo, clean, describe
from holdfast.model.work import Lease
from holdfast.processes import limit_memory

INTERRUPTS: dict[str, type[Interrupt]] = {kind.__name__: kind for kind in (Retry, Snooze, GiveUp, Cancel)}
"""The interrupts that a worker makes again from their values, by name. One of a derived class counts as its base."""


class ChildAttempt:
    """The attempt behind the context of a handler in the child."""

    __slots__ = (
        "_context",
        "_on_progress",
        "_progress",
        "abort_reason",
        "is_cancelled",
        "lease",
        "loop_task",
        "number",
        "state",
        "worker",
    )

    def __init__(
        self, number: int, lease: Lease, worker: str, state: Any, on_progress: Callable[["ChildAttempt"], None]
    ) -> None:
        self.number = number
        self.lease = lease
        self.worker = worker
        self.state = state
        self.abort_reason: AbortReason | None = None
        self.loop_task: asyncio.Task[Any] | None = None
        """The asyncio task of an async handler."""
        self.is_cancelled = False
        """The worker wants it to stop. If it is async, it may not have begun yet."""
        self._on_progress = on_progress
        self._progress: ProgressRecord | None = None
        self._context: Context[Any] | None = None

    @property
    def context(self) -> Context[Any]:
        if self._context is None:
            self._context = Context(self)
        return self._context

    @property
    def progress(self) -> ProgressRecord | None:
        return self._progress

    @progress.setter
    def progress(self, progress: ProgressRecord | None) -> None:
        self._progress = progress
        self._on_progress(self)

    @property
    def transactions(self) -> Any:
        """There are none. `Unsupported`."""
        isolated.refuse_store()


async def run_async(task: Any, middleware: Sequence[Any], attempt: ChildAttempt) -> CallAnswer:
    """Run an async handler on the running event loop."""
    attempt.loop_task = asyncio.current_task()
    CURRENT.set(attempt)
    depth = forks.depth
    try:
        args, kwargs = _arguments(task, attempt)
    except BaseException as error:
        return _undecodable(error, attempt)
    try:
        with enter_all(_surrounds(middleware), attempt.context):
            if attempt.is_cancelled:
                raise asyncio.CancelledError
            value = await task.function(*args, **kwargs)
    except BaseException as error:
        if forks.depth != depth:
            forks.end_child(error)
        return _raised(error, task, attempt)
    if forks.depth != depth:
        forks.end_child()
    return _returned(value, task, attempt)


def run_sync(task: Any, middleware: Sequence[Any], attempt: ChildAttempt) -> CallAnswer:
    """The same for a plain handler, in the calling thread."""
    CURRENT.set(attempt)
    depth = forks.depth
    try:
        args, kwargs = _arguments(task, attempt)
    except BaseException as error:
        return _undecodable(error, attempt)
    try:
        with enter_all(_surrounds(middleware), attempt.context):
            value = _called(task.function, args, kwargs)
    except BaseException as error:
        if forks.depth != depth:
            forks.end_child(error)
        return _raised(error, task, attempt)
    if forks.depth != depth:
        forks.end_child()
    return _returned(value, task, attempt)


def _called(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except StopIteration as error:  # as in a thread of the worker: it cannot pass through a coroutine
        raise RuntimeError("The function raised StopIteration.") from error


def _surrounds(middleware: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(one for one in middleware if is_surround(one))


def _arguments(task: Any, attempt: ChildAttempt) -> tuple[Sequence[Any], Mapping[str, Any]]:
    args, kwargs = task.decode_arguments(attempt.lease.payload, attempt.lease.codec)
    return ((attempt.context, *args) if task.takes_context else args), kwargs


def _undecodable(error: BaseException, attempt: ChildAttempt) -> CallAnswer:
    problem = "corrupt" if isinstance(error, CorruptRecord) else "does_not_fit"
    return CallRefused(describe(error), problem, attempt.progress)


def _returned(value: Any, task: Any, attempt: ChildAttempt) -> CallAnswer:
    if isinstance(value, Interrupt):
        return _raised(value, task, attempt)
    try:
        return CallReturned(task.encode_result(value, attempt.lease.codec), attempt.progress)
    except PayloadTooLarge as error:
        return CallRefused(describe(error), "too_large", attempt.progress)
    except InvalidArguments as error:
        message = f"The result of job {attempt.lease.id!r} cannot be stored. {error}"
        named = InvalidArguments(message, task=error.task, field=error.field)
        return CallRefused(describe(named), "unstorable", attempt.progress)
    except MemoryError as error:
        return _raised(error, task, attempt)
    except Exception as error:
        return CallRefused(describe(error), "unstorable", attempt.progress)


def _raised(error: BaseException, task: Any, attempt: ChildAttempt) -> CallAnswer:
    try:
        return _readable(error, task, attempt)
    except BaseException:  # such as an exception whose `__class__` raises: as in the worker, it is retried
        message = f"The handler ended with an error that cannot be read: {type.__repr__(type(error))}."
        info = ErrorInfo("builtins.BaseException", clean(message, ERROR_BYTES), "")
        return CallRaised(info, kinds=(), retried=True, last=True)


def _readable(error: BaseException, task: Any, attempt: ChildAttempt) -> CallAnswer:
    if isinstance(error, MemoryError):
        limit_memory(None)  # the text of the error needs memory, too
    error = unwrapped(error)
    info = describe(error)
    if isinstance(error, Interrupt) and isinstance(error, tuple(INTERRUPTS.values())):
        name = next(name for name, kind in INTERRUPTS.items() if isinstance(error, kind))
        delay_us, at = getattr(error, "delay", None), getattr(error, "at", None)
        return CallInterrupted(name, check.note(error.reason), delay_us, at, info, attempt.progress)
    policy = task.policy.retry
    judged = policy_error(error, policy)
    retried, computed, delay_us = _verdict(judged, policy, attempt.lease)
    return CallRaised(
        info,
        kinds=_kinds_of(error),
        retried=retried,
        delay=delay_us,
        computed=computed,
        aborted=isinstance(error, Aborted | asyncio.CancelledError),
        last=isinstance(error, MemoryError) or not isinstance(error, Exception | Interrupt | asyncio.CancelledError),
        progress=attempt.progress,
    )


def _verdict(error: BaseException, policy: RetryPolicy, lease: Lease) -> tuple[bool, bool, int | None]:
    """Whether the error is retried; whether a function says when; and what it says, None for: give up."""
    if isinstance(error, policy.give_up_on) or not isinstance(error, policy.retry_on):
        return False, False, None
    if not isinstance(policy.backoff, Computed) or (lease.max_attempts and lease.attempt >= lease.max_attempts):
        return True, False, None
    try:
        return True, True, delay(policy.backoff, lease.attempt, error, draw=0.0)
    except InvalidOption:  # an error in a back-off function must not lose the job: the worker uses the default one
        return True, False, None


def not_found(error: BaseException) -> CallAnswer:
    """The task of a call cannot be loaded in this process. Another attempt may find it."""
    return CallRaised(describe(error), kinds=_kinds_of(error), retried=True, last=True)


def _kinds_of(error: BaseException) -> tuple[str, ...]:
    """The names of its class and of the bases of that, as a frame can carry them."""
    return tuple(clean(dotted_name(kind), ERROR_BYTES) for kind in type(error).__mro__)
