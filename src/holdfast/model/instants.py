"""Time inside Holdfast: whole microseconds, never floats.

`datetime`, `timedelta` and seconds as floats exist only in the public API, in settings, and where a wait is handed to
the event loop or to a thread.
"""

from msgspec import Struct

from holdfast.durations import FOREVER_US

Instant = int
"""A point in time: whole microseconds since 1970 UTC, or on the lease clock where the field says so."""
Micros = int
"""A duration in whole microseconds; also a reading of the monotonic or the boot clock, which have no meaning of their
own and are only subtracted from each other."""
Seconds = float
"""A duration in seconds, for waits and settings."""

MILLISECOND = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
"""Durations in microseconds (`Micros`)."""

FOREVER: Instant = FOREVER_US
"""An instant that never comes. It fits a 64-bit integer, and a duration can be added to it without overflow."""


class At(Struct, frozen=True, gc=False):
    """The engine's time at which a verb took effect.

    There are two clocks: `wall` for everything a person reads (due times, retention), `lease` for the expiry of
    leases. On a server they are the same clock. Embedded engines use the boot clock of the host for leases: if a
    person sets the wall clock, no lease expires early or late.
    """

    wall: Instant
    lease: Instant

    def after(self, other: "At") -> "At":
        """The later of the two, clock by clock: engine time never goes back."""
        if self.wall >= other.wall and self.lease >= other.lease:
            return self
        return At(max(self.wall, other.wall), max(self.lease, other.lease))
