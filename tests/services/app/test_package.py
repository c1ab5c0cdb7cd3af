"""The package as users import it: its names, and what an import costs."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import holdfast
from holdfast import errors

# fmt: off
PUBLIC = [
    "AbortReason", "Aborted", "AmbiguousId", "App", "Attempt", "BlockingCall", "Busy", "Cancel", "CancelAnswer",
    "CheckProblem", "CheckReport", "Client", "Codec", "ConfigError", "Context", "Control", "CorruptRecord", "Draft",
    "DuplicateTask", "EngineError", "EngineUnavailable", "ErrorInfo", "GiveUp", "Handle", "HistoryLost",
    "HoldfastError", "IdConflict", "Interrupt", "InvalidArguments", "InvalidOption", "Job", "JobCancelled",
    "JobError", "JobFailed", "JobNotFound", "JobState", "KeyTaken", "Lane", "Lease", "LeaseLost", "Middleware",
    "Misfit", "Next", "Obstacle", "OutcomeUnknown", "PayloadTooLarge", "Pool", "Queue", "QueueFull", "Receipt",
    "Refused", "Report", "ResultExpired", "Retry", "SchemaMismatch", "Snooze", "StorageFull", "Task", "UnknownTask",
    "Unsupported", "UsageError", "WaitTimeout", "Why", "Worker", "WrongDatabase", "WrongState", "content_id",
    "exponential", "fixed", "linear",
]
# fmt: on


def test_the_public_names_are_these() -> None:
    assert sorted(holdfast.__all__) == sorted(PUBLIC)
    assert all(getattr(holdfast, name) is not None for name in PUBLIC)
    with pytest.raises(AttributeError):
        holdfast.Lock  # type: ignore[attr-defined]  # noqa: B018


def test_the_whole_tree_of_errors_is_public() -> None:
    def tree(cls: type) -> Iterator[str]:
        yield cls.__name__
        children: list[type] = cls.__subclasses__()
        for child in children:
            if child.__module__ == "holdfast.errors":
                yield from tree(child)

    assert {*tree(errors.HoldfastError), *tree(errors.Interrupt)} <= {*PUBLIC}


def imported_names() -> dict[str, str]:
    """The module of each name, as type checkers read it in the source."""
    tree = ast.parse(Path(holdfast.__file__).read_text(encoding="utf-8"))
    return {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("holdfast.")
        for alias in node.names
    }


def test_a_name_is_the_same_for_type_checkers_and_for_programs() -> None:
    found = imported_names()
    assert sorted(found) == sorted(PUBLIC)
    for name, module in found.items():
        assert getattr(holdfast, name) is getattr(import_module(module), name)


def test_modules_with_further_public_names_need_no_import_of_their_own() -> None:
    script = "import holdfast; print(holdfast.errors.Busy is holdfast.Busy, holdfast.events.Failed, *dir(holdfast))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert answer[0] == "True"
    assert {*PUBLIC, "events"} <= {*answer}


def seconds_to_import(what: str, cache: Path) -> float:
    """The least CPU time of several tries, with compiled files."""
    script = f"import time; t = time.process_time(); {what}; print(time.process_time() - t)"
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache), "PYTHONDONTWRITEBYTECODE": ""}
    tries = [
        subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True).stdout
        for _ in range(7)
    ]
    return min(map(float, tries))


def test_importing_the_app_is_cheap(tmp_path: Path) -> None:
    """80 ms where asyncio and msgspec, which it cannot do without, take 30."""
    needed = seconds_to_import("import asyncio, msgspec", tmp_path)
    assert seconds_to_import("from holdfast import App", tmp_path) < 80 / 30 * needed


def test_importing_the_app_loads_no_worker_engine_or_edge() -> None:
    script = "import sys; from holdfast import App; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    unwanted = (
        "holdfast.worker",
        "holdfast.engines",
        "holdfast.testing",
        "holdfast.config",
        "sqlite3",
        "click",
        "rich",
    )
    assert [name for name in unwanted if name in loaded] == []
