"""The pruner: deletes what nobody may see any more, in bounded pieces. Every worker prunes; two at once do no harm."""

from holdfast.engine import Engine
from holdfast.runtime import Runtime
from holdfast.service import Service

MOST_AT_ONCE = 500
INTERVAL = 60.0
BETWEEN_PIECES = 0.05


class Pruner(Service):
    """Retention, expired results, jobs past their `expires`, idle lanes, silent workers."""

    name = "pruner"

    def __init__(self, runtime: Runtime, engine: Engine, *, interval: float = INTERVAL) -> None:
        super().__init__(runtime)
        self._engine = engine
        self._interval = interval
        self._first = True

    async def tick(self) -> float | None:
        if self._first:  # a fleet that starts together does not prune together
            self._first = False
            return self._interval * self.runtime.random()
        pruned = await self._engine.prune(MOST_AT_ONCE)
        if pruned.more:
            return BETWEEN_PIECES
        return self._interval * (0.9 + 0.2 * self.runtime.random())
