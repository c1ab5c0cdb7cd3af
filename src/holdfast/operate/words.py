"""Lists and counts in the texts of findings."""

from collections.abc import Iterable

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
