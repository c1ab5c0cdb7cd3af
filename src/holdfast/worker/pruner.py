"""The pruner: deletes records whose lifetimes have passed. Every worker prunes; two may do so at the same time."""

from holdfast.engine import Engine
from holdfast.model.instants import Seconds
from holdfast.runtime import Runtime
from holdfast.service import Service

MAX_JOBS_PER_CALL = 500
"""So that one call does not hold up other writers for long."""
INTERVAL_S: Seconds = 60.0
"""Time between two runs that found nothing more to delete."""
PAUSE_BETWEEN_CALLS_S: Seconds = 0.05
"""Pause while there is more to delete, so that other writers get their turn."""


class Pruner(Service):
    """Deletes ended jobs and unused lanes, cancels jobs past `expires`, and forgets workers without heartbeats."""

    name = "pruner"

    def __init__(self, runtime: Runtime, engine: Engine, *, interval_s: Seconds = INTERVAL_S) -> None:
        super().__init__(runtime)
        self._engine = engine
        self._interval_s = interval_s
        self._first = True

    async def tick(self) -> float | None:
        if self._first:  # workers that start together must not all prune at once
            self._first = False
            return self._interval_s * self.runtime.random()
        answer = await self._engine.prune(MAX_JOBS_PER_CALL)
        if answer.more:
            return PAUSE_BETWEEN_CALLS_S
        return self._interval_s * (0.9 + 0.2 * self.runtime.random())
