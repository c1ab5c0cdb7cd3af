"""`make bench-backlog` fails when one drain falls out of line."""

import pytest
from benchmarks import backlog
from benchmarks.backlog import KINDS, SIZES, Rates, measure, out_of_line


def rates(**other: float) -> Rates:
    """20,000 jobs/s everywhere, except for drains such as `none_25000`."""
    given = {f"{kind}_{size}": (size, kind) for size in SIZES for kind in KINDS}
    return dict.fromkeys(given.values(), 20_000.0) | {given[name]: rate for name, rate in other.items()}


def test_equal_rates_are_in_line() -> None:
    assert out_of_line(rates()) == []


def test_a_drain_a_little_above_half_of_its_neighbours_is_in_line() -> None:
    assert out_of_line(rates(none_25000=10_100)) == []


def test_a_drain_below_half_of_its_neighbours_is_out_of_line() -> None:
    assert out_of_line(rates(none_25000=9_900)) == [(25_000, "none")]


def test_two_slow_sizes_side_by_side_do_not_hide_each_other() -> None:
    assert out_of_line(rates(none_25000=4_000, none_40000=3_300)) == [(25_000, "none"), (40_000, "none")]


def test_a_size_that_is_slow_with_all_statistics_is_out_of_line() -> None:
    slow = {f"{kind}_100000": 5_000.0 for kind in KINDS}
    assert out_of_line(rates(**slow)) == [(100_000, kind) for kind in KINDS]


def test_statistics_with_which_every_size_is_slow_are_out_of_line() -> None:
    slow = {f"drained_{size}": 5_000.0 for size in SIZES}
    assert out_of_line(rates(**slow)) == [(size, "drained") for size in SIZES]


@pytest.mark.parametrize(("second", "failed"), [(20_000.0, 0), (3_300.0, 1)])
def test_a_drain_out_of_line_is_measured_twice(second: float, failed: int) -> None:
    measured = []

    def drain(size: int, kind: str) -> tuple[float, float]:
        measured.append((size, kind))
        slow = 3_300.0 if measured.count((size, kind)) == 1 else second
        rate = slow if (size, kind) == (40_000, "empty") else 20_000.0
        return rate, rate

    assert measure("postgres", drain, lambda size: 30_000.0) == failed
    assert measured.count((40_000, "empty")) == 2
    assert len(measured) == len(SIZES) * len(backlog.FILLED_WITH) + 1


@pytest.mark.parametrize(("rate", "status"), [(20_000.0, 0), (3_300.0, 1)])
def test_the_program_ends_with_1_if_a_drain_is_out_of_line(
    monkeypatch: pytest.MonkeyPatch, rate: float, status: int
) -> None:
    def drain(folder: object, size: int, kind: str) -> tuple[float, float]:
        return (rate, rate) if size == 10_000 else (20_000.0, 20_000.0)

    monkeypatch.setattr(backlog, "on_sqlite", drain)
    monkeypatch.setattr(backlog, "bare_sqlite", lambda folder, size: 100_000.0)
    assert backlog.main(["sqlite"]) == status


def test_a_drain_below_the_share_of_the_bare_loop_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure("postgres", lambda size, kind: (14_000.0, 20_000.0), lambda size: 30_000.0) == 0
    printed = capsys.readouterr().out
    assert "14,000  0.47*" in printed
    assert "20,000  0.67 " in printed
    assert "bar NOT MET in 18 of 23 drains" in printed
