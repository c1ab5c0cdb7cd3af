"""The README's first example, as a reader does it: a worker in one terminal, the script in another."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")

SECONDS = 60


def first_program(page: str) -> str:
    found = re.search(r"<!-- file: jobs.py -->\n```python\n(.*?)```", page, re.DOTALL)
    assert found is not None
    return found[1]


def shown_after(page: str, command: str) -> list[str]:
    """The lines of a console block that follow a command."""
    found = re.search(rf"^\$ {re.escape(command)}\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1].splitlines()


@pytest.fixture
def environment() -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return {**ours, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}


@contextmanager
def worker(folder: Path, environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """`holdfast worker jobs`, ended gently."""
    command = [sys.executable, "-m", "holdfast", "worker", "jobs"]
    with (folder / "worker.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, text=True)
        try:
            yield process
        finally:
            process.terminate()
            try:
                assert process.wait(SECONDS) == 0
            finally:
                process.kill()


def test_the_quickstart_runs_in_two_terminals(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "jobs.py").write_text(first_program(README), encoding="utf-8")
    with worker(tmp_path, environment):
        script = subprocess.run(
            [sys.executable, "jobs.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        status = subprocess.run(
            [sys.executable, "-m", "holdfast", "jobs", "show", "dog", "--app", "jobs"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    output = script.stderr + (tmp_path / "worker.log").read_text()
    assert (script.returncode, script.stdout.splitlines()) == (0, shown_after(README, "python jobs.py")), output
    assert status.returncode == 0, status.stderr
    assert "dog" in status.stdout


def test_the_quickstart_is_short_and_the_same_in_both_places() -> None:
    program = first_program(README)
    assert len(program.splitlines()) <= 28
    assert first_program(QUICKSTART) == program
    assert shown_after(QUICKSTART, "python jobs.py") == shown_after(README, "python jobs.py")


def test_the_guarantees_are_five_sentences_and_promise_no_more_than_the_page_on_them() -> None:
    section = README.partition("## Guarantees\n")[2].partition("\n## ")[0]
    assert re.findall(r"^(\d)\. ", section, re.MULTILINE) == ["1", "2", "3", "4", "5"]
    for boast in ("exactly once", "never lose", "exactly-once", "no data loss", "guaranteed delivery"):
        assert boast not in README.lower()
