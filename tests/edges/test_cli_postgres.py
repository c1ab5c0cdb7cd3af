"""The command line on PostgreSQL: `migrate` in all its forms, and a worker as a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import Answer, Run
from postgres import PostgresServer
from postgres_roles import Role, app_role
from postgres_stock import drop_namespace, unused_name

from holdfast.engines.postgres.migrations import migrations, newest

PATIENCE = 60.0
"""Seconds after which a process that hangs is killed, and its test fails."""

SHOP = """
from holdfast import App

jobs = App()

@jobs.task
async def double(number: int) -> int:
    return number * 2
"""


@pytest.fixture
def namespace(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A namespace that does not exist yet, set in the environment."""
    name = unused_name()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_URL", postgres_server.url())
    monkeypatch.setenv("HOLDFAST_NAMESPACE", name)
    yield name
    drop_namespace(postgres_server, name)


@pytest.fixture
def run(run: Run, namespace: str) -> Run:
    """Runs a command on the namespace."""
    return run


# --- migrate ---


def test_migrate_prints_its_steps_once(run: Run) -> None:
    first = run("migrate")
    assert first.code == 0
    assert first.out.count("applied  ") == len(migrations()) + 1
    assert "is up to date." in first.out
    again = run("migrate")
    assert (again.code, "applied" in again.out, "is up to date." in again.out) == (0, False, True)


def test_migrate_prints_json(run: Run, postgres_server: PostgresServer) -> None:
    role = app_role(postgres_server)
    steps = run("migrate", "--json", "--grant", role.name).objects
    assert len(steps) == len(migrations()) + 2
    assert steps[0] == {"step": "0001_tables"}
    assert steps[-1] == {"grant": role.name}


def test_the_script_alone_goes_to_the_output_and_nothing_is_done(run: Run, postgres_server: PostgresServer) -> None:
    answer = run("migrate", "--sql")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("BEGIN;")
    assert run("status").code == 2
    postgres_server.execute(answer.out)
    assert run("status").code == 0


def test_when_nothing_is_missing_the_script_is_empty(run: Run) -> None:
    run("migrate")
    answer = run("migrate", "--sql")
    assert (answer.code, answer.out) == (0, "")
    assert "is up to date." in answer.err
    assert run("migrate", "--sql", "--json").objects == [{"sql": ""}]


def test_after_a_version_the_store_is_not_asked(run: Run, monkeypatch: pytest.MonkeyPatch, namespace: str) -> None:
    whole = run("migrate", "--sql")
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://nobody@127.0.0.1:1/nowhere")
    assert run("migrate", "--sql", "--after", "0") == whole
    assert "CREATE TABLE job" not in run("migrate", "--sql", "--after", str(newest())).out
    assert run("migrate", "--sql").code == 3


def test_after_without_a_script_exits_with_2(run: Run) -> None:
    assert run("migrate", "--after", "0").code == 2


def test_a_granted_role_can_work_and_another_gets_the_command_that_grants(
    run: Run, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    role: Role = app_role(postgres_server)
    run("migrate")
    monkeypatch.setenv("HOLDFAST_URL", role.url)
    refused = run("status")
    assert refused.code == 3
    assert "holdfast migrate --grant" in refused.err
    monkeypatch.setenv("HOLDFAST_URL", postgres_server.url())
    granted = run("migrate", "--grant", role.name)
    assert (granted.code, f"granted  {role.name}" in granted.out) == (0, True)
    monkeypatch.setenv("HOLDFAST_URL", role.url)
    assert run("status").code == 0
    assert run("migrate").code == 0  # there is nothing to do


def test_a_role_that_does_not_exist_exits_with_3(run: Run) -> None:
    answer = run("migrate", "--grant", "no_such_role")
    assert answer.code == 3
    assert "no_such_role" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("command", ["status", "worker", "manager"])
def test_a_store_without_a_schema_names_the_command_and_need_not_be_tried_again(
    run: Run, tmp_path: Path, command: str
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    answer = run(command, "--app", "shop")
    assert answer.code == 2
    assert "Run: holdfast migrate" in answer.err


@pytest.mark.parametrize("option", [["--sql"], ["--grant", "some_role"]])
def test_stores_without_roles_and_scripts_exit_with_2(run: Run, option: list[str]) -> None:
    answer = run("migrate", "--url", "sqlite:///jobs.db", *option)
    assert answer.code == 2
    assert "sqlite" in answer.err


def test_a_password_in_the_address_is_shown_nowhere(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    address = os.environ["HOLDFAST_URL"]
    secret = address.partition("://")[2].partition("@")[0].partition(":")[2]
    run("migrate")
    if not secret:
        pytest.skip("the server of this run asks for no password")
    for url in (address, address.replace(f":{secret}@", "@") + f"?password={secret}"):
        monkeypatch.setenv("HOLDFAST_URL", url)
        for command in (["status"], ["status", "--json"], ["migrate"]):
            answer = run(*command)
            assert answer.code == 0, answer.err
            assert secret not in answer.out + answer.err


# --- The rest, as processes ---


@pytest.fixture
def holdfast(namespace: str, tmp_path: Path) -> Callable[..., Answer]:
    (tmp_path / "shop.py").write_text(SHOP)

    def call(*args: str) -> Answer:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *args],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOLDFAST_APP": "shop"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return call


def test_a_worker_process_runs_what_other_processes_enqueue(
    holdfast: Callable[..., Answer], namespace: str, tmp_path: Path
) -> None:
    assert holdfast("migrate").code == 0
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", "--lines"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOLDFAST_APP": "shop"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        banner = [worker.stdout.readline() for _ in range(5)]
        assert "store    postgresql" in banner[1]
        assert "created" not in banner[1]
        answer = holdfast("enqueue", "double", "21", "--wait", "30s")
        assert (answer.code, "42" in answer.out) == (0, True), answer.err
        (job,) = holdfast("jobs", "list", "--state", "succeeded", "--json").objects
        assert (job["task"], job["attempt"]) == ("double", 1)
        assert [one["queue"] for one in holdfast("queues", "list", "--json").objects] == ["default"]
        worker.terminate()
        assert worker.wait(PATIENCE) == 0
    finally:
        worker.kill()
        worker.communicate()


def test_a_killed_worker_is_shown_as_ended_at_once(holdfast: Callable[..., Answer], tmp_path: Path) -> None:
    assert holdfast("migrate").code == 0
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", "--lines"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOLDFAST_APP": "shop"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        assert "holdfast" in worker.stdout.readline()
    finally:
        worker.kill()
        worker.communicate()
    (shown,) = holdfast("workers", "list", "--json").objects
    assert (shown["alive"], shown["ended"]) == (False, True)
