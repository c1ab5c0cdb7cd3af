"""PostgreSQL servers for tests: one that a whole run shares, and private ones to stop, restart and starve.

`server()` is the run's server. The first process of the run that asks for it starts it, in a temporary folder on a free
loopback port; the other xdist workers find it; a keeper removes it when the last of them has ended, in whatever way.
Each worker has a database of its own there, so that one may end all connections of its own. It is set for speed and
keeps nothing: what has to do with durability, limits or stops asks for a `private_server`.

`HOLDFAST_TEST_POSTGRES_URL` names a server to use instead, `HOLDFAST_TEST_POSTGRES` chooses the one to start (see `postgres_binaries`).
"""

import atexit
import os
from functools import cache
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from postgres_binaries import NoServer
from postgres_cluster import Cluster, Settings

GIVEN = "HOLDFAST_TEST_POSTGRES_URL"
RUN, WORKER = "PYTEST_XDIST_TESTRUNUID", "PYTEST_XDIST_WORKER"

FAST: Settings = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": 200,
}


class PostgresServer:
    """One server. `stop`, `start` and `restart` are for those that the tests started themselves."""

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
        """Whether the tests started it themselves."""
        return self._cluster is not None

    def url(self, database: str | None = None, *, port: int | None = None) -> str:
        """The address of a database of it; `port`: by way of a proxy."""
        parts = urlsplit(self._address)
        place = parts.netloc
        if port is not None:
            place = f"{place.rpartition('@')[0]}@127.0.0.1:{port}"
        return urlunsplit(parts._replace(netloc=place, path="/" + quote(database or self.database)))

    def execute(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement, committed at once, on a connection that the helpers keep to themselves."""
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = psycopg.connect(self.url(), autocommit=True, application_name="holdfast-tests")
        cursor = self._connection.execute(sql.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def use_own_database(self) -> None:
        """Each xdist worker has its own: it may end all connections there, and hears only its own notifications."""
        own = f"holdfast_{os.environ.get(WORKER, 'main')}"
        if not self.execute("SELECT 1 FROM pg_database WHERE datname = %s", own):
            self.execute(f"CREATE DATABASE {own}")
        self._disconnect()
        self.database = own

    def terminate_backends(self) -> int:
        """End every connection to this database but the helpers' own; how many there were."""
        return len(
            self.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
                " AND application_name <> 'holdfast-tests'"
            )
        )

    def stop(self, *, immediate: bool = True) -> None:
        """Stop it; immediately: as if it had crashed. The next start recovers."""
        self._disconnect()
        self._own().control("stop", "-m", "immediate" if immediate else "fast")

    def start(self) -> None:
        """Start it again, on the same port and with what it kept."""
        self._own().control("start")

    def restart(self, *, immediate: bool = True) -> None:
        self.stop(immediate=immediate)
        self.start()

    def close(self) -> None:
        """Let go of it. It is removed when everybody has."""
        self._disconnect()
        if self._cluster is not None:
            self._cluster.leave(last=not self._shared)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _own(self) -> Cluster:
        if self._cluster is None:
            raise RuntimeError(
                f"The server named in {GIVEN} is not the tests' own to stop: ask for a private_server()."
            )
        return self._cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def server() -> PostgresServer:
    """The run's server; in it, this worker's own database."""
    found = _server()
    if isinstance(found, NoServer):
        raise found
    return found


def private_server(**settings: object) -> PostgresServer:
    """A server of one's own, as PostgreSQL comes (so with fsync), but for the settings given. Close it."""
    cluster = Cluster.make(settings)
    return PostgresServer(cluster.address, cluster=cluster)


@cache
def _server() -> PostgresServer | NoServer:
    """A failure is kept too: hundreds of tests would each wait for it."""
    address = os.environ.get(GIVEN)
    try:
        found = _given(address) if address else _shared()
    except NoServer as failure:
        return failure
    atexit.register(found.close)
    return found


def _given(address: str) -> PostgresServer:
    """Somebody else's server. A database per worker if we may, else the one named."""
    found = PostgresServer(address, database=urlsplit(address).path.lstrip("/") or "postgres")
    try:
        found.use_own_database()
    except psycopg.errors.InsufficientPrivilege:
        pass
    except psycopg.OperationalError as error:
        raise NoServer(f"the one named in {GIVEN} does not answer ({error})") from error
    return found


def _shared() -> PostgresServer:
    run = os.environ.get(RUN)
    cluster = Cluster.meet(run, FAST) if run else Cluster.make(FAST)
    found = PostgresServer(cluster.address, cluster=cluster, shared=run is not None)
    found.use_own_database()
    return found
