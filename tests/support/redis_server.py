"""Redis and Valkey servers for tests: those that all tests of a run share, and private ones that a test may stop.

`server(name)` is the run's server of that version, see `redis_binaries`. The first process of the run that needs it
starts it, in a temporary folder on a free loopback port and a unix socket. The other xdist workers find it. No server
outlives the run, see `kept_folder`. Each worker has a database of its own there. A shared server writes nothing to the
disk: tests of durability, limits or stops use a `private_server`.

`HOLDFAST_TEST_REDIS_URL` names a running server to use instead of the shared ones.
"""

import atexit
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import redis
from eventually import eventually_now
from kept_folder import KeptFolder, outlive, server_pid, signal_server, start_server, started_once
from postgres_cluster import free_port
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis_binaries import Binary, NoServer, find, find_all

URL_VARIABLE = "HOLDFAST_TEST_REDIS_URL"
RUN_VARIABLE, WORKER_VARIABLE = "PYTEST_XDIST_TESTRUNUID", "PYTEST_XDIST_WORKER"
GIVEN = "redis-given"
"""The name of the server at HOLDFAST_TEST_REDIS_URL."""
START_LIMIT_S = 60.0
"""Seconds for a start: the server may have to load a large file on a busy machine."""

Settings = dict[str, object]
"""Lines of the server's configuration. A list stands for several lines of one name."""

DATABASES = 64
"""One for each xdist worker."""
SETTINGS: Settings = {"bind": "127.0.0.1", "unixsocketperm": 700, "daemonize": "no", "pidfile": ""}
WITHOUT_PERSISTENCE: Settings = {"save": "", "appendonly": "no"}
AOF_ALWAYS: Settings = {"save": "", "appendonly": "yes", "appendfsync": "always"}
AOF_EVERYSEC: Settings = {"save": "", "appendonly": "yes", "appendfsync": "everysec"}


class RedisServer:
    """One server. All that starts or stops it works only on a server that the tests started."""

    def __init__(
        self,
        address: str,
        *,
        binary: Binary | None = None,
        folder: Path | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        self._address = address
        self._folder = folder
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._client: redis.Redis | None = None
        self.binary = binary

    @property
    def name(self) -> str:
        return GIVEN if self.binary is None else self.binary.name

    @property
    def own(self) -> bool:
        """True if the tests started it."""
        return self._folder is not None

    @property
    def folder(self) -> Path:
        """Its configuration, log and data."""
        if self._folder is None:
            raise RuntimeError(f"The tests must not stop the server named in {URL_VARIABLE}: use a private_server().")
        return self._folder

    @property
    def port(self) -> int:
        return urlsplit(self._address).port or 6379

    @property
    def password(self) -> str:
        return urlsplit(self._address).password or ""

    @property
    def database(self) -> int:
        return int(urlsplit(self._address).path.lstrip("/") or 0)

    @property
    def socket(self) -> Path:
        """Its unix socket."""
        return self.folder / "socket"

    def url(
        self, database: int | None = None, *, port: int | None = None, user: str | None = None, password: str = ""
    ) -> str:
        """The address of one of its databases. `port` is the port of a proxy to use."""
        parts = urlsplit(self._address)
        login = parts.netloc.rpartition("@")[0] if user is None else f"{user}:{password}"
        host = parts.netloc.rpartition("@")[2] if port is None else f"127.0.0.1:{port}"
        netloc = f"{login}@{host}" if login else host
        return urlunsplit(parts._replace(netloc=netloc, path=f"/{self.database if database is None else database}"))

    def unix_url(self, database: int | None = None) -> str:
        number = self.database if database is None else database
        return f"unix://:{self.password}@{self.socket}?db={number}"

    @property
    def client(self) -> redis.Redis:
        """A connection of the test, which sends nothing a second time."""
        if self._client is None:
            self._client = redis.Redis.from_url(
                self.url(), socket_timeout=30, client_name="holdfast-tests", retry=Retry(NoBackoff(), 0)
            )
        return self._client

    def execute(self, *command: object) -> Any:
        """Send one command, in this worker's database."""
        return self.client.execute_command(*command)  # type: ignore[no-untyped-call]

    def configure(self, **settings: object) -> None:
        """CONFIG SET while it runs. An underscore stands for the dash in the name of a setting."""
        for name, value in settings.items():
            self.execute("CONFIG", "SET", name.replace("_", "-"), value)

    def clients(self, kind: str | None = None) -> set[int]:
        """Ids of the connections of engines to this database: all, those that subscribe (pubsub) or the others."""
        found = set()
        for line in self.client.client_list():
            if line["name"] == "holdfast" and int(line["db"]) == self.database:
                subscribes = any(int(line.get(field, 0)) for field in ("sub", "psub", "ssub"))
                if kind in (None, "pubsub" if subscribes else "normal"):
                    found.add(int(line["id"]))
        return found

    def kill_clients(self, kind: str | None = None) -> int:
        """End these connections; return their number."""
        return sum(self.execute("CLIENT", "KILL", "ID", each) for each in self.clients(kind))

    # Processes

    @property
    def pid(self) -> int | None:
        """None: it does not run."""
        return server_pid(self.folder)

    def start(self) -> None:
        """Start it (again), with the same port and data."""
        self.launch()
        eventually_now(self._answers, f"{self.name} to start", START_LIMIT_S)

    def launch(self) -> None:
        """Start its process, and do not wait until it answers."""
        assert self.binary is not None
        command = [str(self.binary.program), str(self.folder / "redis.conf"), *self._arguments]
        self._process = start_server(command, self.folder)

    def _answers(self) -> bool:
        try:
            self.execute("PING")
        except (redis.ConnectionError, redis.BusyLoadingError, redis.TimeoutError) as error:
            if self._process is not None and self._process.poll() is not None:
                raise RuntimeError(f"{self.name} does not start ({error}): {self.log()}") from error
            return False
        return True

    def stop(self) -> None:
        """End it in order, without a last snapshot."""
        with suppress(redis.ConnectionError):
            self.execute("SHUTDOWN", "NOSAVE")
        self._gone()

    def kill(self) -> None:
        """kill -9, the processes that it has forked included."""
        signal_server(self.folder, signal.SIGKILL)
        self._gone()

    def restart(self) -> None:
        self.kill()
        self.start()

    def freeze(self) -> None:
        """It does nothing until `thaw`; its connections stay."""
        signal_server(self.folder, signal.SIGSTOP)

    def thaw(self) -> None:
        signal_server(self.folder, signal.SIGCONT)

    def log(self) -> str:
        """The last lines of its log."""
        return "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-20:])

    def outlive_this_process(self) -> None:
        """It is stopped by the keeper of its folder, not by this process."""
        if self._process is not None:
            outlive(self._process)
            self._process = None

    def disconnect(self) -> None:
        """Close the test's own connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def close(self) -> None:
        """Kill it and remove its data."""
        self.disconnect()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _gone(self) -> None:
        self.disconnect()
        eventually_now(lambda: self.pid is None, f"the end of {self.name}", START_LIMIT_S)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def names() -> tuple[str, ...]:
    """The servers that tests of every version run on. Without any, one name whose `server` fails with advice."""
    if os.environ.get(URL_VARIABLE):
        return (GIVEN,)
    return tuple(binary.name for binary in find_all()) or ("redis",)


def server(name: str | None = None) -> RedisServer:
    """The run's server of this name, with the database of this worker. None: the one for tests of a single server."""
    found = _server(name)
    if isinstance(found, NoServer):
        raise found
    return found


def private_server(settings: Settings | None = None, *, name: str | None = None) -> RedisServer:
    """A new server. The caller closes it.

    Without settings it is as the program makes it: snapshots now and then, no AOF. See AOF_ALWAYS and AOF_EVERYSEC.
    """
    binary = find(name)
    return start_new(binary, new_folder(binary), settings or {})


def start_new(
    binary: Binary,
    folder: Path,
    settings: Settings,
    *,
    password: str | None = None,
    port: Callable[[], int] = free_port,
    arguments: Sequence[str] = (),
) -> RedisServer:
    """Configure a server in this folder and start it. None: with a new password."""
    password = secrets.token_hex(16) if password is None else password
    for last in (False, False, True):
        own = SETTINGS | {"port": port(), "dir": folder, "unixsocket": folder / "socket", "requirepass": password}
        if "--sentinel" not in arguments:
            own |= {"masterauth": password, "databases": DATABASES}
        write_settings(folder / "redis.conf", own | settings)
        login = f":{password}@" if password else ""
        address = f"redis://{login}127.0.0.1:{own['port']}/0"
        made = RedisServer(address, binary=binary, folder=folder, arguments=arguments)
        try:
            made.start()
        except RuntimeError as error:
            # Another process may have taken the port.
            made.kill()
            if last:
                raise NoServer(str(error)) from error
            continue
        break
    return made


def write_settings(file: Path, settings: Settings) -> None:
    lines = []
    for name, value in settings.items():
        for each in value if isinstance(value, list) else [value]:
            lines.append(f"{name} {each}\n" if str(each) else f'{name} ""\n')
    file.write_text("".join(lines))


def new_folder(binary: Binary) -> Path:
    """An empty folder for a server, removed at the end of the run at the latest."""
    return Path(tempfile.mkdtemp(prefix=f"{binary.name}-", dir=run_folder().path))


@cache
def run_folder() -> KeptFolder:
    """The folder of all servers that this run starts."""
    run = os.environ.get(RUN_VARIABLE)
    folder = KeptFolder.of_run("redis", run) if run else KeptFolder.make("redis")
    atexit.register(lambda: folder.leave(last=run is None))
    return folder


@cache
def _server(name: str | None) -> RedisServer | NoServer:
    """A failure is cached too, so that hundreds of tests do not each wait for it."""
    address = os.environ.get(URL_VARIABLE)
    try:
        return _server_at(address) if address else _shared_server(find(name))
    except NoServer as failure:
        return failure


def _server_at(address: str) -> RedisServer:
    given = RedisServer(address)
    try:
        given.execute("PING")
    except redis.RedisError as error:
        raise NoServer(f"the one named in {URL_VARIABLE} does not answer ({error})") from error
    return given


def _shared_server(binary: Binary) -> RedisServer:
    folder = run_folder().path / binary.name
    folder.mkdir(exist_ok=True)
    with started_once(folder) as (address, note):
        if address is None:
            shared = start_new(binary, folder, WITHOUT_PERSISTENCE)
            shared.outlive_this_process()
            note(shared.url())
        else:
            shared = RedisServer(address, binary=binary, folder=folder)
    shared.disconnect()
    worker = os.environ.get(WORKER_VARIABLE, "")
    shared._address = shared.url(int(worker.lstrip("gw") or 0) + 1)
    return shared
