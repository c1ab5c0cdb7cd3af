"""The table of checks in the guide is the table in the code, and every check is made somewhere."""

import re
from pathlib import Path

from holdfast.model import findings
from holdfast.model.findings import Check

ROOT = Path(__file__).parents[2]
CHECKS = {name: value for name, value in vars(findings).items() if isinstance(value, Check)}


def test_the_guide_lists_every_check_with_its_question() -> None:
    page = (ROOT / "docs" / "guides" / "operating.md").read_text()
    table = page.partition("| check | question |\n|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == [f"| `{check.name}` | {check.question} |" for check in CHECKS.values()]


def test_the_name_of_a_check_is_that_of_its_constant() -> None:
    assert {name.lower() for name in CHECKS} == {check.name for check in CHECKS.values()}


def test_every_check_is_made_and_tested() -> None:
    for folder in ("src", "tests"):
        texts = [
            path.read_text() for path in (ROOT / folder).rglob("*.py") if path.name not in ("findings.py", __file__)
        ]
        for name in CHECKS:
            assert any(re.search(rf"\b{name}\b", text) for text in texts if "model.findings import" in text), (
                folder,
                name,
            )
