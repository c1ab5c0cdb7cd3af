"""Options that many commands share, and how their values are read."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:  # a help page loads neither an App nor what it needs
    from holdfast.app import App
    from holdfast.cli.target import TargetApp
    from holdfast.client import Client
    from holdfast.control import Control

Function = Callable[..., Any]
Command = TypeVar("Command", bound=click.Command)
MAX_SUMMARY = 200
"""Characters. Longer than every first sentence: a help page cuts none."""


def duration(value: str) -> float:
    """Seconds, from `30`, `30s`, `10m`, `2h` or `1d`."""
    from holdfast.readers import seconds

    try:
        return seconds()(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}") from error


def size(value: str) -> int:
    """Bytes, from `536870912`, `512MiB` or `2GB`."""
    from holdfast.readers import byte_size

    try:
        return byte_size(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}") from error


def time(value: str) -> datetime:
    """A time, from ISO text with its time zone."""
    try:
        at = datetime.fromisoformat(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a time. Write it as in 2030-01-31T08:00+01:00.") from error
    if at.utcoffset() is None:
        raise click.BadParameter(f"{value!r} has no time zone. Write {value}Z, or {value}+01:00.")
    return at


class CommandGroup(click.Group):
    """A group whose help page has the whole first sentence of each command."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        return None if command is None else for_program(command, ctx.find_root().info_name)

    def summary(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(limit=MAX_SUMMARY)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.summary(ctx, name)) for name in self.list_commands(ctx)])


def examples(*lines: str) -> str:
    """The end of a help page."""
    return "\b\n" + "\n".join(["Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


PROGRAM = "holdfast"
_EXAMPLE_APP = re.compile(r" (--app )?shop\.jobs(:\w+)?(?!\S)")


def for_program(command: Command, program: str | None) -> Command:
    """The command with examples for a program that embeds it, such as Django's `manage.py`. It has an App."""
    if program in (None, PROGRAM) or not command.epilog:
        return command
    lines = [_EXAMPLE_APP.sub("", line) for line in command.epilog.replace("  holdfast ", f"  {program} ").splitlines()]
    result = copy(command)
    result.epilog = "\n".join(dict.fromkeys(lines))
    return result


@dataclass(frozen=True, slots=True)
class Store:
    """What a command works on, and whether it prints JSON."""

    target: "TargetApp"
    as_json: bool

    @property
    def app(self) -> "App[Any]":
        return self.target.app

    @property
    def control(self) -> "Control":
        return self.target.app.control

    @property
    def client(self) -> "Client":
        return self.target.app.client

    @property
    def now(self) -> datetime:
        from holdfast.views import moment

        return moment(self.app.runtime.wall())


NAMESPACE = "holdfast.namespace"
"""The key of `--namespace` in the context of a command."""


def keep_namespace(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Keep the value of `--namespace` for `target.find`."""
    context.meta[NAMESPACE] = value


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
app_option = click.option("--app", "target", metavar="TARGET", help="The App: module, or module:name.")
_url = click.option("--url", metavar="ADDRESS", help="The store: env:NAME, or an address without a password.")
_namespace = click.option(
    "--namespace",
    metavar="NAME",
    expose_value=False,
    callback=keep_namespace,
    help="The namespace in the store, if no App is named. Default: the configured one, or holdfast.",
)


def url_option(function: Function) -> Function:
    """Options `--url` and `--namespace`. The command gets the first; `target.find` reads the second by itself."""
    return _url(_namespace(function))


def _key_and_value(text: str) -> tuple[str, str]:
    """The two parts of KEY=VALUE. The value may contain further equals signs, or be empty."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE.")
    return key, value


def _metadata(context: click.Context, parameter: click.Parameter, pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    keys = [key for key, _ in pairs]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise click.UsageError(f"The metadata key {twice} is given twice.")
    return dict(pairs)


def metadata_option(help: str) -> Callable[[Function], Function]:
    """Option `--metadata`, which the command gets as a dict."""
    return click.option(
        "--metadata", type=_key_and_value, callback=_metadata, metavar="KEY=VALUE", multiple=True, help=help
    )


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
queue_option = click.option("--queue", metavar="NAME", help="Only this queue.")


def on_store(*, create: bool = False) -> Callable[[Function], Function]:
    """Give a command an open `Store` as its first argument, and the options that say which store."""

    def decorate(function: Function) -> Function:
        @app_option
        @url_option
        @json_option
        @wraps(function)
        def command(*args: Any, target: str | None, url: str | None, as_json: bool, **options: Any) -> Any:
            with _store(target, url, as_json, create=create) as store:
                return function(store, *args, **options)

        return command

    return decorate


@contextmanager
def _store(target: str | None, url: str | None, as_json: bool, *, create: bool) -> Iterator[Store]:
    from holdfast.cli.target import find, opened

    app = find(target, url)
    with opened(app, create=create):
        yield Store(app, as_json)
