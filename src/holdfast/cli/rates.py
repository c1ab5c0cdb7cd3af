"""Rates and latencies for `holdfast top`: from the counters of successive reads, and from events.

A queue counts its live jobs and those that have ended since it exists. Between two reads, the jobs that left are the
difference of the ended ones, and the jobs that came are that plus the difference of the live ones. So no job is read.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.model.instants import SECOND
from holdfast.runtime import Runtime
from holdfast.telemetry import events
from holdfast.views import QueueStatus

WINDOW_US = 10 * SECOND
"""Rates are over this time: long enough to be steady, short enough to follow a change."""
LATENCY_WINDOW_US = 60 * SECOND
MAX_LATENCIES = 10_000
"""Of each kind. Older ones are left out, to bound the memory."""
MAX_ERRORS = 5


class Rate(NamedTuple):
    """Jobs per second. None: there is only one read yet."""

    arrived: float | None = None
    ended: float | None = None


class _Counters(NamedTuple):
    arrived: int
    """Plus an unknown number that is the same in each read."""
    ended: int


class Rates:
    """Keeps the reads of the last seconds."""

    def __init__(self) -> None:
        self._reads: deque[tuple[int, dict[str, _Counters]]] = deque()

    def add(self, now_us: int, queues: Iterable[QueueStatus]) -> None:
        counters = {}
        for queue in queues:
            ended = queue.succeeded + queue.failed + queue.cancelled
            counters[queue.queue] = _Counters(queue.depth + ended, ended)
        self._reads.append((now_us, counters))
        while len(self._reads) > 2 and self._reads[1][0] <= now_us - WINDOW_US:
            self._reads.popleft()

    def of(self, queue: str) -> Rate:
        """Of a queue. One that is new since the first read, or was removed and made anew, began with nothing."""
        if len(self._reads) < 2:
            return Rate()
        (first_us, first), (last_us, last) = self._reads[0], self._reads[-1]
        seconds = max(1, last_us - first_us) / SECOND
        now, before = last.get(queue, _Counters(0, 0)), first.get(queue, _Counters(0, 0))
        if now.ended < before.ended:
            before = _Counters(0, 0)
        return Rate(max(0, now.arrived - before.arrived) / seconds, (now.ended - before.ended) / seconds)

    def total(self) -> Rate:
        if len(self._reads) < 2:
            return Rate()
        rates = [self.of(queue) for queue in self._reads[-1][1]]
        return Rate(sum(rate.arrived or 0.0 for rate in rates), sum(rate.ended or 0.0 for rate in rates))


class Percentiles(NamedTuple):
    """Seconds. None: there is no measurement in the window."""

    p50: float | None
    p95: float | None
    measured: int
    """How many attempts."""


class Latencies:
    """How long jobs waited and ran, and the last errors, from events. Added by the threads of the feed."""

    KINDS: tuple[type[events.Event], ...] = (events.Started, events.Succeeded, events.Retrying, events.Failed)

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.lock()
        self._waited: deque[tuple[int, int]] = deque(maxlen=MAX_LATENCIES)
        self._ran: deque[tuple[int, int]] = deque(maxlen=MAX_LATENCIES)
        self._errors: deque[events.Retrying | events.Failed] = deque(maxlen=MAX_ERRORS)

    def add(self, event: events.Event) -> None:
        with self._lock:
            match event:
                case events.Started():
                    self._waited.append((event.at, event.waited))
                case events.Succeeded():
                    self._ran.append((event.at, event.ran))
                case events.Retrying() | events.Failed():
                    if event.ran:  # else it was released before it began, or reaped
                        self._ran.append((event.at, event.ran))
                    if event.error is not None or isinstance(event, events.Failed):
                        self._errors.append(event)

    def waited(self, now_us: int) -> Percentiles:
        return self._percentiles(self._waited, now_us)

    def ran(self, now_us: int) -> Percentiles:
        return self._percentiles(self._ran, now_us)

    def errors(self) -> list[events.Retrying | events.Failed]:
        """The newest first."""
        with self._lock:
            return list(reversed(self._errors))

    def _percentiles(self, measured: deque[tuple[int, int]], now_us: int) -> Percentiles:
        with self._lock:
            values = sorted(value for at, value in measured if at > now_us - LATENCY_WINDOW_US)
        return Percentiles(_percentile(values, 0.5), _percentile(values, 0.95), len(values))


def _percentile(values: Sequence[int], part: float) -> float | None:
    """In seconds, of sorted microseconds: the nearest rank."""
    if not values:
        return None
    return values[min(len(values) - 1, int(part * len(values)))] / SECOND
