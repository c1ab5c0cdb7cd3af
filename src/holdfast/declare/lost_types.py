"""Which values come back as another type if no type hint says what they are: a Decimal as text, a set as a list.

A tuple comes back as a list, which is accepted: it is the same sequence. A subclass of dict comes back as an equal
dict.
"""

from types import NoneType
from typing import Any, NamedTuple

UNCHANGED = frozenset({bool, float, int, NoneType, str})
"""Values of exactly these types come back as they are."""


class LostType(NamedTuple):
    """The first value that comes back as another type."""

    place: str
    """Inside the argument, such as `.price` or `[2]`; empty: the argument itself."""
    given: str
    arrives: str


def find_lost_type(given: Any, decoded: Any) -> LostType | None:
    """The first part of `given` that was not decoded as an equal value. None: all of it was."""
    waiting = [("", given, decoded)]
    while waiting:
        place, value, arrived = waiting.pop()
        if _equal(value, arrived):
            continue
        if type(value) in (list, tuple) and type(arrived) is list and len(value) == len(arrived):
            waiting += [(f"{place}[{n}]", *pair) for n, pair in enumerate(zip(value, arrived, strict=True))]
        elif isinstance(value, dict) and type(arrived) is dict and value.keys() == arrived.keys():
            waiting += [(f"{place}.{key}", value[key], arrived[key]) for key in value]
        elif isinstance(value, dict) and type(arrived) is dict:
            return LostType(place, "keys that are not text", "text")
        else:
            return LostType(place, type(value).__qualname__, type(arrived).__qualname__)
    return None


def _equal(value: Any, arrived: Any) -> bool:
    try:
        return bool(value == arrived)
    except Exception:  # of the user's class
        return False
