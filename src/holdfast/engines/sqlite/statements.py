"""Named SQL from the `.sql` files of this package.

The files are templates. `{{name}}` stands for a value of the model (a state number, a set of states), for a list of
columns from `rows.py`, or for the namespace. So a statement cannot disagree with the model.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from holdfast.engines.sqlite.rows import (
    COLUMNS,
    END_COLUMNS,
    ID_COLUMNS,
    LEASE_COLUMNS,
    NARROW_COLUMNS,
    NULL_AT_END,
    QUEUED_COLUMNS,
    ROWS_PER_INSERT,
    STATE_NUMBERS,
)
from holdfast.engines.templates import fill
from holdfast.model.states import BY_DUE, LIVE, TERMINAL, UNSUCCESSFUL, JobState

HEADING = "-- name: "
"""Begins a statement; the rest of the line is its name."""


@cache
def load(file: str, namespace: str) -> Mapping[str, str]:
    """The statements of a file by name. The caller has checked the namespace."""
    values = {**_model_values(), "ns": namespace}
    text = files(__package__).joinpath(file).read_text(encoding="utf-8")
    statements = {}
    for block in text.split(HEADING)[1:]:
        name, _, body = block.partition("\n")
        statements[name.strip()] = fill(body.strip(), values, where=f"{file}, {name.strip()}")
    return statements


@cache
def _model_values() -> dict[str, str]:
    sets = {"live": LIVE, "terminal": TERMINAL, "unsuccessful": UNSUCCESSFUL, "by_due": BY_DUE}
    queued_row = f"({', '.join('?' * len(QUEUED_COLUMNS))}, {STATE_NUMBERS[JobState.QUEUED]})"
    return {
        **{f"state.{state.value}": str(number) for state, number in STATE_NUMBERS.items()},
        **{name: _numbers(states) for name, states in sets.items()},
        "job.columns": ", ".join(COLUMNS),
        "job.qualified_columns": ", ".join(f"job.{column}" for column in COLUMNS),
        "job.parameters": ", ".join("?" * len(COLUMNS)),
        "job.assignments": _assignments(column for column in COLUMNS if column not in ID_COLUMNS),
        "job.lease_assignments": _assignments(LEASE_COLUMNS),
        "job.end_assignments": _assignments(END_COLUMNS, null=NULL_AT_END),
        "job.narrow_assignments": _assignments(NARROW_COLUMNS),
        "job.queued_columns": ", ".join((*QUEUED_COLUMNS, "state")),
        "job.queued_row": queued_row,
        "job.queued_rows": ", ".join([queued_row] * ROWS_PER_INSERT),
    }


def _numbers(states: frozenset[JobState]) -> str:
    return ", ".join(str(number) for state, number in STATE_NUMBERS.items() if state in states)


def _assignments(columns: Iterable[str], null: Iterable[str] = ()) -> str:
    return ", ".join(f"{column} = {'NULL' if column in null else '?'}" for column in columns)
