"""`manage.py`, as a user runs it: migrate, check, worker, the command line, and Django's own test runner."""

import json
import os
import signal
import sqlite3
from collections.abc import Iterator

import pytest
from django_manage import ManageProject


@pytest.fixture
def server() -> Iterator[str]:
    """The address of an empty database."""
    from postgres import server

    running = server()
    name = f"manage_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    for database in (name, f"test_{name}"):
        running.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
    running.execute(f"CREATE DATABASE {name}")
    yield running.url(name)
    running.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def test_a_worker_process_runs_jobs_and_stops_on_sigterm(manage: ManageProject) -> None:
    job = manage.shell("print(add.enqueue(2, b=3).id)")
    worker = manage.start("holdfast", "worker", "--json")
    try:
        assert worker.stdout is not None
        lines = []
        for line in worker.stdout:
            lines.append(line)
            if "succeeded" in line.lower():
                break
        worker.send_signal(signal.SIGTERM)
        _, errors = worker.communicate(timeout=60)
    finally:
        worker.kill()
    assert (worker.returncode, job in "".join(lines[-1:])) == (0, True), errors
    assert manage.shell(f"print(add.get_result({job!r}).return_value)") == "5"


def test_a_thread_for_sync_code_does_not_keep_a_worker_process_that_has_stopped(manage: ManageProject) -> None:
    job = manage.shell("print(hold_thread.enqueue().id)")
    worker = manage.start("holdfast", "worker", "--json", "--grace", "0.1s")
    try:
        assert worker.stdout is not None
        assert any("started" in line.lower() and job in line for line in worker.stdout)
        worker.send_signal(signal.SIGTERM)
        _, errors = worker.communicate(timeout=50)  # its thread goes on for 60 seconds
    finally:
        worker.kill()
    assert (worker.returncode, "has not stopped in time" in errors) == (1, True), errors
    assert manage.shell(f"print(hold_thread.get_result({job!r}).status)") == "READY"


def test_the_workers_of_a_manager_have_the_app_of_the_settings(manage: ManageProject) -> None:
    job = manage.shell("print(add.enqueue(2, b=3).id)")
    manager = manage.start("holdfast", "manager", "--max", "1", "--json")
    try:
        assert manager.stdout is not None
        assert any("succeeded" in line.lower() and job in line for line in manager.stdout)
        manager.send_signal(signal.SIGTERM)
        _, errors = manager.communicate(timeout=60)
    finally:
        manager.kill()
    assert manager.returncode == 0, errors


def test_a_worker_of_a_second_backend_runs_a_task_that_only_using_names_there(manage: ManageProject) -> None:
    second = {"HOLDFAST_TEST_DJANGO_SECOND": "1"}
    using = 'add.using(backend="second", queue_name="mail")'
    job = manage.shell(f"print({using}.enqueue(2, b=3).id)", **second)
    worker = manage("holdfast", "--backend", "second", "worker", "--until-empty", **second)
    assert worker.returncode == 0, worker.stderr
    read = f'from holdfast.django.tasks_api import task_backends; print(task_backends["second"].get_result({job!r})'
    assert manage.shell(f"{read}.return_value)", **second) == "5"
    assert manage.shell(f"{read}.task.backend)", **second) == "second"


def test_the_command_line_has_the_app_of_the_settings(manage: ManageProject) -> None:
    job = manage.shell("print(add.enqueue(1).id)")
    status = manage("holdfast", "status", "--settings=django_project.settings")
    assert (status.returncode, "default" in status.stdout) == (0, True), status.stderr
    shown = manage("holdfast", "jobs", "show", job)
    assert "django_project.shop.tasks.add" in shown.stdout
    assert manage("holdfast", "jobs", "show", "nothing").returncode == 4


CALLED = """
from asgiref.sync import async_to_sync, sync_to_async
from django.core.management import call_command

async def call(*arguments):
    try:
        await sync_to_async(call_command)("holdfast", *arguments)
    except SystemExit as end:
        return end.code
"""


def test_call_command_returns_if_a_command_succeeds_and_exits_if_it_fails(manage: ManageProject) -> None:
    manage("migrate")
    job = manage.shell("print(add_later.enqueue(2, 3).id)")
    call = (
        f"{CALLED}\nprint([async_to_sync(call)('worker', '--until-empty'), async_to_sync(call)('jobs', 'show', 'no')])"
    )
    assert manage.shell(call) == "[None, 4]"
    assert manage.shell(f"print(add_later.get_result({job!r}).return_value)") == "5"


def test_an_argument_may_begin_with_a_dash(manage: ManageProject) -> None:
    manage("migrate")
    answer = manage("holdfast", "enqueue", "django_project.shop.tasks.add", "--json", "--", "-5")
    assert answer.returncode == 0, answer.stderr
    job = json.loads(answer.stdout)["id"]
    assert manage.shell(f"print(add.get_result({job!r}).args)") == "[-5]"


def test_a_backend_that_is_not_in_the_settings_is_refused(manage: ManageProject) -> None:
    answer = manage("holdfast", "--backend", "other", "status")
    assert (answer.returncode, "Entries that do: default." in answer.stderr) == (1, True)


def test_a_module_is_refused_because_the_settings_name_the_app(manage: ManageProject) -> None:
    answer = manage("holdfast", "worker", "django_project.shop.tasks")
    assert (answer.returncode, "leave out" in answer.stderr) == (2, True)


def test_a_command_before_migrate_names_djangos_command(manage: ManageProject, server: str) -> None:
    environment = {"HOLDFAST_TEST_DJANGO_SERVER": server, "HOLDFAST_TEST_DJANGO_DEFAULT": "postgres"}
    answer = manage("holdfast", "status", **environment)
    assert "Run: manage.py holdfast migrate" in answer.stderr


def test_migrate_says_where_the_jobs_are(manage: ManageProject) -> None:
    answer = manage("migrate")
    last = answer.stdout.splitlines()[-1]
    assert last == '  Tables of the jobs of TASKS["default"] are up to date in database default.'


def test_migrate_creates_the_tables_and_check_is_silent(manage: ManageProject) -> None:
    assert manage("migrate", "-v0").returncode == 0
    assert manage("check", "--fail-level", "WARNING").returncode == 0
    with sqlite3.connect(manage.file) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    db.close()
    assert any("holdfast" in name for name in tables)
    assert "shop_order" in tables


@pytest.mark.parametrize("processes", ["1", "2"])
def test_djangos_test_runner_on_sqlite_leaves_nothing(manage: ManageProject, processes: str) -> None:
    answer = manage("test", "django_project.shop", "--parallel", processes)
    assert (answer.returncode, "Ran 8 tests" in answer.stderr) == (0, True), answer.stderr
    assert [path.name for path in manage.file.parent.iterdir()] == []


def test_persistent_connections_of_worker_threads_do_not_keep_the_test_database(
    manage: ManageProject, server: str
) -> None:
    environment = {
        "HOLDFAST_TEST_DJANGO_SERVER": server,
        "HOLDFAST_TEST_DJANGO_DEFAULT": "postgres",
        "HOLDFAST_TEST_DJANGO_DRIVER": "psycopg",
        "HOLDFAST_TEST_DJANGO_MAX_AGE_S": "60",
    }
    answer = manage("test", "django_project.shop", "--noinput", **environment)
    assert (answer.returncode, "being accessed" in answer.stderr) == (0, False), answer.stderr


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_djangos_test_runner_on_postgres_drops_its_database(manage: ManageProject, server: str, driver: str) -> None:
    environment = {
        "HOLDFAST_TEST_DJANGO_SERVER": server,
        "HOLDFAST_TEST_DJANGO_DEFAULT": "postgres",
        "HOLDFAST_TEST_DJANGO_DRIVER": driver,
    }
    processes = "2" if driver == "psycopg" else "1"
    answer = manage("test", "django_project.shop", "--noinput", "--parallel", processes, **environment)
    assert (answer.returncode, "Ran 8 tests" in answer.stderr) == (0, True), answer.stderr
    assert "being accessed" not in answer.stderr
