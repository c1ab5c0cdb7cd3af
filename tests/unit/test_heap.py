"""The lazy heap gives what a sorted list would give, and its garbage stays bounded."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engines.tables.heap import REBUILD_FROM, LazyHeap

Entry = tuple[int, str]

entries = st.tuples(st.integers(0, 30), st.sampled_from("abc"))
acts = st.lists(st.tuples(st.sampled_from(["push", "push", "kill", "look"]), entries), max_size=200)


class LiveHeap:
    """A heap, and beside it the set of entries that stand for something."""

    def __init__(self) -> None:
        self.current: set[Entry] = set()
        is_current: Callable[[Entry], bool] = self.current.__contains__
        self.heap: LazyHeap[Entry] = LazyHeap(is_current)

    def push(self, entry: Entry) -> None:
        if entry not in self.current:
            self.current.add(entry)
            self.heap.push(entry)

    def kill(self, entry: Entry) -> None:
        if entry in self.current:
            self.current.remove(entry)
            self.heap.mark_stale()

    def size(self) -> int:
        return len(self.heap._entries)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(acts, entries)
def test_it_gives_what_a_sorted_list_would_give(acts: list[tuple[str, Entry]], bound: Entry) -> None:
    some = LiveHeap()
    for act, entry in acts:
        match act:
            case "push":
                some.push(entry)
            case "kill":
                some.kill(entry)
            case _:
                assert some.heap.first() == min(some.current, default=None)
    assert sorted(some.heap.up_to(bound)) == sorted(entry for entry in some.current if entry <= bound)
    assert some.heap.current_entries() == some.current


@pytest.mark.parametrize("births", [0.9, 0.5, 0.1])
def test_the_dead_never_outnumber_the_living_by_much(births: float) -> None:
    chance = random.Random(7)
    some = LiveHeap()
    for _ in range(20_000):
        entry = (chance.randrange(1_000), "")
        if chance.random() < births:
            some.push(entry)
        else:
            some.kill(entry)
        assert some.size() <= 2 * len(some.current) + 2 * REBUILD_FROM


def test_an_entry_may_come_back_to_life() -> None:
    some = LiveHeap()
    for _ in range(3):
        some.push((1, "a"))
        some.kill((1, "a"))
    some.push((1, "a"))
    assert some.heap.first() == (1, "a")
    assert list(some.heap.up_to((9, ""))) == [(1, "a")]
    some.kill((1, "a"))
    assert some.heap.first() is None


def test_an_entry_that_keeps_coming_back_does_not_pile_up() -> None:
    some = LiveHeap()
    for _ in range(10_000):
        some.push((1, "a"))
        some.kill((1, "a"))
    some.push((1, "a"))
    assert some.size() <= 2 + 2 * REBUILD_FROM


def test_an_empty_heap_has_no_first() -> None:
    assert LiveHeap().heap.first() is None
    assert list(LiveHeap().heap.up_to((9, ""))) == []
