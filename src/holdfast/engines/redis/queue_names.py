"""The list of all queues, where each queue has a root of its own (`roots.py`).

No key of one queue says that there are others. So the names are kept in a sorted set under the root of no queue, with
the time at which a process has last written the name there. A process writes the name of a queue before it uses it,
and again every ten minutes while it uses it. The names are hints: a name without a queue costs a call that finds
nothing, and a name that was lost comes back within ten minutes of use.

A removed queue keeps its name in the list until it has not been written for an hour. A process that has used the queue
may enqueue to it again at any time, and it does not know that the queue was removed.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from holdfast.engines.redis.roots import root_of_no_queue
from holdfast.model.instants import MINUTE, SECOND, Micros
from holdfast.runtime import Runtime

WRITE_AGAIN_AFTER_US: Micros = 10 * MINUTE
KEEP_UNUSED_FOR_US: Micros = 60 * MINUTE
"""Six times the interval above: a name that any process uses is never dropped, also if a process stands still."""

TRIM_FROM = 1_000  # names


class QueueNames:
    """Used from any thread. `command` sends one command to the primary of a key."""

    def __init__(self, namespace: str, runtime: Runtime, command: Callable[..., Awaitable[Any]]) -> None:
        self._key = root_of_no_queue(namespace) + "names"
        self._runtime = runtime
        self._command = command
        self._written: dict[str, Micros] = {}
        """When this process has written each name, by the monotonic clock."""
        self._trim_from = TRIM_FROM

    async def add(self, queues: Iterable[str]) -> None:
        """Write the names of these queues, unless this process has done so a short time ago."""
        now = self._runtime.monotonic()
        never = now - WRITE_AGAIN_AFTER_US
        new = [queue for queue in queues if now - self._written.get(queue, never) >= WRITE_AGAIN_AFTER_US]
        if new:
            second = self._runtime.wall() // SECOND
            await self._command("ZADD", self._key, "GT", *(part for queue in new for part in (second, queue)))
            self._written.update(dict.fromkeys(new, now))
            if len(self._written) > self._trim_from:
                self._trim(never)

    def _trim(self, never: Micros) -> None:
        """Forget names that would be written again anyway. What is left may double before the next look."""
        for queue, at in tuple(self._written.items()):
            if at <= never:
                self._written.pop(queue, None)
        self._trim_from = max(TRIM_FROM, 2 * len(self._written))

    async def all(self) -> list[str]:
        """Every name, sorted."""
        return sorted(name.decode() for name in await self._command("ZRANGE", self._key, 0, -1))

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
