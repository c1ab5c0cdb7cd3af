"""The services of a worker: this file builds them, starts them and stops them.

    services, ticked by the supervisor on the event loop:
        exchange        settles and claims; a second one claims in parallel where the store takes several writers
        busy settlements    sends outcomes again whose jobs another transaction has locked
        deadlines       aborts attempts after their timeout
        listener        wakes the others when a notification comes
        hooks           runs the users' dead-letter hooks
        reaper          settles jobs whose lease has expired
        dead workers    disowns workers whose process, or session with the server, has ended
        pruner          deletes what is past its lifetime
        unknown tasks   reports jobs of tasks that no live worker has
        recycling       stops the worker after a number of jobs, or when it has too much memory
        until empty     stops the worker when it has nothing left to run, if it was started for that
    threads of their own:
        keeper          renews leases and sends the heartbeat
        loop watcher    reports a blocked event loop, and stops attempts whose lease is nearly over

Stopping goes in steps, each with a time limit, so that it never hangs: claim nothing more, wait for the handlers, abort
them, settle what has ended; at last release what still runs. A released job costs no attempt.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from holdfast.context import AbortReason
from holdfast.engine import Engine
from holdfast.model.instants import SECOND, Micros, Seconds
from holdfast.model.records import WorkerRecord
from holdfast.model.text import shown
from holdfast.model.work import RenewStatus
from holdfast.runtime import Runtime
from holdfast.service import Service, StoreOutage, Supervisor, try_step
from holdfast.telemetry import events
from holdfast.telemetry.bus import Bus
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.claims import Claims
from holdfast.worker.dead_workers import DeadWorkers
from holdfast.worker.deadlines import Deadlines
from holdfast.worker.exchange import Exchanger
from holdfast.worker.execution_plan import ExecutionPlan, warn_about_timeouts
from holdfast.worker.forked_child import ForkGuard
from holdfast.worker.handler_threads import HandlerThreads
from holdfast.worker.hooks import Hooks
from holdfast.worker.isolated import IsolatedHandlers
from holdfast.worker.keeper import HEARTBEAT_US, Keeper
from holdfast.worker.listener import NotificationListener
from holdfast.worker.loop_watcher import LoopWatcher
from holdfast.worker.outage import EmittedOutage
from holdfast.worker.parallel_claim import ParallelClaim
from holdfast.worker.protocols import HandledTask, WorkerApp
from holdfast.worker.pruner import Pruner
from holdfast.worker.reaper import Reaper
from holdfast.worker.recycling import recycling
from holdfast.worker.release import RELEASE_TIMEOUT_S, release_rest
from holdfast.worker.reporting import Reporter
from holdfast.worker.resend import Resender
from holdfast.worker.slots import Slots
from holdfast.worker.spec import WorkerSpec
from holdfast.worker.stalls import note_stall
from holdfast.worker.stop_request import StopReason, StopRequest
from holdfast.worker.transaction import TransactionEnvironment
from holdfast.worker.unknown_tasks import UnknownTasks
from holdfast.worker.until_empty import UntilEmpty

ABORT_TIMEOUT_S: Seconds = 2.0
"""Aborted handlers get this long to end."""
FLUSH_TIMEOUT_S: Seconds = 5.0
"""The last outcomes must reach the store within this time."""
IMMEDIATE_TIMEOUT_S: Seconds = 0.5
"""Replaces both of the above when the worker is to stop at once."""
KEEPER_STOP_TIMEOUT_S: Seconds = 2.0
"""Stopping waits this long for the keeper's thread."""
FORGET_TIMEOUT_S: Seconds = 2.0
"""Removing the worker's record may take this long; then it expires."""
POLL_WITHOUT_PUSH_S: Seconds = 0.25
"""Poll at least this often where the store cannot notify."""

_logger = logging.getLogger("holdfast.worker")


class WorkerServices:
    """One run of a worker, on one event loop."""

    def __init__(
        self, app: WorkerApp, spec: WorkerSpec, state: Any, stop_request: StopRequest, *, until_empty: bool
    ) -> None:
        self._runtime: Runtime = app.runtime
        self._engine: Engine = app.engine
        self._bus: Bus = app.bus
        self._spec = spec
        self._stop_request = stop_request
        self._loop = asyncio.get_running_loop()
        self._started = self._runtime.wall()
        self._released = 0
        self.has_left_leases = False
        """At its end the worker could not release all its leases."""
        runtime, engine, settings = self._runtime, self._engine, spec.settings
        self._handler_threads = HandlerThreads(runtime)
        self._hooks = Hooks(runtime, engine, self._handler_threads)
        self._reporter = Reporter(engine, app.bus, self._hooks, spec.worker)
        self.slots = Slots(settings.concurrency, spec.queue_limits)
        self._deadlines = Deadlines(runtime, self.slots, self._abort)
        self._isolated = IsolatedHandlers(app, spec.worker, self.slots, self._deadlines.watch, spec.isolation)
        plans = [
            ExecutionPlan(
                task,
                worker=spec.worker,
                state=state,
                middleware=app.middlewares,
                handler_threads=self._handler_threads,
                transaction_environment=TransactionEnvironment(engine, runtime, self._reporter.note_settlement),
                isolated=self._isolated.handler_of(task),
            )
            for task in app.registry.values()
            if not task.policy.remote
        ]
        self._middleware = app.middlewares
        self._plans = {name: plan for plan in plans for name in plan.names}
        poll_s, outage = settings.poll_interval, EmittedOutage(runtime, app.bus, app.address)
        claims = Claims(
            runtime,
            worker=spec.worker,
            queues=spec.queues,
            plans=plans,
            slots=self.slots,
            prefetch=settings.prefetch,
            strict=spec.strict,
            is_paused=lambda: self.keeper.problem is not None,
        )
        self.exchanger = Exchanger(
            runtime,
            resender=Resender(runtime, engine, outage),
            slots=self.slots,
            claims=claims,
            plans=self._plans,
            reporter=self._reporter,
            poll_s=lambda: poll_s if engine.capabilities.push else min(poll_s, POLL_WITHOUT_PUSH_S),
            watch_deadline=self._deadlines.watch,
            on_abort=self._deadlines.on_abort,
        )
        self.until_empty = UntilEmpty(
            runtime, engine, self.exchanger, self.slots, spec.worker, spec.queues, self._plans, stop_request.request
        )
        if until_empty:
            self.exchanger.on_idle = self.until_empty.idle
        exchanges: tuple[Service, ...] = (self.exchanger,)
        capabilities = engine.capabilities
        if capabilities.concurrent_writers and capabilities.shared_between_hosts and claims.simple:
            self.exchanger.parallel_claim = ParallelClaim(runtime, self.exchanger, self.slots)
            exchanges = (self.exchanger, self.exchanger.parallel_claim)
        self.keeper = Keeper(
            runtime,
            engine,
            self.slots,
            record=self.record,
            on_status=self._on_renew_status,
            on_stop_requested=lambda: self._on_loop(stop_request.request, None, StopReason.STORE),
            on_recovered=lambda: self._on_renewals_recovered(outage),
            on_store_error=lambda error: self._on_loop(outage.note, error),
            on_progress=lambda attempt, at: self._on_loop(
                self._reporter.progressed, attempt, attempt.sent_progress, at
            ),
            shortest_lease_us=min((plan.policy.lease for plan in plans), default=30 * SECOND),
        )
        self._watcher = LoopWatcher(
            runtime, on_period=self._check_attempts, on_blocked=self._report_blocked, on_stall=self._note_stall
        )
        self._listener = NotificationListener(
            runtime,
            engine,
            queues=spec.queues,
            worker=spec.worker,
            on_work=self.exchanger.wake,
            on_worker_notified=self.keeper.renew_now,
        )
        reaper = Reaper(
            runtime,
            engine,
            worker=spec.worker,
            plans=self._plans,
            slots=self.slots,
            bus=app.bus,
            reporter=self._reporter,
            on_freed=self.exchanger.wake,
            interval_s=settings.reap_interval,
        )
        self._attempts_at_last_check: dict[str, LeasedAttempt] = {}
        self._ended_service = ""
        """The name of a service that ended although it was not stopped."""
        self.failed = False
        """True: the worker ends because of an error of its own, not because of a request to stop."""
        self.supervisor = Supervisor(
            runtime,
            outage=outage,
            on_ended=self._on_service_ended,
            services=(
                *exchanges,
                self.exchanger.busy_settlements,
                self._deadlines,
                self._listener,
                self._hooks,
                reaper,
                DeadWorkers(runtime, engine, reaper),
                Pruner(runtime, engine),
                *recycling(runtime, spec.worker, self.exchanger, self.slots, settings, stop_request),
                *((self.until_empty,) if until_empty else ()),
                UnknownTasks(
                    runtime,
                    engine,
                    worker=spec.worker,
                    queues=spec.queues,
                    tasks=self._plans,
                    bus=app.bus,
                    fail_after_s=settings.unknown_task_after,
                ),
            ),
        )
        self._fork_guard = ForkGuard(spec.worker, self.supervisor.services)

    def record(self) -> WorkerRecord:
        """The worker's record, as operators see it."""
        return WorkerRecord(
            worker=self._spec.worker,
            tasks=tuple(sorted(self._plans)),
            queues=self._spec.queues,
            host=socket.gethostname(),
            pid=os.getpid(),
            process=self._engine.process_name,
            slots=self.slots.size,
            busy=self.slots.busy,
            started=self._started,
            interval=HEARTBEAT_US,
        )

    # Start

    def redefine(self, task: HandledTask) -> bool:
        plan = self._plans.get(task.policy.name)
        return plan is not None and plan.redefine(task, self._middleware, self._handler_threads)

    async def begin(self) -> None:
        """Send the first heartbeat while the keeper connects, then start all services and the other thread."""
        record = self.record()
        self.keeper.start()
        async with self._stop_request.ends_start(after_grace=False):  # it holds no job yet
            await self._engine.heartbeat(record)
        self._watcher.start()
        self.supervisor.start()
        warn_about_timeouts(set(self._plans.values()))
        _logger.info("Worker %s works on %s.", shown(self._spec.worker), ", ".join(self._spec.queues) or "nothing")
        self._bus.emit(
            events.WorkerStarted(
                at=self._runtime.wall(),
                worker=self._spec.worker,
                queues=self._spec.queues,
                tasks=tuple(sorted(self._plans)),
                slots=self.slots.size,
            )
        )

    # Called from other threads

    def _on_loop(self, function: Callable[..., object], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            _logger.debug("The event loop was closed before its threads ended.")

    def _on_renewals_recovered(self, outage: StoreOutage) -> None:
        self._on_loop(outage.end)
        self._on_loop(self.exchanger.wake)

    def _on_renew_status(self, attempt: LeasedAttempt, status: RenewStatus) -> None:
        match status:
            case RenewStatus.LOST:
                self._mark(attempt, AbortReason.OWNERSHIP_LOST)
            case RenewStatus.CANCEL:
                self._mark(attempt, AbortReason.CANCEL)
            case RenewStatus.HOLD:
                self._on_loop(self.exchanger.release_unstarted, attempt)
            case RenewStatus.HELD | RenewStatus.BUSY:
                pass

    def _mark(self, attempt: LeasedAttempt, reason: AbortReason) -> None:
        if attempt.mark(reason):
            self._on_loop(self.exchanger.interrupt, attempt)

    def _check_attempts(self) -> None:
        for attempt in self.keeper.fence():
            self._on_loop(self.exchanger.interrupt, attempt)
        self._attempts_at_last_check = self.slots.attempts.copy()
        for attempt in self._attempts_at_last_check.values():
            if attempt.used_transactions is not None:
                attempt.used_transactions.watch()

    def _report_blocked(self, blocked_us: Micros, stack: str) -> None:
        attempts = list(self.slots.attempts.values())
        blocking = [a for a in attempts if a.loop_task is not None and a.settlement is None and not a.plan.is_isolated]
        self._bus.emit(
            events.LoopBlocked(
                at=self._runtime.wall(),
                worker=self._spec.worker,
                blocked=blocked_us,
                stack=stack,
                job_ids=tuple(attempt.lease.id for attempt in blocking[:10]),
            )
        )

    def _note_stall(self, stalled_us: Micros) -> None:
        if stalled_us > self.keeper.max_call_us:  # long enough to lose a lease
            suspects = {**self._attempts_at_last_check, **self.slots.attempts}  # one that ended may be settled already
            note_stall(list(suspects.values()), stalled_us, self._runtime.monotonic())

    def _abort(self, attempt: LeasedAttempt, reason: AbortReason) -> None:
        self.exchanger.abort(attempt, reason)

    # Stop

    async def work(self) -> None:
        """Work until a stop is requested, then wait for the handlers. If this call is cancelled, stop at once."""
        try:
            await self._stop_request.wait()  # no limit: the worker works until then
        except asyncio.CancelledError:
            self._stop_request.request(0)
            raise
        finally:
            await self._stop_working()
        if self._ended_service:
            raise RuntimeError(f"The worker has stopped because its service {self._ended_service!r} ended.")

    def _on_service_ended(self, service: Service) -> None:
        """PF3: without this service the worker would hold jobs and not run them, so it stops."""
        self._ended_service = service.name
        self.failed = True
        self._stop_request.request(None, StopReason.FAILURE)

    async def _stop_working(self) -> None:
        """Claim nothing more, let handlers finish, abort the others, settle what has ended; each within a limit."""
        stop_request = self._stop_request
        self._reporter.stopping(stop_request.grace_left_s(), self.slots.busy, self._runtime.wall())
        self.exchanger.on_progress = self._hooks.on_progress = stop_request.waker.wake
        self.exchanger.stop_accepting()
        await stop_request.wait_until(lambda: not self.slots.busy)
        timeout_s = IMMEDIATE_TIMEOUT_S if stop_request.immediate else ABORT_TIMEOUT_S
        for attempt in list(self.slots.attempts.values()):
            if not self.failed:  # else an abort would release the job, and it may be the cause
                self.exchanger.abort(attempt, AbortReason.SHUTDOWN)
        await stop_request.wait_until(lambda: not self.slots.busy, timeout_s)
        timeout_s = IMMEDIATE_TIMEOUT_S if stop_request.immediate else FLUSH_TIMEOUT_S
        await stop_request.wait_until(lambda: not self.exchanger.has_unsettled, timeout_s)
        await stop_request.wait_until(lambda: not self._hooks.pending, timeout_s)

    async def end(self) -> None:
        """Stop all services and threads, then release what still runs. A cancellation does not skip a step."""
        self._listener.close()
        self._watcher.stop()
        cancelled = await try_step(self.supervisor.stop)
        self.keeper.stop()
        cancelled |= await try_step(self._wait_for_keeper)
        cancelled |= await try_step(self._isolated.kill)  # a released job may start elsewhere at once
        cancelled |= await try_step(self._release_rest)
        cancelled |= await try_step(self._forget_worker)
        cancelled |= await try_step(self._isolated.end)
        self._handler_threads.close()
        _logger.info("Worker %s has stopped.", shown(self._spec.worker))
        stopped = events.WorkerStopped(at=self._runtime.wall(), worker=self._spec.worker, released=self._released)
        self._bus.emit(stopped)
        if cancelled:
            raise asyncio.CancelledError

    async def _wait_for_keeper(self) -> None:
        await self._runtime.run_blocking(self.keeper.wait_ended, KEEPER_STOP_TIMEOUT_S)

    async def _forget_worker(self) -> None:
        if self.has_left_leases:  # others find them by the worker's record, and need not wait until they expire
            return self._engine.keep_process_record()
        try:
            async with asyncio.timeout(FORGET_TIMEOUT_S):
                await self._engine.forget_worker(self._spec.worker)
        except Exception as error:
            self._engine.keep_process_record()
            _logger.info("Worker %s could not remove its record: %s", shown(self._spec.worker), error)

    async def _release_rest(self) -> None:
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self.exchanger.take_unanswered()
        except Exception as error:
            self.has_left_leases = True
            _logger.error("Jobs claimed while the worker stopped may stay leased until they expire: %r", error)
        rest = await release_rest(self._engine, self._spec.worker, self.slots.attempts.values(), failed=self.failed)
        self._released = rest.released
        self.has_left_leases |= rest.left > 0
