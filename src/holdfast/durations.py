"""Durations and instants as users give them. Text such as `30s` is read in one way in code, settings and commands."""

import re
from datetime import UTC, datetime, timedelta

Duration = float | timedelta | str
"""Seconds, a `timedelta`, or text such as "30s", as users give it."""

_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")

LAST_INSTANT_US = 2**53
"""In June 2255. A server that computes in floating point (Redis) has every microsecond up to here and not beyond."""
FOREVER_US = 2**62
"""An instant that never comes."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EXAMPLES = "text such as 30s, 10m, 2h or 1d"


def seconds_of(text: str) -> float | None:
    """Seconds, from text with a unit; without one, the number is seconds. None: the text is no duration.

    >>> seconds_of("10m"), seconds_of("1.5h"), seconds_of("30")
    (600.0, 5400.0, 30.0)
    """
    match = _TEXT.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _UNITS_S[match[2]]


def micros_of(instant: datetime) -> int:
    """Microseconds since 1970 UTC of an aware `datetime`; after June 2255 `FOREVER_US`."""
    micros = (instant - _EPOCH) // timedelta(microseconds=1)
    return micros if micros <= LAST_INSTANT_US else FOREVER_US
