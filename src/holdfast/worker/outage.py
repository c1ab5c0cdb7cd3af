"""An outage of the store as an event, beside the log line: `StoreError`.

A call of a user raises its error to the user. The calls of a worker or manager of its own have no caller who could see
the error; so this event says it.
"""

from holdfast.errors import EngineError
from holdfast.model.text import describe
from holdfast.runtime import Runtime
from holdfast.service import StoreOutage
from holdfast.telemetry.bus import Bus
from holdfast.telemetry.events import StoreError


class EmittedOutage(StoreOutage):
    """Emits an event for each class of error that begins. `address`: of the store, as users are shown it."""

    def __init__(self, runtime: Runtime, bus: Bus, address: str) -> None:
        super().__init__(runtime)
        self._bus = bus
        self._address = address

    def note(self, error: EngineError) -> None:
        before = len(self._logged_at)
        super().note(error)
        if len(self._logged_at) > before and self._bus.wants(StoreError):
            self._bus.emit(StoreError(at=self._runtime.wall(), store=self._address, error=describe(error)))
