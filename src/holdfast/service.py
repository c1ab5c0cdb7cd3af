"""Services: the things a process does beside its main work, each as one small object with a `tick`.

A service does a bounded piece of work and says in how many seconds it wants to be called again (None: when woken).
Whoever has news for it calls `wake`. Its only doors are Runtime and Engine. The loop around it is the same for all and
lives here: it waits, survives and reports a tick that raises, backs off while that goes on, and stops cleanly.

A wake that comes during a tick is not lost: the next tick follows at once.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable

from holdfast.errors import EngineError
from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 15.0
LONGEST_END = 5.0
"""Seconds that a cancelled service gets: a library that swallows the cancellation must not keep a process alive."""

_logger = logging.getLogger("holdfast.service")


class Waker:
    """Something to wait on, with an alarm. `wake` may come at any time, from the loop's own thread.

    The alarm is one sleeping task that is kept as long as it goes off early enough: a busy waiter that is woken ten
    thousand times a second sets no ten thousand timers. It may therefore go off for nothing.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._woken = False
        self._waiter: asyncio.Future[None] | None = None
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at = 0

    def wake(self) -> None:
        self._woken = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self, seconds: float | None = None) -> None:
        """Until woken, or until about so many seconds have passed."""
        if not self._woken:
            if seconds is not None:
                self._set_alarm(seconds)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._woken = False

    def _set_alarm(self, seconds: float) -> None:
        at = self._runtime.monotonic() + round(seconds * SECOND)
        if self._alarm is not None:
            if not self._alarm.done() and self._alarm_at <= at:
                return
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._runtime.spawn(self._go_off(seconds), name="holdfast alarm")

    async def _go_off(self, seconds: float) -> None:
        await self._runtime.sleep(seconds)
        self.wake()

    def close(self) -> None:
        """Leave no alarm behind."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


class Service(ABC):
    """One of the things a process does. Subclasses set `name`, and may be woken at any time."""

    name: str

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.waker = Waker(runtime)

    @abstractmethod
    async def tick(self) -> float | None:
        """Do what there is to do; answer in how many seconds to look again, None to sleep until woken."""

    def wake(self) -> None:
        """There may be something to do. From the loop's thread only."""
        self.waker.wake()


class Supervisor:
    """Runs services side by side until it is stopped."""

    def __init__(self, runtime: Runtime, services: Iterable[Service]) -> None:
        self._runtime = runtime
        self.services = tuple(services)
        self._tasks: dict[Service, asyncio.Task[None]] = {}

    def start(self) -> None:
        for service in self.services:
            self._tasks[service] = self._runtime.spawn(run_service(service), name=f"holdfast {service.name}")

    async def stop(self, *services: Service) -> None:
        """End these services, or all: each where it waits, or in the middle of its tick."""
        ending = [task for service, task in self._tasks.items() if not services or service in services]
        for task in ending:
            task.cancel()
        for task in ending:
            await _ended(task)


async def run_service(service: Service) -> None:
    """Tick for ever. Ends by being cancelled."""
    failures = 0
    try:
        while True:
            try:
                delay = await service.tick()
                failures = 0
            except Exception as error:
                failures += 1
                delay = back_off(failures)
                trace = None if isinstance(error, EngineError) else error  # a store in trouble needs no stack to tell
                _logger.error("Service %s failed: %s It goes on in %.1f s.", service.name, error, delay, exc_info=trace)
                await service.runtime.sleep(delay)
                continue
            if delay is None or delay > 0:
                await service.waker.wait(delay)
            else:
                await breathe()
    finally:
        service.waker.close()


async def breathe() -> None:
    """Let everything else that is ready have its turn."""
    loop = asyncio.get_running_loop()
    turn = loop.create_future()
    loop.call_soon(_resolve, turn)
    await turn


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def back_off(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE)


async def _ended(task: "asyncio.Task[None]") -> None:
    """Wait for a task that was cancelled, without being mistaken for it when we are cancelled ourselves."""
    _, stuck = await asyncio.wait({task}, timeout=LONGEST_END)
    if stuck:
        _logger.error("%s does not end and is left behind.", task.get_name())
