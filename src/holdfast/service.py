"""Services: background work of a process, each as one small object with a `tick`.

A tick does a bounded piece of work and returns in how many seconds to call it again (None: when woken). `wake` makes
the next tick come at once. A service uses only the runtime and an engine. The loop here is the same for all services:
it waits, logs a tick that raises and goes on, backs off while ticks keep raising, and stops cleanly.

A wake during a tick is not lost: the next tick follows at once.

A service ends only when its supervisor stops it. A CancelledError can also come from elsewhere: a tick awaits a task
that was cancelled, or code of the user cancels every task of the event loop. Such an error is a failure like any other.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from holdfast.errors import EngineError, EngineUnavailable, HistoryLost, OutcomeUnknown
from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
"""Between ticks that keep raising. It is short, because after an outage the work goes on when it has passed."""
LOG_OUTAGE_EVERY_S = 60
"""Between two log lines while the store goes on failing."""
CANCEL_WITHIN_S = 5.0
"""Time for a cancelled service to end: a library that swallows the cancellation must not keep the process alive."""
MAINTENANCE_DELAY_S = 0.25
"""Checks that can wait start this much later: the first claims need the processor and the connections."""
RUN_THROUGH_TRIES = 3
"""How often a step that must be done is begun again after its task was cancelled."""

_logger = logging.getLogger("holdfast.service")


class Waker:
    """An event with a timer. `wake` may be called at any time, on the thread of the event loop.

    The timer is one sleeping task, which is kept as long as it ends early enough: a waiter that is woken ten thousand
    times a second does not start ten thousand timers. So it may wake the waiter too early.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._woken = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._timer_at = 0

    def wake(self) -> None:
        self._woken = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until woken, or for about `seconds`."""
        if not self._woken:
            if seconds is not None:
                self._set_timer(seconds)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._woken = False

    def _set_timer(self, seconds: float) -> None:
        at = self._runtime.monotonic() + round(seconds * SECOND)
        if self._timer is not None:
            if not self._timer.done() and self._timer_at <= at:
                return
            self.close()
        self._timer_at = at
        self._timer = self._runtime.spawn(self._wake_after(seconds), name="holdfast timer")

    async def _wake_after(self, seconds: float) -> None:
        try:
            await self._runtime.sleep(seconds)
        finally:  # PF3: also if other code has cancelled the timer, for nothing else would wake the waiter then
            if self._timer is asyncio.current_task():
                self.wake()

    def close(self) -> None:
        """Cancel the timer."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


class StoreOutage:
    """What all parts of a process do while the store fails: they pause, and one log line stands for all of them.

    The first part that succeeds ends the pauses of the others. Used from the loop's thread only.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._pausing: set[Waker] = set()
        self._began_at = 0
        self._logged_at: dict[type[EngineError], int] = {}
        """When each kind of error was last logged, on the monotonic clock. Empty: the store answers."""

    def note(self, error: EngineError) -> None:
        """A call has failed: log it if it is the first, or if the last line is old."""
        if isinstance(error, HistoryLost):  # the engine has logged it, and the next call goes on
            _logger.debug("A call has met the loss of the history: %s", error)
            return
        now = self._runtime.monotonic()
        if not self._logged_at:
            self._began_at = now
        unreachable = isinstance(error, EngineUnavailable | OutcomeUnknown)
        kind = EngineUnavailable if unreachable else type(error)
        if kind not in self._logged_at:
            self._logged_at[kind] = now
            _logger.warning(
                "The store has a problem: %s Calls are repeated, and no job is claimed, until it answers.", error
            )
        elif now - self._logged_at[kind] >= LOG_OUTAGE_EVERY_S * SECOND:
            self._logged_at[kind] = now
            _logger.warning("The store has had a problem for %d s: %s", (now - self._began_at) // SECOND, error)
        else:
            _logger.debug("The store still has a problem: %s", error)

    async def pause(self, pause_s: float) -> None:
        """Wait for `pause_s`, or until another part has reached the store."""
        waker = Waker(self._runtime)
        self._pausing.add(waker)
        try:
            await waker.wait(pause_s)
        finally:
            self._pausing.discard(waker)
            waker.close()

    def end(self) -> None:
        """A call has succeeded after one that failed."""
        if self._logged_at:
            self._logged_at.clear()
            took_s = (self._runtime.monotonic() - self._began_at) / SECOND
            _logger.warning("The store answers again, after %.1f s.", took_s)
        for waker in self._pausing:
            waker.wake()


class Service(ABC):
    """Background work of a process. Subclasses set `name`, and may be woken at any time."""

    name: str
    start_delay_s = 0.0
    """The first tick comes after this time, or at the first wake."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.waker = Waker(runtime)
        self.outage = StoreOutage(runtime)
        """Shared by the services of a supervisor."""
        self.stopping = False
        """Set by the supervisor. Without it, a CancelledError in a tick is not the service's own cancellation."""

    @abstractmethod
    async def tick(self) -> float | None:
        """Do one piece of work; return the seconds until the next tick, None: when woken."""

    def wake(self) -> None:
        """Make the next tick come at once. On the thread of the event loop only."""
        self.waker.wake()


class Supervisor:
    """Runs services concurrently until it is stopped.

    `on_ended` is called with a service that ended although it was not stopped.
    """

    def __init__(
        self,
        runtime: Runtime,
        services: Iterable[Service],
        *,
        outage: StoreOutage | None = None,
        on_ended: Callable[[Service], object] | None = None,
    ) -> None:
        self._runtime = runtime
        self.services = tuple(services)
        self._on_ended = on_ended
        self._tasks: dict[Service, asyncio.Task[None]] = {}
        shared = StoreOutage(runtime) if outage is None else outage
        for service in self.services:
            service.outage = shared

    def start(self) -> None:
        for service in self.services:
            self._start(service)

    def _start(self, service: Service) -> None:
        task = self._tasks[service] = self._runtime.spawn(run_service(service), name=f"holdfast {service.name}")
        task.add_done_callback(lambda task: self._check_end(service, task))

    def _check_end(self, service: Service, task: "asyncio.Task[None]") -> None:
        if service.stopping:
            return
        if task.cancelled():  # PF3: other code cancelled it before its first tick
            self._start(service)
        else:  # PF3: such as after a KeyboardInterrupt
            _logger.critical("Service %s has ended although it was not stopped.", service.name)
            if self._on_ended is not None:
                self._on_ended(service)

    async def stop(self, *services: Service) -> None:
        """Cancel these services, or all of them: while they wait, or in the middle of a tick."""
        stopped = {service: task for service, task in self._tasks.items() if not services or service in services}
        for service, task in stopped.items():
            service.stopping = True
            task.cancel()
        if stopped:
            _, stuck = await asyncio.wait(stopped.values(), timeout=CANCEL_WITHIN_S)
            for task in stuck:
                _logger.error("%s did not end within its time and is abandoned.", task.get_name())


async def run_service(service: Service) -> None:
    """Tick until the supervisor stops the service."""
    failures, pause_s, store_failed, start_delay_s = 0, 0.0, False, service.start_delay_s
    try:
        while not service.stopping:
            try:
                if start_delay_s:
                    await service.waker.wait(start_delay_s)
                    start_delay_s = 0.0
                if failures:
                    await (service.outage.pause(pause_s) if store_failed else service.runtime.sleep(pause_s))
                delay = await service.tick()
                if failures and store_failed:
                    service.outage.end()
                failures = 0
                if delay is None or delay > 0:
                    await service.waker.wait(delay)
                else:
                    await yield_to_loop()
            except (Exception, asyncio.CancelledError, SystemExit) as error:
                if service.stopping:
                    raise
                ignore_cancellation()  # PF3: it did not come from the supervisor
                failures += 1
                pause_s, store_failed = back_off(failures, service.runtime.random()), isinstance(error, EngineError)
                _report_failure(service, error, pause_s)
    finally:
        service.waker.close()


def ignore_cancellation() -> None:
    """The running task goes on as if it had not been cancelled."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


async def run_through(
    runtime: Runtime, make: Callable[[], Coroutine[Any, Any, None]], *, name: str, timeout_s: float
) -> None:
    """Run a coroutine to its end, although this task or its own is cancelled meanwhile. The caller raises that again.

    It is for the last step of something that must not stay half done, such as giving back leases.
    """
    for _ in range(RUN_THROUGH_TRIES):
        task = runtime.spawn(make(), name=name)
        while not task.done():
            try:
                _, stuck = await asyncio.wait({task}, timeout=timeout_s)
            except asyncio.CancelledError:
                continue
            if stuck:
                _logger.error("%s takes longer than %g s and is abandoned.", name, timeout_s)
                task.cancel()
                return
        if not task.cancelled():
            return


async def try_step(step: Callable[[], Awaitable[None]]) -> bool:
    """Carry out a step of an end, again if it is cancelled. True if it was cancelled: the caller raises that later."""
    cancelled = False
    for _ in range(RUN_THROUGH_TRIES):
        try:
            await step()
            break
        except asyncio.CancelledError:
            cancelled = True
        except Exception:
            _logger.exception("A step of the end failed. The next one follows.")
            break
    return cancelled


def _report_failure(service: Service, error: BaseException, pause_s: float) -> None:
    if isinstance(error, EngineError):
        service.outage.note(error)
        return
    text = str(error) or type(error).__name__
    _logger.error("Service %s failed: %s Next try in %.1f s.", service.name, text, pause_s, exc_info=error)


async def yield_to_loop() -> None:
    """Let all other ready callbacks of the event loop run."""
    loop = asyncio.get_running_loop()
    turn = loop.create_future()
    loop.call_soon(_resolve, turn)
    await turn


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def back_off(failures: int, draw: float = 1.0) -> float:
    """Seconds to wait after this number of failures in a row. `draw`, from 0 to 1, spreads the tries of workers."""
    return min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE_S) * (0.5 + 0.5 * draw)
