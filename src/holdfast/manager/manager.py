"""The manager: keeps a number of worker processes, its children, between two limits.

    jobs.manager("shop.jobs:jobs", min=2, max=8).run()

Each child is `holdfast worker` with the same options. The manager itself runs no jobs. These services make it up:

    children        starts, replaces, stops and kills the processes (`children.py`)
    scaling         looks at the load and sets their number (`scaling.py` decides)
    lost children   disowns a child's worker when its process has died
    reaper          settles the jobs of these workers
    heartbeat       the manager's record in the store
    listener        wakes the heartbeat when an operator stops the manager

SIGTERM and SIGINT stop all children within their grace, a second one at once. SIGHUP replaces them one after the other,
with new code. No child outlives the manager: when it is killed, the children read the end of their channels.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from holdfast.config import MAX_CHILDREN, MAX_SLOTS
from holdfast.durations import Duration
from holdfast.errors import BlockingCall, InvalidOption, Unsupported, UsageError, duration_us
from holdfast.manager.child import ChildStarter
from holdfast.manager.children import ABANDON_S, KILL_MARGIN_S, Children
from holdfast.manager.output import ChildOutput
from holdfast.manager.scaling import SizeLimits
from holdfast.manager.upkeep import LossReaper, LostChildren, ManagerHeartbeat, Scaler
from holdfast.model.check import name as check_name
from holdfast.model.instants import SECOND, Seconds
from holdfast.model.text import shown
from holdfast.service import Service, Supervisor, try_step
from holdfast.worker.execution_plan import ExecutionPlan
from holdfast.worker.handler_threads import HandlerThreads
from holdfast.worker.hooks import Hooks
from holdfast.worker.listener import NotificationListener
from holdfast.worker.outage import EmittedOutage
from holdfast.worker.protocols import WorkerApp
from holdfast.worker.reporting import Reporter
from holdfast.worker.slots import Slots
from holdfast.worker.stop_request import StoppedAtStart, StopRequest
from holdfast.worker.stop_signals import StopSignals

FORGET_TIMEOUT_S: Seconds = 2.0
"""Removing the manager's record may take this long; then it expires."""
STOP_MARGIN_S: Seconds = KILL_MARGIN_S
"""The end by force of a manager comes this much later than that of a worker: then it has killed its children."""
STOP_CHECK_S: Seconds = 1.0
"""While the children stop, the manager checks this often; each end of a child also wakes it."""

_logger = logging.getLogger("holdfast.manager")


class Manager:
    """Keeps worker processes. One manager object runs once at a time."""

    def __init__(
        self,
        app: WorkerApp,
        target: str | None = None,
        *,
        min: int | None = None,
        max: int | None = None,
        interval: Duration | None = None,
        idle_before_down: Duration | None = None,
        queues: Sequence[str] | Mapping[str, int | None] | None = None,
        concurrency: int | None = None,
        grace: Duration | None = None,
        name: str | None = None,
        signals: bool = False,
        arguments: Sequence[str] = (),
        program: Sequence[str] | None = None,
    ) -> None:
        """`target`: the App as `holdfast worker` finds it, `module:name`; None: as the configuration names it.

        `min`, `max`, `interval` and `idle_before_down`: by default the settings of `[manager]`. `queues`,
        `concurrency`, `grace`: options of each worker. `arguments`: further ones, as on the command line of
        `holdfast worker`. `program`: starts the workers in place of `python -m holdfast worker TARGET`.
        """
        settings = app.config.manager
        self._app = app
        self._queues = queues
        self._concurrency = concurrency
        self._grace_s = _seconds(grace, "grace", app.config.worker.grace)
        self._interval_s = _seconds(interval, "interval", settings.interval)
        low = settings.min if min is None else min
        _check_number("min", low, MAX_CHILDREN)
        if max is None:  # a higher `min` alone is enough
            max = low if settings.max < low else settings.max
        self._limits = SizeLimits(
            min=low,
            max=max,
            slots=app.config.worker.concurrency if concurrency is None else concurrency,
            idle_before_down_us=round(
                _seconds(idle_before_down, "idle_before_down", settings.idle_before_down) * SECOND
            ),
        )
        _check_limits(self._limits, self._interval_s)
        self._signals = signals
        self._program = (sys.executable, "-m", "holdfast", "worker") if program is None else tuple(program)
        self._target = target
        self._name = name
        self._arguments = tuple(arguments)
        suffix = app.runtime.token_bytes(4).hex()
        self.name = check_name(f"{name or socket.gethostname() or 'manager'}-{suffix}", "name")
        """The given name plus a random suffix."""
        self.failure = ""
        """Why the manager has ended by itself: no child could start. Empty: it was stopped."""
        self.killed = 0
        """Children that did not stop in time and were killed, once the manager has stopped."""
        self._stop_request: StopRequest | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._children: Children | None = None

    @property
    def limits(self) -> SizeLimits:
        """The limits in use."""
        return self._limits

    def run(self, on_ready: Callable[[], object] = lambda: None) -> None:
        """Keep the children until stopped. Returns when all have ended. `on_ready` is called once signals arrive."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise BlockingCall(method="manager.run", twin="manager.arun")
        asyncio.run(self.arun(on_ready))

    def stop(self, grace: Duration | None = None) -> None:
        """Request a stop of all children within `grace` seconds. Call from any thread; it does not wait."""
        grace_s = None if grace is None else duration_us(grace, "grace") / SECOND
        self._call(lambda: None if self._stop_request is None else self._stop_request.request(grace_s))

    def roll_over(self) -> None:
        """Replace every child by a new one, one after the other. Call from any thread; it does not wait."""
        self._call(lambda: None if self._children is None else self._children.roll_over())

    def _call(self, function: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(function)
            except RuntimeError:
                _logger.debug("The manager had stopped already.")

    def worker_arguments(self) -> list[str]:
        """The program and the arguments of each child."""
        words = [*self._program]
        if self._target is not None:
            words.append(self._target)
        queues = self._queues or ()
        limits = queues if isinstance(queues, Mapping) else dict.fromkeys(queues)
        for queue, limit in limits.items():
            words += ["-q", queue if limit is None else f"{queue}:{limit}"]
        if self._concurrency is not None:
            words += ["-c", str(self._concurrency)]
        words += ["--grace", f"{round(self._grace_s * 1_000)}ms"]
        if self._name is not None:
            words += ["--name", self._name]
        return [*words, *self._arguments]

    async def arun(self, on_ready: Callable[[], object] = lambda: None) -> None:
        """Keep the children until stopped, on this event loop."""
        if self._stop_request is not None:
            raise UsageError(f"Manager {self.name} runs already. Make another one.")
        app = self._app
        if not app.engine.capabilities.shared_between_processes:
            raise Unsupported(
                "A manager starts worker processes, and each would have a memory store of its own. Use SQLite instead.",
                capability="shared_between_processes",
                engine=app.engine.scheme,
            )
        stop_request = self._stop_request = StopRequest(app.runtime, self._grace_s)
        self._loop = asyncio.get_running_loop()
        try:
            with suppress(StoppedAtStart), self._signals_to(stop_request):
                app.import_modules()
                async with stop_request.ends_start(after_grace=False):
                    await app.aopen()
                on_ready()
                await self._work(stop_request)
        finally:
            stop_request.waker.close()
            self._stop_request = self._loop = self._children = None

    async def _work(self, stop_request: StopRequest) -> None:
        app, engine, runtime, limits = self._app, self._app.engine, self._app.runtime, self._limits
        tasks = [task for task in app.registry.values() if not task.policy.remote]
        queues = tuple(self._queues or sorted({task.policy.queue for task in tasks}))
        handler_threads = HandlerThreads(runtime)
        plans = [
            ExecutionPlan(task, worker=self.name, state=None, middleware=(), handler_threads=handler_threads)
            for task in tasks
        ]
        by_name = {name: plan for plan in plans for name in plan.names}
        reaper = LossReaper(
            runtime,
            engine,
            worker=self.name,
            plans=by_name,
            slots=Slots(0),
            bus=app.bus,
            reporter=Reporter(engine, app.bus, Hooks(runtime, engine, handler_threads), self.name),
            on_freed=lambda: None,
            interval_s=app.config.worker.reap_interval,
        )
        lost = LostChildren(runtime, engine, reaper)

        def on_changed() -> None:
            stop_request.waker.wake()
            heartbeat.wake()

        output = ChildOutput(runtime)
        children = self._children = Children(
            runtime,
            ChildStarter(runtime, self.worker_arguments(), output),
            limits,
            grace_s=self._grace_s,
            on_lost=lost.add,
            on_changed=on_changed,
            on_failure=stop_request.request,
        )
        heartbeat = ManagerHeartbeat(
            runtime,
            engine,
            manager=self.name,
            limits=limits,
            children=children,
            lost=lost,
            on_stop_requested=stop_request.request,
        )
        scaler = Scaler(
            runtime,
            engine,
            manager=self.name,
            limits=limits,
            children=children,
            queues=queues,
            tasks=frozenset(by_name),
            interval_s=self._interval_s,
        )
        listener = NotificationListener(
            runtime,
            engine,
            queues=(),
            worker=self.name,
            on_work=lambda: None,
            on_worker_notified=heartbeat.wake,
        )

        def on_ended(service: Service) -> None:
            self.failure = f"The service {service.name!r} of the manager has ended."
            stop_request.request()

        supervisor = Supervisor(
            runtime,
            (children, scaler, heartbeat, lost, reaper, listener),
            outage=EmittedOutage(runtime, app.bus, app.address),
            on_ended=on_ended,
        )
        try:
            await engine.heartbeat(heartbeat.record())
            _logger.info("Manager %s keeps %d to %d workers.", shown(self.name), limits.min, limits.max)
            supervisor.start()
            await self._wait(stop_request)
        finally:
            cancelled = await try_step(lambda: self._stop_children(stop_request, children))
            listener.close()
            cancelled |= await try_step(heartbeat.close)
            cancelled |= await try_step(supervisor.stop)
            cancelled |= await try_step(lost.finish)
            children.abandon()
            self.killed = children.killed
            self.failure = self.failure or children.failure
            cancelled |= await try_step(self._forget)
            handler_threads.close()
            await runtime.run_blocking(output.close)
            _logger.info("Manager %s has stopped.", shown(self.name))
            if cancelled:
                raise asyncio.CancelledError

    async def _wait(self, stop_request: StopRequest) -> None:
        try:
            await stop_request.wait()  # no limit: the manager works until then
        except asyncio.CancelledError:
            stop_request.request(0)
            raise

    async def _stop_children(self, stop_request: StopRequest, children: Children) -> None:
        """Stop all children. Each is killed if it does not stop within its grace and a margin."""
        runtime = self._app.runtime
        stop_request.request()
        is_immediate = stop_request.immediate
        grace_s = stop_request.grace_left_s()
        children.stop(grace_s)
        # `children` kills or gives up every child before this. If it has ended by an error, the channels are closed.
        end = runtime.monotonic() + round((grace_s + 2 * (KILL_MARGIN_S + ABANDON_S)) * SECOND)
        while children.alive and runtime.monotonic() < end:
            if stop_request.immediate and not is_immediate:
                is_immediate = True
                children.stop(0)
            await stop_request.waker.wait(STOP_CHECK_S)

    async def _forget(self) -> None:
        try:
            async with asyncio.timeout(FORGET_TIMEOUT_S):
                await self._app.engine.forget_worker(self.name)
        except Exception as error:
            self._app.engine.keep_process_record()
            _logger.info("Manager %s could not remove its record: %s", shown(self.name), error)

    def _signals_to(self, stop_request: StopRequest) -> AbstractContextManager[object]:
        """With `signals=True`, SIGTERM and SIGINT stop the manager, and SIGHUP replaces its children."""
        if not self._signals:
            return nullcontext()
        runtime, grace_s = self._app.runtime, self._grace_s
        return StopSignals(runtime, stop_request, grace_s, on_hang_up=self.roll_over, margin_s=STOP_MARGIN_S)


def _seconds(value: Duration | None, option: str, default: Seconds) -> Seconds:
    return default if value is None else duration_us(value, option) / SECOND


def _check_limits(limits: SizeLimits, interval_s: Seconds) -> None:
    _check_number("max", limits.max, MAX_CHILDREN)
    _check_number("concurrency", limits.slots, MAX_SLOTS)
    if limits.min > limits.max:
        raise InvalidOption(f"`max` is {limits.max}. It must not be lower than `min`, {limits.min}.", option="max")
    if interval_s < 0.1:
        raise InvalidOption("`interval` must be at least 0.1 seconds.", option="interval")


def _check_number(option: str, value: object, high: int) -> None:
    if type(value) is not int or not 1 <= value <= high:
        raise InvalidOption(f"`{option}` must be a whole number from 1 to {high}.", option=option)
