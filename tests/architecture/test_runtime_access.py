"""Time, random numbers, tasks, threads, processes and files are used through `holdfast.runtime` only.

Ruff bans the other ways in the editor. This test reads the same list, follows aliases, and finds what ruff's rule does
not: methods, imports by name, and the files that are exempt from the rule as a whole.
"""

import ast
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
RUNTIME_FILES = ("runtime.py", "files.py", "file_locks.py", "forks.py", "processes.py")
RUNTIME = {ROOT / "src" / "holdfast" / name for name in RUNTIME_FILES}

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BANNED = frozenset(PYPROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"])
SERIALISERS = frozenset({"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"})

# Doors that hang on an object, so that no dotted name shows them.
METHODS = frozenset({"create_task", "run_in_executor", "call_later", "call_at", "write_text", "write_bytes"})

IMPORTERS = frozenset({"importlib.import_module", "builtins.__import__"})


@cache
def uses(source: str) -> tuple[tuple[int, str], ...]:
    """Every dotted name that a module imports or touches, in full, with its line."""
    return tuple(_uses(source))


def _uses(source: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(source)
    names = {"open": "builtins.open", "__import__": "builtins.__import__"}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    yield node.lineno, alias.name
                    top = alias.name.partition(".")[0]
                    names[alias.asname or top] = alias.name if alias.asname else top
            case ast.ImportFrom(module=str(module), names=aliases, level=0):
                for alias in aliases:
                    yield node.lineno, f"{module}.{alias.name}"
                    names[alias.asname or alias.name] = f"{module}.{alias.name}"
            case _:
                pass
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=attr):
                yield node.lineno, full_name(node, names) or f"?.{attr}"
            case ast.Name(id=id, ctx=ast.Load()) if id in names:
                yield node.lineno, names[id]
            case ast.Call(func=function, args=[ast.Constant(value=str(module)), *_]):
                if full_name(function, names) in IMPORTERS:
                    yield node.lineno, module
            case _:
                pass


def full_name(node: ast.expr, names: dict[str, str]) -> str | None:
    match node:
        case ast.Name(id=id):
            return names.get(id)
        case ast.Attribute(value=value, attr=attr):
            base = full_name(value, names)
            return f"{base}.{attr}" if base else None
        case _:
            return None


def violations(source: str, banned: Iterable[str], methods: Iterable[str] = ()) -> list[str]:
    banned, methods = frozenset(banned), frozenset(methods)
    found = {
        (line, name)
        for line, name in uses(source)
        if any(name == ban or name.startswith(f"{ban}.") for ban in banned)
        or (name.startswith("?.") and name.removeprefix("?.") in methods)
    }
    return [f"line {line}: {name}" for line, name in sorted(found)]


def violations_in(paths: Iterable[Path], banned: Iterable[str], methods: Iterable[str] = ()) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}, {violation}"
        for path in paths
        for violation in violations(path.read_text(encoding="utf-8"), banned, methods)
    ]


def test_only_runtime_reaches_the_outside() -> None:
    assert violations_in((path for path in SOURCE if path not in RUNTIME), BANNED, METHODS) == []


def test_no_code_reads_data_that_is_code() -> None:
    assert violations_in([*SOURCE, *TESTS], SERIALISERS) == []


def test_tests_sleep_in_one_place() -> None:
    """`eventually` polls a condition; every other test waits for an event, or calls it."""
    assert violations_in((path for path in TESTS if path.name != "eventually.py"), {"time.sleep"}) == []


def test_serialisers_are_on_the_banned_list_too() -> None:
    assert SERIALISERS <= BANNED


@pytest.mark.parametrize(
    "planted",
    [
        "import time\nnow = time.time()",
        "import time as clock\nnow = clock.monotonic()",
        "from time import sleep",
        "from time import perf_counter as tick",
        "import time\nnow = time.clock_gettime(time.CLOCK_BOOTTIME)",
        "import datetime\nnow = datetime.datetime.now(datetime.UTC)",
        "from datetime import datetime\nnow = datetime.utcnow()",
        "import random",
        "from random import choice",
        "import secrets",
        "from os import urandom",
        "import uuid\nid = uuid.uuid4()",
        "import threading",
        "def later():\n    from threading import Thread",
        "import asyncio\nasync def nap():\n    await asyncio.sleep(1)",
        "import asyncio\ntask = asyncio.create_task(work())",
        "import asyncio\nasync def hop():\n    await asyncio.to_thread(work)",
        "from asyncio import get_running_loop\ntask = get_running_loop().create_task(work())",
        "loop.run_in_executor(None, work)",
        "import subprocess",
        "import multiprocessing.pool",
        "import concurrent.futures",
        "from concurrent.futures import ThreadPoolExecutor",
        "with open('journal', 'ab') as file:\n    pass",
        "import os\nfile = os.open('journal', os.O_RDWR)",
        "from pathlib import Path\nPath('journal').write_bytes(b'')",
        "import pickle",
        "import marshal",
        "from shelve import open as keep",
        "import importlib\npickler = importlib.import_module('pickle')",
        "random = __import__('random')",
    ],
)
def test_a_planted_door_is_found(planted: str) -> None:
    assert violations(planted, BANNED, METHODS)


@pytest.mark.parametrize(
    "allowed",
    [
        "import asyncio\nevent = asyncio.Event()",
        "from datetime import UTC, datetime, timedelta\nepoch = datetime(1970, 1, 1, tzinfo=UTC)",
        "class Engine:\n    async def open(self): ...\nasync def start(engine):\n    await engine.open()",
        "import os.path\nname = os.path.join('a', 'b')",
        "def ready(time, random):\n    return time.time() + random.random()",
        "from holdfast.runtime import Runtime\ndef nap(runtime: Runtime):\n    return runtime.sleep(1)",
        "text = 'import pickle; time.time()'  # random",
    ],
)
def test_what_only_looks_like_a_door_is_left_alone(allowed: str) -> None:
    assert violations(allowed, BANNED, METHODS) == []
