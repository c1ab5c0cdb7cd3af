"""The Django project of `tests/support/django_project`, on a SQLite file and, for tests that ask for it, on PostgreSQL.

The settings of Django are global to a process. So the project is set up once, with one database of each kind: `default`
is the file, `server` the PostgreSQL database. Both have a task backend of the same name.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
MANAGE = ROOT / "tests" / "support" / "django_project" / "manage.py"

Manage = Callable[..., "subprocess.CompletedProcess[str]"]


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
        for database in connections:
            call_command("migrate", database=database, verbosity=0)
        yield django
        from holdfast.django.backend_apps import APPS, holdfast_aliases

        for alias in holdfast_aliases():
            APPS[alias].app.close()
        connections.close_all()


@pytest.fixture(params=["sqlite", "postgres"])
def backend(project: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """The alias of a backend, and of its database."""
    yield "default" if request.param == "sqlite" else "server"
    from django.db import connections

    connections.close_all()


@pytest.fixture
def manage(tmp_path: Path, request: pytest.FixtureRequest) -> Manage:
    """Runs `manage.py` with databases of its own."""

    def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-W", "error", str(MANAGE), *arguments],
            cwd=tmp_path,
            env=manage_environment(tmp_path, **environment),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


def manage_environment(folder: Path, **more: str) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    found = {"PYTHONPATH": str(ROOT / "src"), "HOLDFAST_TEST_DJANGO_FILE": str(folder / "shop.sqlite3")}
    return {**others, **found, **more}
