"""The defaults of the five designs, as options of a task."""

import doctest

import pytest

from holdfast import presets
from holdfast.model.retry import RetryPolicy, delay
from holdfast.presets import Preset

SECOND = 1_000_000
ALL = [presets.seconds_to_minutes, presets.unlimited, presets.seconds_apart, presets.immediate, presets.long_running]


def delays(preset: Preset, count: int) -> list[float]:
    """The first delays in seconds, with the jitter in the middle of its range."""
    return [(delay(preset.backoff, attempt, draw=0.5) or 0) / SECOND for attempt in range(1, count + 1)]


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(presets).failed == 0


@pytest.mark.parametrize("preset", ALL)
def test_the_options_of_a_preset_make_a_policy(preset: Preset) -> None:
    options = preset.options()
    assert sorted(options) == ["backoff", "lease", "max_attempts"]
    assert RetryPolicy(max_attempts=preset.max_attempts, backoff=preset.backoff).max_attempts == preset.max_attempts


@pytest.mark.parametrize("preset", ALL)
def test_the_lease_of_a_preset_is_one_users_may_have(preset: Preset) -> None:
    assert preset.lease >= 2


def test_seconds_to_minutes_doubles_from_a_second_to_its_tenth_doubling() -> None:
    assert delays(presets.seconds_to_minutes, 12) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024]


def test_seconds_to_minutes_spreads_by_ten_percent() -> None:
    assert delay(presets.seconds_to_minutes.backoff, 1, draw=0) == 900_000


def test_unlimited_waits_as_its_text_shows() -> None:
    assert delays(presets.unlimited, 7) == [10, 20, 40, 80, 160, 300, 300]


def test_unlimited_never_gives_up() -> None:
    assert presets.unlimited.max_attempts is None


def test_seconds_apart_runs_once_and_retries_three_times_within_half_a_minute() -> None:
    assert presets.seconds_apart.max_attempts == 4
    assert max(delays(presets.seconds_apart, 20)) == 30


def test_immediate_tries_again_at_once() -> None:
    assert delays(presets.immediate, 3) == [0, 0, 0]


def test_long_running_waits_a_minute_then_twice_as_long_up_to_an_hour() -> None:
    assert delays(presets.long_running, 8) == [60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_the_leases_are_those_of_the_designs() -> None:
    assert [preset.lease for preset in ALL] == [30, 60, 30, 30, 3600]
