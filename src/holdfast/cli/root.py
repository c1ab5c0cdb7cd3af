"""The table of commands. A group is imported when one of its commands is called: `holdfast enqueue` loads no tables."""

from importlib import import_module
from importlib.util import find_spec

import click

import holdfast
from holdfast.cli.options import examples

COMMANDS = {
    "worker": "holdfast.cli.worker:worker",
    "enqueue": "holdfast.cli.enqueue:enqueue",
    "status": "holdfast.cli.status:status",
    "jobs": "holdfast.cli.jobs:jobs",
    "dead": "holdfast.cli.jobs:dead",
    "queues": "holdfast.cli.queues:queues",
    "pools": "holdfast.cli.pools:pools",
    "workers": "holdfast.cli.workers:workers",
    "migrate": "holdfast.cli.migrate:migrate",
    "demo": "holdfast.cli.demo:demo",
}
"""In the order of the help page."""
NEEDS = {"demo": "holdfast.demo"}
"""Commands that exist if a module does."""


class Table(click.Group):
    """A group that knows its commands by where they are."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if name not in NEEDS or find_spec(NEEDS[name]) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


@click.command(
    cls=Table,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples("holdfast worker shop.jobs", "holdfast enqueue resize cat.png width=320 --wait 30s"),
)
@click.version_option(holdfast.__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def root() -> None:
    """A durable job queue for Python.

    Which App or store: --app, --url, HOLDFAST_APP, HOLDFAST_URL, or holdfast.toml.

    \b
    Exit codes: 0 done, 1 refused or the job failed, 2 usage or configuration,
    3 store unreachable, 4 nothing matched.
    """
