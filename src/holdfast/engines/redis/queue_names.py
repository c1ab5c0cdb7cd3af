"""The list of all queues, where each queue has a root of its own (`roots.py`).

No key of one queue says that there are others. So the names are kept in a sorted set under the root of no queue, with
the time at which a process has last written the name there. A process writes the name of a queue beside its first call
of that queue, and again every ten minutes while it uses it.

The names are hints: a name without a queue costs a call that finds nothing, and a name that was lost comes back within
ten minutes of use. So no call fails because their server is down or full. A write that fails is logged and made again
after 30 seconds. Maintenance that cannot read the names takes those that it has read last.

A removed queue keeps its name in the list until it has not been written for an hour. A process that has used the queue
may enqueue to it again at any time, and it does not know that the queue was removed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from typing import Any

from holdfast.engines.redis.failures import ReplyError
from holdfast.engines.redis.roots import root_of_no_queue
from holdfast.errors import HoldfastError
from holdfast.model.instants import MINUTE, SECOND, Micros, Seconds
from holdfast.runtime import Runtime

WRITE_AGAIN_AFTER_US: Micros = 10 * MINUTE
KEEP_UNUSED_FOR_US: Micros = 60 * MINUTE
"""Six times the interval above: a name that any process uses is never dropped, also if a process stands still."""

TRY_AGAIN_AFTER_US: Micros = 30 * SECOND
"""After a write that failed."""
LONGEST_WAIT_S: Seconds = 1.0
"""For the server of the names, by calls that can do without it. Other calls wait longer for a failover."""

TRIM_FROM = 1_000  # names

FAILURES = (HoldfastError, ReplyError, TimeoutError)

_logger = logging.getLogger("holdfast.redis")


class QueueNames:
    """Used from any thread. `command` sends one command to the primary of a key."""

    def __init__(self, namespace: str, runtime: Runtime, command: Callable[..., Awaitable[Any]]) -> None:
        self._key = root_of_no_queue(namespace) + "names"
        self._runtime = runtime
        self._command = command
        self._written: dict[str, Micros] = {}
        """When this process has written each name, by the monotonic clock."""
        self._not_before: Micros = 0
        """No write before this time, because one has failed."""
        self._last_read: list[str] = []
        self._trim_from = TRIM_FROM

    def due(self, queues: Iterable[str]) -> list[str]:
        """The names of these queues that this process has not written for ten minutes."""
        now = self._runtime.monotonic()
        if now < self._not_before:
            return []
        never = now - WRITE_AGAIN_AFTER_US
        return [queue for queue in queues if now - self._written.get(queue, never) >= WRITE_AGAIN_AFTER_US]

    async def write(self, queues: Collection[str]) -> None:
        """Write these names. A failure is logged."""
        second = self._runtime.wall() // SECOND
        try:
            async with asyncio.timeout(LONGEST_WAIT_S):
                await self._command("ZADD", self._key, "GT", *(part for queue in queues for part in (second, queue)))
        except FAILURES as error:
            now = self._runtime.monotonic()
            if now >= self._not_before:  # the first of several calls
                why = str(error) or "Its server does not answer."
                _logger.warning("The list of queues was not written; calls go on. Tried again in 30 s. %s", why)
            self._not_before = now + TRY_AGAIN_AFTER_US
        else:
            now = self._runtime.monotonic()
            self._written.update(dict.fromkeys(queues, now))
            if len(self._written) > self._trim_from:
                self._trim(now - WRITE_AGAIN_AFTER_US)

    def _trim(self, never: Micros) -> None:
        """Forget names that would be written again anyway. What is left may double before the next look."""
        for queue, at in tuple(self._written.items()):
            if at <= never:
                self._written.pop(queue, None)
        self._trim_from = max(TRIM_FROM, 2 * len(self._written))

    async def all(self) -> list[str]:
        """Every name, sorted."""
        self._last_read = sorted(name.decode() for name in await self._command("ZRANGE", self._key, 0, -1))
        return self._last_read

    async def all_or_last_read(self) -> list[str]:
        """Every name. If they cannot be read soon: those that this process has read last."""
        if self._last_read:
            with suppress(*FAILURES):
                async with asyncio.timeout(LONGEST_WAIT_S):
                    await self.all()
            return self._last_read
        return await self.all()

    async def unused(self) -> list[str]:
        """The names that no process has written for long."""
        oldest = (self._runtime.wall() - KEEP_UNUSED_FOR_US) // SECOND
        return [name.decode() for name in await self._command("ZRANGEBYSCORE", self._key, "-inf", oldest)]

    async def drop(self, queues: Iterable[str]) -> None:
        """Drop these names. If a process uses one of them at the same moment, the name comes back as said above."""
        names = tuple(queues)
        if names:
            await self._command("ZREM", self._key, *names)

    def forget(self) -> None:
        """The server may have lost names: write them again at their next use."""
        self._written.clear()
