"""The package as users import it: its names, and what an import costs."""

import os
import subprocess
import sys
from collections.abc import Iterator
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


def seconds_to_import(what: str, cache: Path) -> float:
    """The least CPU time of several tries, with compiled files."""
    script = f"import time; t = time.process_time(); import {what}; print(time.process_time() - t)"
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache), "PYTHONDONTWRITEBYTECODE": ""}
    tries = [
        subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True).stdout
        for _ in range(7)
    ]
    return min(map(float, tries))


def test_importing_holdfast_is_cheap(tmp_path: Path) -> None:
    """80 ms where asyncio and msgspec, which it cannot do without, take 30."""
    assert seconds_to_import("holdfast", tmp_path) < 80 / 30 * seconds_to_import("asyncio, msgspec", tmp_path)


def test_importing_holdfast_loads_no_worker_engine_or_edge() -> None:
    script = "import sys, holdfast; print(*sorted(m for m in sys.modules if m.startswith('holdfast.')), *sys.modules)"
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
