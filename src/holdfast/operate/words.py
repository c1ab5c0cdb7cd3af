"""Lists and counts in the texts of findings."""

from collections.abc import Iterable

from holdfast.model.instants import MINUTE, SECOND, Micros

MAX_NAMED = 5


def names(found: Iterable[str]) -> str:
    """Names in order, not too many.

    >>> names(["b", "a"]), names("abcdefg")
    ('a, b', 'a, b, c, d, e and 2 more')
    """
    listed = sorted(found)
    more = f" and {len(listed) - MAX_NAMED} more" if len(listed) > MAX_NAMED else ""
    return ", ".join(listed[:MAX_NAMED]) + more


def jobs(number: int, verb: str = "") -> str:
    """
    >>> jobs(1, "are due"), jobs(1204, "are due"), jobs(2)
    ('1 job is due', '1,204 jobs are due', '2 jobs')
    """
    if number == 1:
        verb = verb.replace("are ", "is ").replace("have ", "has ")
    return f"{number:,} job{'' if number == 1 else 's'} {verb}".rstrip()


def age(duration_us: Micros) -> str:
    """
    >>> age(40 * SECOND), age(5 * MINUTE), age(180 * MINUTE)
    ('40 s', '5 minutes', '3.0 h')
    """
    if duration_us < 2 * MINUTE:
        return f"{duration_us / SECOND:.0f} s"
    return f"{duration_us / MINUTE:.0f} minutes" if duration_us < 120 * MINUTE else f"{duration_us / MINUTE / 60:.1f} h"
