"""Output for people: tables, in colour on a terminal and plain in a pipe."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum, auto
from typing import IO, Any, TextIO, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.cli.format import safe, short
from holdfast.model.findings import Level
from holdfast.model.states import JobState

STYLES = {
    JobState.RUNNING: "cyan",
    JobState.ASSIGNED: "cyan",
    JobState.RETRYING: "yellow",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "dim",
}
LEVEL_STYLES = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.PROBLEM: "red"}
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


# --- Tables ---

GAP = 2
MIN_GAP = 1
NO_VALUE = ("", "·")
INDENT = 2
PAIR_GAP = 3
"""Between two values of a row that has become a paragraph."""


class ColumnKind(Enum):
    """How a column becomes narrower if the table is too wide."""

    NUMBERS = auto()
    """Never: a cut number would be a wrong one."""
    UNCUT = auto()
    """Never."""
    ID = auto()
    """Generated ids are shortened, all at once: the beginning is enough for a command."""
    NAME = auto()
    """Text goes on in the next line: no two names look the same. The first column."""
    WRAPPED = auto()
    """Text goes on in the next line."""
    WIDE = auto()
    """The same for sentences, which need more room."""
    CUT = auto()
    """Text ends in an ellipsis."""


MIN_WIDTHS = {ColumnKind.NAME: 10, ColumnKind.WRAPPED: 10, ColumnKind.WIDE: 24, ColumnKind.CUT: 12}
"""Characters. A column becomes no narrower than this."""


@dataclass(slots=True)
class TableColumn:
    name: str
    kind: ColumnKind
    cells: list[Text]
    width: int = 0
    """As wide as its widest cell; `fit` may make it narrower."""

    def __post_init__(self) -> None:
        widths = [line.cell_len for cell in self.cells for line in cell.split("\n", allow_blank=True)]
        self.width = max([cell_len(self.name), *widths])

    def narrowed(self) -> "TableColumn":
        """A copy, ids shortened."""
        if self.kind is not ColumnKind.ID:
            return copy(self)
        return TableColumn(self.name, ColumnKind.UNCUT, [text(short(cell.plain)) for cell in self.cells])

    @property
    def min_width(self) -> int:
        return min(self.width, max(cell_len(self.name), MIN_WIDTHS.get(self.kind, self.width)))

    @property
    def has_values(self) -> bool:
        return any(cell.plain not in NO_VALUE for cell in self.cells)


class FittedTable:
    """A table without lines, as wide as the terminal allows.

    If it is too wide, columns come closer, ids are shortened, and columns of text become narrower; then columns without
    any value are left out, and a line below names them; then each row becomes a paragraph. No number is ever cut.
    """

    def __init__(self, columns: list[TableColumn]) -> None:
        self.columns = columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        with_values = [column for place, column in enumerate(self.columns) if not place or column.has_values]
        without = [column.name for column in self.columns if column not in with_values]
        if self._width(self.columns, GAP) <= width:
            yield _grid(self.columns, GAP)
        elif fitted := fit(self.columns, width):
            yield _grid(fitted, MIN_GAP)
        elif fitted := fit(with_values, width):
            yield _grid(fitted, MIN_GAP)
            yield Text(f"Columns without a value: {', '.join(without)}.", style="dim")
        else:
            yield from _paragraphs(with_values, width)

    @staticmethod
    def _width(columns: Sequence[TableColumn], gap: int) -> int:
        return sum(column.width for column in columns) + gap * (len(columns) - 1)


def fit(columns: Sequence[TableColumn], width: int) -> list[TableColumn]:
    """The columns, narrower, so that they fit into this width; empty if they cannot."""
    fitted = [column.narrowed() for column in columns]
    limits = [column.min_width for column in fitted]
    excess = sum(column.width for column in fitted) + MIN_GAP * (len(fitted) - 1) - width
    while excess > 0:
        able = [column for column, limit in zip(fitted, limits, strict=True) if column.width > limit]
        if not able:
            return []
        max(able, key=lambda column: column.width).width -= 1
        excess -= 1
    return fitted


def _grid(columns: Sequence[TableColumn], gap: int) -> Table:
    result = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    for column in columns:
        result.add_column(
            column.name,
            justify="right" if column.kind is ColumnKind.NUMBERS else "left",
            width=column.width,
            no_wrap=column.kind in (ColumnKind.NUMBERS, ColumnKind.UNCUT, ColumnKind.ID, ColumnKind.CUT),
            overflow="ellipsis" if column.kind is ColumnKind.CUT else "fold",
        )
    for cells in zip(*(column.cells for column in columns), strict=True):
        result.add_row(*cells)
    return result


def _paragraphs(columns: Sequence[TableColumn], width: int) -> Iterator[RenderableType]:
    """Each row as the name in its first column, then what it has in the others, as many to a line as fit."""
    for name, *cells in zip(*(column.cells for column in columns), strict=True):
        yield _pair(columns[0], name) if columns[0].kind is ColumnKind.NUMBERS else name
        line = Text(overflow="fold")
        for column, cell in zip(columns[1:], cells, strict=True):
            if cell.plain in NO_VALUE:
                continue
            value = _pair(column, cell)
            if line and INDENT + line.cell_len + PAIR_GAP + value.cell_len > width:
                yield Padding(line, (0, 0, 0, INDENT))
                line = Text(overflow="fold")
            line.append(" " * PAIR_GAP if line else "").append(value)
        if line:
            yield Padding(line, (0, 0, 0, INDENT))


def _pair(column: TableColumn, cell: Text) -> Text:
    return Text(overflow="fold").append(f"{column.name} " if column.name else "", "dim").append(cell)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Text]],
    *,
    ids: Sequence[str] = (),
    uncut: Sequence[str] = (),
    wide: Sequence[str] = (),
    cut: Sequence[str] = (),
) -> FittedTable:
    """A table. A name that ends in `#` is a column of numbers; the other columns wrap if `ids`, `uncut`, `wide` and
    `cut` do not say otherwise: see `ColumnKind`."""
    cells = list(rows)

    def kind_of(place: int, name: str) -> ColumnKind:
        if name.endswith("#"):
            return ColumnKind.NUMBERS
        for names, kind in (
            (ids, ColumnKind.ID),
            (uncut, ColumnKind.UNCUT),
            (wide, ColumnKind.WIDE),
            (cut, ColumnKind.CUT),
        ):
            if name in names:
                return kind
        return ColumnKind.WRAPPED if place else ColumnKind.NAME

    return FittedTable(
        [
            TableColumn(name.removesuffix("#"), kind_of(place, name), [row[place] for row in cells])
            for place, name in enumerate(columns)
        ]
    )


def pairs(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names with their values."""
    result = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
    result.add_column(style="dim", no_wrap=True)
    result.add_column(overflow="fold")
    for name, value in rows:
        result.add_row(name, value)
    return result
