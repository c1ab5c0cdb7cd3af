"""A progress bar for long work, on standard error, and only if that is a terminal: a pipe or a log gets nothing."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from holdfast.cli.format import safe

MIN_TOTAL = 5_000
"""Items from which a bar is worth while: fewer are done in a moment."""
MIN_WRITES = 50
"""The same for items that are one write of the store each."""


class ProgressBar:
    """Called with how much is done and how much there is. It appears with the first call, if there is much."""

    def __init__(self, title: str, min_total: int = MIN_TOTAL) -> None:
        self._title = safe(title)
        self._min_total = min_total
        self._progress: Progress | None = None
        self._bar: TaskID | None = None

    def __call__(self, done: int, total: int) -> None:
        if total < self._min_total or not sys.stderr.isatty():
            return
        if self._progress is None:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar = self._progress.add_task(self._title, total=total)
            self._progress.start()
        if self._bar is not None:
            self._progress.update(self._bar, completed=done, total=max(done, total))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
