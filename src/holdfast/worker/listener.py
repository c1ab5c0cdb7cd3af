"""Receives notifications: of new work in the worker's queues, and those sent to the worker itself."""

from collections.abc import Callable, Iterable

from holdfast.engine import Engine
from holdfast.model.instants import Seconds
from holdfast.runtime import Runtime
from holdfast.service import Service

CLOSED_PAUSE_S: Seconds = 1.0
"""Pause after the subscription was closed: the worker is about to stop this service."""


class NotificationListener(Service):
    """Wakes the exchanger or the keeper when a notification comes. A lost one only costs time: both also poll."""

    name = "listener"

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        *,
        queues: Iterable[str],
        worker: str,
        on_work: Callable[[], None],
        on_worker_notified: Callable[[], None],
    ) -> None:
        super().__init__(runtime)
        self._own_topic = f"worker:{worker}"
        self._subscription = engine.subscribe(self._own_topic, *(f"queue:{queue}" for queue in queues))
        self._on_work = on_work
        self._on_worker_notified = on_worker_notified

    async def tick(self) -> float | None:
        topics = await self._subscription.wait()  # no limit: it waits for work; the supervisor cancels it
        if not topics:  # the subscription was closed
            return CLOSED_PAUSE_S
        if self._own_topic in topics:
            self._on_worker_notified()
        if len(topics) > (self._own_topic in topics):
            self._on_work()
        return 0

    def close(self) -> None:
        self._subscription.close()
