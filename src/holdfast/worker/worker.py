"""The worker: claims jobs and runs them until it is stopped.

    jobs.worker().run()                 as a program of its own
    await jobs.worker().arun()          on an event loop that already runs
    async with jobs, jobs.worker(): …   in the background of another program, such as a web server
    with jobs.worker(): …               in a thread

This file starts and stops it: signals, threads, the lifespan. What it does in between is in `services.py`.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from holdfast.config import WorkerSettings
from holdfast.durations import Duration
from holdfast.errors import BlockingCall, UsageError, duration_us
from holdfast.model.check import name as check_name
from holdfast.model.instants import SECOND, Seconds
from holdfast.runtime import DaemonThreads
from holdfast.telemetry.logs import enable_own_loggers
from holdfast.worker.execution_plan import refuse_transactions
from holdfast.worker.manager_channel import ManagerChannel
from holdfast.worker.protocols import HandledTask, WorkerApp
from holdfast.worker.services import WorkerServices
from holdfast.worker.spec import WorkerSpec, given_settings
from holdfast.worker.stop_request import StoppedAtStart, StopRequest
from holdfast.worker.stop_signals import StopSignals
from holdfast.worker.thread import WorkerThread, cancel_leftover_tasks, run_loop
from holdfast.worker.until_empty import LeftJobs

_logger = logging.getLogger("holdfast.worker")

Queues = Sequence[str] | Mapping[str, int | None]
"""Names, or names with the largest number of slots that each may take."""


class Worker:
    """Runs jobs of some queues in a number of slots. One worker object runs once at a time."""

    def __init__(
        self,
        app: WorkerApp,
        *,
        queues: Queues | None = None,
        concurrency: int | None = None,
        grace: Duration | None = None,
        name: str | None = None,
        signals: bool = False,
        prefetch: int | None = None,
        until_empty: bool = False,
        strict: bool = False,
        max_jobs: int | None = None,
        max_memory: int | str | None = None,
        channel: ManagerChannel | None = None,
        process_ends: bool = False,
    ) -> None:
        """`queues`: by default those of the App's tasks. Claims rotate over them; with `strict` the order stays.

        `until_empty`: stop when nothing is left that this worker could come to run; `left` then says what it left.
        `max_jobs`, `max_memory` (bytes, or "512MiB"): stop gently after this; 0: never.
        `channel`: to the manager that has started this process.
        `process_ends`: with `signals`: if threads keep the process alive after the run, it ends by force.
        """
        self._app = app
        self._queues = queues
        self._given_settings = given_settings(
            concurrency=concurrency, grace=grace, prefetch=prefetch, max_jobs=max_jobs, max_memory=max_memory
        )
        self._signals = signals
        self._until_empty = until_empty
        self._strict = strict
        self._channel = channel
        self._process_ends = process_ends
        suffix = app.runtime.token_bytes(4).hex()
        self.name: str = check_name(f"{name or socket.gethostname() or 'worker'}-{suffix}", "name")
        """The given name plus a random suffix: no two workers have the same name."""
        self.left: LeftJobs = LeftJobs()
        """What a worker with `until_empty` could not run, once it has stopped by itself."""
        self._stop_request: StopRequest | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._services: WorkerServices | None = None
        self._run_task: asyncio.Task[None] | None = None
        self._thread: WorkerThread | None = None

    # Running

    def run(self) -> None:
        """Work until stopped. Returns when every job is settled or released."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise BlockingCall(method="worker.run", twin="worker.arun")
        run_loop(self.run_and_clean_up(), self.note_failure)

    def note_failure(self) -> None:
        """An error has stopped the event loop: what still runs is not released free of charge."""
        if self._services is not None:
            self._services.failed = True

    async def arun(self) -> None:
        """Work until stopped, on this event loop."""
        await self._work(lambda: None)

    def stop(self, grace: Duration | None = None) -> None:
        """Request a stop within `grace` seconds (default: the setting). Call from any thread; it does not wait.

        The worker claims nothing more, lets handlers finish, aborts them when the time is over, and releases the rest.
        """
        grace_s = None if grace is None else duration_us(grace, "grace") / SECOND
        loop, stop_request = self._loop, self._stop_request
        if loop is not None and stop_request is not None:
            with suppress(RuntimeError):  # the loop is closed: it had stopped already
                loop.call_soon_threadsafe(stop_request.request, grace_s)

    @property
    def has_started(self) -> bool:
        """True while it works: its tasks are those that the App had when it started."""
        return self._services is not None

    def redefine(self, task: HandledTask) -> bool:
        """A cell of a notebook was run again. True: jobs run the new function from now on, with the earlier options."""
        return self._services is not None and self._services.redefine(task)

    @property
    def running(self) -> int:
        """How many slots are in use."""
        return 0 if self._services is None else self._services.slots.busy

    async def _work(self, on_ready: Callable[[], object]) -> None:
        """Start, work until stopped, and clean up whatever happens."""
        if self._stop_request is not None:
            raise UsageError(f"Worker {self.name} runs already. Make another one.")
        app, settings = self._app, self._settings()
        stop_request = self._stop_request = StopRequest(app.runtime, settings.grace)
        self._loop = asyncio.get_running_loop()
        try:
            with suppress(StoppedAtStart), self._stopped_by(stop_request, settings.grace):
                app.import_modules()
                refuse_transactions(app.engine, app.registry.values())
                async with AsyncExitStack() as stack:
                    async with stop_request.ends_start(after_grace=False):
                        await app.aopen()
                    async with stop_request.ends_start(after_grace=True):
                        state = await stack.enter_async_context(self._state())
                    enable_own_loggers()  # the modules or the lifespan may have configured logging
                    if not stop_request.is_requested:
                        services = WorkerServices(
                            app, self._spec(settings), state, stop_request, until_empty=self._until_empty
                        )
                        await self._run_services(services, on_ready)
        finally:
            if self._services is None and stop_request.is_requested:
                _logger.info("Worker %s was stopped before it had started.", self.name)
            stop_request.waker.close()
            self._stop_request = self._loop = self._services = None

    async def _run_services(self, services: WorkerServices, on_ready: Callable[[], object]) -> None:
        self._services = services
        try:
            with suppress(StoppedAtStart):  # the lifespan must not see it: it ends as after any other stop
                await services.begin()
                if self._channel is not None:
                    self._channel.send_started(self.name)
                on_ready()
                await services.work()
                self.left = services.until_empty.left
        finally:  # with the signal handlers in place: a second signal must not end the process here
            await services.end()
            await self._app.bus.wait_for_listeners()

    @asynccontextmanager
    async def _state(self) -> AsyncIterator[Any]:
        if self._app.lifespan is None:
            yield None
        else:
            async with self._app.lifespan() as state:
                yield state

    def _settings(self) -> WorkerSettings:
        return replace(self._app.config.worker, **self._given_settings)

    def _spec(self, settings: WorkerSettings) -> WorkerSpec:
        tasks = [task for task in self._app.registry.values() if not task.policy.remote]
        named = self._queues if self._queues is not None else sorted({task.policy.queue for task in tasks})
        limits = named if isinstance(named, Mapping) else {}
        return WorkerSpec(
            worker=self.name,
            queues=tuple(check_name(queue, "queue") for queue in named),
            queue_limits={queue: limit for queue, limit in limits.items() if limit is not None},
            settings=settings,
            strict=self._strict,
        )

    @contextmanager
    def _stopped_by(self, stop_request: StopRequest, grace_s: Seconds) -> Iterator[None]:
        """Signals, with `signals=True`, and the manager can stop this worker."""
        with ExitStack() as stack:
            if self._signals:
                managed = self._channel is not None
                signals = StopSignals(
                    self._app.runtime, stop_request, grace_s, managed=managed, process_ends=self._process_ends
                )
                stack.enter_context(signals)
            if self._channel is not None:
                stack.enter_context(self._channel.attach(stop_request, grace_s, self._holds_leases))
            yield

    def _holds_leases(self) -> bool:
        return self._services is not None and self._services.has_left_leases

    async def run_and_clean_up(self, on_ready: Callable[[], object] = lambda: None) -> None:
        """Run, then make sure that a handler which does not stop cannot keep the loop from closing."""
        # A call of `asyncio.to_thread` that does not return must not keep the loop from closing either.
        asyncio.get_running_loop().set_default_executor(DaemonThreads("holdfast handler"))
        try:
            await self._work(on_ready)
        finally:
            await cancel_leftover_tasks()

    # As a context manager

    async def __aenter__(self) -> Self:
        ready = asyncio.get_running_loop().create_future()
        work = self._work(lambda: ready.set_result(None))
        self._run_task = self._app.runtime.spawn(work, name=f"holdfast worker {self.name}")
        try:
            await asyncio.wait({ready, self._run_task}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:  # `__aexit__` is not called then
            self._run_task.cancel()
            raise
        if not ready.done():
            await self._run_task
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._run_task is not None:
            run_task, self._run_task = self._run_task, None
            await run_task

    def __enter__(self) -> Self:
        self._thread = WorkerThread(self._app.runtime, self.run_and_clean_up, self.note_failure)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.finish()
