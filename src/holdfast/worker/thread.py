"""A worker in a thread of its own, with an event loop of its own: `with jobs.worker():` starts it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.model.instants import Seconds
from holdfast.runtime import Runtime

LEFTOVER_TIMEOUT_S: Seconds = 1.0
"""Tasks that still run when the loop is to be closed get this long to end."""

_logger = logging.getLogger("holdfast.worker")


class WorkerThread:
    """`start` waits until the worker is ready, `finish` until it has ended. Both raise the worker's error."""

    def __init__(
        self,
        runtime: Runtime,
        work: Callable[[Callable[[], object]], Coroutine[Any, Any, None]],
        on_failure: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._work = work
        self._on_failure = on_failure
        self._ready = runtime.event()
        self._ended = runtime.event()
        self._error: BaseException | None = None

    def start(self) -> None:
        self._runtime.thread(self._run, name="holdfast worker")
        self._ready.wait()  # no limit: `_run` sets it, also after an error; to open a store has limits
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        self._ended.wait()  # no limit: each step of the worker's end has one
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            run_loop(self._work(self._ready.set), self._on_failure)
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()
            self._ready.set()


def run_loop(main: Coroutine[Any, Any, None], on_failure: Callable[[], None]) -> None:
    """Run an event loop to the end of `main`. If an error stops the loop before that, call `on_failure` first.

    A KeyboardInterrupt in any task stops the loop; closing it then cancels `main`, which would look like a request.
    """
    with asyncio.Runner() as runner:
        try:
            runner.run(main)
        except BaseException:
            on_failure()
            raise


async def cancel_leftover_tasks() -> None:
    """Cancel all other tasks of this loop. One that does not end must not keep the loop from closing."""
    leftover = asyncio.all_tasks() - {asyncio.current_task()}
    for task in leftover:
        task.cancel()
    if leftover:
        _, stuck = await asyncio.wait(leftover, timeout=LEFTOVER_TIMEOUT_S)
        for task in stuck:
            _logger.error("Task %s does not stop and is abandoned.", task.get_name())
            asyncio.tasks._unregister_task(task)  # else closing the loop would wait for it for ever
