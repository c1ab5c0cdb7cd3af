"""Known deaths: a worker on this host that has ended need not be waited for.

Each process holds a lock that the kernel lets go of when the process ends, however it ends. So a worker can tell
that another one is gone, and say so: its leases expire at once, and the reaper brings its jobs back. Without this
they would wait for the rest of their leases. A wrong word would cost a run, never a second outcome.
"""

import logging

from holdfast.engine import Engine
from holdfast.runtime import Runtime
from holdfast.service import Service

INTERVAL = 0.25
"""Seconds between two looks: a few reads of memory that the kernel has anyway."""

_logger = logging.getLogger("holdfast.reaper")


class DeadWorkers(Service):
    """Disowns workers whose process is gone, and wakes the reaper."""

    name = "dead workers"

    def __init__(self, runtime: Runtime, engine: Engine, reaper: Service) -> None:
        super().__init__(runtime)
        self._engine = engine
        self._reaper = reaper

    async def tick(self) -> float | None:
        if not self._engine.process_name:
            return None  # nobody can tell here: leases run out
        gone = await self._engine.ended_workers()
        if gone:
            answer = await self._engine.disown(*gone)
            for worker in gone:
                _logger.warning("Worker %s is gone; %d jobs are taken from it.", worker, len(answer.leases))
                await self._engine.forget_worker(worker)
            self._reaper.wake()
        return INTERVAL * (0.9 + 0.2 * self.runtime.random())
