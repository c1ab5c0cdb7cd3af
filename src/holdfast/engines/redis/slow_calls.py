"""While a call waits for its reply: look whether its server is still the right one.

A server that hangs, or is cut off from the others, answers nothing and closes nothing. Meanwhile another server may
have taken its place. A call would then wait until its own time limit. So after a second without a reply the caller
looks, and again every second; if another server is the primary now, it closes the connections to the old one. The
call then fails as after any lost connection.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.model.instants import Seconds
from holdfast.runtime import Runtime, call_later

T = TypeVar("T")

LOOK_EVERY_S: Seconds = 1.0


async def watched(call: Awaitable[T], look: Callable[[], Awaitable[None]], runtime: Runtime) -> T:
    """The result of the call. `look` is called while the call takes long; an error of it has no effect."""
    watch = _Watch(look, runtime)
    timer = call_later(LOOK_EVERY_S, watch.begin)
    try:
        return await call
    finally:
        timer.cancel()
        watch.end()


class _Watch:
    __slots__ = ("_look", "_runtime", "_task")

    def __init__(self, look: Callable[[], Awaitable[None]], runtime: Runtime) -> None:
        self._look = look
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = self._runtime.spawn(self._run(), name="holdfast slow call")

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._look()
            await self._runtime.sleep(LOOK_EVERY_S)
