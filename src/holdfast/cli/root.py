"""The table of commands. A group is imported when one of its commands is called: `holdfast enqueue` loads no tables."""

from importlib import import_module
from importlib.util import find_spec

import click

import holdfast
from holdfast.cli.options import examples

COMMANDS = {
    "worker": "holdfast.cli.worker:worker",
    "manager": "holdfast.cli.manager:manager",
    "enqueue": "holdfast.cli.enqueue:enqueue",
    "status": "holdfast.cli.status:status",
    "why": "holdfast.cli.why:why",
    "jobs": "holdfast.cli.jobs:jobs",
    "dead": "holdfast.cli.jobs:dead",
    "queues": "holdfast.cli.queues:queues",
    "pools": "holdfast.cli.queues:pools",
    "tasks": "holdfast.cli.tasks:tasks",
    "workers": "holdfast.cli.status:workers",
    "migrate": "holdfast.cli.migrate:migrate",
    "config": "holdfast.cli.config:config",
    "doctor": "holdfast.cli.doctor:doctor",
    "file": "holdfast.cli.file:file",
    "demo": "holdfast.cli.root:demo",
}
"""In the order of the help page."""
REQUIRED_MODULES = {"demo": "holdfast.demo"}
"""A command is listed only if its module is installed."""


class LazyGroup(click.Group):
    """A group that imports a command when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [
            name for name in COMMANDS if name not in REQUIRED_MODULES or find_spec(REQUIRED_MODULES[name]) is not None
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples("holdfast worker shop.jobs", "holdfast enqueue resize cat.png width=320 --wait 30s"),
)
@click.version_option(holdfast.__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def root() -> None:
    """A durable job queue for Python.

    Which App or store: --app, --url, HOLDFAST_APP, HOLDFAST_URL, or holdfast.toml.

    \b
    Exit codes: 0 done, 1 refused or the job failed, 2 usage or configuration,
    3 store unreachable, 4 nothing matched, 5 worker --until-empty has left jobs,
    6 manager: no worker could start, 7 manager: workers had to be killed.
    """


@click.command(epilog=examples("holdfast demo"))
def demo() -> int:
    """See jobs run, fail, survive a killed worker, and be counted. Its files are in build/demo."""
    code: int = import_module("holdfast.demo.__main__").main([])
    return code
