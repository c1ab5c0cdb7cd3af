"""How the tasks of an event loop wait for the gate: one of them in a thread, the others on the loop.

A loop has few threads for blocking calls, and the task that holds the gate may need one to release it. If every waiting
task blocked a thread, none would be left for that.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from holdfast.runtime import Runtime

T = TypeVar("T")


class GateQueue:
    """One per gate, shared by all tasks that pass it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def run(self, function: Callable[[], T]) -> T:
        """Call, in a thread, a function that waits for the gate."""
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            return await self._runtime.run_blocking(function)
