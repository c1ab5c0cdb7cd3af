"""`manage.py holdfast worker`, `status`, `jobs` and so on: Holdfast's command line for the App of the settings."""

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from holdfast.cli import main
from holdfast.cli.target import TargetApp
from holdfast.django.backend_apps import APPS, holdfast_aliases, task_settings
from holdfast.django.tasks_api import task_backends

OF_DJANGO = ("--settings", "--pythonpath")
"""Options that Django has read already, wherever they are."""


class Command(BaseCommand):
    """Declares the tasks of the installed apps first, so that the worker has them."""

    help = "Holdfast's command line. `manage.py holdfast -- --help` lists its commands."

    _process_ends = False

    def run_from_argv(self, argv: list[str]) -> None:
        self._process_ends = True  # `call_command` does not come here
        super().run_from_argv(argv)

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--backend", default="", help="Which entry of TASKS. Default: the only one, or `default`.")
        parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="COMMAND …")

    def handle(self, *_: Any, backend: str, arguments: list[str], **__: Any) -> None:
        alias = self._alias(backend)
        APPS[alias].declare_all()
        for path in task_settings(alias).keys() - APPS[alias].tasks.keys():
            message = f'TASKS["{alias}"]["OPTIONS"]["TASKS"] names {path!r}, and there is no such task.'
            self.stderr.write(self.style.WARNING(message))
        option = f" --backend {backend}" if backend else ""
        target = TargetApp(
            APPS[alias].app,
            f'TASKS["{alias}"]',
            command=f"manage.py holdfast{option} worker",
            queues=tuple(sorted(task_backends[alias].queues)),
        )
        try:
            main(
                _without_django_options(arguments),
                program="manage.py holdfast",
                default=target,
                process_ends=self._process_ends,
            )
        except SystemExit as end:
            if end.code:  # else `call_command` returns, as it does for Django's own commands
                raise

    def _alias(self, backend: str) -> str:
        aliases = holdfast_aliases()
        if not aliases:
            raise CommandError("No entry of TASKS uses holdfast.django.Backend.")
        if backend and backend not in aliases:
            known = ", ".join(aliases)
            raise CommandError(f'TASKS["{backend}"] does not use holdfast.django.Backend. Entries that do: {known}.')
        if backend:
            return backend
        if "default" not in aliases and len(aliases) > 1:
            raise CommandError(f"Which backend? Give --backend, one of: {', '.join(aliases)}.")
        return "default" if "default" in aliases else aliases[0]


def _without_django_options(arguments: list[str]) -> list[str]:
    """Without the options of Django, and without a `--` at the beginning. What follows a later `--` is kept."""
    own = list(arguments)
    if own[:1] == ["--"]:
        del own[0]
    end = own.index("--") if "--" in own else len(own)
    kept: list[str] = []
    skip = False
    for argument in own[:end]:
        if skip:
            skip = False
        elif argument in OF_DJANGO:
            skip = True
        elif not argument.startswith(tuple(f"{option}=" for option in OF_DJANGO)):
            kept.append(argument)
    return kept + own[end:]
