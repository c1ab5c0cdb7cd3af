"""Commands for the tests of the command line."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from command_line import Run, Shell, run_command


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command and returns its `Answer`."""
    return partial(run_command, capsys)


@pytest.fixture
def shell(tmp_path: Path, run: Run) -> Iterator[Shell]:
    """An App on a SQLite file, open, and commands on the same file."""
    shell = Shell(tmp_path, run)
    with shell.app:
        yield shell
