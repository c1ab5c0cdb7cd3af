"""The table of commands. A group is imported when one of its commands is called: `holdfast enqueue` loads no tables."""

from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec

import click
from click.shell_completion import CompletionItem

import holdfast
from holdfast.cli.options import CommandGroup, examples, for_program

COMMANDS = {
    "worker": "holdfast.cli.worker:worker",
    "manager": "holdfast.cli.manager:manager",
    "enqueue": "holdfast.cli.enqueue:enqueue",
    "status": "holdfast.cli.status:status",
    "top": "holdfast.cli.top:top",
    "why": "holdfast.cli.why:why",
    "events": "holdfast.cli.events:events",
    "jobs": "holdfast.cli.jobs:jobs",
    "dead": "holdfast.cli.jobs:dead",
    "queues": "holdfast.cli.queues:queues",
    "pools": "holdfast.cli.queues:pools",
    "tasks": "holdfast.cli.tasks:tasks",
    "workers": "holdfast.cli.status:workers",
    "check": "holdfast.cli.check:check",
    "migrate": "holdfast.cli.migrate:migrate",
    "config": "holdfast.cli.config:config",
    "doctor": "holdfast.cli.doctor:doctor",
    "file": "holdfast.cli.file:file",
    "completion": "holdfast.cli.completion:completion",
    "demo": "holdfast.cli.root:demo",
}
"""In the order of the help page."""
SUMMARIES = {
    "worker": "Take jobs and run them.",
    "manager": "Start worker processes, and keep their number between --min and --max.",
    "enqueue": "Enqueue one job of TASK.",
    "status": "Show the store, its queues with their counts, and its workers.",
    "top": "Watch queues, lanes, workers and rates.",
    "why": "Say why a job has not ended.",
    "events": "Show what happens to jobs, queues and workers.",
    "jobs": "List, show, cancel, trigger, requeue and delete jobs.",
    "dead": "List the dead letters.",
    "queues": "List, pause, resume, clear and remove queues; the first four work on lanes, too.",
    "pools": "List pools, and resize one.",
    "tasks": "List tasks.",
    "workers": "List workers, and stop one.",
    "check": "Read all jobs that have not ended against the code of --app, before it is deployed.",
    "migrate": "Bring the store's schema up to date.",
    "config": "Print all settings as they hold, and where the value of each comes from.",
    "doctor": "Check settings, tasks, store, workers and queues; say what is wrong and what to do.",
    "file": "Look into the files of a file store, or compact them.",
    "completion": "Print a script that lets a shell complete commands and options.",
    "demo": "See jobs run, fail, survive a killed worker, and be counted.",
}
"""The first sentence of each command: the help page and completions show it without importing the command."""
GROUPS = ("jobs", "queues", "pools", "tasks", "workers")
OTHER_VERBS = {"retry": "requeue"}
"""Of other systems."""
REQUIRED_MODULES = {"demo": "holdfast.demo"}
"""A command is listed only if its module is installed."""


class LazyGroup(CommandGroup):
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
        return for_program(command, ctx.find_root().info_name)

    def summary(self, ctx: click.Context, name: str) -> str:
        return SUMMARIES[name] if name in SUMMARIES else super().summary(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            similar = self._with_verb(ctx, OTHER_VERBS.get(name, name)) or get_close_matches(name, known, n=1)
            ctx.fail(
                f"No such command {name!r}." + (f" Did you mean {' or '.join(map(repr, similar))}?" if similar else "")
            )
        return super().resolve_command(ctx, args)

    def _with_verb(self, ctx: click.Context, verb: str) -> list[str]:
        """The commands that have this verb, such as `jobs requeue`."""
        groups = {name: self.get_command(ctx, name) for name in GROUPS}
        return [
            f"{name} {verb}"
            for name, group in groups.items()
            if isinstance(group, click.Group) and verb in group.commands
        ]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=self.summary(ctx, name)) for name in names]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]


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
