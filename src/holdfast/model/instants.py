"""Time inside Holdfast: whole microseconds, never floats.

An instant is microseconds since 1970 UTC, a duration is microseconds. `datetime`, `timedelta` and seconds
as floats exist only at the public edge.
"""

from msgspec import Struct

MILLISECOND = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

FOREVER = 2**62
"""An instant that never comes. Fits every engine's 64-bit integer, with room to add a duration to it."""


class At(Struct, frozen=True, gc=False):
    """The engine's time at which a verb took effect.

    Two clocks: `wall` for everything a person reads (due times, retention), `lease` for expiry. On a server
    they are the same clock. On one host leases run on the boot clock, so that setting the wall clock
    neither kills nor immortalises a lease.
    """

    wall: int
    lease: int

    def after(self, other: "At") -> "At":
        """This time, or `other` where that is later: engine time never goes back."""
        if self.wall >= other.wall and self.lease >= other.lease:
            return self
        return At(max(self.wall, other.wall), max(self.lease, other.lease))
