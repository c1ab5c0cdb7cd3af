"""The blocking connection of the keeper, the thread that renews leases: a blocked event loop does not delay it.

Its timeout is shorter than that of other calls: a renewal on a dead connection must fail early enough for a second try
before the lease expires.

The worker's session with the server is that of this connection: see `worker_sessions.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import asyncpg

from holdfast.engine import RenewalConnection
from holdfast.engines.postgres.connections import Connections
from holdfast.engines.postgres.worker_sessions import SessionHeartbeat
from holdfast.model import work
from holdfast.model.command import A, Command
from holdfast.model.records import WorkerRecord

STATEMENT_TIMEOUT_S = 5.0  # of a lease of 30 s, 10 to 25 s remain when its renewal begins: time for a second try
SESSION_SETTINGS = {"synchronous_commit": "off"}
"""A renewal does not wait for the disk. If the server crashes and loses one, the stored lease is older, never newer:
the job may run again sooner, and its token makes sure that it has one outcome."""

FIRST_CONNECT_TIMEOUT_S = 2.5
"""For the first try to connect; the next ones have `STATEMENT_TIMEOUT_S`. A worker that is cut off right before its
heartbeat, and whose first try hangs, is back before it has been silent for two heartbeats (WK3)."""

Perform = Callable[[Command[Any], Connections], Awaitable[Any]]


class ConnectTries:
    """Connects, with a short time limit at the first try. `connect` gets the limit in seconds."""

    def __init__(self, connect: Callable[[float], Awaitable[asyncpg.Connection]]) -> None:
        self._connect = connect
        self._timeout_s = FIRST_CONNECT_TIMEOUT_S

    async def __call__(self) -> asyncpg.Connection:
        timeout_s, self._timeout_s = self._timeout_s, STATEMENT_TIMEOUT_S
        connection = await self._connect(timeout_s)
        self._timeout_s = FIRST_CONNECT_TIMEOUT_S
        return connection


class PostgresRenewalConnection(RenewalConnection):
    """Created and used in the thread of the keeper. Its event loop runs only during a call.

    `connections` holds one. `pooled`: the server's session is not this connection's own.
    """

    def __init__(self, connections: Connections, perform: Perform, *, pooled: bool) -> None:
        self._connections = connections
        self._perform = perform
        self._pooled = pooled
        self._runner = asyncio.Runner()

    def renew(self, jobs: Iterable[work.Renewal]) -> work.RenewAnswer:
        return self._runner.run(self._answer(work.Renew(jobs=tuple(jobs))))

    def heartbeat(self, worker: WorkerRecord) -> work.HeartbeatAnswer:
        return self._runner.run(self._heartbeat(worker))

    async def _heartbeat(self, worker: WorkerRecord) -> work.HeartbeatAnswer:
        if self._pooled:
            return await self._answer(work.Heartbeat(worker=worker))
        async with self._connections.one() as connection:  # the next call takes the same one
            session_pid: int = connection.get_server_pid()
        return await self._answer(SessionHeartbeat(worker=worker, session_pid=session_pid))

    async def _answer(self, command: Command[A]) -> A:
        answer: A = await self._perform(command, self._connections)
        return answer

    def close(self) -> None:
        async def close() -> None:
            self._connections.close()

        self._runner.run(close())
        self._runner.close()
