"""Waiting at the gate without keeping threads waiting.

An event loop has few threads for blocking calls, and whoever holds the gate may need one to let go of it. So of all
that want to pass from one loop, one waits in a thread, and the others wait for it on the loop.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from holdfast.runtime import Runtime

T = TypeVar("T")


class Turns:
    """Shared by all that pass one gate."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def run(self, wait: Callable[[], T]) -> T:
        """Call something that waits at the gate, in a thread."""
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            return await self._runtime.run_blocking(wait)
