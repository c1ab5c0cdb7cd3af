"""A progress bar on standard error while a command changes many jobs. Only on a terminal, and gone when it is done."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.cli.format import safe
from holdfast.cli.tables import use_colour

SHOWN_FROM = 50
"""Jobs. Fewer are done before a bar could be read."""


@contextmanager
def progress_bar(what: str, total: int, *, counted: bool = True) -> Iterator[Callable[[], None]]:
    """A bar for this many jobs. Call the function after each of them; not `counted`: it is one call for all of them."""
    if total < SHOWN_FROM or not sys.stderr.isatty():
        yield lambda: None
        return
    console = Console(
        stderr=True, color_system="auto" if use_colour(sys.stderr) else None, markup=False, emoji=False, highlight=False
    )
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    if not counted:
        del columns[2]
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(safe(what), total=total if counted else None)
        yield lambda: progress.advance(task)
