"""Output for people: tables, in colour on a terminal and plain in a pipe."""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any, TextIO, cast

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.cli.format import safe
from holdfast.model.states import JobState

STYLES = {
    JobState.RUNNING: "cyan",
    JobState.ASSIGNED: "cyan",
    JobState.RETRYING: "yellow",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "dim",
}
PIPE_WIDTH = 10_000
"""Characters: wide enough that nothing is cut in a pipe."""
_BLANKS_AT_END = re.compile(" +(?=\n)")


def use_colour() -> bool:
    """True if standard output is a terminal with colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class PipeOutput:
    """Standard output without the blanks with which a table fills its last column."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_BLANKS_AT_END.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console() -> Console:
    terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout if terminal else cast("IO[str]", PipeOutput(sys.stdout)),
        force_terminal=terminal,
        color_system="auto" if use_colour() else None,
        width=None if terminal else PIPE_WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
    )


def text(value: object, style: str = "") -> Text:
    """Stored text as a cell: no markup, no control characters."""
    return Text(safe(value), style=style)


def state_text(state: JobState) -> Text:
    return Text(state.value, style=STYLES.get(state, ""))


def number(value: int, style: str = "") -> Text:
    """A count; zero is a pale dot."""
    return Text(f"{value:,}" if value else "·", style=style if value else "dim")


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[RenderableType]],
    *,
    uncut: Sequence[str] = (),
    wrapped: Sequence[str] = (),
) -> Table:
    """A table without lines. A name that ends in `#` is a column of numbers.

    `uncut` columns are shown in full; text in `wrapped` columns goes on in the next line.
    """
    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        name = column.removesuffix("#")
        result.add_column(
            name,
            justify="right" if name != column else "left",
            no_wrap=name not in wrapped,
            overflow="fold" if name in uncut or name in wrapped else "ellipsis",
        )
    for row in rows:
        result.add_row(*row)
    return result


def pairs(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names with their values."""
    result = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
    result.add_column(style="dim", no_wrap=True)
    result.add_column(overflow="fold")
    for name, value in rows:
        result.add_row(name, value)
    return result
