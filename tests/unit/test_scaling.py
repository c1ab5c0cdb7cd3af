"""The size of a manager: up at once, down late, never to and fro."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.manager.scaling import (
    WAIT_BEFORE_UP_US,
    WAIT_TOO_LONG_US,
    ChildCounts,
    QueueLoad,
    Size,
    SizeLimits,
    children_to_start,
    children_to_stop,
    next_size,
)
from holdfast.model.instants import SECOND

LIMITS = SizeLimits(min=2, max=8, slots=10, idle_before_down_us=60 * SECOND)
NO_LOAD = QueueLoad(due=0, running=0, oldest_wait_us=0)
BACKLOG = QueueLoad(due=5_000, running=20, oldest_wait_us=5 * SECOND)


def running(count: int) -> ChildCounts:
    return ChildCounts(starting=0, running=count, stopping=0)


def play(loads: list[QueueLoad], limits: SizeLimits = LIMITS, step_us: int = 5 * SECOND) -> list[int]:
    """The size after each look, if every child starts at once."""
    size, sizes = Size.first(limits, 0), []
    for number, load in enumerate(loads, start=1):
        size = next_size(limits, size, load, running(size.children), number * step_us)
        sizes.append(size.children)
    return sizes


def test_a_backlog_takes_the_size_to_the_largest_at_once() -> None:
    assert play([BACKLOG]) == [8]


def test_the_size_is_what_the_jobs_need() -> None:
    assert play([QueueLoad(due=15, running=20, oldest_wait_us=SECOND)]) == [4]


def test_jobs_that_do_not_wait_need_no_more_children() -> None:
    assert play([replace(BACKLOG, oldest_wait_us=WAIT_BEFORE_UP_US - 1)]) == [2]


def test_running_jobs_alone_can_raise_the_size() -> None:
    """Such as after a restart of the manager, while its old children still finish."""
    assert play([QueueLoad(due=0, running=45, oldest_wait_us=0)]) == [5]


def test_the_size_falls_after_the_whole_time_without_work_and_not_before() -> None:
    sizes = play([BACKLOG] + [NO_LOAD] * 13)
    assert sizes == [8] * 12 + [2] * 2


def test_the_size_falls_to_the_highest_target_of_that_time() -> None:
    half = QueueLoad(due=0, running=45, oldest_wait_us=0)
    assert play([BACKLOG] + [NO_LOAD] * 5 + [half] + [NO_LOAD] * 7)[-2:] == [5, 5]


def test_after_a_gap_the_size_stays_for_the_whole_time_again() -> None:
    size = next_size(LIMITS, Size.first(LIMITS, 0), BACKLOG, running(2), SECOND).after_gap(600 * SECOND)
    size = next_size(LIMITS, size, NO_LOAD, running(8), 601 * SECOND)
    assert size.children == 8
    assert next_size(LIMITS, size, NO_LOAD, running(8), 660 * SECOND).children == 2


def test_workers_without_a_manager_take_their_part_first() -> None:
    load = QueueLoad(due=30, running=0, oldest_wait_us=SECOND)
    assert play([load]) == [3]
    assert play([replace(load, unmanaged_slots=10)]) == [2]


def test_two_managers_divide_the_work_by_their_capacities() -> None:
    load = QueueLoad(due=80, running=0, oldest_wait_us=SECOND)
    assert play([replace(load, other_capacity=80)]) == [4]
    assert play([replace(load, other_capacity=240)]) == [2]


def test_one_more_child_comes_while_jobs_wait_although_slots_are_free() -> None:
    stuck = QueueLoad(due=3, running=5, oldest_wait_us=WAIT_TOO_LONG_US)
    assert play([stuck] * 8) == [2, 3, 3, 4, 4, 5, 5, 6]


def test_a_child_that_starts_delays_that() -> None:
    stuck = QueueLoad(due=3, running=5, oldest_wait_us=WAIT_TOO_LONG_US)
    starting = ChildCounts(starting=1, running=1, stopping=0)
    assert next_size(LIMITS, Size.first(LIMITS, 0), stuck, starting, 60 * SECOND).children == 2


@pytest.mark.parametrize(
    ("size", "counts", "start", "stop"),
    [
        (8, ChildCounts(starting=0, running=2, stopping=0), 6, 0),
        (8, ChildCounts(starting=6, running=2, stopping=0), 0, 0),
        (8, ChildCounts(starting=0, running=2, stopping=4), 2, 0),
        (8, ChildCounts(starting=0, running=2, stopping=9), 0, 0),
        (2, ChildCounts(starting=1, running=4, stopping=0), 0, 3),
        (2, ChildCounts(starting=0, running=2, stopping=3), 0, 0),
    ],
)
def test_starts_and_stops_count_the_children_that_start_and_stop(
    size: int, counts: ChildCounts, start: int, stop: int
) -> None:
    assert (children_to_start(LIMITS, size, counts), children_to_stop(size, counts)) == (start, stop)


# Properties

small = st.integers(0, 12)
limits_any = st.tuples(st.integers(0, 6), st.integers(1, 8), st.integers(1, 20), st.integers(0, 90)).map(
    lambda v: SizeLimits(min=v[0], max=max(v[0], v[1]), slots=v[2], idle_before_down_us=v[3] * SECOND)
)
loads_any = st.builds(
    QueueLoad,
    due=st.integers(0, 200),
    running=st.integers(0, 200),
    oldest_wait_us=st.sampled_from([0, WAIT_BEFORE_UP_US, 3 * SECOND, WAIT_TOO_LONG_US]),
    unmanaged_slots=st.integers(0, 40),
    other_capacity=st.integers(0, 200),
)


@given(limits_any, st.lists(loads_any, min_size=1, max_size=60))
def test_the_size_keeps_its_limits_and_never_falls_soon_after_it_has_risen(
    limits: SizeLimits, loads: list[QueueLoad]
) -> None:
    step_us = 5 * SECOND
    sizes = [limits.min, *play(loads, limits, step_us)]
    assert all(limits.min <= size <= limits.max for size in sizes)
    rises = [number for number, (a, b) in enumerate(pairwise(sizes), start=1) if b > a]
    falls = [number for number, (a, b) in enumerate(pairwise(sizes), start=1) if b < a]
    for fall in falls:
        for rise in rises:
            if rise < fall:
                assert (fall - rise) * step_us >= limits.idle_before_down_us


@given(limits_any, st.lists(loads_any, max_size=20), loads_any)
def test_under_a_constant_load_the_size_only_rises_or_falls_once(
    limits: SizeLimits, before: list[QueueLoad], constant: QueueLoad
) -> None:
    """First it may rise; when the earlier targets are too old, it may fall, once, and then it stays."""
    sizes = play(before + [constant] * 60, limits)[len(before) :]
    if constant.oldest_wait_us < WAIT_TOO_LONG_US:
        falls = [number for number, (a, b) in enumerate(pairwise(sizes)) if b < a]
        rises = [number for number, (a, b) in enumerate(pairwise(sizes)) if b > a]
        assert not rises
        assert all(fall <= limits.idle_before_down_us / (5 * SECOND) for fall in falls)
        assert len(set(sizes[-30:])) == 1
    else:
        assert sizes == sorted(sizes) or not constant.due


@given(limits_any, small, small, small, st.integers(0, 12))
def test_there_are_never_more_children_than_the_largest_number(
    limits: SizeLimits, starting: int, busy: int, stopping: int, size: int
) -> None:
    counts = ChildCounts(starting=starting, running=busy, stopping=stopping)
    size = max(limits.min, min(size, limits.max))
    start = children_to_start(limits, size, counts)
    assert start >= 0
    assert start == 0 or counts.active + counts.stopping + start <= limits.max
