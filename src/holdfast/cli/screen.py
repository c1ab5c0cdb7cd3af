"""What is shown to people: a console that is plain where it is no terminal, and tables."""

import os
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.cli.escape import safe
from holdfast.model.states import JobState

STYLES = {
    JobState.RUNNING: "cyan",
    JobState.ASSIGNED: "cyan",
    JobState.RETRYING: "yellow",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "dim",
}
WIDE = 10_000
"""Columns of a pipe: nothing is cut there."""


def colour() -> bool:
    """Whether standard output may be coloured."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def console() -> Console:
    terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout,
        force_terminal=terminal,
        color_system="auto" if colour() else None,
        width=None if terminal else WIDE,
        markup=False,
        emoji=False,
        highlight=False,
    )


def text(value: object, style: str = "") -> Text:
    """Stored text as a cell: never markup, never a control character."""
    return Text(safe(value), style=style)


def state_text(state: JobState) -> Text:
    return Text(state.value, style=STYLES.get(state, ""))


def number(value: int, style: str = "") -> Text:
    """A count; nothing at all is pale."""
    return Text(f"{value:,}" if value else "·", style=style if value else "dim")


def table(columns: Sequence[str], rows: Iterable[Sequence[RenderableType]], *, whole: Sequence[str] = ()) -> Table:
    """A table without lines. A name that ends in `#` is a column of numbers; `whole` columns are never cut."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        name = column.removesuffix("#")
        made.add_column(
            name,
            justify="right" if name != column else "left",
            no_wrap=True,
            overflow="fold" if name in whole else "ellipsis",
        )
    for row in rows:
        made.add_row(*row)
    return made


def pairs(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names and what belongs to them."""
    made = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made
