"""Times and counts as people read them."""

from datetime import datetime

ULID = 26
SHORT = 14
"""Of a generated id: ten digits are its millisecond and four more tell it from its neighbours."""
LONGEST_ID = 32


def span(seconds: float) -> str:
    """How long something took or will take.

    >>> span(0.203), span(1), span(90), span(7200), span(200_000)
    ('203 ms', '1.0 s', '1.5 min', '2.0 h', '2.3 d')
    """
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    for length, unit, most in ((1, "s", 60), (60, "min", 60), (3600, "h", 24)):
        if round(seconds / length, 1) < most:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def setting(seconds: float) -> str:
    """A duration somebody has chosen: `30 s`, not `30.0 s`."""
    return f"{seconds:g} s" if seconds < 3600 else span(seconds)


def clock(at: datetime) -> str:
    return at.astimezone().strftime("%H:%M:%S")


def instant(at: datetime, now: datetime) -> str:
    """A moment in local time, and how far away it is.

    The offset of the zone is part of it, since whoever reads may sit somewhere else.
    """
    away = (now - at).total_seconds()
    how_far = f"{span(away)} ago" if away >= 0 else f"in {span(-away)}"
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S%z}  ({how_far})"


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "job"), count(1204, "job")
    ('1 job', '1,204 jobs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(job_id: str) -> str:
    """An id as it stands in a line: always a beginning that `jobs show` accepts."""
    return job_id[:SHORT] if len(job_id) == ULID else job_id[:LONGEST_ID]
