"""Each example runs alone, within its time, without a warning, and prints what its last lines say."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

MARK = "# It prints:\n"
SECONDS = 60


def promised(source: str) -> list[str]:
    """The lines that an example says it prints."""
    _, _, lines = source.partition(MARK)
    return [line.removeprefix("#   ") for line in lines.splitlines()]


def run(example: Path) -> "subprocess.CompletedProcess[str]":
    """As its reader would, in an empty folder. What it leaves among temporary files goes too."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    with tempfile.TemporaryDirectory() as folder:  # a short name: sockets have theirs in it
        return subprocess.run(
            [sys.executable, "-W", "error", str(example)],
            cwd=folder,
            env={**ours, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )


def test_there_are_examples() -> None:
    assert [path.name for path in EXAMPLES] == ["speech.py", "thumbnails.py", "web_app.py", "webhooks.py"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(example: Path) -> None:
    expected = promised(example.read_text(encoding="utf-8"))
    assert expected, f"{example.name} does not say what it prints"
    answer = run(example)
    assert (answer.returncode, answer.stdout.splitlines()) == (0, expected), answer.stderr
    assert "Warning" not in answer.stderr
    assert "Traceback" not in answer.stderr


def test_an_example_that_prints_something_else_is_found(tmp_path: Path) -> None:
    example = tmp_path / "mutants.py"
    example.write_text(f"print('this')\n\n{MARK}#   that\n", encoding="utf-8")
    with pytest.raises(AssertionError):
        test_an_example_prints_what_it_says(example)
