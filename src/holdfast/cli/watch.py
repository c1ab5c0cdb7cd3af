"""`--watch`: a command shows its answer again and again until Ctrl-C.

On a terminal the new answer replaces the old one. In a pipe, and with `--json`, the answers follow each other. An
answer that cannot be read because the store is gone for a moment does not end the command.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast.cli.exits import NothingMatched, print_message
from holdfast.cli.format import safe
from holdfast.cli.options import Function, Store, duration
from holdfast.cli.tables import console
from holdfast.errors import EngineError

MIN_INTERVAL_S = 0.01
"""Each refresh reads the store."""

View = Callable[[], RenderableType]


def _interval(value: str) -> float:
    seconds = duration(value)
    if seconds < MIN_INTERVAL_S:
        raise click.BadParameter(f"{value!r} is too short: each refresh reads the store. Give 10ms or more.")
    return seconds


def interval_option(help: str) -> Callable[[Function], Function]:
    return click.option("--interval", type=_interval, default="1s", metavar="TIME", help=help)


def watch_options(function: Function) -> Function:
    """Options `--watch` and `--interval`, which the command gets as `interval_s`; None: show it once."""

    @click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
    @interval_option("With --watch: time between refreshes. Default 1s.")
    @wraps(function)
    def command(*args: Any, watch: bool, interval: float, **options: Any) -> Any:
        return function(*args, interval_s=interval if watch else None, **options)

    return command


def present(store: Store, view: View, print_objects: Callable[[], None], interval_s: float | None) -> None:
    """Show the view, or with `--json` print the objects: once, or every `interval_s` seconds.

    Once, `NothingMatched` ends the command. Later it is only shown: what does not exist now may exist soon.
    """
    terminal = console()
    if interval_s is None:
        if store.as_json:
            print_objects()
        else:
            terminal.print(view())
        return
    pause = store.app.runtime.event()  # never set: only for `wait`, which Ctrl-C interrupts
    if store.as_json or not terminal.is_terminal:
        while True:
            _print_again(store, view, print_objects)
            pause.wait(interval_s)
    last = or_message(view)
    with Live(last, console=terminal, auto_refresh=False, transient=False) as live:
        while not pause.wait(interval_s):
            last = again(view, last)
            live.update(last, refresh=True)


def _print_again(store: Store, view: View, print_objects: Callable[[], None]) -> None:
    try:
        if store.as_json:
            print_objects()
        else:
            console().print(or_message(view))
    except NothingMatched:
        return
    except EngineError as error:
        print_message(str(error))


def or_message(view: View) -> RenderableType:
    try:
        return view()
    except NothingMatched as nothing:
        return Text(safe(nothing.message))


def again(view: View, last: RenderableType) -> RenderableType:
    """The new view; while the store does not answer, the last one and the reason."""
    try:
        return or_message(view)
    except EngineError as error:
        of_last = last.renderables[0] if isinstance(last, _Outdated) else last
        return _Outdated(of_last, Text(), Text(f"Not refreshed: {safe(error)}", style="red"))


class _Outdated(Group):
    """A view that could not be refreshed, and why."""
