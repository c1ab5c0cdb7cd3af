"""Runs Django's own tests of its task backends against Holdfast's: a program.

    python django_suite.py FOLDER < settings of the database as JSON

FOLDER has the tests of a release of Django, as its source distribution has them. The tests name two backends of Django.
In their place they get two of ours: one whose jobs wait, and one that runs a worker after each enqueue. The last line
of the output is a JSON object: each test with an empty text, or with its error.
"""

import importlib
import json
import logging
import sys
import unittest
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

MODULES = ("test_dummy_backend", "test_immediate_backend", "test_tasks")
"""Not `test_custom_backend`: backends of a project, none of which is ours."""


def set_up(database: dict[str, Any]) -> None:
    import django
    from django.conf import settings
    from django.core.management import call_command
    from django.test.utils import setup_test_environment

    settings.configure(
        USE_TZ=True,
        DATABASES={"default": database},
        INSTALLED_APPS=["holdfast.django"],
        TASKS={"default": {"BACKEND": "holdfast.django.Backend", "QUEUES": []}},
    )
    if django.VERSION < (6, 0):
        give_names_of_django()
    django.setup()
    setup_test_environment()
    call_command("migrate", verbosity=0)


def give_names_of_django() -> None:
    """The tests import `django.tasks`. This Django has none, and the package django-tasks has nearly the same names."""
    from django_tasks import base, checks, exceptions, signals, utils  # noqa: F401
    from django_tasks.backends import dummy, immediate  # noqa: F401

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "django_tasks":
            sys.modules[name.replace("django_tasks", "django.tasks", 1)] = module
    for name in ("InvalidTask", "InvalidTaskBackend"):
        setattr(exceptions, name, getattr(exceptions, f"{name}Error"))
    logging.getLogger("django_tasks").parent = logging.getLogger("django.tasks")


def replace_backends() -> None:
    from django.db import connection

    from holdfast.django import Backend

    class Waiting(Backend):
        """Its jobs wait. The tests look at them in `results`."""

        @property
        def results(self) -> list[Any]:
            return in_thread(lambda: [self.get_result(job.id) for job in self._backend_app.app.control.find().jobs])

        def clear(self) -> None:
            control = self._backend_app.app.control
            for job in control.find().jobs:
                control.cancel(job.id)
                control.delete(job.id)

    class Running(Backend):
        """A worker runs each job before `enqueue` returns. In a transaction there is no job yet."""

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            if not connection.in_atomic_block:
                self._backend_app.app.worker(until_empty=True).run()
                result.refresh()
            return result

    for name, backend in (("dummy", Waiting), ("immediate", Running)):
        module = importlib.import_module(f"django.tasks.backends.{name}")
        setattr(module, f"{name.capitalize()}Backend", backend)


def in_thread(read: Callable[[], list[Any]]) -> list[Any]:
    """Async tests look at `results`, too, and reading blocks."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(read).result()


class Outcomes(unittest.TestResult):
    """Each test, with the last line of its error; of several, the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.errors_by_test: dict[str, str] = {}

    def startTest(self, test: Any) -> None:  # noqa: N802 - named by unittest
        super().startTest(test)
        self.errors_by_test[name_of(test)] = ""

    def _failed(self, test: Any, error: Any) -> None:
        name = name_of(test)
        self.errors_by_test[name] = self.errors_by_test.get(name) or f"{error[0].__name__}: {error[1]}"

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802 - named by unittest
        self._failed(test, err)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802 - named by unittest
        self._failed(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802 - named by unittest
        if err is not None:
            self._failed(test, err)


def name_of(test: Any) -> str:
    name: str = test.id()
    return ".".join(name.rsplit(".", 2)[-2:])


def run(folder: str) -> dict[str, str]:
    from django.test import SimpleTestCase

    sys.path.insert(0, folder)
    SimpleTestCase.databases = {"default"}
    suite = unittest.TestSuite(
        unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(f"tasks.{name}")) for name in MODULES
    )
    outcomes = Outcomes()
    suite.run(outcomes)
    return outcomes.errors_by_test


if __name__ == "__main__":
    set_up(json.load(sys.stdin))
    replace_backends()
    print(json.dumps(run(sys.argv[1])))
