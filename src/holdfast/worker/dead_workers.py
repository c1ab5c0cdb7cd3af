"""Dead workers of this host: their jobs need not wait for the leases to expire.

Each process holds a file lock, which the kernel releases when the process ends, however it ends. So a worker can find
out that another worker of the host has ended, and disown it: its leases expire at once, and the reaper settles its
jobs. Without this the jobs would wait until their leases expire. If a living worker were disowned by mistake, its jobs
would run again, but each would still have only one outcome: the late one is refused by its token.
"""

import logging

from holdfast.engine import Engine
from holdfast.model.instants import Seconds
from holdfast.runtime import Runtime
from holdfast.service import Service

INTERVAL_S: Seconds = 0.25
"""Time between two checks. A check is cheap: it reads a few locks."""

_logger = logging.getLogger("holdfast.reaper")


class DeadWorkers(Service):
    """Disowns workers whose process has ended, and wakes the reaper."""

    name = "dead workers"

    def __init__(self, runtime: Runtime, engine: Engine, reaper: Service) -> None:
        super().__init__(runtime)
        self._engine = engine
        self._reaper = reaper

    async def tick(self) -> float | None:
        if not self._engine.process_name:
            return None  # this engine cannot check that: the leases expire
        dead = await self._engine.ended_workers()
        if dead:
            answer = await self._engine.disown(*dead)
            for worker in dead:
                _logger.warning(
                    "The process of worker %s has ended; its %d jobs run again.", worker, len(answer.leases)
                )
                await self._engine.forget_worker(worker)
            self._reaper.wake()
        return INTERVAL_S * (0.9 + 0.2 * self.runtime.random())
