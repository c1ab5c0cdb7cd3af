"""A shift: everything that works while a worker runs, put together, begun and brought to a clean end.

    exchange    settles and claims            hooks       what users hang on a job's end
    deadlines   timeouts                      listener    bells
    reaper      jobs of lost workers          pruner      what is past its time
    deaths      workers known to be gone
    strangers   tasks nobody knows            keeper      leases, from its own thread
                                              watcher     blocked loops and old leases, from its own thread

The end goes in steps, each with a limit, so that it never hangs: no more claims, wait for the handlers, abort them,
settle what has ended; then, as the very last call, give back what still runs. A job given back costs no attempt.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.config import WorkerSettings
from holdfast.context import AbortReason
from holdfast.engine import Engine
from holdfast.model.check import MAX_SETTLEMENTS
from holdfast.model.instants import SECOND
from holdfast.model.outcome import Released, decide
from holdfast.model.records import WorkerRecord
from holdfast.model.work import RenewStatus
from holdfast.runtime import Runtime
from holdfast.service import Service, Supervisor
from holdfast.telemetry import events
from holdfast.telemetry.bus import Bus
from holdfast.worker.attempt import Attempt
from holdfast.worker.claims import Claims
from holdfast.worker.courier import Courier
from holdfast.worker.crew import Crew
from holdfast.worker.deadlines import Deadlines
from holdfast.worker.deaths import Deaths
from holdfast.worker.exchange import Beside, Exchanger
from holdfast.worker.hooks import Hooks
from holdfast.worker.host import Host
from holdfast.worker.keeper import HEARTBEAT, Keeper
from holdfast.worker.listener import Listener
from holdfast.worker.news import News
from holdfast.worker.plan import Plan
from holdfast.worker.pruner import Pruner
from holdfast.worker.reaper import Reaper
from holdfast.worker.slots import Slots
from holdfast.worker.stopping import Stopping
from holdfast.worker.strangers import Strangers
from holdfast.worker.transaction import Means
from holdfast.worker.watcher import Watcher

ABORT_PATIENCE = 2.0
"""Seconds that aborted handlers get to end."""
FLUSH_PATIENCE = 5.0
"""Seconds in which the last outcomes have to reach the store."""
HURRIED_PATIENCE = 0.5
"""Both of the above, when the end is wanted at once."""
POLL_WITHOUT_PUSH = 0.25

_logger = logging.getLogger("holdfast.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a worker was asked to work."""

    worker: str
    queues: tuple[str, ...]
    queue_limits: Mapping[str, int]
    settings: WorkerSettings
    strict: bool = False


class Shift:
    """One run of a worker, on one event loop."""

    def __init__(self, host: Host, terms: Terms, state: Any, stopping: Stopping, *, until_empty: bool) -> None:
        self._runtime: Runtime = host.runtime
        self._engine: Engine = host.engine
        self._bus: Bus = host.bus
        self._terms = terms
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._started = self._runtime.wall()
        runtime, engine, settings = self._runtime, self._engine, terms.settings
        self._crew = Crew(runtime)
        self._plans = {
            name: Plan(
                task,
                worker=terms.worker,
                state=state,
                middleware=host.middlewares,
                crew=self._crew,
                means=Means(engine, runtime),
            )
            for name, task in host.registry.items()
            if not task.policy.remote
        }
        self.slots = Slots(settings.concurrency, terms.queue_limits)
        self._hooks = Hooks(runtime, engine, self._crew)
        self._news = News(engine, host.bus, self._hooks, terms.worker)
        self._deadlines = Deadlines(runtime, self.slots, self._abort)
        poll = settings.poll_interval
        claims = Claims(
            runtime,
            worker=terms.worker,
            queues=terms.queues,
            plans=self._plans.values(),
            slots=self.slots,
            prefetch=settings.prefetch,
            strict=terms.strict,
        )
        self.exchanger = Exchanger(
            runtime,
            courier=Courier(runtime, engine),
            slots=self.slots,
            claims=claims,
            plans=self._plans,
            news=self._news,
            poll=poll if engine.capabilities.push else min(poll, POLL_WITHOUT_PUSH),
            timed=self._deadlines.watch,
            told_to_stop=self._deadlines.told_to_stop,
            found_nothing=stopping.ask if until_empty else None,
        )
        exchanges: tuple[Service, ...] = (self.exchanger,)
        able = engine.capabilities
        if able.concurrent_writers and able.shared_between_hosts and claims.simple:
            self.exchanger.beside = Beside(runtime, self.exchanger)
            exchanges = (self.exchanger, self.exchanger.beside)
        self.keeper = Keeper(
            runtime,
            engine,
            self.slots,
            record=self.record,
            deliver=self._deliver,
            stop_asked=lambda: self._on_loop(stopping.ask),
        )
        self._watcher = Watcher(runtime, guard=self._guard, blocked=self._blocked)
        self._listener = Listener(
            runtime,
            engine,
            queues=terms.queues,
            worker=terms.worker,
            work=self.exchanger.wake,
            called=self.keeper.hurry,
        )
        reaper = Reaper(
            runtime,
            engine,
            worker=terms.worker,
            plans=self._plans,
            slots=self.slots,
            bus=host.bus,
            news=self._news,
            freed=self.exchanger.wake,
            interval=settings.reap_interval,
        )
        self.supervisor = Supervisor(
            runtime,
            (
                *exchanges,
                self._deadlines,
                self._listener,
                self._hooks,
                reaper,
                Deaths(runtime, engine, reaper),
                Pruner(runtime, engine),
                Strangers(
                    runtime,
                    engine,
                    worker=terms.worker,
                    queues=terms.queues,
                    tasks=self._plans,
                    bus=host.bus,
                    fail_after=settings.unknown_task_after,
                ),
            ),
        )

    def record(self) -> WorkerRecord:
        """The worker as operators see it."""
        return WorkerRecord(
            worker=self._terms.worker,
            tasks=tuple(sorted(self._plans)),
            queues=self._terms.queues,
            host=socket.gethostname(),
            pid=os.getpid(),
            process=self._engine.process_name,
            slots=self.slots.size,
            busy=self.slots.busy,
            started=self._started,
            interval=HEARTBEAT,
        )

    # Beginning

    async def begin(self) -> None:
        """Put the worker on record, and start."""
        await self._engine.heartbeat(self.record())
        self.keeper.start()
        self._watcher.start()
        self.supervisor.start()
        _logger.info("Worker %s works on %s.", self._terms.worker, ", ".join(self._terms.queues) or "nothing")
        self._bus.emit(
            events.WorkerStarted(
                at=self._runtime.wall(),
                worker=self._terms.worker,
                queues=self._terms.queues,
                tasks=tuple(sorted(self._plans)),
                slots=self.slots.size,
            )
        )

    # What other threads have to say

    def _on_loop(self, function: Callable[..., object], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            _logger.debug("The event loop was closed before its threads ended.")

    def _deliver(self, attempt: Attempt, status: RenewStatus) -> None:
        match status:
            case RenewStatus.LOST:
                self._mark(attempt, AbortReason.OWNERSHIP_LOST)
            case RenewStatus.CANCEL:
                self._mark(attempt, AbortReason.CANCEL)
            case RenewStatus.HOLD:
                self._on_loop(self.exchanger.hold, attempt)
            case RenewStatus.HELD:
                pass

    def _mark(self, attempt: Attempt, reason: AbortReason) -> None:
        if attempt.mark(reason):
            self._on_loop(self.exchanger.interrupt, attempt)

    def _guard(self) -> None:
        for attempt in self.keeper.fence():
            self._on_loop(self.exchanger.interrupt, attempt)
        for attempt in list(self.slots.held.values()):
            if attempt.joined is not None:
                attempt.joined.watch()

    def _blocked(self, length: int, stack: str) -> None:
        jobs = [a.lease.id for a in list(self.slots.held.values()) if a.runner is not None and a.settlement is None]
        self._bus.emit(
            events.LoopBlocked(
                at=self._runtime.wall(),
                worker=self._terms.worker,
                blocked=length,
                stack=stack,
                job_ids=tuple(jobs[:10]),
            )
        )

    def _abort(self, attempt: Attempt, reason: AbortReason) -> None:
        self.exchanger.abort(attempt, reason)

    # Ending

    async def work(self) -> None:
        """Until someone asks to stop, and then until the handlers have. Cancelled, it stops at once."""
        try:
            await self._stopping.wait()
        except asyncio.CancelledError:
            self._stopping.ask(0)
            raise
        finally:
            await self._wind_down()

    async def _wind_down(self) -> None:
        """No more claims; the handlers may finish, then must; what has ended is settled. Bounded."""
        stopping = self._stopping
        self._bus.emit(
            events.WorkerStopping(
                at=self._runtime.wall(),
                worker=self._terms.worker,
                grace=round(stopping.left() * SECOND),
                running=self.slots.busy,
            )
        )
        self.exchanger.progress = self._hooks.progress = stopping.waker.wake
        self.exchanger.stop_accepting()
        await stopping.until(lambda: not self.slots.busy)
        patience = HURRIED_PATIENCE if stopping.hurried else ABORT_PATIENCE
        for attempt in list(self.slots.held.values()):
            self.exchanger.abort(attempt, AbortReason.SHUTDOWN)
        await stopping.until(lambda: not self.slots.busy, patience)
        patience = HURRIED_PATIENCE if stopping.hurried else FLUSH_PATIENCE
        await stopping.until(lambda: not self.exchanger.settling, patience)
        await stopping.until(lambda: not self._hooks.pending, patience)

    async def end(self) -> None:
        """Let go of everything. What still runs is given back as the last call."""
        self._listener.close()
        await self.supervisor.stop()
        self._watcher.stop()
        self.keeper.stop()
        await self._runtime.run_blocking(self.keeper.wait_ended, 2.0)
        released = await self._give_back_rest()
        try:
            await self._engine.forget_worker(self._terms.worker)
        except Exception as error:
            _logger.info("Worker %s could not take its record with it: %s", self._terms.worker, error)
        self._crew.close()
        _logger.info("Worker %s has stopped.", self._terms.worker)
        self._bus.emit(events.WorkerStopped(at=self._runtime.wall(), worker=self._terms.worker, released=released))

    async def _give_back_rest(self) -> int:
        rest: Sequence[Attempt] = [
            attempt for attempt in self.slots.held.values() if attempt.abort_reason is not AbortReason.OWNERSHIP_LOST
        ]
        for attempt in rest:
            if attempt.joined is not None:
                attempt.joined.abandon()
            if attempt.settlement is None:
                _logger.warning("Job %s (%s) still runs; it is given back.", attempt.lease.id, attempt.lease.task)
                attempt.settlement = decide(Released(), attempt.lease, attempt.plan.policy.retry, now=0, draw=0.0)
        settlements = [attempt.settlement for attempt in rest if attempt.settlement is not None]
        try:
            for start in range(0, len(settlements), MAX_SETTLEMENTS):
                await self._engine.settle(*settlements[start : start + MAX_SETTLEMENTS])
        except Exception as error:
            _logger.error("%d jobs could not be given back: %s Their leases will run out.", len(settlements), error)
        return len(settlements)
