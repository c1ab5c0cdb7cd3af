"""The command line on Redis: what it says about the store, and that it never shows the password."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Run
from redis_server import AOF_EVERYSEC, RedisServer, private_server

SHOP = """
from holdfast import App

jobs = App()

@jobs.task
async def double(number: int) -> int:
    return number * 2
"""


@pytest.fixture(scope="module")
def private() -> Iterator[RedisServer]:
    with private_server(AOF_EVERYSEC) as server:
        yield server


@pytest.fixture
def server(private: RedisServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RedisServer:
    """A server that syncs once a second. Its address is in the environment, with the password."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_URL", private.url())
    private.configure(appendonly="yes")
    return private


def test_status_shows_how_durable_the_server_is_and_no_password(run: Run, server: RedisServer) -> None:
    answer = run("status")
    assert answer.code == 0, answer.err
    assert f"redis://:***@127.0.0.1:{server.port}/0" in re.sub(r"\s+", "", answer.out)
    assert "fast (append-only file, synced once a second)" in " ".join(answer.out.split())
    (store,) = run("status", "--json").objects
    assert store["durability"] == "fast"
    assert store["promise"] == "fast (append-only file, synced once a second)"
    assert server.password not in answer.out + answer.err + str(store)


def test_a_server_that_keeps_nothing_is_a_wrong_setting(run: Run, server: RedisServer) -> None:
    server.configure(appendonly="no", save="")
    answer = run("status")
    assert answer.code == 2
    assert "loses acknowledged jobs when it restarts (no persistence)" in " ".join(answer.err.split())
    assert server.password not in answer.out + answer.err


def test_a_wrong_password_is_not_shown_either(run: Run, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"redis://:wrong-secret@127.0.0.1:{server.port}/0")
    answer = run("status")
    assert answer.code == 2
    assert "refused the login" in " ".join(answer.err.split())
    assert "wrong-secret" not in answer.out + answer.err


@pytest.mark.parametrize(("option", "advice"), [("--sql", "without a script"), ("--grant=ada", "Leave out `grant`")])
def test_there_is_no_sql_and_no_role(run: Run, server: RedisServer, option: str, advice: str) -> None:
    answer = run("migrate", option)
    assert answer.code == 2
    assert advice in " ".join(answer.err.split())


def test_a_worker_runs_and_shows_no_password(run: Run, server: RedisServer) -> None:
    Path("shop.py").write_text(SHOP)
    assert run("enqueue", "double", "21", "--app", "shop").code == 0
    answer = subprocess.run(
        [sys.executable, "-m", "holdfast", "worker", "shop", "--until-empty"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "has stopped" in answer.stderr
    assert server.password not in answer.stdout + answer.stderr
    assert run("jobs", "list", "--state", "succeeded").out.count("double") == 1
