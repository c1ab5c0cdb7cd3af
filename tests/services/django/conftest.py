"""The Django project of `tests/support/django_project`, on a SQLite file and, for tests that ask for it, on PostgreSQL.

The settings of Django are global to a process. So the project is set up once, with one database of each kind: `default`
is the file, `server` the PostgreSQL database. Both have a task backend of the same name.
"""

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django_manage import ManageProject


def _server_url() -> str:
    """The address of an empty database for this process; empty where no server can be started."""
    from postgres import server

    running = server()
    name = f"django_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    running.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    running.execute(f"CREATE DATABASE {name}")
    return running.url(name)


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Django, set up and migrated. The server is started only if a selected test needs it."""
    folder = tmp_path_factory.mktemp("django")
    needs_server = any("postgres" in item.nodeid and "django" in item.nodeid for item in request.session.items)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_TEST_DJANGO_FILE", str(folder / "shop.sqlite3"))
        if needs_server:
            patch.setenv("HOLDFAST_TEST_DJANGO_SERVER", _server_url())
        patch.setenv("DJANGO_SETTINGS_MODULE", "django_project.settings")
        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        # Before a test changes the settings: the tasks would be declared at the App of those settings.
        import_module("django_project.shop.tasks")
        for database in connections:
            call_command("migrate", database=database, verbosity=0)
        yield django
        from holdfast.django.backend_apps import APPS, holdfast_aliases

        for alias in holdfast_aliases():
            APPS[alias].app.close()
        connections.close_all()


@pytest.fixture(params=["sqlite", "postgres"])
def backend(project: Any, request: pytest.FixtureRequest) -> str:
    """The alias of a backend, and of its database."""
    return "default" if request.param == "sqlite" else "server"


@pytest.fixture(autouse=True)
def _cleaned_up(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test no job waits, so that a worker of the next one does not wait for it."""
    yield
    if "project" not in request.fixturenames:
        return
    from django.db import connections

    from holdfast.django.backend_apps import APPS, holdfast_aliases

    connections.close_all()
    for alias in holdfast_aliases():
        control = APPS[alias].app.control
        for queue in control.queues():
            if queue.depth:
                control.clear(queue.queue)


@pytest.fixture
def manage(tmp_path: Path) -> ManageProject:
    """Runs `manage.py` with databases of its own."""
    return ManageProject(tmp_path)
