"""The users' dead-letter hooks. They run one after the other while the worker works; an error in one is logged."""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.engine import Engine
from holdfast.model.job import JobKey
from holdfast.model.text import ErrorInfo, describe, shown
from holdfast.model.work import Lease
from holdfast.runtime import Runtime
from holdfast.service import Service
from holdfast.views import Job
from holdfast.worker.handler_threads import HandlerThreads

Hook = Callable[[Any, Any], object]

_logger = logging.getLogger("holdfast.worker")


class Hooks(Service):
    """Runs `on_dead_letter` hooks: async ones on the loop, sync ones in a thread."""

    name = "hooks"

    def __init__(self, runtime: Runtime, engine: Engine, handler_threads: HandlerThreads) -> None:
        super().__init__(runtime)
        self._engine = engine
        self._handler_threads = handler_threads
        self._waiting: deque[tuple[Hook, JobKey, ErrorInfo | None, Lease | None]] = deque()
        self.on_progress: Callable[[], None] | None = None
        """Called when a hook has run. Set while the worker stops."""

    def add(self, hook: Hook, job: JobKey, error: ErrorInfo | None, lease: Lease | None = None) -> None:
        """Run the hook soon. `lease` describes the job if its record is deleted by then (no retention)."""
        self._waiting.append((hook, job, error, lease))
        self.wake()

    @property
    def pending(self) -> bool:
        return bool(self._waiting)

    async def tick(self) -> float | None:
        while self._waiting:
            await self._run(*self._waiting[0])
            self._waiting.popleft()
            if self.on_progress is not None:
                self.on_progress()
        return None

    async def _run(self, hook: Hook, key: JobKey, error: ErrorInfo | None, lease: Lease | None) -> None:
        (record,) = (await self._engine.get(key)).jobs
        if record is not None:
            job = Job.from_record(record)
        elif lease is not None:
            job = Job.from_lease(lease)
        else:
            return
        # PF3: in a task of its own, so that a cancellation in the hook does not reach this service.
        name = getattr(hook, "__qualname__", repr(hook))
        task = self.runtime.spawn(self._call(hook, name, job, error), name=f"holdfast hook {name}")
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        if task.cancelled():  # before it began: `_call` raises no cancellation
            raise asyncio.CancelledError

    async def _call(self, hook: Hook, name: str, job: Job, error: ErrorInfo | None) -> None:
        try:
            if inspect.iscoroutinefunction(hook):
                await hook(job, error)
            else:
                answer = await self._handler_threads.run(hook, job, error)
                if inspect.isawaitable(answer):
                    await answer
        except BaseException as failure:  # also KeyboardInterrupt: nothing that a hook raises ends the worker
            _logger.error(
                "The dead-letter hook %s failed for job %s. The job stays failed.\n%s",
                name,
                shown(job.id),
                describe(failure).traceback,
            )
