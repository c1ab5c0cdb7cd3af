"""Commands for the tests of the command line."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from command_line import Run, Shell, forget_modules, run_command


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs a command and returns its `Answer`.

    A command imports the user's module into this process: the test's end takes its folder and its modules out again,
    or the next test that writes a module of that name would get this one.
    """
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield partial(run_command, capsys)
    forget_modules(tmp_path)


@pytest.fixture
def shell(tmp_path: Path, run: Run) -> Iterator[Shell]:
    """An App on a SQLite file, open, and commands on the same file."""
    shell = Shell(tmp_path, run)
    with shell.app:
        yield shell
