"""Services: background work of a process, each as one small object with a `tick`.

A tick does a bounded piece of work and returns in how many seconds to call it again (None: when woken). `wake` makes
the next tick come at once. A service uses only the runtime and an engine. The loop here is the same for all services:
it waits, logs a tick that raises and goes on, backs off while ticks keep raising, and stops cleanly.

A wake during a tick is not lost: the next tick follows at once.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable

from holdfast.errors import EngineError
from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 15.0
"""Between ticks that keep raising."""
CANCEL_WITHIN_S = 5.0
"""Time for a cancelled service to end: a library that swallows the cancellation must not keep the process alive."""

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
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._runtime.spawn(self._wake_after(seconds), name="holdfast timer")

    async def _wake_after(self, seconds: float) -> None:
        await self._runtime.sleep(seconds)
        self.wake()

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Service(ABC):
    """Background work of a process. Subclasses set `name`, and may be woken at any time."""

    name: str

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.waker = Waker(runtime)

    @abstractmethod
    async def tick(self) -> float | None:
        """Do one piece of work; return the seconds until the next tick, None: when woken."""

    def wake(self) -> None:
        """Make the next tick come at once. On the thread of the event loop only."""
        self.waker.wake()


class Supervisor:
    """Runs services concurrently until it is stopped."""

    def __init__(self, runtime: Runtime, services: Iterable[Service]) -> None:
        self._runtime = runtime
        self.services = tuple(services)
        self._tasks: dict[Service, asyncio.Task[None]] = {}

    def start(self) -> None:
        for service in self.services:
            self._tasks[service] = self._runtime.spawn(run_service(service), name=f"holdfast {service.name}")

    async def stop(self, *services: Service) -> None:
        """Cancel these services, or all of them: while they wait, or in the middle of a tick."""
        cancelled = [task for service, task in self._tasks.items() if not services or service in services]
        for task in cancelled:
            task.cancel()
        for task in cancelled:
            await _wait_for_end(task)


async def run_service(service: Service) -> None:
    """Tick until cancelled."""
    failures = 0
    try:
        while True:
            try:
                delay = await service.tick()
                failures = 0
            except Exception as error:
                failures += 1
                delay = back_off(failures)
                trace = None if isinstance(error, EngineError) else error  # the text of an engine's error is enough
                _logger.error("Service %s failed: %s Next try in %.1f s.", service.name, error, delay, exc_info=trace)
                await service.runtime.sleep(delay)
                continue
            if delay is None or delay > 0:
                await service.waker.wait(delay)
            else:
                await yield_to_loop()
    finally:
        service.waker.close()


async def yield_to_loop() -> None:
    """Let all other ready callbacks of the event loop run."""
    loop = asyncio.get_running_loop()
    turn = loop.create_future()
    loop.call_soon(_resolve, turn)
    await turn


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def back_off(failures: int) -> float:
    """Seconds to wait after this number of failures in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE_S)


async def _wait_for_end(task: "asyncio.Task[None]") -> None:
    """Wait for a cancelled task. Unlike `await task`, this raises CancelledError only if the caller is cancelled."""
    _, stuck = await asyncio.wait({task}, timeout=CANCEL_WITHIN_S)
    if stuck:
        _logger.error("%s did not end within its time and is abandoned.", task.get_name())
