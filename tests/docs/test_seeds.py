"""`docs/contributing/seeds.md` names existing tests and contains every row, each with a test on every engine."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contributing" / "seeds.md").read_text(encoding="utf-8")

NAMED = re.compile(r"`((?:\w+/)+\w+\.py)::(test_\w+)`")
EVERY = 'params=["memory", "sqlite", "file", "postgres", "redis"]'

ROWS = [
    *(f"2.{n}" for n in range(1, 8)),
    *(f"3.{n}" for n in range(1, 12)),
    *(f"4.{n}" for n in range(1, 17)),
    *(f"5.{n}" for n in range(1, 6)),
    *("7.1", "8.1", "8.2", "8.3", "8.4", "8.5"),
]
"""The rows of the list of features that each have a test on every engine."""


def file_of(name: str) -> Path:
    """Where the tests of a file are: those of the contract are part of the package."""
    folder, _, file = name.partition("/")
    suite = ROOT / "src" / "holdfast" / "testing" / "contract"
    return suite / file if folder == "contract" else ROOT / "tests" / folder / file


@cache
def found_in(file: Path) -> frozenset[str]:
    if not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def on_every_engine(name: str) -> bool:
    """Whether the tests of a file run on all engines."""
    if name.startswith("contract/"):
        return True
    fixtures = [file_of(name), file_of(name).parent / "conftest.py"]
    return any(EVERY in file.read_text(encoding="utf-8") for file in fixtures if file.is_file())


def missing(page: str) -> list[str]:
    return [f"{file}::{test}" for file, test in NAMED.findall(page) if test not in found_in(file_of(file))]


def table_rows(section: str) -> list[list[str]]:
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def on_all_engines() -> str:
    """The first table of the rows. The second one has features that do not depend on the engine."""
    return section("Row by row").partition("\nAlso built")[0]


def test_every_named_test_exists() -> None:
    assert len(NAMED.findall(PAGE)) > 200
    assert missing(PAGE) == []


def test_a_test_that_does_not_exist_is_found() -> None:
    assert missing("`unit/test_retry.py::test_the_moon` `unit/test_moon.py::test_it`") == [
        "unit/test_retry.py::test_the_moon",
        "unit/test_moon.py::test_it",
    ]


@pytest.mark.parametrize("seed", ["000", "001", "002", "003", "004"])
def test_every_term_of_a_design_has_a_test_or_is_to_come(seed: str) -> None:
    (title,) = re.findall(rf"^## ({seed}: .*)$", PAGE, re.MULTILINE)
    rows = table_rows(section(title))
    assert len(rows) > 20
    assert [row[0] for row in rows if not NAMED.search(row[-1]) and row[-1] != "to come"] == []


def test_no_row_is_left_out() -> None:
    assert [row[0] for row in table_rows(on_all_engines())] == ROWS


def test_each_row_is_shown_on_every_engine_by_its_first_test() -> None:
    first = {row[0]: NAMED.findall(row[-1])[0][0] for row in table_rows(on_all_engines())}
    assert {row: file for row, file in first.items() if not on_every_engine(file)} == {}


def test_a_file_with_some_engines_does_not_count_as_one_with_all() -> None:
    assert not on_every_engine("services/worker/test_keeper.py")
    assert on_every_engine("docs/test_rows_working.py")
    assert not on_every_engine("services/leases/test_lease.py")
