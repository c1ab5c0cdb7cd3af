"""Making connections: what is asked of every one of them, and what it means when none comes about.

Nothing waits for ever: not the connecting, not a statement, and not a wire that has gone silent; of that the kernel
tells us, by keep-alives. What the server, the database or the role have set as their default must not change what our
functions mean: they are written for READ COMMITTED.

A proxy that shares sessions between its clients (`pooled`) can keep neither settings nor prepared statements for a
connection, and hands each transaction to whichever session is free. So nothing is set there, nothing is kept prepared,
and every statement runs inside a transaction.
"""

import socket
from contextlib import suppress
from typing import Any

import asyncpg

from holdfast.engines.postgres import failures
from holdfast.engines.postgres.commits import Commits

CONNECT_WITHIN = 10.0
ANSWER_WITHIN = 60.0
"""Seconds. A statement of ours that takes longer is stuck."""

ISOLATION = {"default_transaction_isolation": "read committed"}
_WIRE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
"""Where the system has them: a server that has vanished without a word is found out within half a minute."""


class SharedSession(asyncpg.Connection):
    """A connection by way of a proxy that hands each transaction to another session.

    asyncpg asks for a statement to be prepared and then uses it: two steps, which only a transaction keeps together.
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


class Dialler:
    """Connects to one address. `commits` says what durability asks of a connection."""

    def __init__(self, url: str, place: str, commits: Commits, *, pooled: bool) -> None:
        self._url = url
        self._place = place
        self._commits = commits
        self.pooled = pooled
        self.trusted = False
        """It has worked before: a login that is refused now is the server's trouble, not a mistake in the settings."""

    async def __call__(self) -> asyncpg.Connection:
        return await self.connect(ANSWER_WITHIN)

    async def patient(self) -> asyncpg.Connection:
        """For a migration, which takes as long as it takes."""
        return await self.connect(None)

    async def connect(self, answer_within: float | None) -> asyncpg.Connection:
        settings = {"application_name": "holdfast"}
        options: dict[str, Any] = {}
        if self.pooled:
            options = {"statement_cache_size": 0, "connection_class": SharedSession}
        else:
            settings |= ISOLATION | self._commits.settings
        within = CONNECT_WITHIN if answer_within is None else min(CONNECT_WITHIN, answer_within)
        try:
            connection: asyncpg.Connection = await asyncpg.connect(
                self._url, timeout=within, command_timeout=answer_within, server_settings=settings, **options
            )
        except (*failures.FAILURES, ValueError) as error:
            raise failures.of_connecting(error, self._place, trusted=self.trusted) from error
        _keep_alive(connection)
        return connection


def wire_of(connection: asyncpg.Connection) -> socket.socket | None:
    """The socket below; None where there is none any more."""
    transport: Any = getattr(connection, "_transport", None)  # asyncpg has no public word for it
    wire: socket.socket | None = None if transport is None else transport.get_extra_info("socket")
    return None if wire is None or wire.fileno() < 0 else wire


def _keep_alive(connection: asyncpg.Connection) -> None:
    wire = wire_of(connection)
    if wire is None or wire.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError, AttributeError):  # a help, no condition
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _WIRE.items():
            if hasattr(socket, name):
                wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
