"""Threads for sync handlers: as many as are needed at once, kept for the next, never waited for at the end.

The standard pool will not do. It is too small for a hundred slots, and it joins its threads when the process ends, so
that one handler which never returns would keep the process for ever. These are daemons.
"""

import asyncio
import logging
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

from holdfast.runtime import Runtime

T = TypeVar("T")

_logger = logging.getLogger("holdfast.worker")


class HandlerThreads:
    """Runs blocking functions for one event loop. Used from that loop only."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._active = 0
        self._threads = 0
        self._closed = False

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call the function in a thread, with the caller's context variables; answer or raise what it does.

        Cancelling the caller only ends the wait: a thread cannot be stopped.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        context = copy_context()

        def order() -> None:
            value, error = None, None
            try:
                value = context.run(function, *args)
            except BaseException as caught:
                error = caught
            try:
                loop.call_soon_threadsafe(self._report, ended, value, error)
            except RuntimeError:  # the loop has been closed meanwhile
                _logger.debug("A thread ended after its event loop.")

        self._active += 1
        if self._active > self._threads:
            self._grow()
        self._orders.put(order)
        value, error = await ended
        if isinstance(error, StopIteration):  # cannot pass through a coroutine
            raise RuntimeError("The function raised StopIteration.") from error
        if error is not None:
            raise error
        result: T = value
        return result

    def _grow(self) -> None:
        try:
            self._runtime.thread(self._work, name=f"holdfast handler {self._threads + 1}")
            self._threads += 1
        except RuntimeError:  # the system has no more of them
            if not self._threads:
                self._active -= 1
                raise
            _logger.warning("No more than %d threads can be had; handlers wait for one.", self._threads)

    def _report(self, ended: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
        self._active -= 1
        if not ended.done():
            ended.set_result((value, error))

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            order()
            del order  # or an idle thread would keep what the last handler was given

    def close(self) -> None:
        """Let the threads end once they are idle."""
        if not self._closed:
            self._closed = True
            for _ in range(self._threads):
                self._orders.put(None)
