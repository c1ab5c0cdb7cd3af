"""Values as text for a terminal: stored text made safe, times, counts, short ids.

Ids, names, errors, arguments and results come from anyone who may enqueue. Written raw, they could move the cursor,
change the title, overwrite other lines or hide text. Every character that is not printable is therefore shown as its
escape.
"""

from datetime import datetime

from holdfast.model.states import JobState
from holdfast.model.text import ErrorInfo, shown

ULID_LENGTH = 26
SHORT_LENGTH = 14
"""Characters of a generated id in a line: ten encode its millisecond, four more distinguish it from others."""
LONGEST_ID = 32
LONGEST_NOTE = 100


# --- Stored text ---


def safe(text: object) -> str:
    r"""The text on one line, without control characters.

    >>> print(safe("red \x1b[31m alert\n"))
    red \x1b[31m alert\n
    """
    return shown(str(text))


def safe_lines(text: object) -> list[str]:
    """The same for text of several lines, such as a traceback."""
    return [safe(line.expandtabs(4)) for line in str(text).rstrip("\r\n").split("\n")]


def cut(text: object, longest: int) -> str:
    """Safe text on one line, at most `longest` characters."""
    line = safe(text)
    return line if len(line) <= longest else line[: longest - 1] + "…"


def short(job_id: str) -> str:
    """An id as it stands in a line: always a prefix that `jobs show` accepts."""
    return job_id[:SHORT_LENGTH] if len(job_id) == ULID_LENGTH else job_id[:LONGEST_ID]


# --- Times and counts ---


def span(seconds: float) -> str:
    """A measured duration.

    >>> span(0.203), span(1), span(90), span(7200), span(200_000)
    ('203 ms', '1.0 s', '1.5 min', '2.0 h', '2.3 d')
    """
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    for length, unit, limit in ((1, "s", 60), (60, "min", 60), (3600, "h", 24)):
        if round(seconds / length, 1) < limit:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def error_text(error: ErrorInfo | None, longest: int) -> str:
    return "" if error is None else cut(f"{error.type.rpartition('.')[2]}: {error.message}", longest)


def wait_note(state: JobState | None, due_at: datetime | None, error: ErrorInfo | None, now: datetime) -> str:
    """When a job that waits for its time is due, and the error of its last attempt. Else empty."""
    if due_at is None or state not in (JobState.SCHEDULED, JobState.RETRYING):
        return ""
    due = f"in {span((due_at - now).total_seconds())}" if due_at > now else "due now"
    return f"{due}  {error_text(error, LONGEST_NOTE)}".rstrip()


def setting(seconds: float) -> str:
    """A duration that a user has set: `30 s`, not `30.0 s`."""
    return f"{seconds:g} s" if seconds < 3600 else span(seconds)


def clock(at: datetime) -> str:
    return at.astimezone().strftime("%H:%M:%S")


def instant(at: datetime, now: datetime) -> str:
    """A time in the local zone with its offset (the reader may be in another zone), and its distance from now."""
    passed_s = (now - at).total_seconds()
    distance = f"{span(passed_s)} ago" if passed_s >= 0 else f"in {span(-passed_s)}"
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S%z}  ({distance})"


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "job"), count(1204, "job")
    ('1 job', '1,204 jobs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
