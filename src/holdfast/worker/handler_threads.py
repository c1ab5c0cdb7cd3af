"""Threads for sync handlers: one for each handler that runs at the same time, reused, and not joined at the end.

The standard thread pool does not fit. Its default size is too small for a hundred slots, and it joins its threads when
the process ends, so a handler that never returns would keep the process alive for ever. These threads are daemons.
"""

import asyncio
import logging
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

from holdfast import forks
from holdfast.runtime import Runtime

T = TypeVar("T")

_logger = logging.getLogger("holdfast.worker")


class HandlerThreads:
    """Runs blocking functions for one event loop. Call it from that loop only."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._active = 0
        self._threads = 0
        self._closed = False

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call the function in a thread, with the caller's context variables; return or raise what it does.

        If the caller is cancelled, only the wait ends: a thread cannot be stopped.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        context = copy_context()

        def call() -> None:
            value, error, depth = None, None, forks.depth
            try:
                value = context.run(function, *args)
            except BaseException as caught:
                error = caught
            if forks.depth != depth:  # a hook or middleware has forked: the child has neither the loop nor this pool
                forks.end_child(error)
            try:
                loop.call_soon_threadsafe(self._resolve, done, value, error)
            except RuntimeError:  # the loop has been closed in the meantime
                _logger.debug("A thread ended after its event loop.")

        self._active += 1
        if self._active > self._threads:
            self._grow()
        self._calls.put(call)
        value, error = await done
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
        except RuntimeError:  # the system allows no more threads
            if not self._threads:
                self._active -= 1
                raise
            _logger.warning("The system allows no more than %d threads; handlers wait for a free one.", self._threads)

    def _resolve(self, done: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
        self._active -= 1
        if not done.done():
            done.set_result((value, error))

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:  # no limit: `close` puts None
            call()
            del call  # an idle thread must not keep the last handler's arguments alive

    def close(self) -> None:
        """End each thread as soon as it is idle."""
        if not self._closed:
            self._closed = True
            for _ in range(self._threads):
                self._calls.put(None)
