"""The oracle's own parts; what it accepts and refuses as a whole is shown in tests/differential."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.instants import At
from holdfast.model.observe import Find, FindAnswer, Now, NowAnswer
from holdfast.model.states import JobState
from holdfast.testing.oracle import Arrivals, Oracle


def test_arrivals_agree_while_the_order_is_the_same() -> None:
    arrivals = Arrivals()
    assert arrivals.agree(1, 10)
    assert arrivals.agree(5, 90)
    assert arrivals.agree(3, 50)
    assert arrivals.agree(3, 50)
    assert arrivals.ours(50) == 3
    assert arrivals.ours(51) is None


def test_arrivals_disagree_when_the_order_is_not() -> None:
    arrivals = Arrivals()
    assert arrivals.agree(1, 10)
    assert arrivals.agree(5, 90)
    assert not arrivals.agree(1, 11)
    assert not arrivals.agree(3, 9)
    assert not arrivals.agree(3, 91)
    assert not arrivals.agree(3, 90)
    assert not arrivals.agree(6, 90)
    assert arrivals.agree(3, 50)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.permutations(range(8)), st.lists(st.integers(0, 1_000), min_size=8, max_size=8, unique=True))
def test_arrivals_may_become_known_in_any_order(order: list[int], numbers: list[int]) -> None:
    numbers.sort()
    arrivals = Arrivals()
    assert all(arrivals.agree(ours, numbers[ours]) for ours in order)
    assert all(arrivals.ours(numbers[ours]) == ours for ours in order)


def test_time_may_stand_still_but_not_go_back() -> None:
    oracle = Oracle()
    assert oracle.accept(Now(), NowAnswer(at=At(7, 7))) is None
    assert oracle.accept(Now(), NowAnswer(at=At(7, 7))) is None
    problem = oracle.accept(Now(), NowAnswer(at=At(8, 6)))
    assert problem is not None
    assert problem.startswith("Now: time went back")


def test_a_cursor_must_have_been_answered() -> None:
    find = Find(queue="q", state=JobState.QUEUED, cursor=4)
    problem = Oracle().accept(find, FindAnswer(at=At(1, 1), jobs=()))
    assert problem == "Find: no answer had the cursor 4"
