"""Listens for bells: new work in the worker's queues, and calls for the worker itself."""

from collections.abc import Callable, Iterable

from holdfast.engine import Engine
from holdfast.runtime import Runtime
from holdfast.service import Service


class NotificationListener(Service):
    """Turns bells into wake-ups. A lost bell costs time, never work: everything is also looked at now and then."""

    name = "listener"

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        *,
        queues: Iterable[str],
        worker: str,
        work: Callable[[], None],
        called: Callable[[], None],
    ) -> None:
        super().__init__(runtime)
        self._own = f"worker:{worker}"
        self._subscription = engine.subscribe(self._own, *(f"queue:{queue}" for queue in queues))
        self._work = work
        self._called = called

    async def tick(self) -> float | None:
        rung = await self._subscription.wait()
        if not rung:  # closed under us
            return 1.0
        if self._own in rung:
            self._called()
        if len(rung) > (self._own in rung):
            self._work()
        return 0

    def close(self) -> None:
        self._subscription.close()
