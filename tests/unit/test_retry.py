"""Back-offs and the ends of retrying."""

import doctest
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import LONGEST, GiveUp, InvalidOption
from holdfast.model import retry
from holdfast.model.retry import (
    DEFAULT_BACKOFF,
    Backoff,
    Computed,
    Exponential,
    Fixed,
    Linear,
    Listed,
    RetryPolicy,
    Stop,
    backoff,
    delay,
    exponential,
    fixed,
    linear,
    loss_delay,
    next_delay,
)

SECOND = 1_000_000

DRAWS = st.floats(0, 1, exclude_max=True)
ATTEMPTS = st.integers(1, 1_000_000)
DURATIONS = st.integers(0, LONGEST)
JITTERS = st.floats(0, 1)


@st.composite
def growing(draw: st.DrawFn) -> Exponential | Linear:
    initial, maximum = sorted((draw(DURATIONS), draw(DURATIONS)))
    if draw(st.booleans()):
        return Exponential(initial, draw(st.floats(1, 1e300)), maximum, draw(JITTERS))
    return Linear(initial, draw(DURATIONS), maximum, draw(JITTERS))


def after(policy: RetryPolicy, **given: Any) -> int | Stop:
    """What follows a first failure at second 100, unless told otherwise."""
    facts: dict[str, Any] = {
        "attempt": 1,
        "error": ValueError("x"),
        "first_started": 100 * SECOND,
        "now": 100 * SECOND,
        "draw": 0.5,
    }
    return next_delay(policy, **{**facts, **given})


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(retry).failed == 0


# --- Back-offs -------------------------------------------------------------------------------------------------------


def test_the_default_doubles_from_a_second_to_an_hour() -> None:
    waits = [delay(DEFAULT_BACKOFF, attempt, draw=0.5) for attempt in (1, 2, 3, 12, 13, 20)]
    assert waits == [SECOND, 2 * SECOND, 4 * SECOND, 2048 * SECOND, 3600 * SECOND, 3600 * SECOND]


def test_the_default_lets_twenty_attempts_last_a_night() -> None:
    waits = [delay(DEFAULT_BACKOFF, attempt, draw=0.5) or 0 for attempt in range(1, 20)]
    assert 7 < sum(waits) / SECOND / 3600 < 9


def test_exponential_is_the_default_when_nothing_is_given() -> None:
    assert exponential() == DEFAULT_BACKOFF


@pytest.mark.parametrize(("draw", "factor"), [(0.0, 0.9), (0.5, 1.0), (0.75, 1.05)])
def test_jitter_makes_a_delay_up_to_its_share_shorter_or_longer(draw: float, factor: float) -> None:
    assert delay(exponential(initial=10, jitter=0.1), 1, draw=draw) == round(10 * SECOND * factor)


def test_the_maximum_holds_after_the_jitter() -> None:
    assert delay(exponential(initial=1, max=60), 50, draw=0.999) == 60 * SECOND


def test_the_longest_delays_still_spread_below_the_maximum() -> None:
    assert delay(exponential(initial=1, max=60), 50, draw=0.0) == 54 * SECOND


def test_attempt_ten_thousand_does_not_overflow() -> None:
    assert delay(exponential(multiplier=1e308), 10_000, draw=0.5) == 3600 * SECOND


def test_a_delay_that_begins_at_zero_stays_there() -> None:
    assert delay(exponential(initial=0), 10_000, draw=0.5) == 0


def test_a_multiplier_of_one_does_not_grow() -> None:
    assert delay(exponential(initial=5, multiplier=1), 10_000, draw=0.5) == 5 * SECOND


def test_linear_grows_by_its_step_up_to_its_maximum() -> None:
    steady = linear(initial=2, step=3, max=10, jitter=0)
    assert [delay(steady, attempt, draw=0.5) for attempt in (1, 2, 3, 4, 10_000)] == [
        2 * SECOND,
        5 * SECOND,
        8 * SECOND,
        10 * SECOND,
        10 * SECOND,
    ]


def test_fixed_is_the_same_each_time() -> None:
    assert {delay(fixed(timedelta(minutes=1)), attempt, draw=0.1) for attempt in (1, 2, 10_000)} == {60 * SECOND}


def test_fixed_may_have_jitter() -> None:
    assert delay(fixed(10, jitter=0.5), 1, draw=0.0) == 5 * SECOND


def test_the_last_delay_of_a_list_repeats() -> None:
    listed = backoff([1, 10, timedelta(minutes=1)])
    waits = [delay(listed, attempt, draw=0.5) for attempt in (1, 2, 3, 4, 10_000)]
    assert waits == [SECOND, 10 * SECOND, 60 * SECOND, 60 * SECOND, 60 * SECOND]


def test_a_function_gets_the_attempt_and_the_error() -> None:
    seen: list[tuple[int, BaseException | None]] = []

    def remember(attempt: int, error: BaseException | None) -> float:
        seen.append((attempt, error))
        return 1.5

    error = ValueError("x")
    assert delay(backoff(remember), 3, error, draw=0.5) == 1_500_000
    assert seen == [(3, error)]


def test_a_function_may_answer_a_timedelta() -> None:
    assert delay(backoff(lambda attempt, error: timedelta(seconds=attempt)), 2, draw=0.5) == 2 * SECOND


def test_a_function_that_answers_none_gives_up() -> None:
    assert delay(backoff(lambda attempt, error: None), 1, draw=0.5) is None


@pytest.mark.parametrize("answer", [math.nan, math.inf, -1, "five", True, [1], 1e300])
def test_a_function_that_answers_no_duration_is_a_clear_error(answer: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        delay(Computed(lambda attempt, error: answer), 1, draw=0.5)
    assert caught.value.option == "backoff"


@pytest.mark.parametrize("failure", [ZeroDivisionError(), GiveUp("no")])
def test_a_function_that_raises_is_the_same_clear_error(failure: BaseException) -> None:
    def broken(attempt: int, error: BaseException | None) -> float:
        raise failure

    with pytest.raises(InvalidOption) as caught:
        delay(Computed(broken), 1, draw=0.5)
    assert caught.value.__cause__ is failure


def test_an_async_function_is_refused() -> None:
    async def later(attempt: int, error: BaseException | None) -> float:
        return 1

    with pytest.raises(InvalidOption):
        backoff(later)


def test_a_function_that_answers_a_coroutine_is_a_clear_error_without_a_warning() -> None:
    async def later() -> float:
        return 1

    with pytest.raises(InvalidOption, match="coroutine"):
        delay(backoff(lambda attempt, error: later()), 1, draw=0.5)


@given(growing(), ATTEMPTS, DRAWS)
def test_no_delay_is_negative_or_above_its_maximum(growing: Exponential | Linear, attempt: int, draw: float) -> None:
    wait = delay(growing, attempt, draw=draw)
    assert type(wait) is int
    assert 0 <= wait <= growing.maximum


@given(growing(), st.integers(1, 1000), DRAWS)
def test_without_jitter_delays_never_shrink(growing: Exponential | Linear, attempt: int, draw: float) -> None:
    steady = type(growing)(**{**{f: getattr(growing, f) for f in growing.__struct_fields__}, "jitter": 0.0})
    assert (delay(steady, attempt, draw=draw) or 0) <= (delay(steady, attempt + 1, draw=draw) or 0)


@given(growing(), st.integers(1, 100), DRAWS)
def test_the_same_draw_gives_the_same_delay(growing: Exponential | Linear, attempt: int, draw: float) -> None:
    assert delay(growing, attempt, draw=draw) == delay(growing, attempt, draw=draw)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (5, Fixed(5 * SECOND)),
        (0.5, Fixed(SECOND // 2)),
        (timedelta(seconds=5), Fixed(5 * SECOND)),
        ((1, 2), Listed((SECOND, 2 * SECOND))),
        (DEFAULT_BACKOFF, DEFAULT_BACKOFF),
    ],
)
def test_every_form_a_user_may_write_becomes_a_backoff(given: object, made: Backoff) -> None:
    assert backoff(given) == made


@pytest.mark.parametrize("bad", ["five", None, True, math.nan, -1, [], [1, -1], [1, "x"], {"kind": "fixed"}])
def test_what_is_no_backoff_is_refused(bad: object) -> None:
    with pytest.raises(InvalidOption) as caught:
        backoff(bad)
    assert caught.value.option == "backoff"


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: exponential(initial=-1), "initial"),
        (lambda: exponential(initial=math.nan), "initial"),
        (lambda: exponential(initial=7200), "max"),
        (lambda: exponential(max=math.inf), "max"),
        (lambda: exponential(multiplier=0.5), "multiplier"),
        (lambda: exponential(multiplier=math.nan), "multiplier"),
        (lambda: exponential(multiplier=math.inf), "multiplier"),
        (lambda: exponential(multiplier=True), "multiplier"),
        (lambda: exponential(jitter=-0.1), "jitter"),
        (lambda: exponential(jitter=1.1), "jitter"),
        (lambda: exponential(jitter=math.nan), "jitter"),
        (lambda: linear(step=-1), "step"),
        (lambda: fixed("five"), "seconds"),
        (lambda: fixed(5, jitter=2), "jitter"),
        (lambda: Fixed(1.5), "delay"),  # type: ignore[arg-type]
        (lambda: Fixed(True), "delay"),
        (lambda: Computed(5), "backoff"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_setting_of_a_backoff_is_refused_by_name(make: Callable[[], Backoff], option: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        make()
    assert caught.value.option == option


@pytest.mark.parametrize("attempt", [0, -1, True, 1.0])
def test_attempts_count_from_one(attempt: Any) -> None:
    with pytest.raises(InvalidOption):
        delay(DEFAULT_BACKOFF, attempt, draw=0.5)


@pytest.mark.parametrize("draw", [-0.1, 1.0, math.nan])
def test_a_draw_outside_the_unit_interval_is_refused(draw: float) -> None:
    with pytest.raises(InvalidOption):
        delay(DEFAULT_BACKOFF, 1, draw=draw)


# --- Policies --------------------------------------------------------------------------------------------------------


def test_a_failure_is_tried_again_after_the_backoff() -> None:
    assert after(RetryPolicy()) == SECOND


def test_the_last_attempt_is_the_end() -> None:
    assert after(RetryPolicy(max_attempts=3), attempt=3) is Stop.EXHAUSTED


def test_the_attempt_before_the_last_is_not_the_end() -> None:
    assert after(RetryPolicy(max_attempts=3, backoff=fixed(1)), attempt=2) == SECOND


def test_without_a_limit_attempts_never_end() -> None:
    assert after(RetryPolicy(max_attempts=None), attempt=1_000_000, draw=0.9) == 3600 * SECOND


def test_an_error_not_in_retry_on_is_the_end() -> None:
    assert after(RetryPolicy(retry_on=(KeyError,))) is Stop.NOT_RETRIED


def test_an_error_that_is_no_exception_is_not_retried_by_default() -> None:
    assert after(RetryPolicy(), error=SystemExit()) is Stop.NOT_RETRIED


def test_a_subclass_of_what_is_retried_is_retried() -> None:
    assert after(RetryPolicy(retry_on=(LookupError,)), error=KeyError("x")) == SECOND


def test_give_up_on_wins_over_retry_on() -> None:
    assert after(RetryPolicy(retry_on=(Exception,), give_up_on=(ValueError,))) is Stop.GIVE_UP_ON


def test_a_failure_without_an_exception_is_tried_again() -> None:
    assert after(RetryPolicy(retry_on=(KeyError,)), error=None) == SECOND


def test_a_backoff_function_may_be_the_end() -> None:
    assert after(RetryPolicy(backoff=backoff(lambda attempt, error: None))) is Stop.BACKOFF


def test_retrying_ends_when_the_next_attempt_would_begin_too_late() -> None:
    policy = RetryPolicy(retry_for=60 * SECOND, backoff=fixed(10))
    assert after(policy, now=151 * SECOND) is Stop.TOO_LONG


def test_an_attempt_at_the_very_end_of_retry_for_still_runs() -> None:
    policy = RetryPolicy(retry_for=60 * SECOND, backoff=fixed(10))
    assert after(policy, now=150 * SECOND) == 10 * SECOND


def test_retry_for_counts_nothing_where_the_start_is_not_known() -> None:
    assert after(RetryPolicy(retry_for=0, backoff=fixed(10)), first_started=None) == 10 * SECOND


def test_a_delay_the_handler_asked_for_takes_the_place_of_the_backoff() -> None:
    assert after(RetryPolicy(), requested_us=42) == 42


def test_a_delay_the_handler_asked_for_meets_the_same_ends() -> None:
    assert after(RetryPolicy(max_attempts=1), requested_us=42) is Stop.EXHAUSTED
    assert after(RetryPolicy(retry_for=10), requested_us=42) is Stop.TOO_LONG


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("max_attempts", 0),
        ("max_attempts", True),
        ("max_attempts", 1.5),
        ("max_losses", 0),
        ("max_losses", None),
        ("retry_for", -1),
        ("retry_for", 1.5),
        ("retry_on", ValueError),
        ("retry_on", ("ValueError",)),
        ("give_up_on", (int,)),
        ("backoff", 5),
    ],
)
def test_a_bad_policy_is_refused_by_field(field: str, bad: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        RetryPolicy(**{field: bad})
    assert caught.value.option == field


# --- Losses ----------------------------------------------------------------------------------------------------------


def test_after_its_first_loss_a_job_is_due_at_once() -> None:
    assert loss_delay(RetryPolicy(), 1, 0.5) == 0


def test_further_losses_wait_for_the_backoff_of_one_loss_less() -> None:
    assert [loss_delay(RetryPolicy(), losses, 0.5) for losses in (2, 3, 4)] == [SECOND, 2 * SECOND, 4 * SECOND]


def test_a_loss_of_an_unknown_task_waits_for_the_default_backoff() -> None:
    assert loss_delay(None, 3, 0.5) == 2 * SECOND


def test_a_loss_is_not_ended_by_a_backoff_function_that_gives_up() -> None:
    assert loss_delay(RetryPolicy(backoff=backoff(lambda attempt, error: None)), 2, 0.5) == SECOND


def test_a_loss_survives_a_backoff_function_that_needs_an_error() -> None:
    picky = backoff(lambda attempt, error: error.args[0])
    assert loss_delay(RetryPolicy(backoff=picky), 2, 0.5) == SECOND


def test_losses_count_from_one() -> None:
    with pytest.raises(InvalidOption):
        loss_delay(None, 0, 0.5)
