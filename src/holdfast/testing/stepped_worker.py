"""A worker that a test drives step by step: it runs one attempt at a time.

The parts are those of a real worker (`holdfast.worker.services`): it claims, decodes, runs the handler inside its
middleware, decides on the settlement and settles. Background work is left out: no service ticks by itself, no thread
renews leases or watches the loop. So two runs of a test do the same things in the same order.

In one case two attempts run at the same time: when a handler waits for another job. A worker that ran strictly one job
at a time would then wait for ever. So while every running handler waits for a job, the worker claims one more.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

from holdfast.app import App
from holdfast.config import Config
from holdfast.context import CURRENT, AbortReason, Context, Middleware, Next
from holdfast.errors import Interrupt, UsageError
from holdfast.isolation.handler_errors import unwrapped
from holdfast.model.command import Answer, Command
from holdfast.model.instants import SECOND, Micros
from holdfast.model.job import JobKey
from holdfast.model.observe import Get, Prune, Stats
from holdfast.model.operate import Cancel, Clear
from holdfast.model.states import JobState
from holdfast.model.work import ForgetWorker, Heartbeat, Settlement, SettleStatus
from holdfast.runtime import Runtime
from holdfast.service import Service
from holdfast.telemetry.bus import Bus
from holdfast.testing.attempt_ends import AttemptEnd
from holdfast.testing.crash import CURRENT_WORKER, CrashingTask, SimulatedWorker
from holdfast.testing.harness_engine import HarnessClock, HarnessEngine, awaited_jobs
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.outcomes import timeout_of
from holdfast.worker.protocols import HandledTask
from holdfast.worker.services import WorkerServices
from holdfast.worker.spec import WorkerSpec
from holdfast.worker.stop_request import StopRequest

MAX_ATTEMPTS_AT_ONE_TIME = 20_000
"""Attempts while the clock does not move. If there are more, a job makes itself due again without a delay."""
END_TIMEOUT_S = 1.0
"""Real time that listeners and leftover handlers get to end when a drain ends."""


class HarnessApp:
    """The App as the worker sees it: with the store and time of the test, and with the errors of handlers recorded."""

    def __init__(self, app: App[Any], engine: HarnessEngine, time: Runtime, simulated: SimulatedWorker) -> None:
        self._app = app
        self.engine = engine
        self.runtime = time
        self.registry: Mapping[str, HandledTask] = app.registry
        if simulated.point == "in_handler":
            self.registry = {
                name: task if task.policy.remote else CrashingTask(task, simulated)
                for name, task in app.registry.items()
            }
        self.raised: dict[str, BaseException] = {}
        """The errors that handlers raised, by the token of their lease."""

    async def aopen(self) -> None: ...

    def import_modules(self) -> None: ...

    @property
    def middlewares(self) -> Sequence[Middleware]:
        return (self._watch, *self._app.middlewares)

    @property
    def lifespan(self) -> Callable[[], AbstractAsyncContextManager[Any]] | None:
        return self._app.lifespan

    @property
    def address(self) -> str:
        return self._app.address

    @property
    def bus(self) -> Bus:
        return self._app.bus

    @property
    def config(self) -> Config:
        return self._app.config

    @property
    def store_secrets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (), ()

    async def _watch(self, ctx: Context[Any], proceed: Next) -> Any:
        try:
            value = await proceed()
        except BaseException as error:
            self.raised[ctx._attempt.lease.token] = error
            raise
        if isinstance(value, Interrupt):
            self.raised[ctx._attempt.lease.token] = value
        return value


class SteppedWorker:
    """One worker, from its first claim to its end. Created and used on one event loop."""

    def __init__(
        self, app: App[Any], engine: HarnessEngine, time: Runtime, *, name: str, simulated: SimulatedWorker, state: Any
    ) -> None:
        self.name = name
        self.simulated = simulated
        self.ended: list[AttemptEnd] = []
        """Ended attempts whose settlement was applied. The harness clears the list after each check."""
        self.retried = self.snoozed = self.reaped = 0
        self.advance_clock: Callable[[], bool] = lambda: False
        """Moves the clock to the next due time. Returns false if it must not move."""
        simulated.on_settled = self._on_settled
        self._app = app
        self._engine = engine
        self._time = time
        self._app_view = HarnessApp(app, engine, time, simulated)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._exchanging = False
        self._cancel_seen = False
        """A cancel or clear was sent: renew the leases to find out whether it concerns them."""
        self._awaited_jobs: dict[str, set[JobKey]] = {}
        """The jobs that each handler waits for, by the token of the handler's lease."""
        self._runs: Counter[JobKey] = Counter()
        self._began_at: dict[str, int] = {}
        """When each attempt began, in real time."""
        self._state = state
        self._set_up()
        engine.simulated_workers.add(name)
        engine.perform_now(Heartbeat(worker=self._services.record()))

    # Set-up

    def _set_up(self) -> None:
        self._queues = self._all_queues()
        settings = replace(self._app.config.worker, concurrency=1, prefetch=0)
        spec = WorkerSpec(worker=self.name, queues=self._queues, queue_limits={}, settings=settings, isolation=False)
        stop_request = StopRequest(self._time, settings.grace)
        self._services = WorkerServices(self._app_view, spec, self._state, stop_request, until_empty=False)
        self._services.exchanger.on_progress = self._progress
        self._services.exchanger.suspects.enabled = False
        self._service_by_name: dict[str, Service] = {each.name: each for each in self._services.supervisor.services}

    def _all_queues(self) -> tuple[str, ...]:
        """The queues of the App's tasks, and all other queues that have jobs."""
        used = {task.policy.queue for task in self._app.registry.values() if not task.policy.remote}
        found = {queue.queue for queue in self._engine.perform_now(Stats()).queues}
        return tuple(sorted(used | found))

    def _tear_down(self) -> None:
        self._service_by_name["listener"].close()  # type: ignore[attr-defined]  # only this service has `close`
        self._services._handler_threads.close()

    # Work

    async def work(self, check: Callable[[], None]) -> None:
        """Run the due jobs until none is due. `check` is called after each step, and may raise."""
        attempts = 0
        while True:
            if await self.run_one(check):
                attempts += 1
                if attempts > MAX_ATTEMPTS_AT_ONE_TIME:
                    raise UsageError(
                        f"{MAX_ATTEMPTS_AT_ONE_TIME} attempts, and still jobs are due: {self._why_endless()}."
                    )
            elif self._queues != self._all_queues():
                self._tear_down()
                self._set_up()
            elif not (await listeners_ended() or await self._reap() or self._engine.perform_now(Prune()).expired):
                return

    def _why_endless(self) -> str:
        (key, count), *_ = self._runs.most_common(1)
        if count < MAX_ATTEMPTS_AT_ONE_TIME // 2:
            return "does a job enqueue another one without a delay?"
        return f"job {key.id} has run {count} times. Does it snooze without a delay?"

    async def run_one(self, check: Callable[[], None]) -> bool:
        """Claim one job and run it to its end. False: none is due."""
        await self._claim()
        if not self._services.slots.busy:
            return False
        while self._services.slots.busy or self._services.exchanger.has_unsettled:
            await self._step()
            check()
        return True

    async def _claim(self) -> bool:
        """Claim one more job. False: none is due."""
        slots = self._services.slots
        before = slots.busy
        slots.size = before + 1
        await self._exchange()
        for token in slots.attempts:
            self._began_at.setdefault(token, self._app.runtime.monotonic())
        return slots.busy > before

    async def _step(self) -> None:
        """Settle what has ended; or, if all handlers wait for jobs, claim one more; or wait until something changes."""
        self.simulated.check()
        if self._services.exchanger.has_unsettled:
            await self._settle()
        elif not (self._all_wait() and (await self._claim() or self.advance_clock())):
            await self._wait_for_change()

    async def _settle(self) -> None:
        self._services.slots.size = self._services.slots.busy  # so that this exchange does not claim the next job
        await self._exchange()
        await self._service_by_name["hooks"].tick()

    async def _exchange(self) -> None:
        self._exchanging = True
        try:
            await self._services.exchanger.tick()
        finally:
            self._exchanging = False

    def _progress(self) -> None:
        """A handler has ended. The end of the worker's own exchange does not count as a change."""
        if not self._exchanging or self._services.exchanger.has_unsettled:
            self._changed.set()

    async def _wait_for_change(self) -> None:
        try:
            async with asyncio.timeout(self._until_timeout()):
                await self._changed.wait()
        except TimeoutError:
            self._abort_overdue()
        self._changed.clear()
        self.simulated.check()
        if self._cancel_seen:
            self._cancel_seen = False
            self._renew()
        await self._service_by_name["deadlines"].tick()

    async def _reap(self) -> bool:
        """Reap jobs of lost workers. True if there were any."""
        before = self.reaped
        while await self._service_by_name["reaper"].tick() == 0:
            pass
        return self.reaped > before

    def _renew(self) -> None:
        """Renew all leases, as the keeper would: the answers say what was cancelled."""
        self._services.keeper.renew_now()
        self._services.keeper.run_once()

    # Real time

    def _until_timeout(self) -> float | None:
        left = [left for _, left in self._timeouts()]
        return max(0.0, min(left) / SECOND) if left else None

    def _abort_overdue(self) -> None:
        for attempt, left in self._timeouts():
            if left <= 0:
                self._services.exchanger.abort(attempt, AbortReason.TIMEOUT)

    def _timeouts(self) -> list[tuple[LeasedAttempt, Micros]]:
        """Running attempts that have a timeout, and how much of it is left."""
        now = self._app.runtime.monotonic()
        return [
            (attempt, self._began_at[token] + timeout_us - now)
            for token, attempt in self._services.slots.attempts.items()
            if attempt.settlement is None and attempt.abort_reason is None
            if (timeout_us := timeout_of(attempt)) is not None
        ]

    # Called from any thread

    def on_command(self, command: Command[Any], answer: Answer) -> None:
        """The store has run a command, of this worker or of other code."""
        attempt = CURRENT.get(None)
        keys = awaited_jobs(command, answer)
        if attempt is not None and attempt.worker == self.name and keys:
            self._awaited_jobs.setdefault(attempt.lease.token, set()).update(keys)
            self.wake()
        if isinstance(command, Cancel | Clear):
            self._cancel_seen = True
            self.wake()

    def wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed.set)

    def _all_wait(self) -> bool:
        """True if every running handler waits for a job that has not ended."""
        running = [a.lease.token for a in self._services.slots.attempts.values() if a.settlement is None]
        return bool(running) and all(self._is_live(self._awaited_jobs.get(token, ())) for token in running)

    def _is_live(self, keys: "set[JobKey] | tuple[()]") -> bool:
        records = self._engine.perform_now(Get(jobs=tuple(keys))).jobs
        return any(record is not None and record.live for record in records)

    def _on_settled(self, settlement: Settlement, status: SettleStatus) -> None:
        if settlement.listed_expiry is not None:
            self.reaped += status in (SettleStatus.APPLIED, SettleStatus.CANCELLED_INSTEAD)
            return
        error = self._app_view.raised.pop(settlement.token, None)
        attempt = self._services.slots.attempts.get(settlement.token)
        self._runs[JobKey(settlement.queue, settlement.id)] += 1
        if status is SettleStatus.APPLIED and attempt is not None:
            self.retried += settlement.target is JobState.RETRYING
            self.snoozed += settlement.target is JobState.SCHEDULED
            self.ended.append(AttemptEnd(attempt, settlement, None if error is None else unwrapped(error)))

    # Stop

    async def end(self) -> None:
        """Stop. Abort and release what still runs; cancel handlers that do not stop."""
        self.simulated.point = None
        try:
            if not self.simulated.dead:
                await self._stop()
                self._engine.perform_now(ForgetWorker(worker=self.name))
        finally:
            if self._services.slots.busy:
                self.simulated.die()
            tasks = {a.loop_task for a in self._services.slots.attempts.values() if a.loop_task is not None}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=END_TIMEOUT_S)
            self._tear_down()

    async def _stop(self) -> None:
        slots, exchanger = self._services.slots, self._services.exchanger
        for attempt in list(slots.attempts.values()):
            exchanger.abort(attempt, AbortReason.SHUTDOWN)
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                while slots.busy:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        if exchanger.has_unsettled:
            await self._settle()


async def listeners_ended() -> bool:
    """Wait for async listeners, so that the test sees their effects. True if there were any."""
    listeners = {task for task in asyncio.all_tasks() if task.get_name() == "holdfast listener"}
    return bool(listeners) and bool((await asyncio.wait(listeners, timeout=END_TIMEOUT_S))[0])


@asynccontextmanager
async def stepped_worker(
    app: App[Any], engine: HarnessEngine, clock: HarnessClock, *, name: str, simulated: SimulatedWorker
) -> AsyncIterator[SteppedWorker]:
    """A worker inside the App's lifespan. All code that runs in the block belongs to the simulated worker."""
    token = CURRENT_WORKER.set(simulated)
    try:
        async with nullcontext() if app.lifespan is None else app.lifespan() as state:
            worker = SteppedWorker(app, engine, clock.time, name=name, simulated=simulated, state=state)
            engine.on_command, engine.working, clock.on_advance = worker.on_command, True, worker.wake
            try:
                yield worker
            finally:
                engine.on_command, engine.working, clock.on_advance = None, False, None
                await worker.end()
    finally:
        CURRENT_WORKER.reset(token)
