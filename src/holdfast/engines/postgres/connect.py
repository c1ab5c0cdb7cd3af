"""Makes connections: their settings, their timeouts, and the error when a connection cannot be made.

Every wait has a limit: connecting, a statement, and a socket that no longer answers, which the kernel detects by TCP
keep-alives. Defaults of the server, the database or the role must not change what our functions mean, so each
connection sets READ COMMITTED, for which they are written.

A proxy that shares sessions between its clients (`pooled`) keeps neither settings nor prepared statements for a
connection, and gives each transaction any free session. So there a connection sets nothing, keeps no statement
prepared, and runs every statement inside a transaction.

asyncpg carries all calls. psycopg is used for one purpose: the transaction of a plain (not async) handler.
"""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import asyncpg

from holdfast import forks
from holdfast.engines.postgres import failures
from holdfast.engines.postgres.durability import Durability
from holdfast.errors import Unsupported

_logger = logging.getLogger("holdfast.postgres")

DAMAGE = "HF002"  # SQLSTATE of a warning that `rules/missing.sql` raises
CONNECT_TIMEOUT_S = 10.0  # a server that accepts no connection for this long counts as unreachable
STATEMENT_TIMEOUT_S = 60.0  # our statements take milliseconds: one that takes this long is stuck
SERVER_GRACE_S = 5.0  # the server ends a statement this much later than the client, whose error says more

BACKEND_PID = "SELECT pg_backend_pid()"
ISOLATION = {"default_transaction_isolation": "read committed"}
NO_SETTINGS: dict[str, str] = {}
TCP_OPTIONS = {
    "TCP_KEEPIDLE": 15,  # seconds
    "TCP_KEEPINTVL": 5,  # seconds
    "TCP_KEEPCNT": 3,  # probes
    "TCP_USER_TIMEOUT": 30_000,  # milliseconds
}
"""Set where the system has them. A server that vanishes without closing its socket is detected within 30 seconds."""
LIBPQ_OPTIONS: dict[str, Any] = {
    "application_name": "holdfast",
    "connect_timeout": round(CONNECT_TIMEOUT_S),
    "keepalives_idle": TCP_OPTIONS["TCP_KEEPIDLE"],
    "keepalives_interval": TCP_OPTIONS["TCP_KEEPINTVL"],
    "keepalives_count": TCP_OPTIONS["TCP_KEEPCNT"],
    "tcp_user_timeout": TCP_OPTIONS["TCP_USER_TIMEOUT"],
}
"""The same limits, for psycopg."""
ARRAY_TYPES = tuple(
    {
        "oid": oid,
        "ns": "pg_catalog",
        "name": name,
        "kind": b"b",
        "elemtype": element,
        "elemtype_name": element_name,
        "elemdelim": b",",
        "basetype": None,
        "basetype_name": None,
        "range_subtype": None,
        "range_subtype_name": None,
        "attrtypoids": None,
        "attrnames": None,
        "depth": 0,
    }
    for oid, name, element, element_name in (
        (1001, "_bytea", 17, "bytea"),
        (1007, "_int4", 23, "integer"),
        (1016, "_int8", 20, "bigint"),
    )
)
"""The array types of our calls, as asyncpg reads them from the server: every server has the same numbers for them.

asyncpg would read them on each new connection before its first call, which takes 11 ms.
"""


class OwnSession(asyncpg.Connection):
    """A connection whose socket does not survive in a forked child (PF2).

    Else the server would not notice that the parent has ended: its open transactions would keep their locks, and its
    worker would not count as dead, as long as the child lives.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._child_copy = forks.ChildCopy(self._socket_number)

    def _socket_number(self) -> int:
        found = socket_of(self)
        return -1 if found is None else found.fileno()


class SharedSession(OwnSession):
    """A connection through a proxy that gives each transaction any free session.

    asyncpg prepares a statement and then runs it: two steps, which reach the same session only inside a transaction.
    """

    async def fetchval(self, *args: Any, **options: Any) -> Any:
        if self.is_in_transaction():
            return await super().fetchval(*args, **options)
        async with self.transaction():
            return await super().fetchval(*args, **options)

    async def execute(self, query: str, *args: Any, **options: Any) -> str:
        if not args or self.is_in_transaction():
            return await super().execute(query, *args, **options)
        async with self.transaction():
            return await super().execute(query, *args, **options)


class Connector:
    """Connects to one address. `place` is the address without the login, for error texts."""

    def __init__(self, url: str, place: str, durability: Durability, *, pooled: bool) -> None:
        self._url = url
        self._place = place
        self._durability = durability
        self.pooled = pooled
        self.login_worked = False
        """True: this login was accepted before. A refusal is then a fault of the server, not a wrong setting."""

    async def __call__(self) -> asyncpg.Connection:
        return await self.connect(STATEMENT_TIMEOUT_S)

    async def without_timeout(self) -> asyncpg.Connection:
        """A connection for migrations: a statement may take as long as it needs."""
        return await self.connect(None)

    async def connect(
        self,
        statement_timeout_s: float | None,
        own_settings: dict[str, str] = NO_SETTINGS,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> asyncpg.Connection:
        settings = {"application_name": "holdfast"}
        options: dict[str, Any] = {"connection_class": OwnSession}
        if self.pooled:
            options = {"statement_cache_size": 0, "connection_class": SharedSession}
        else:
            settings |= ISOLATION | self._durability.settings | own_settings
            # PF1: the server ends a statement that its client has given up, also if the request to cancel it got lost.
            server_s = 0 if statement_timeout_s is None else statement_timeout_s + SERVER_GRACE_S
            settings["statement_timeout"] = str(round(server_s * 1000))
        connect_s = connect_timeout_s if statement_timeout_s is None else min(connect_timeout_s, statement_timeout_s)
        try:
            connection: asyncpg.Connection = await asyncpg.connect(
                self._url, timeout=connect_s, command_timeout=statement_timeout_s, server_settings=settings, **options
            )
        except (*failures.FAILURES, ValueError) as error:
            raise failures.of_connecting(error, self._place, login_worked=self.login_worked) from error
        _set_tcp_options(connection)
        _register_array_types(connection)
        connection.add_log_listener(_log_damage)
        return connection

    async def check_session(self, connection: asyncpg.Connection) -> None:
        """Refuse a proxy that shares sessions, if the settings do not say that there is one.

        The server's process is then another one than the handshake named, and two open connections have the same.
        """
        if self.pooled:
            return
        try:
            pid = await connection.fetchval(BACKEND_PID)
            if pid == connection.get_server_pid():
                return
            other = await self()
            try:
                shared = pid == await other.fetchval(BACKEND_PID)
            finally:
                other.terminate()
        except failures.FAILURES as error:
            raise failures.of_opening(error, self._place) from error
        if shared:
            raise failures.shared_session(self._place, "two connections have one session")

    @contextmanager
    def blocking_transaction(self) -> Iterator[Any]:
        """A transaction over psycopg, with the settings that connections of asyncpg have."""
        try:
            import psycopg
        except ModuleNotFoundError as missing:
            raise Unsupported(
                "A transaction in a plain (not async) handler on PostgreSQL needs psycopg. Install it with: "
                "pip install 'psycopg[binary]', or make the handler async.",
                capability="user_transactions",
                engine=failures.SCHEME,
            ) from missing
        with psycopg.connect(self._url, **LIBPQ_OPTIONS) as connection:
            child_copy = forks.ChildCopy(connection.fileno)
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # part of BEGIN, so a proxy keeps it
            with connection.transaction():
                for name, value in self._durability.settings.items():
                    connection.execute("SELECT set_config(%s, %s, true)", (name, value))
                yield connection
            del child_copy  # it must not outlive the socket


def socket_of(connection: asyncpg.Connection) -> socket.socket | None:
    """The socket of a connection. None: it is closed."""
    transport: Any = getattr(connection, "_transport", None)  # asyncpg has no public name for it
    found: socket.socket | None = None if transport is None else transport.get_extra_info("socket")
    return None if found is None or found.fileno() < 0 else found


def _log_damage(_: object, message: Any) -> None:
    if message.sqlstate == DAMAGE:
        _logger.error("%s", message.message)


def _register_array_types(connection: asyncpg.Connection) -> None:
    protocol: Any = getattr(connection, "_protocol", None)  # asyncpg has no public name for it
    with suppress(AttributeError, LookupError):  # another version of asyncpg: it reads the types from the server
        protocol.get_settings().register_data_types(ARRAY_TYPES)


def _set_tcp_options(connection: asyncpg.Connection) -> None:
    found = socket_of(connection)
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError, AttributeError):  # the connection works without them
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in TCP_OPTIONS.items():
            if hasattr(socket, name):
                found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
