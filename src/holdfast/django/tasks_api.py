"""Django's task API: `django.tasks` where Django has it (from 6.0 on), else the package django-tasks.

Both have the same names but for the exception of a wrong task. They have no types that both share, so they are `Any`.
"""

from importlib import import_module
from typing import Any

from django.core.exceptions import ImproperlyConfigured


def _load() -> Any:
    for name in ("django.tasks", "django_tasks"):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise ImproperlyConfigured(
        "holdfast.django needs Django's tasks: Django 6.0 or newer, or the package django-tasks "
        "(pip install django-tasks)."
    )


API: Any = _load()
NAME: str = API.__name__
_base: Any = import_module(f"{NAME}.base")
_exceptions: Any = import_module(f"{NAME}.exceptions")
_signals: Any = import_module(f"{NAME}.signals")

BaseTaskBackend: Any = import_module(f"{NAME}.backends.base").BaseTaskBackend
Task: Any = _base.Task
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
TaskResultStatus: Any = _base.TaskResultStatus
task_backends: Any = API.task_backends

InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
TaskResultDoesNotExist: Any = _exceptions.TaskResultDoesNotExist

task_enqueued: Any = _signals.task_enqueued
task_started: Any = _signals.task_started
task_finished: Any = _signals.task_finished
