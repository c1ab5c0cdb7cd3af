"""PostgreSQL servers for tests: one that all tests of a run share, and private ones that a test may stop.

`server()` is the run's server. The first process of the run that needs it starts it, in a temporary folder on a free
loopback port. The other xdist workers find it. A keeper process removes it when the last of them has ended, also after
a kill. Each worker has a database of its own there, so it may end all connections to that database. The server is set
for speed and loses its data in a crash: tests of durability, limits or stops use a `private_server`.

`HOLDFAST_TEST_POSTGRES_URL` names a running server to use instead. `HOLDFAST_TEST_POSTGRES` chooses the one to start:
see `postgres_binaries`.
"""

import atexit
import os
from functools import cache
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from postgres_binaries import OLDEST_MAJOR, NoServer
from postgres_cluster import Cluster, Settings

URL_VARIABLE = "HOLDFAST_TEST_POSTGRES_URL"
RUN_VARIABLE, WORKER_VARIABLE = "PYTEST_XDIST_TESTRUNUID", "PYTEST_XDIST_WORKER"

FAST: Settings = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": 200,
}


class PostgresServer:
    """One server. `stop`, `start` and `restart` work only on a server that the tests started."""

    def __init__(
        self, address: str, *, database: str = "postgres", cluster: Cluster | None = None, shared: bool = False
    ) -> None:
        self._address = address
        self._cluster = cluster
        self._shared = shared
        self._connection: psycopg.Connection[Any] | None = None
        self.database = database

    @property
    def port(self) -> int:
        return urlsplit(self._address).port or 5432

    @property
    def own(self) -> bool:
        """True if the tests started it."""
        return self._cluster is not None

    def url(self, database: str | None = None, *, port: int | None = None) -> str:
        """The address of one of its databases. `port` is the port of a proxy to use."""
        parts = urlsplit(self._address)
        netloc = parts.netloc
        if port is not None:
            netloc = f"{netloc.rpartition('@')[0]}@127.0.0.1:{port}"
        return urlunsplit(parts._replace(netloc=netloc, path="/" + quote(database or self.database)))

    def execute(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement and commit it, on a connection that only this object uses."""
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = psycopg.connect(self.url(), autocommit=True, application_name="holdfast-tests")
        cursor = self._connection.execute(sql.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def use_own_database(self) -> None:
        """Use a database of this xdist worker alone, so that it may end all connections there."""
        own = f"holdfast_{os.environ.get(WORKER_VARIABLE, 'main')}"
        if not self.execute("SELECT 1 FROM pg_database WHERE datname = %s", own):
            self.execute(f"CREATE DATABASE {own}")
        self._disconnect()
        self.database = own

    def terminate_backends(self) -> int:
        """End every connection to this database but that of `execute`; return their number."""
        return len(
            self.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
                " AND application_name <> 'holdfast-tests'"
            )
        )

    def stop(self, *, immediate: bool = True) -> None:
        """Stop the server. `immediate`: as a crash would; the next start runs the recovery."""
        self._disconnect()
        self._own_cluster().control("stop", "-m", "immediate" if immediate else "fast")

    def start(self) -> None:
        """Start it again, with the same port and data."""
        self._own_cluster().control("start")

    def restart(self, *, immediate: bool = True) -> None:
        self.stop(immediate=immediate)
        self.start()

    def close(self) -> None:
        """Stop using it. It is removed when no process uses it."""
        self._disconnect()
        if self._cluster is not None:
            self._cluster.leave(last=not self._shared)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _own_cluster(self) -> Cluster:
        if self._cluster is None:
            raise RuntimeError(f"The tests must not stop the server named in {URL_VARIABLE}: use a private_server().")
        return self._cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def server() -> PostgresServer:
    """The run's server, with the database of this worker."""
    found = _server()
    if isinstance(found, NoServer):
        raise found
    return found


def private_server(*, oldest_major: int = OLDEST_MAJOR, **settings: object) -> PostgresServer:
    """A new server with PostgreSQL's default settings (so with fsync) except for these. The caller closes it."""
    cluster = Cluster.make(settings, oldest_major)
    return PostgresServer(cluster.address, cluster=cluster)


@cache
def _server() -> PostgresServer | NoServer:
    """A failure is cached too, so that hundreds of tests do not each wait for it."""
    address = os.environ.get(URL_VARIABLE)
    try:
        found = _server_at(address) if address else _shared_server()
    except NoServer as failure:
        return failure
    atexit.register(found.close)
    return found


def _server_at(address: str) -> PostgresServer:
    """A server that runs already. Each worker gets a database if the role may create one, else the one named."""
    found = PostgresServer(address, database=urlsplit(address).path.lstrip("/") or "postgres")
    try:
        found.use_own_database()
    except psycopg.errors.InsufficientPrivilege:
        pass
    except psycopg.OperationalError as error:
        raise NoServer(f"the one named in {URL_VARIABLE} does not answer ({error})") from error
    return found


def _shared_server() -> PostgresServer:
    run = os.environ.get(RUN_VARIABLE)
    cluster = Cluster.of_run(run, FAST) if run else Cluster.make(FAST)
    found = PostgresServer(cluster.address, cluster=cluster, shared=run is not None)
    found.use_own_database()
    return found
