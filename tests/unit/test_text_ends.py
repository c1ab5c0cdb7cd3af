"""A text that is too long keeps its start and its end."""

from holdfast.model.text import _ends_of


def test_of_a_long_text_the_last_pieces_stay() -> None:
    kept = _ends_of((f"line {number}\n" for number in range(10_000)), 1_000)
    assert kept.startswith("line 0\n")
    assert kept.endswith("line 9999\n")
    assert len(kept.encode()) <= 1_000
