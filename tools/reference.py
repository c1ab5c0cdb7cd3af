"""Writes the pages in docs/reference.

`cli.md`, made here: the help page of every command, exit codes, signals and environment variables. `python.md`: see
`python_reference.py`.
"""

from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli.exits import EXIT_CODES
from holdfast.cli.root import root
from holdfast.config import QueueSettings, SettingTables, readers, variable_of
from holdfast.engines import settings_tables
from tools import python_reference

PAGE = Path(__file__).parents[1] / "docs/reference/cli.md"
WIDTH = 100

HEADER = """\
# Command line

This page is generated from the help pages of the commands: `make reference`.

`holdfast …` is the same as `python -m holdfast …`. With Django, `manage.py holdfast …` takes the same commands.

**Which App or store.** TARGET is a module with one App in it, `shop.jobs`, or `module:name`. The current folder can be
imported. Commands that need only a store take `--app TARGET` or `--url ADDRESS`; without them they use `HOLDFAST_APP`,
`HOLDFAST_URL`, or [the file](../guides/configuration.md#the-file). An address with a password is refused as an
argument, because every user of the machine can read it: put it into a variable and write `--url env:NAME`.

**Output.** Tables are for people: their columns may change. `--json` is for programs: one object per line, with the
field names of the classes in Python; instants are ISO text in UTC, durations are seconds. Messages go to standard
error. Colours are off if standard output is not a terminal, or `NO_COLOR` is set. Commands that cannot be undone ask
first, or need `--yes`.

**Durations** are seconds, or text such as `30s`, `10m`, `2h` or `1d`.
"""

SIGNALS = """\
## Signals

| signal | `worker` | `manager` |
|---|---|---|
| SIGTERM, SIGINT (Ctrl-C) | claims no more, lets handlers end up to `--grace`, releases the rest | so do all workers |
| a second one | ends the grace period at once | the same for all workers |
| SIGHUP | stops gently; a worker of a manager ignores it | replaces the workers one after the other |

A worker or manager that was stopped by a signal has the exit code 0, also if the signal came before it had started. A
worker that has not stopped ten seconds after its grace ends by force, with the exit code 1.
Every other command ends at once; Ctrl-C has the exit code 130.
"""

VARIABLES = """\
## Environment variables

| variable | effect |
|---|---|
| `HOLDFAST_DEBUG=1` | a command that fails also prints the traceback |
| `HOLDFAST_ALLOW_BLOCKING=1` | a blocking call inside an event loop is allowed |
| `NO_COLOR` | no colours |
| `HOLDFAST_…` | a setting |

Every setting of the [configuration](../guides/configuration.md) has a variable. An unknown variable that begins with
`HOLDFAST_` is refused. `holdfast config` shows which value holds, and why.
"""


def make_page() -> str:
    """The text of the page."""
    parts = [HEADER, _contents(), _exit_codes(), SIGNALS, VARIABLES, _settings()]
    return "\n".join([*parts, *(_section(path, context) for path, context in commands())])


def commands() -> Iterator[tuple[tuple[str, ...], click.Context]]:
    """Every command and subcommand, with its name and a context to make its help page in."""
    # With the settings of the command, as in a run: click caches the option --help in the command.
    settings = {**root.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    yield from _below((), click.Context(root, info_name="holdfast", **settings))


def _below(path: tuple[str, ...], context: click.Context) -> Iterator[tuple[tuple[str, ...], click.Context]]:
    yield path, context
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if not command.hidden:
                yield from _below((*path, name), click.Context(command, info_name=name, parent=context))


def _title(path: tuple[str, ...]) -> str:
    return " ".join(("holdfast", *path))


def _section(path: tuple[str, ...], context: click.Context) -> str:
    heading = "###" if len(path) > 1 else "##"
    return f"{heading} {_title(path)}\n\n```text\n{context.command.get_help(context).rstrip()}\n```\n"


def _contents() -> str:
    titles = ["Exit codes", "Signals", "Environment variables", *(_title(path) for path, _ in commands())]
    links = [f"[{title.removeprefix('holdfast ')}](#{title.lower().replace(' ', '-')})" for title in titles]
    return " ·\n".join(links) + "\n"


def _exit_codes() -> str:
    rows = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    return "\n".join(["## Exit codes", "", "| code | meaning |", "|---|---|", *rows]) + "\n"


def _settings() -> str:
    tables = SettingTables(settings_tables())
    places = [*tables.places(), *(("queues", "NAME", key) for key in readers(QueueSettings))]
    rows = [f"| `{'.'.join(place)}` | `{variable_of(*place)}` |" for place in places]
    return "\n".join(["| setting | variable |", "|---|---|", *rows]) + "\n"


def main() -> None:
    for page, text in ((PAGE, make_page()), (python_reference.PAGE, python_reference.make_page())):
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, encoding="utf-8")
        print(f"Wrote {page}.")


if __name__ == "__main__":
    main()
