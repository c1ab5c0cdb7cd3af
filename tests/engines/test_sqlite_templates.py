"""The SQL of the SQLite engine takes its numbers and column lists from the model and from `rows.py`."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.fast_updates import end_row, lease_row, narrow_row
from holdfast.engines.sqlite.migrations import migrate
from holdfast.engines.sqlite.statements import load
from holdfast.engines.templates import fill
from holdfast.model.job import JobRecord
from holdfast.model.states import JobState

PACKAGE = Path(rows.__file__).parent
BARE_LITERAL = re.compile(r"\b(state|hold)\s*(=|<>|!=|<=?|>=?|&|\bIN\s*\()\s*-?\d", re.IGNORECASE)
"""A comparison of a state or hold column with a number."""


def test_the_stored_number_of_a_state_never_changes() -> None:
    assert rows.STATE_NUMBERS == {
        JobState.SCHEDULED: 1,
        JobState.BLOCKED: 2,
        JobState.QUEUED: 3,
        JobState.ASSIGNED: 4,
        JobState.RUNNING: 5,
        JobState.RETRYING: 6,
        JobState.SUCCEEDED: 7,
        JobState.FAILED: 8,
        JobState.CANCELLED: 9,
    }


@pytest.mark.parametrize("path", sorted([*PACKAGE.glob("*.sql"), *PACKAGE.glob("*.py")]), ids=lambda path: path.name)
def test_no_file_compares_a_state_or_a_hold_with_a_bare_number(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if BARE_LITERAL.search(line)] == []


@pytest.mark.parametrize("planted", ["WHERE state = 3", "state IN (1, 6)", "job.state >= 7", "if job.hold & 8:"])
def test_a_planted_number_is_found(planted: str) -> None:
    assert BARE_LITERAL.search(planted)


def test_an_unknown_name_in_a_template_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"state\.asleep"):
        fill("SELECT {{state.asleep}}", {"state.queued": "3"}, where="statements.sql, ready")


@pytest.mark.parametrize("file", ["schema.sql", "statements.sql"])
def test_nothing_of_the_template_is_left_in_a_statement(file: str) -> None:
    assert [name for name, text in load(file, "holdfast").items() if "{" in text or "}" in text] == []


def test_the_table_has_the_columns_that_a_row_fills() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        migrate(db, "holdfast", "boot")
        assert tuple(name for _, name, *_ in db.execute("PRAGMA table_info(holdfast_job)")) == rows.COLUMNS
    job = JobRecord(queue="q", id="a")
    assert len(rows.job_row(job, 1, 1)) == len(rows.COLUMNS)
    # Each with the arrival at its end.
    assert len(narrow_row(job)) == len(rows.NARROW_COLUMNS) + 1
    assert len(lease_row(job)) == len(rows.LEASE_COLUMNS) + 1
    assert len(end_row(job)) == len(rows.END_COLUMNS) - len(rows.NULL_AT_END) + 1
    db.close()
