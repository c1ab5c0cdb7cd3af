"""mypy and pyright see the public API as users do: they accept the uses and reject every misuse, on the same lines."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
IGNORE = re.compile(r"\s*# type: ignore\[.*\]$")


def mypy_errors(folder: Path, name: str) -> dict[int, str]:
    """The lines on which mypy finds an error, with what it says."""
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version=3.11", "--no-error-summary", name]
    answer = subprocess.run(
        [*command, f"--cache-dir={ROOT / '.mypy_cache'}"],
        cwd=folder,
        env={"PATH": "", "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode in (0, 1), answer.stderr
    found = re.findall(rf"^{re.escape(name)}:(\d+): error: (.*)$", answer.stdout, re.MULTILINE)
    return {int(line): said for line, said in found}


def pyright_errors(folder: Path, name: str) -> dict[int, str]:
    """The same for pyright, which brings its own node where the machine has none."""
    settings = {"include": [name], "extraPaths": [str(ROOT / "src")], "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    answer = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", f"--pythonpath={sys.executable}", "--project", "."],
        cwd=folder,
        env={"PATH": "", "HOME": str(folder), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode in (0, 1), answer.stdout + answer.stderr
    found = json.loads(answer.stdout)["generalDiagnostics"]
    return {each["range"]["start"]["line"] + 1: each["message"] for each in found if each["severity"] == "error"}


checkers = pytest.mark.parametrize("errors_in", [mypy_errors, pyright_errors])


@checkers
def test_every_misuse_is_rejected_and_nothing_else(
    errors_in: Callable[[Path, str], dict[int, str]], tmp_path: Path
) -> None:
    lines = (HERE / "misuses.py").read_text(encoding="utf-8").splitlines()
    mistakes = {number for number, line in enumerate(lines, start=1) if IGNORE.search(line)}
    assert len(mistakes) > 30
    (tmp_path / "misuses.py").write_text("\n".join(IGNORE.sub("", line) for line in lines), encoding="utf-8")

    found = errors_in(tmp_path, "misuses.py")

    assert {n: lines[n - 1] for n in mistakes - found.keys()} == {}, "accepted, but should not be"
    assert {n: found[n] for n in found.keys() - mistakes} == {}, "rejected, but should not be"


@checkers
def test_the_documented_uses_are_accepted(errors_in: Callable[[Path, str], dict[int, str]], tmp_path: Path) -> None:
    (tmp_path / "uses.py").write_text((HERE / "uses.py").read_text(encoding="utf-8"), encoding="utf-8")
    assert errors_in(tmp_path, "uses.py") == {}
