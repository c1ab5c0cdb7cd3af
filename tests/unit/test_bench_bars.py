"""`make bench-quick` says of each figure whether its bar is met."""

import pytest
from benchmarks.quick import Bar, show


@pytest.mark.parametrize(
    ("bar", "figure", "text"),
    [
        (Bar(">=", 0.22, goal=0.25), 0.23, "met (>= 0.22, goal 0.25)"),
        (Bar(">=", 0.22, goal=0.25), 0.21, "NOT MET (>= 0.22, goal 0.25)"),
        (Bar("<=", 35), 35, "met (<= 35)"),
        (Bar("<=", 35), 35.1, "NOT MET (<= 35)"),
    ],
)
def test_a_bar_says_whether_a_figure_meets_it(bar: Bar, figure: float, text: str) -> None:
    assert bar.verdict(figure) == text


@pytest.mark.parametrize(("ratio", "is_printed"), [(0.45, True), (1.2, False)])
def test_being_behind_a_peer_is_printed_as_a_known_gap(
    capsys: pytest.CaptureFixture[str], ratio: float, is_printed: bool
) -> None:
    show({"huey.enqueue.ratio_to_huey": ratio, "worker.growth_mb": -0.1})
    assert ("behind (a known gap)" in capsys.readouterr().out) == is_printed
