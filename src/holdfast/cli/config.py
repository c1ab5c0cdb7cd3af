"""`holdfast config`: print all settings and where the value of each comes from."""

from dataclasses import replace
from pathlib import Path

import click
from rich.text import Text

from holdfast.cli.exits import print_message
from holdfast.cli.json_output import print_json
from holdfast.cli.options import app_option, examples, json_option, url_option
from holdfast.cli.tables import console, table, text
from holdfast.cli.target import TargetApp, find, only_target
from holdfast.config import SourceKind
from holdfast.config_file import FILE, PYPROJECT, has_unread_table
from holdfast.core.settings import Setting


@click.command(
    epilog=examples(
        "holdfast config",
        "holdfast config shop.jobs",
        "holdfast config --url env:DATABASE_URL --json",
    )
)
@click.argument("where", metavar="[TARGET]", required=False)
@app_option
@url_option
@json_option
def config(where: str | None, target: str | None, url: str | None, as_json: bool) -> None:
    """Print all settings as they hold, and where the value of each comes from.

    Sources, the weakest first: built in, holdfast.toml or [tool.holdfast] in pyproject.toml, variables HOLDFAST_*,
    arguments in code, flags. TARGET is a module with an App in it, or module:name. Without it, what the code sets is
    not known.

    Opens no store. Passwords are not printed.
    """
    found = find(only_target(where, target), url)
    if found.target:
        found.app.flags["app"] = "TARGET" if where else "--app"
    settings = [_with_app(setting, found) for setting in found.app.settings()]
    if as_json:
        for setting in settings:
            print_json({"key": setting.key, "value": setting.value, "kind": setting.kind, "source": setting.source})
    else:
        rows = [[text(setting.key), text(_shown(setting.value)), _source_text(setting)] for setting in settings]
        console().print(table(["setting", "value", "source"], rows, uncut=("setting",)))
    if found.app.url_conflict:
        print_message(found.app.url_conflict)
    if has_unread_table(found.app.runtime, Path.cwd()):
        print_message(f"[tool.holdfast] in {PYPROJECT} is not read, because there is {FILE}.")
    _ = found.app.address  # raises if the address names no engine that is installed


def _with_app(setting: Setting, found: TargetApp) -> Setting:
    """The setting `app` with the App that was found."""
    if setting.key != "app" or not found.name:
        return setting
    if setting.kind is not SourceKind.DEFAULT:
        return replace(setting, value=found.name)
    # A program that has its own App runs this command, such as Django's manage.py.
    return replace(setting, value=found.name, kind=SourceKind.CODE, source=found.command.partition(" ")[0])


def _source_text(setting: Setting) -> Text:
    if setting.kind is SourceKind.DEFAULT:
        return Text(setting.kind.value, style="dim")
    return text(
        f"{setting.kind}: {setting.source}" if setting.kind in (SourceKind.CODE, SourceKind.FLAG) else setting.source
    )


def _shown(value: object) -> str:
    """A value as it is written in the file; empty if it is not set.

    >>> _shown({"kind": "fixed", "seconds": 3.0}), _shown(True), _shown([1.5, 10.0]), _shown(None)
    ('{ kind = fixed, seconds = 3 }', 'true', '[1.5, 10]', '')
    """
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case list():
            return f"[{', '.join(map(_shown, value))}]"
        case dict():
            return f"{{ {', '.join(f'{key} = {_shown(item)}' for key, item in value.items())} }}"
        case _:
            return str(value)
