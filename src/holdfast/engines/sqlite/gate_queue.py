"""How the tasks of an event loop wait for the gate: one of them in a thread, the others on the loop.

A loop has few threads for blocking calls, and the task that holds the gate may need one to release it. If every waiting
task blocked a thread, none would be left for that.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from holdfast.engines.sqlite.store import StoreOptions
from holdfast.runtime import Runtime

T = TypeVar("T")


class GateQueue:
    """One per gate, shared by all tasks that pass it."""

    def __init__(self, store: StoreOptions, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    # PF1
    async def run(self, function: Callable[[], T]) -> T:
        """Call, in a thread, a function that waits for the gate."""
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        try:
            async with asyncio.timeout(self._store.busy_timeout_s):
                await lock.acquire()
        except TimeoutError:
            raise self._store.gate_error("Other tasks of this process wait for it, too.") from None
        try:
            return await self._runtime.run_blocking(function)
        finally:
            lock.release()
