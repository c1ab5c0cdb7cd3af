"""Dead workers: their jobs need not wait for the leases to expire.

A worker is known to be dead in two ways, if the engine has them. On one host each process holds a file lock, which the
kernel releases when the process ends, however it ends: known within a second (`engine.ended_workers`). On other hosts
the server tells: the worker's session with it has ended, and two heartbeats are missing (`engine.disown_silent`). A
dead worker is disowned: its leases expire at once, and the reaper settles its jobs. If a living worker were disowned by
mistake, its jobs would run again, but each would still have only one outcome: the late one is refused by its token.

The manager of a worker knows sooner that it has ended, and how: signal, exit code, peak memory. So a dead worker with a
manager that lives is left to the manager for a short time.

After an outage of the server or of the network every worker looks silent, and none has its session back yet. So
silence counts only as long as this service has reached the store without a break.
"""

import asyncio
import logging

from holdfast.engine import Engine
from holdfast.model.instants import SECOND, Micros, Seconds
from holdfast.model.text import shown
from holdfast.runtime import Runtime
from holdfast.service import MAINTENANCE_DELAY_S, Service

HOST_INTERVAL_S: Seconds = 0.25
"""Between two checks of the processes of this host. A check is cheap: it reads a few locks."""
MANAGER_LEAD_US: Micros = SECOND
"""How long a dead worker is left to its manager."""
SILENCE_INTERVAL_S: Seconds = 1.5
"""Between two checks for silent workers, each one short statement."""
MAX_GAP_US: Micros = 3 * SECOND
"""A longer gap between the begin of two checks for silent workers may hide an outage."""
SILENCE_TIMEOUT_S: Seconds = 1.5
"""A check that takes longer counts as failed: it may have waited for the end of an outage. So an outage that no check
notices is shorter than a gap and this. A worker whose heartbeat was due when it began has then been silent for 9.5 s,
less than two heartbeats."""

_logger = logging.getLogger("holdfast.reaper")


class DeadWorkers(Service):
    """Disowns dead workers, and wakes the reaper."""

    name = "dead workers"
    start_delay_s = MAINTENANCE_DELAY_S

    def __init__(self, runtime: Runtime, engine: Engine, reaper: Service) -> None:
        super().__init__(runtime)
        self._engine = engine
        self._reaper = reaper
        self._left_since: dict[str, Micros] = {}
        """Dead workers that are left to their managers."""
        self._knows_sessions = True
        self._checked_at: Micros | None = None
        """When the last check for silent workers began. None: there was none, or it failed."""
        self._watched_since: Micros = 0
        """Since then no check has failed, and there was no gap between them."""

    async def tick(self) -> float | None:
        knows_processes = bool(self._engine.process_name)
        if knows_processes:
            await self._disown_ended()
        if self._knows_sessions:
            await self._disown_silent()
        if not knows_processes and not self._knows_sessions:
            return None  # this engine cannot check that: the leases expire
        interval_s = HOST_INTERVAL_S if knows_processes else SILENCE_INTERVAL_S
        return interval_s * (0.9 + 0.2 * self.runtime.random())

    async def _disown_ended(self) -> None:
        dead = await self._without_managed(await self._engine.ended_workers())
        if dead:
            answer = await self._engine.disown(*dead)
            names = ", ".join(map(shown, dead))
            _logger.warning("Processes of workers have ended: %s. Jobs that run again: %d.", names, len(answer.leases))
            for worker in dead:
                await self._engine.forget_worker(worker)
            self._reaper.wake()

    async def _without_managed(self, dead: tuple[str, ...]) -> tuple[str, ...]:
        """The dead workers without those that are left to their managers."""
        if not dead:
            self._left_since = {}
            return ()
        now = self.runtime.monotonic()
        records = (await self._engine.workers()).workers
        managed = {child for record in records if record.worker not in dead for child in record.children}
        self._left_since = {name: self._left_since.get(name, now) for name in dead if name in managed}
        left = {name for name, since in self._left_since.items() if now - since < MANAGER_LEAD_US}
        return tuple(name for name in dead if name not in left)

    async def _disown_silent(self) -> None:
        now = self.runtime.boot()
        last, self._checked_at = self._checked_at, None
        if last is None or now - last > MAX_GAP_US:
            self._watched_since = now
        elif now - last < SILENCE_INTERVAL_S * SECOND * 0.9:
            self._checked_at = last
            return
        try:
            async with asyncio.timeout(SILENCE_TIMEOUT_S):
                leases = await self._engine.disown_silent(now - self._watched_since)
        except TimeoutError:
            return
        self._checked_at = now
        if leases is None:
            self._knows_sessions = False
        elif leases:
            for worker, count in leases.items():
                _logger.warning(
                    "Worker %s sends no heartbeats and has lost its session with the server; its %d jobs run again.",
                    shown(worker),
                    count,
                )
            self._reaper.wake()
