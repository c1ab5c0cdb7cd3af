"""The catalogue of work does the same thing every time."""

import pytest

from holdfast.errors import Cancel, GiveUp
from holdfast.kinds import KINDS, NotYet, behave, will_fail


def test_the_same_input_gives_the_same_result() -> None:
    assert behave(KINDS["quick"], "a", attempt=1) == behave(KINDS["quick"], "a", attempt=1)
    assert behave(KINDS["quick"], "a", attempt=1) != behave(KINDS["quick"], "b", attempt=1)


def test_a_stubborn_job_fails_three_times_and_then_comes_out() -> None:
    for attempt in (1, 2, 3):
        with pytest.raises(NotYet):
            behave(KINDS["stubborn"], "a", attempt=attempt)
    assert behave(KINDS["stubborn"], "a", attempt=4).startswith("stubborn:a:")


def test_which_flaky_jobs_fail_is_known_beforehand_and_about_one_in_twenty() -> None:
    failing = [key for key in map(str, range(2_000)) if will_fail(KINDS["flaky"], key)]
    assert 50 < len(failing) < 150
    with pytest.raises(NotYet):
        behave(KINDS["flaky"], failing[0], attempt=1)
    assert behave(KINDS["flaky"], failing[0], attempt=2)


def test_the_hopeless_give_up_and_the_unwanted_cancel() -> None:
    with pytest.raises(GiveUp):
        behave(KINDS["hopeless"], "a", attempt=1)
    with pytest.raises(Cancel):
        behave(KINDS["unwanted"], "a", attempt=1)


def test_a_bulky_result_is_as_large_as_it_says() -> None:
    assert len(behave(KINDS["bulky"], "a", attempt=1)) >= 100_000
