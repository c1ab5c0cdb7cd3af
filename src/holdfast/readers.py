"""Readers of one setting: from a file, where a value has a type, or from the environment, where it is text.

A reader returns the value, or raises `ValueError`. The message is the rest of a sentence that begins with the setting's
name.
"""

import re
from collections.abc import Callable
from math import isfinite
from typing import assert_never

from holdfast.durations import EXAMPLES, seconds_of
from holdfast.errors import LONGEST, InvalidOption
from holdfast.model.instants import SECOND
from holdfast.model.retry import (
    Backoff,
    Computed,
    Exponential,
    Fixed,
    Linear,
    Listed,
    backoff,
    exponential,
    fixed,
    linear,
)
from holdfast.model.text import check_name

_NAMESPACE = re.compile(r"[a-z_][a-z0-9_]{0,30}")
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})
_BYTES = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(B|[KMGT]i?B|[KMGT]i|)", re.IGNORECASE)
_BYTE_UNITS = {"": 1} | {
    f"{letter}{infix}": base ** (power + 1)
    for infix, base in (("", 1000), ("i", 1024))
    for power, letter in enumerate("kmgt")
}
_KINDS: dict[str, Callable[..., Backoff]] = {"exponential": exponential, "linear": linear, "fixed": fixed}


def text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be text, and not empty.")
    return value


def queue_name(value: object) -> str:
    try:
        return check_name(value, "queue")
    except InvalidOption as error:
        raise ValueError(f"is not a valid queue name: {error}") from error


def identifier(value: object) -> str:
    if not isinstance(value, str) or not _NAMESPACE.fullmatch(value):
        raise ValueError("must be a lower-case word of at most 31 letters, digits and underscores.")
    return value


def boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _YES | _NO:
        return value.lower() in _YES
    raise ValueError("must be true or false.")


def choice(*words: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}.")
        return str(value)

    return read


def whole(low: int, high: int | None = None) -> Callable[[object], int]:
    to = "on" if high is None else f"to {high}"

    def read(value: object) -> int:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value) else value
        if isinstance(number, bool) or not isinstance(number, int) or number < low:
            raise ValueError(f"must be a whole number from {low} {to}.")
        if high is not None and number > high:
            raise ValueError(f"must be a whole number from {low} {to}.")
        return number

    return read


def byte_size(value: object) -> int:
    """Bytes, or text with a unit: 512MiB and 512Mi have units of 1,024, 512MB of 1,000.

    >>> byte_size("512MiB"), byte_size("1.5 GB"), byte_size(0)
    (536870912, 1500000000, 0)
    """
    number = value
    if isinstance(value, str) and (match := _BYTES.fullmatch(value.strip())) is not None:
        number = int(float(match[1]) * _BYTE_UNITS[match[2].lower().removesuffix("b")])
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**62:
        raise ValueError("must be a number of bytes, or text such as 512MiB or 2GB.")
    return number


def seconds(low: float = 0.0) -> Callable[[object], float]:
    def read(value: object) -> float:
        number = seconds_of(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int | float) or not isfinite(number):
            raise ValueError(f"must be a number of seconds, or {EXAMPLES}.")
        if not low <= number <= LONGEST // 1_000_000:
            raise ValueError(f"must be from {low:g} seconds to a hundred years.")
        return float(number)

    return read


def fraction(value: object) -> float:
    number = value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= 1:
        raise ValueError("must be a number above 0 and up to 1, such as 0.8.")
    return float(number)


def backoff_table(value: object) -> Backoff:
    """Seconds, a list of seconds, or a table with a `kind`; in the environment the same, as TOML."""
    if isinstance(value, str):
        import tomllib

        try:
            value = tomllib.loads(f"value = {value}")["value"] if (seconds := seconds_of(value)) is None else seconds
        except tomllib.TOMLDecodeError as error:
            raise ValueError("must be seconds, a list of seconds, or a table with a kind.") from error
    if not isinstance(value, dict):
        return backoff(value)
    options = dict(value)
    kind = options.pop("kind", "exponential")
    if kind not in _KINDS:
        raise ValueError(f"has the unknown kind {kind!r}; use one of {', '.join(_KINDS)}.")
    try:
        return _KINDS[kind](**options)
    except TypeError as error:
        raise ValueError(f"has a key that a {kind} back-off does not take ({', '.join(options)}).") from error


def backoff_data(value: Backoff) -> object:
    """A back-off as it is written in a file, durations in seconds.

    >>> backoff_data(linear(1, step=2, max=60, jitter=0))
    {'kind': 'linear', 'initial': 1.0, 'step': 2.0, 'max': 60.0, 'jitter': 0}
    """
    match value:
        case Exponential(initial, multiplier, maximum, jitter):
            growth: dict[str, object] = {"initial": initial / SECOND, "multiplier": multiplier}
            return {"kind": "exponential", **growth, "max": maximum / SECOND, "jitter": jitter}
        case Linear(initial, step, maximum, jitter):
            growth = {"initial": initial / SECOND, "step": step / SECOND}
            return {"kind": "linear", **growth, "max": maximum / SECOND, "jitter": jitter}
        case Fixed(delay, jitter):
            return {"kind": "fixed", "seconds": delay / SECOND, "jitter": jitter}
        case Listed(delays):
            return [delay / SECOND for delay in delays]
        case Computed():
            return "a function"
        case _:
            assert_never(value)
