"""Recycling: a worker stops by itself after a number of jobs, or when its memory is above a limit.

It stops as after a request: it claims nothing more, lets its handlers finish, and its exit code is 0. A manager starts
a replacement when the worker begins to stop; without one, systemd or Kubernetes starts the process again.

`max_jobs` counts attempts that have ended. When the last of them ends, others may run: at most one less than there are
slots. `max_memory` is compared with the resident memory of this process, once a second and after jobs.
"""

import logging
import sys

from holdfast.config import WorkerSettings
from holdfast.errors import ConfigError
from holdfast.model.instants import SECOND, Micros, Seconds
from holdfast.model.text import shown
from holdfast.processes import own_peak_bytes
from holdfast.runtime import Runtime
from holdfast.service import Service
from holdfast.worker.exchange import Exchanger
from holdfast.worker.slots import Slots
from holdfast.worker.stop_request import StopReason, StopRequest

INTERVAL_S: Seconds = 1.0
"""Between two looks at the memory while no job ends."""
INTERVAL_AFTER_JOBS_US: Micros = SECOND // 4
"""Between two looks at the memory while jobs end. A look takes about 20 microseconds."""
MIB = 1_048_576

_logger = logging.getLogger("holdfast.worker")


def recycling(
    runtime: Runtime, worker: str, exchanger: Exchanger, slots: Slots, settings: WorkerSettings, stop: StopRequest
) -> tuple[Service, ...]:
    """The service that recycles a worker; none if no limit is set, so that jobs do not pay for it."""
    if not settings.max_jobs and not settings.max_memory:
        return ()
    recycler = Recycler(runtime, worker, slots, settings, stop)
    exchanger.on_progress = recycler.check
    return (recycler,)


class Recycler(Service):
    """Checks the limits."""

    name = "recycling"

    def __init__(
        self, runtime: Runtime, worker: str, slots: Slots, settings: WorkerSettings, stop_request: StopRequest
    ) -> None:
        super().__init__(runtime)
        self._worker = worker
        self._slots = slots
        self._max_jobs = settings.max_jobs
        self._max_memory = settings.max_memory
        self._stop_request = stop_request
        self._checked_at = runtime.monotonic()
        memory = resident_memory(runtime) if self._max_memory else 0
        if memory > self._max_memory:
            raise ConfigError(
                f"The worker has {memory // MIB} MiB of memory before its first job, and `worker.max_memory` is "
                f"{self._max_memory / MIB:g} MiB. It would never run a job. Set a higher limit.",
                key="worker.max_memory",
                source="",
            )

    async def tick(self) -> float | None:
        self._check_memory()
        return INTERVAL_S if self._max_memory else None

    def check(self) -> None:
        """A job has ended, or an exchange was answered."""
        if self._max_jobs and self._slots.ended_count >= self._max_jobs:
            self._stop(StopReason.MAX_JOBS, f"it has run {self._slots.ended_count} jobs; max_jobs is {self._max_jobs}")
        elif self._max_memory and self.runtime.monotonic() - self._checked_at >= INTERVAL_AFTER_JOBS_US:
            self._check_memory()

    def _check_memory(self) -> None:
        if not self._max_memory:
            return
        self._checked_at = self.runtime.monotonic()
        memory = resident_memory(self.runtime)
        if memory > self._max_memory:
            limit = f"{self._max_memory / MIB:g} MiB"
            self._stop(StopReason.MAX_MEMORY, f"it has {memory / MIB:.0f} MiB of memory; max_memory is {limit}")

    def _stop(self, reason: StopReason, cause: str) -> None:
        self._slots.close()  # at once: jobs that a claim in flight brings are released
        if not self._stop_request.is_requested:
            _logger.info("Worker %s is recycled: %s.", shown(self._worker), cause)
            self._stop_request.request(None, reason)


def resident_memory(runtime: Runtime) -> int:
    """Bytes of memory that this process uses. Where the system does not say it: the most it has ever used, or 0."""
    platform: str = sys.platform
    try:
        if platform == "linux":
            import resource

            return int(runtime.fs.read_bytes("/proc/self/statm").split()[1]) * resource.getpagesize()
        return own_peak_bytes()
    except (ImportError, OSError):
        return 0
