"""The keeper's door: renewals and heartbeats from a thread that no handler can starve, over a connection of its own.

It has less patience than other calls: a renewal that hangs on a dead wire must have failed early enough for another try
before the lease runs out.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from holdfast.engine import RenewalConnection
from holdfast.engines.postgres.connections import Connections
from holdfast.model import work
from holdfast.model.command import A, Command
from holdfast.model.records import WorkerRecord

ANSWER_WITHIN = 5.0
"""Seconds: of a lease of thirty, ten to twenty-five are there to renew it."""

Perform = Callable[[Command[Any], Connections], Awaitable[Any]]


class PostgresRenewalConnection(RenewalConnection):
    """Made and used in the keeper's thread, which gets an event loop of its own for as long as a call lasts."""

    def __init__(self, connections: Connections, perform: Perform) -> None:
        self._connections = connections
        self._perform = perform
        self._runner = asyncio.Runner()

    def _ask(self, command: Command[A]) -> A:
        async def asked() -> A:
            answer: A = await self._perform(command, self._connections)
            return answer

        return self._runner.run(asked())

    def renew(self, jobs: Iterable[work.Renewal]) -> work.RenewAnswer:
        return self._ask(work.Renew(jobs=tuple(jobs)))

    def heartbeat(self, worker: WorkerRecord) -> work.HeartbeatAnswer:
        return self._ask(work.Heartbeat(worker=worker))

    def close(self) -> None:
        async def let_go() -> None:
            self._connections.close()

        self._runner.run(let_go())
        self._runner.close()
