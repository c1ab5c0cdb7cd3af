"""When a failed attempt is repeated, and when it is not.

A back-off says how long to wait after attempt n: growing (`exponential`, `linear`), `fixed`, from a list, or from a
function of the attempt and its error. A `RetryPolicy` adds the limits: the number of attempts, the kinds of errors, the
total time. Both are pure values: the caller draws the random number for the jitter and passes it in, so a test gets
the same result each time.

Durations here are whole microseconds. Users pass seconds or a `timedelta` to the small constructors below.
"""

import inspect
from collections.abc import Callable
from enum import StrEnum
from math import isfinite
from typing import Any, assert_never

from msgspec import Struct

from holdfast.durations import Duration
from holdfast.errors import LONGEST, Interrupt, InvalidOption, duration_us
from holdfast.model.instants import HOUR, SECOND, Instant, Micros

BackoffFunction = Callable[[int, BaseException | None], Duration | None]
"""Called with the attempt that failed (from 1) and its error (None after a lost worker). Returns the delay, or None
to give up."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_whole(value: object, option: str, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        to = "on" if high is None else f"to {high}"
        raise InvalidOption(f"`{option}` must be a whole number from {low} {to}, not {value!r}.", option=option)


def _check_jitter(jitter: float) -> None:
    if not _is_number(jitter) or not 0 <= jitter <= 1:
        raise InvalidOption("`jitter` must be a share from 0 to 1, such as 0.1 for 10 %.", option="jitter")


def _check_growth(initial: int, maximum: int, jitter: float) -> None:
    _check_whole(initial, "initial", 0, LONGEST)
    _check_whole(maximum, "max", 0, LONGEST)
    if maximum < initial:
        raise InvalidOption("`max` must not be less than `initial`. Raise `max`.", option="max")
    _check_jitter(jitter)


def _check_errors(errors: object, option: str) -> None:
    if not isinstance(errors, tuple) or not all(isinstance(e, type) and issubclass(e, BaseException) for e in errors):
        raise InvalidOption(f"`{option}` must list exception types.", option=option)


class Exponential(Struct, frozen=True):
    """`initial`, then `multiplier` times as long after each attempt, at most `maximum`."""

    initial: Micros
    multiplier: float
    maximum: Micros
    jitter: float

    def __post_init__(self) -> None:
        _check_growth(self.initial, self.maximum, self.jitter)
        if not _is_number(self.multiplier) or not isfinite(self.multiplier) or self.multiplier < 1:
            raise InvalidOption("`multiplier` must be a number from 1 on.", option="multiplier")


class Linear(Struct, frozen=True):
    """`initial`, then `step` longer after each attempt, at most `maximum`."""

    initial: Micros
    step: Micros
    maximum: Micros
    jitter: float

    def __post_init__(self) -> None:
        _check_growth(self.initial, self.maximum, self.jitter)
        _check_whole(self.step, "step", 0, LONGEST)


class Fixed(Struct, frozen=True):
    """The same delay after each attempt."""

    delay: Micros
    jitter: float = 0.0

    def __post_init__(self) -> None:
        _check_whole(self.delay, "delay", 0, LONGEST)
        _check_jitter(self.jitter)


class Listed(Struct, frozen=True):
    """One delay per attempt; the last one repeats."""

    delays: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.delays:
            raise InvalidOption("`backoff` must list at least one delay.", option="backoff")
        for delay in self.delays:
            _check_whole(delay, "backoff", 0, LONGEST)


class Computed(Struct, frozen=True):
    """The delay that the user's function returns."""

    function: BackoffFunction

    def __post_init__(self) -> None:
        function: object = self.function
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise InvalidOption("`backoff` must be a plain function, not an async one.", option="backoff")


Backoff = Exponential | Linear | Fixed | Listed | Computed

_DEFAULT = Exponential(initial=SECOND, multiplier=2.0, maximum=HOUR, jitter=0.1)
DEFAULT_BACKOFF: Backoff = _DEFAULT


def exponential(initial: Duration = 1, multiplier: float = 2, max: Duration = 3600, jitter: float = 0.1) -> Exponential:
    """Delays that grow by a factor: 1 s, 2 s, 4 s … one hour, each up to 10 % shorter or longer.

    >>> [delay(exponential(jitter=0), attempt, draw=0.5) for attempt in (1, 2, 3, 100)]
    [1000000, 2000000, 4000000, 3600000000]
    """
    return Exponential(duration_us(initial, "initial"), multiplier, duration_us(max, "max"), jitter)


def linear(initial: Duration = 1, step: Duration = 1, max: Duration = 3600, jitter: float = 0.1) -> Linear:
    """Delays that grow by a step: 1 s, 2 s, 3 s …

    >>> [delay(linear(10, step=5, jitter=0), attempt, draw=0.5) for attempt in (1, 2, 3)]
    [10000000, 15000000, 20000000]
    """
    return Linear(duration_us(initial, "initial"), duration_us(step, "step"), duration_us(max, "max"), jitter)


def fixed(seconds: Duration, jitter: float = 0) -> Fixed:
    """The same delay each time.

    >>> delay(fixed(30), attempt=7, draw=0.5)
    30000000
    """
    return Fixed(duration_us(seconds, "seconds"), jitter)


def backoff(value: object) -> Backoff:
    """What a user may write for a back-off: one of the above, seconds, a `timedelta`, a list of these, or a function.

    >>> backoff([1, 10, 60])
    Listed(delays=(1000000, 10000000, 60000000))
    """
    if isinstance(value, Exponential | Linear | Fixed | Listed | Computed):
        return value
    if isinstance(value, list | tuple):
        return Listed(tuple(duration_us(item, "backoff") for item in value))
    if callable(value):
        return Computed(value)
    return Fixed(duration_us(value, "backoff"))


def delay(backoff: Backoff, attempt: int, error: BaseException | None = None, *, draw: float) -> Micros | None:
    """Microseconds to wait after `attempt` (from 1) failed with `error`. None: the user's function gave up.

    `draw` is a random number in [0, 1) for the jitter. The jitter applies to the delay after the maximum was applied,
    and the maximum applies again after it: so long delays vary too, but only downwards. Raises `InvalidOption` if the
    user's function fails; the caller then uses `DEFAULT_BACKOFF`.
    """
    _check_whole(attempt, "attempt", 1, None)
    if not 0 <= draw < 1:
        raise InvalidOption("`draw` must be in [0, 1).", option="draw")
    return (
        _delay_by_function(backoff.function, attempt, error)
        if isinstance(backoff, Computed)
        else _delay_without_function(backoff, attempt, draw)
    )


def _delay_without_function(backoff: Exponential | Linear | Fixed | Listed, attempt: int, draw: float) -> Micros:
    match backoff:
        case Exponential(initial=initial, multiplier=multiplier, maximum=maximum, jitter=jitter):
            return _jittered(_grown(initial, multiplier, attempt - 1, maximum), jitter, draw, maximum)
        case Linear(initial=initial, step=step, maximum=maximum, jitter=jitter):
            return _jittered(min(initial + step * (attempt - 1), maximum), jitter, draw, maximum)
        case Fixed(delay=length, jitter=jitter):
            return _jittered(length, jitter, draw, LONGEST)
        case Listed(delays=delays):
            return delays[min(attempt, len(delays)) - 1]
    assert_never(backoff)


def _grown(initial: int, multiplier: float, times: int, maximum: int) -> float:
    if not initial:
        return 0
    try:
        return min(initial * float(multiplier) ** times, maximum)
    except OverflowError:
        return maximum


def _jittered(length: float, jitter: float, draw: float, maximum: Micros) -> Micros:
    return min(round(length * (1 + jitter * (2 * draw - 1))), maximum)


def _delay_by_function(function: BackoffFunction, attempt: int, error: BaseException | None) -> Micros | None:
    try:
        answer: Any = function(attempt, error)
    except (Exception, Interrupt) as failure:
        message = f"`backoff` is a function that raised {type(failure).__name__} after attempt {attempt}. Fix it."
        raise InvalidOption(message, option="backoff") from failure
    if inspect.iscoroutine(answer):
        answer.close()
    return None if answer is None else duration_us(answer, "backoff")


class Stop(StrEnum):
    """Why there is no further attempt."""

    EXHAUSTED = "exhausted"
    """`max_attempts` attempts have run."""
    GIVE_UP_ON = "give_up_on"
    """The error is of a kind in `give_up_on`."""
    NOT_RETRIED = "not_retried"
    """The error is of no kind in `retry_on`."""
    TOO_LONG = "too_long"
    """The next attempt would begin after `retry_for`."""
    BACKOFF = "backoff"
    """The back-off function returned None."""


Errors = tuple[type[BaseException], ...]


class RetryPolicy(Struct, frozen=True):
    """A back-off and its limits. `max_attempts` counts all runs; None: no limit."""

    max_attempts: int | None = 20
    backoff: Backoff = DEFAULT_BACKOFF
    retry_on: Errors = (Exception,)
    give_up_on: Errors = ()
    retry_for: Micros | None = None
    max_losses: int = 5

    def __post_init__(self) -> None:
        if self.max_attempts is not None:
            _check_whole(self.max_attempts, "max_attempts", 1, None)
        if self.retry_for is not None:
            _check_whole(self.retry_for, "retry_for", 0, LONGEST)
        _check_whole(self.max_losses, "max_losses", 1, None)
        _check_errors(self.retry_on, "retry_on")
        _check_errors(self.give_up_on, "give_up_on")
        if not isinstance(self.backoff, Exponential | Linear | Fixed | Listed | Computed):
            raise InvalidOption("`backoff` must be a back-off; pass it through backoff().", option="backoff")


def next_delay(
    policy: RetryPolicy,
    *,
    attempt: int,
    error: BaseException | None,
    first_started: Instant | None,
    now: Instant,
    draw: float,
    requested_us: Micros | None = None,
) -> Micros | Stop:
    """After `attempt` failed: the delay before the next attempt, or why there is none.

    `error` is None for a timeout and for a handler that raised `Retry`: then the kinds of errors are not checked.
    `requested_us` is the delay that a handler requested; it replaces the back-off, and the same limits apply.
    """
    if error is not None:
        if isinstance(error, policy.give_up_on):
            return Stop.GIVE_UP_ON
        if not isinstance(error, policy.retry_on):
            return Stop.NOT_RETRIED
    if policy.max_attempts is not None and attempt >= policy.max_attempts:
        return Stop.EXHAUSTED
    wait_us = delay(policy.backoff, attempt, error, draw=draw) if requested_us is None else requested_us
    if wait_us is None:
        return Stop.BACKOFF
    if policy.retry_for is not None and first_started is not None and now + wait_us > first_started + policy.retry_for:
        return Stop.TOO_LONG
    return wait_us


def loss_delay(policy: RetryPolicy | None, losses: int, draw: float) -> Micros:
    """How long a job waits after its worker was lost for the `losses`-th time: at first not at all, then the back-off.

    The default back-off is used if the process does not know the task (`policy` None), and if a back-off function gives
    up or fails: losses are limited by `max_losses` alone.
    """
    _check_whole(losses, "losses", 1, None)
    if losses == 1:
        return 0
    if policy is not None:
        try:
            wait_us = delay(policy.backoff, losses - 1, draw=draw)
        except InvalidOption:
            wait_us = None
        if wait_us is not None:
            return wait_us
    return _delay_without_function(_DEFAULT, losses - 1, draw)
