"""Checks of the clocks: this host's, the store's, and those of the hosts of workers as far as their records show it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.engine import Engine
from holdfast.model.findings import CLOCK, Finding
from holdfast.model.instants import SECOND, Instant, Micros
from holdfast.model.records import WorkerRecord
from holdfast.operate.words import names
from holdfast.runtime import Runtime

READINGS = 3
ALLOWED_US: Micros = SECOND
"""A host whose clock is set by NTP is nearer than this to others."""
MAX_LEAD_US: Micros = 5 * SECOND
"""Engine time does not go back behind an earlier answer, except if the lead is longer: then a clock was set back."""


class ClockReading(NamedTuple):
    """The store's clock, as this host sees it."""

    now: Instant
    """The store's wall clock."""
    ahead_us: Micros
    """How far the store's clock is ahead of this host's."""
    round_trip_us: Micros


async def read_clock(engine: Engine, runtime: Runtime) -> ClockReading:
    """The reading with the shortest round trip, which is the most exact one."""
    found = []
    for _ in range(READINGS):
        began = runtime.monotonic()
        now = (await engine.now()).wall
        host, round_trip_us = runtime.wall(), runtime.monotonic() - began
        found.append(ClockReading(now, now - (host - round_trip_us // 2), round_trip_us))
    return min(found, key=lambda reading: reading.round_trip_us)


def check_clocks(reading: ClockReading, workers: Sequence[WorkerRecord]) -> Iterator[Finding]:
    fine = True
    if abs(reading.ahead_us) > ALLOWED_US + reading.round_trip_us:
        fine = False
        yield CLOCK.warning(
            f"The clock of the store is {_distance(reading.ahead_us)} that of this host. Leases and delays use the "
            "store's clock alone and are right. What this host gives as a time (`at=`, `expires=` with a date) is off "
            "by as much.",
            "Let NTP set both clocks.",
        )
    ahead = {
        worker.host: worker.started - worker.seen for worker in workers if worker.started - worker.seen > ALLOWED_US
    }
    for host, ahead_us in sorted(ahead.items()):
        fine = False
        yield CLOCK.warning(
            f"The clock of host {host} is at least {ahead_us / SECOND:.1f} s ahead of the store's: a worker there "
            "began later than its own heartbeat.",
            "Let NTP set the clock of that host.",
        )
    future = [worker for worker in workers if worker.seen - reading.now > MAX_LEAD_US]
    if future:
        fine = False
        lead_us = max(worker.seen for worker in future) - reading.now
        yield CLOCK.warning(
            f"Heartbeats of {names(worker.worker for worker in future)} are {lead_us / SECOND:.0f} s in the future: "
            "the clock of the store was set back, or another server answers now. Due times follow the clock as it is "
            "now.",
            "Let NTP set the clock, in small steps. These workers count as alive until the clock has caught up.",
        )
    if fine:
        yield CLOCK.ok(f"The clocks of this host and of the store differ by {abs(reading.ahead_us) / 1000:.0f} ms.")


def _distance(ahead_us: Micros) -> str:
    return f"{abs(ahead_us) / SECOND:.1f} s {'ahead of' if ahead_us > 0 else 'behind'}"
