"""Imports point one way: the contracts in pyproject.toml hold, and they can fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LINT = "from importlinter.cli import lint_imports_command as main; main()"
EDGES = ("click", "rich", "asyncpg", "redis", "starlette", "sqlalchemy", "django", "sqlite3", "pytest", "hypothesis")


def lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter with the project's contracts over the package found in `source`."""
    return subprocess.run(
        [sys.executable, "-c", LINT, "--config", str(ROOT / "pyproject.toml"), "--no-logo", "--no-cache"],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_import_contracts_hold() -> None:
    answer = lint_imports(ROOT / "src")
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize(
    ("module", "planted", "contract"),
    [
        ("errors.py", "import holdfast.engine", "Imports point down"),
        ("model/job.py", "import holdfast.engines", "Imports point down"),
        ("model/job.py", "import os", "The model is pure"),
        ("model/job.py", "import holdfast.runtime", "The model is pure"),
        ("engines/ledger/__init__.py", "import holdfast.engines.memory", "Engines do not import each other"),
        ("engines/sqlite/audit.py", "import holdfast.engines.tables", "The in-memory tables belong to"),
        ("engine.py", "import holdfast.engines.memory", "Engines are opened in one place"),
        ("testing/contract/__init__.py", "import holdfast.engines.ledger", "Contract examples and history"),
        ("testing/histories/check.py", "import holdfast.engines.ledger", "Contract examples and history"),
        ("runtime.py", "import msgspec", "msgspec is imported only where"),
        ("engine.py", "import pytest", "pytest and hypothesis are imported only in"),
        ("misplaced.py", '"""A module without a layer."""', "Imports point down"),
    ],
)
def test_a_planted_import_breaks_its_contract(tmp_path: Path, module: str, planted: str, contract: str) -> None:
    shutil.copytree(ROOT / "src" / "holdfast", tmp_path / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "holdfast" / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{planted}\n")

    answer = lint_imports(tmp_path)

    assert answer.returncode == 1
    broken = [line for line in answer.stdout.splitlines() if " BROKEN" in line]
    assert any(line.startswith(contract) for line in broken), answer.stdout + answer.stderr


def test_import_holdfast_loads_no_edge_and_no_driver() -> None:
    script = f"import sys; from holdfast import App; print(*sorted(set({EDGES!r}) & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == []
