"""The exception of a handler, as the outcome and the retry policy need it."""

from collections.abc import Iterator

from holdfast.errors import Interrupt
from holdfast.model.retry import RetryPolicy


def unwrapped(error: BaseException) -> BaseException:
    """The only interrupt inside an exception group (a task group makes such groups); any other error unchanged."""
    if isinstance(error, BaseExceptionGroup):
        found = list(_interrupts(error))
        if len(found) == 1:
            return found[0]
    return error


def _interrupts(group: BaseExceptionGroup[BaseException]) -> Iterator[Interrupt]:
    left: list[BaseException] = [group]
    while left:
        error = left.pop()
        if isinstance(error, BaseExceptionGroup):
            left.extend(error.exceptions)
        elif isinstance(error, Interrupt):
            yield error


class HandlerExit(Exception):
    """Replaces SystemExit, KeyboardInterrupt and the like when the retry policy is applied."""


def policy_error(error: BaseException, policy: RetryPolicy) -> BaseException:
    """The error to which the retry policy is applied.

    An error that is not an `Exception`, such as SystemExit, is retried like one, unless the policy names its class.
    """
    if isinstance(error, Exception):
        return error
    try:
        named = isinstance(error, (*policy.retry_on, *policy.give_up_on))
    except Exception:  # a class whose comparison raises
        named = False
    return error if named else HandlerExit(type(error).__name__)
