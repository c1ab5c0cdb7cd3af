"""`make size`: what counts as a code line, and what the table shows."""

from pathlib import Path

from tools.size import code_lines
from tools.size.__main__ import NO_PYTHON, PAGE, difference, read, to_text
from tools.size.walks import lone_enqueue

SOURCE = '''"""The docstring of a module."""

# A comment.
import os  # counts

LIMIT = 1
"""A docstring of a constant."""


def read(
    path,
):
    """Two
    lines."""
    return """a value
    of two lines"""
'''


def test_blank_lines_comments_and_docstrings_are_no_code_lines() -> None:
    assert code_lines.of_python(SOURCE) == 7
    assert code_lines.of_text("-- a comment\n\nSELECT 1 -- counts\n  FROM t\n", "--") == 2


def test_each_folder_of_the_package_but_testing_has_a_row() -> None:
    names = set(code_lines.of_package())
    folders = {f"`{path.parent.name}`" for path in code_lines.PACKAGE.glob("*/__init__.py")}
    assert folders - names == {"`testing`"}
    assert names >= {*NO_PYTHON, "`engines/sqlite`", "(beside the folders)"}


def test_the_committed_page_has_the_rows_of_the_package() -> None:
    rows = read(PAGE.read_text(encoding="utf-8"))
    assert {row[0] for row in rows} >= set(code_lines.of_package())
    assert to_text(rows) == PAGE.read_text(encoding="utf-8")[-len(to_text(rows)) :]


def test_a_row_that_differs_shows_what_it_was() -> None:
    before = [("part", "files"), ("`cli`", "34"), ("`core`", "12")]
    text = difference(before, [("part", "files"), ("`cli`", "16"), ("`store`", "9")])
    assert [" ".join(line.split()) for line in text.splitlines()] == [
        "part files",
        "`cli` 16 was 34",
        "`store` 9 new",
        "`core` gone",
    ]


def test_a_walk_counts_the_functions_of_the_package(tmp_path: Path) -> None:
    walk = lone_enqueue(f"sqlite:///{tmp_path}/jobs.db")
    assert walk.calls >= walk.functions >= walk.files > 10
