"""The catalogue of planted bugs stays true: each still applies to the code, and names tests that exist.

That these tests notice them is shown by `make mutants`.
"""

import re
from collections import Counter
from pathlib import Path

import pytest
from code_mutants import MUTANTS, Mutant

import holdfast.testing.contract

ROOT = Path(__file__).parents[2]
SUITE = Path(holdfast.testing.contract.__file__).parent
WANTED = 110
"""Planted bugs, at least."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name.replace(" ", "-") for mutant in MUTANTS])
def test_a_mutant_applies_once_and_leaves_valid_code(mutant: Mutant) -> None:
    path = mutant.path(ROOT)
    sound = path.read_text(encoding="utf-8")
    wrong = mutant.applied(sound)
    assert wrong != sound
    if path.suffix == ".py":
        compile(wrong, mutant.file, "exec")


@pytest.mark.parametrize("test", sorted({test for mutant in MUTANTS for test in mutant.tests}))
def test_a_test_that_a_mutant_names_exists(test: str) -> None:
    file, *names = test.split("::")
    path = ROOT / file
    if path.name == "suite.py" and names:
        path = SUITE / f"{names.pop(0)}.py"
    text = path.read_text(encoding="utf-8")
    for name in names:
        assert re.search(rf"^(async )?def {re.escape(name.partition('[')[0])}\(", text, re.MULTILINE), name


def test_every_mutant_says_which_tests_notice_it_or_why_none_can() -> None:
    assert [mutant.name for mutant in MUTANTS if bool(mutant.tests) is bool(mutant.equivalent)] == []


def test_every_mutant_has_a_name_of_its_own_in_its_file() -> None:
    count = Counter((mutant.file, mutant.name) for mutant in MUTANTS)
    assert [name for name, times in count.items() if times > 1] == []


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= WANTED
