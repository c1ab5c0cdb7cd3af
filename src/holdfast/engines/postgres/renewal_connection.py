"""The blocking connection of the keeper, the thread that renews leases: no handler can delay it.

Its timeout is shorter than that of other calls: a renewal on a dead connection must fail early enough for a second try
before the lease expires.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from holdfast.engine import RenewalConnection
from holdfast.engines.postgres.connections import Connections
from holdfast.model import work
from holdfast.model.command import A, Command
from holdfast.model.records import WorkerRecord

STATEMENT_TIMEOUT_S = 5.0  # of a lease of 30 s, 10 to 25 s remain when its renewal begins: time for a second try
SESSION_SETTINGS = {"synchronous_commit": "off"}
"""A renewal does not wait for the disk. If the server crashes and loses one, the stored lease is older, never newer:
the job may run again sooner, and its token makes sure that it has one outcome."""

Perform = Callable[[Command[Any], Connections], Awaitable[Any]]


class PostgresRenewalConnection(RenewalConnection):
    """Created and used in the thread of the keeper. Its event loop runs only during a call."""

    def __init__(self, connections: Connections, perform: Perform) -> None:
        self._connections = connections
        self._perform = perform
        self._runner = asyncio.Runner()

    def _run(self, command: Command[A]) -> A:
        async def perform() -> A:
            answer: A = await self._perform(command, self._connections)
            return answer

        return self._runner.run(perform())

    def renew(self, jobs: Iterable[work.Renewal]) -> work.RenewAnswer:
        return self._run(work.Renew(jobs=tuple(jobs)))

    def heartbeat(self, worker: WorkerRecord) -> work.HeartbeatAnswer:
        return self._run(work.Heartbeat(worker=worker))

    def close(self) -> None:
        async def close() -> None:
            self._connections.close()

        self._runner.run(close())
        self._runner.close()
