"""Durations as users give them. Text such as `30s` is read in one way in code, settings and on the command line."""

import re
from datetime import timedelta

Duration = float | timedelta | str
"""Seconds, a `timedelta`, or text such as "30s", as users give it."""

_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")

EXAMPLES = "text such as 30s, 10m, 2h or 1d"


def seconds_of(text: str) -> float | None:
    """Seconds, from text with a unit; without one, the number is seconds. None: the text is no duration.

    >>> seconds_of("10m"), seconds_of("1.5h"), seconds_of("30")
    (600.0, 5400.0, 30.0)
    """
    match = _TEXT.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _UNITS_S[match[2]]
