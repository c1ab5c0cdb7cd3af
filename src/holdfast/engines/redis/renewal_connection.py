"""The blocking connection of the keeper, the thread that renews leases: a blocked event loop does not delay it.

Its timeout is shorter than that of other calls: a renewal on a dead connection must fail early enough for a second try
before the lease expires.

A worker is subscribed to its channel as long as it has this connection (`presence.py`). The notifier of the process
holds the subscription, because its thread notices at once that a connection was cut.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from holdfast.engine import RenewalConnection
from holdfast.engines.redis.notifier import ChannelNotifier
from holdfast.engines.redis.presence import SubscribedHeartbeat
from holdfast.model import work
from holdfast.model.command import Command
from holdfast.model.records import WorkerRecord

CALL_TIMEOUT_S = 5.0  # of a lease of 30 s, 10 to 25 s remain when its renewal begins: time for a second try
CONNECT_TIMEOUT_S = 2.5


class RedisRenewalConnection(RenewalConnection):
    """Created and used in the thread of the keeper. Its event loop runs only during a call.

    `perform` carries out a command over connections of the running event loop, which end with the loop.
    `notifier`: None if this process receives no notifications.
    """

    def __init__(self, perform: Callable[[Command[Any]], Awaitable[Any]], notifier: ChannelNotifier | None) -> None:
        self._perform = perform
        self._notifier = notifier
        self._worker: str | None = None
        self._runner = asyncio.Runner()

    def renew(self, jobs: Iterable[work.Renewal]) -> work.RenewAnswer:
        answer: work.RenewAnswer = self._run(work.Renew(jobs=tuple(jobs)))
        return answer

    def heartbeat(self, worker: WorkerRecord) -> work.HeartbeatAnswer:
        command = work.Heartbeat(worker=worker)
        if self._notifier is not None:
            self._join(self._notifier, worker.worker)
            command = SubscribedHeartbeat(worker=worker, session=self._notifier.has_session(worker.worker))
        answer: work.HeartbeatAnswer = self._run(command)
        return answer

    def _join(self, notifier: ChannelNotifier, worker: str) -> None:
        if self._worker != worker:
            if self._worker is not None:
                notifier.leave_worker(self._worker)
            self._worker = worker
            notifier.join_worker(worker)

    def _run(self, command: Command[Any]) -> Any:
        async def perform() -> Any:
            return await self._perform(command)

        return self._runner.run(perform())

    def close(self) -> None:
        if self._notifier is not None and self._worker is not None:
            self._notifier.leave_worker(self._worker)
            self._worker = None
        self._runner.close()
