"""A worker on the stage: the real way of an attempt, walked by hand, one attempt at a time.

The parts are those of a worker (`holdfast.worker.shift`): it claims, decodes, runs the handler inside its middleware,
judges the outcome and settles. What is left out is everything that goes by itself: no service ticks, no thread renews
or watches. So two runs of a test do the same things in the same order.

There is one case in which two attempts run side by side: a handler that waits for another job. It would wait for ever
in a worker that runs one at a time, so as long as all handlers in hand wait, one more job is taken.
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
from holdfast.model.command import Answer, Command
from holdfast.model.instants import SECOND
from holdfast.model.job import JobKey
from holdfast.model.observe import Get, Prune, Stats
from holdfast.model.operate import Cancel, Clear
from holdfast.model.states import JobState
from holdfast.model.work import ForgetWorker, Heartbeat, Settlement, SettleStatus
from holdfast.runtime import Runtime
from holdfast.service import Service
from holdfast.telemetry.bus import Bus
from holdfast.testing.crash import LIFE, Doomed, Life
from holdfast.testing.ends import End
from holdfast.testing.swap import HarnessClock, HarnessEngine, waited_for
from holdfast.worker.attempt import Attempt
from holdfast.worker.host import Handled
from holdfast.worker.outcomes import timeout_of, unwrapped
from holdfast.worker.shift import Shift, Terms
from holdfast.worker.stopping import Stopping

MOST_AT_ONCE = 20_000
"""Attempts without the clock moving. Whoever needs more has a job that makes itself due again."""
PATIENCE = 1.0
"""Real seconds that listeners, and handlers left over, get to end before a drain does."""


class Cast:
    """What a worker works for: the App, with another store and another time, and eyes on every handler."""

    def __init__(self, app: App[Any], engine: HarnessEngine, time: Runtime, life: Life) -> None:
        self._app = app
        self.engine = engine
        self.runtime = time
        self.registry: Mapping[str, Handled] = app.registry
        if life.point == "in_handler":
            self.registry = {
                name: task if task.policy.remote else Doomed(task, life) for name, task in app.registry.items()
            }
        self.raised: dict[str, BaseException] = {}
        """What handlers have raised, by the token of their lease."""

    async def aopen(self) -> None: ...

    def import_modules(self) -> None: ...

    @property
    def middlewares(self) -> Sequence[Middleware]:
        return (self._watch, *self._app.middlewares)

    @property
    def lifespan(self) -> Callable[[], AbstractAsyncContextManager[Any]] | None:
        return self._app.lifespan

    @property
    def bus(self) -> Bus:
        return self._app.bus

    @property
    def config(self) -> Config:
        return self._app.config

    async def _watch(self, ctx: Context[Any], proceed: Next) -> Any:
        try:
            value = await proceed()
        except BaseException as error:
            self.raised[ctx._attempt.lease.token] = error
            raise
        if isinstance(value, Interrupt):
            self.raised[ctx._attempt.lease.token] = value
        return value


class Stage:
    """One worker, from its first claim to its end. Made and used on one event loop."""

    def __init__(
        self, app: App[Any], engine: HarnessEngine, time: Runtime, *, name: str, life: Life, state: Any
    ) -> None:
        self.name = name
        self.life = life
        self.ended: list[End] = []
        """Outcomes that the store has taken, since somebody last looked."""
        self.retried = self.snoozed = self.reaped = 0
        self.pass_time: Callable[[], bool] = lambda: False
        """Move the clock to where something falls due. False: it is not to be moved."""
        life.heard = self._heard
        self._app = app
        self._engine = engine
        self._time = time
        self._cast = Cast(app, engine, time, life)
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._exchanging = False
        self._orders = False
        """Somebody has cancelled something: ask the store whether that is for us."""
        self._waits: dict[str, set[JobKey]] = {}
        """The jobs that handlers wait for, by the token of the handler's lease."""
        self._runs: Counter[JobKey] = Counter()
        self._began: dict[str, int] = {}
        """When each attempt began, in real time."""
        self._state = state
        self._set_up()
        engine.own_workers.add(name)
        engine.perform_now(Heartbeat(worker=self._shift.record()))

    # Set-up

    def _set_up(self) -> None:
        self._queues = self._all_queues()
        settings = replace(self._app.config.worker, concurrency=1, prefetch=0)
        terms = Terms(worker=self.name, queues=self._queues, queue_limits={}, settings=settings)
        stopping = Stopping(self._time, settings.grace)
        self._shift = Shift(self._cast, terms, self._state, stopping, until_empty=False)
        self._shift.exchanger.progress = self._progress
        self._services: dict[str, Service] = {each.name: each for each in self._shift.supervisor.services}

    def _all_queues(self) -> tuple[str, ...]:
        """Where tasks put their jobs, and wherever else there are any."""
        used = {task.policy.queue for task in self._app.registry.values() if not task.policy.remote}
        found = {queue.queue for queue in self._engine.perform_now(Stats()).queues}
        return tuple(sorted(used | found))

    def _tear_down(self) -> None:
        self._services["listener"].close()  # type: ignore[attr-defined]  # the only service with subscription
        self._shift._crew.close()

    # Work

    async def work(self, look: Callable[[], None]) -> None:
        """Run what is due, until nothing is. `look` is called after each step, and may raise."""
        attempts = 0
        while True:
            if await self.one(look):
                attempts += 1
                if attempts > MOST_AT_ONCE:
                    raise UsageError(f"{MOST_AT_ONCE} attempts, and still jobs are due: {self._most_run()}.")
            elif self._queues != self._all_queues():
                self._tear_down()
                self._set_up()
            elif not (await listeners_ended() or await self._reap() or self._engine.perform_now(Prune()).expired):
                return

    def _most_run(self) -> str:
        (key, count), *_ = self._runs.most_common(1)
        if count < MOST_AT_ONCE // 2:
            return "does a job enqueue another one without a delay?"
        return f"job {key.id} has run {count} times. Does it snooze without a delay?"

    async def one(self, look: Callable[[], None]) -> bool:
        """Take one job and run it to its end. False: none is due."""
        await self._claim()
        if not self._shift.slots.busy:
            return False
        while self._shift.slots.busy or self._shift.exchanger.settling:
            await self._step()
            look()
        return True

    async def _claim(self) -> bool:
        """Take one more."""
        slots = self._shift.slots
        before = slots.busy
        slots.size = before + 1
        await self._exchange()
        for token in slots.held:
            self._began.setdefault(token, self._app.runtime.monotonic())
        return slots.busy > before

    async def _step(self) -> None:
        """Settle what has ended; or else take what others wait for, now or later; or else wait until there is news."""
        self.life.check()
        if self._shift.exchanger.settling:
            await self._settle()
        elif not (self._all_wait() and (await self._claim() or self.pass_time())):
            await self._next_news()

    async def _settle(self) -> None:
        if any(attempt.progress is not None for attempt in self._shift.slots.held.values()):
            self._renew()
        self._shift.slots.size = self._shift.slots.busy  # or the same call would claim the next one
        await self._exchange()
        await self._services["hooks"].tick()

    async def _exchange(self) -> None:
        self._exchanging = True
        try:
            await self._shift.exchanger.tick()
        finally:
            self._exchanging = False

    def _progress(self) -> None:
        """A handler has ended. That an exchange has is no news, since we have just made it."""
        if not self._exchanging or self._shift.exchanger.settling:
            self._news.set()

    async def _next_news(self) -> None:
        try:
            async with asyncio.timeout(self._until_timeout()):
                await self._news.wait()
        except TimeoutError:
            self._abort_late()
        self._news.clear()
        self.life.check()
        if self._orders:
            self._orders = False
            self._renew()
        await self._services["deadlines"].tick()

    async def _reap(self) -> bool:
        """Take jobs from workers that are gone. Answers whether there were any."""
        before = self.reaped
        while await self._services["reaper"].tick() == 0:
            pass
        return self.reaped > before

    def _renew(self) -> None:
        """Renew all leases, as the keeper would: that carries progress there, and the wish to stop back."""
        self._shift.keeper.hurry()
        self._shift.keeper.round()

    # Real time

    def _until_timeout(self) -> float | None:
        left = [left for _, left in self._timeouts()]
        return max(0.0, min(left) / SECOND) if left else None

    def _abort_late(self) -> None:
        for attempt, left in self._timeouts():
            if left <= 0:
                self._shift.exchanger.abort(attempt, AbortReason.TIMEOUT)

    def _timeouts(self) -> list[tuple[Attempt, int]]:
        """What runs with a timeout, and how much of that is left."""
        now = self._app.runtime.monotonic()
        return [
            (attempt, self._began[token] + timeout - now)
            for token, attempt in self._shift.slots.held.items()
            if attempt.settlement is None and attempt.abort_reason is None
            if (timeout := timeout_of(attempt)) is not None
        ]

    # What comes from elsewhere, on whatever thread

    def noticed(self, command: Command[Any], answer: Answer) -> None:
        """The store has carried out a command of somebody's."""
        attempt = CURRENT.get(None)
        keys = waited_for(command, answer)
        if attempt is not None and attempt.worker == self.name and keys:
            self._waits.setdefault(attempt.lease.token, set()).update(keys)
            self.wake()
        if isinstance(command, Cancel | Clear):
            self._orders = True
            self.wake()

    def wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news.set)

    def _all_wait(self) -> bool:
        """Whether every handler in hand waits for a job that has not ended."""
        running = [a.lease.token for a in self._shift.slots.held.values() if a.settlement is None]
        return bool(running) and all(self._is_live(self._waits.get(token, ())) for token in running)

    def _is_live(self, keys: "set[JobKey] | tuple[()]") -> bool:
        records = self._engine.perform_now(Get(jobs=tuple(keys))).jobs
        return any(record is not None and record.live for record in records)

    def _heard(self, settlement: Settlement, settled: SettleStatus) -> None:
        if settlement.listed_expiry is not None:
            self.reaped += settled in (SettleStatus.APPLIED, SettleStatus.CANCELLED_INSTEAD)
            return
        error = self._cast.raised.pop(settlement.token, None)
        attempt = self._shift.slots.held.get(settlement.token)
        self._runs[JobKey(settlement.queue, settlement.id)] += 1
        if settled is SettleStatus.APPLIED and attempt is not None:
            self.retried += settlement.target is JobState.RETRYING
            self.snoozed += settlement.target is JobState.SCHEDULED
            self.ended.append(End(attempt, settlement, None if error is None else unwrapped(error)))

    # The end

    async def end(self) -> None:
        """Go. What still runs is told to stop and given back; what does not stop is cut off."""
        self.life.point = None
        try:
            if not self.life.dead:
                await self._stop()
                self._engine.perform_now(ForgetWorker(worker=self.name))
        finally:
            if self._shift.slots.busy:
                self.life.die()
            runners = {a.runner for a in self._shift.slots.held.values() if a.runner is not None}
            for runner in runners:
                runner.cancel()
            if runners:
                await asyncio.wait(runners, timeout=PATIENCE)
            self._tear_down()

    async def _stop(self) -> None:
        slots, exchanger = self._shift.slots, self._shift.exchanger
        for attempt in list(slots.held.values()):
            exchanger.abort(attempt, AbortReason.SHUTDOWN)
        try:
            async with asyncio.timeout(PATIENCE):
                while slots.busy:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
        if exchanger.settling:
            await self._settle()


async def listeners_ended() -> bool:
    """Wait for async listeners, which run beside: a test wants to see what they did. Answers whether there were any."""
    beside = {task for task in asyncio.all_tasks() if task.get_name() == "holdfast listener"}
    return bool(beside) and bool((await asyncio.wait(beside, timeout=PATIENCE))[0])


@asynccontextmanager
async def on_stage(
    app: App[Any], engine: HarnessEngine, clock: HarnessClock, *, name: str, life: Life
) -> AsyncIterator[Stage]:
    """A worker with the resources of the App's lifespan. All that runs in the block belongs to its life."""
    mine = LIFE.set(life)
    try:
        async with nullcontext() if app.lifespan is None else app.lifespan() as state:
            stage = Stage(app, engine, clock.time, name=name, life=life, state=state)
            engine.noticed, engine.working, clock.moved = stage.noticed, True, stage.wake
            try:
                yield stage
            finally:
                engine.noticed, engine.working, clock.moved = None, False, None
                await stage.end()
    finally:
        LIFE.reset(mine)
