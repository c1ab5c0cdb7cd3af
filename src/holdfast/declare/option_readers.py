"""Readers of single options: each checks a value, names the option in its error, and returns what is used."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from holdfast.codec import Codec
from holdfast.durations import EXAMPLES, seconds_of
from holdfast.errors import InvalidOption, duration_us, instant_us
from holdfast.model.instants import SECOND, Instant, Micros
from holdfast.model.job import KeyScope
from holdfast.model.text import check_name

Reader = Callable[[Any, str], Any]


def or_none(reader: Reader) -> Reader:
    return lambda value, option: None if value is None else reader(value, option)


def whole(low: int, high: int) -> Reader:
    def read(value: Any, option: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidOption(f"`{option}` must be a whole number from {low} to {high}.", option=option)
        return int(value)

    return read


def longer_than(low_us: Micros) -> Reader:
    def read(value: Any, option: str) -> int:
        length_us = duration_us(value, option)
        if length_us < low_us:
            raise InvalidOption(f"`{option}` must be at least {low_us / SECOND:g} seconds.", option=option)
        return length_us

    return read


def read_errors(value: Any, option: str) -> tuple[type[BaseException], ...]:
    kinds = (value,) if isinstance(value, type) else value
    if not isinstance(kinds, tuple | list) or not all(
        isinstance(k, type) and issubclass(k, BaseException) for k in kinds
    ):
        raise InvalidOption(f"`{option}` must list exception types.", option=option)
    return tuple(kinds)


def read_scope(value: Any, option: str) -> tuple[KeyScope, Micros]:
    if isinstance(value, str) and seconds_of(value) is None:
        if value not in ("incomplete", "result", "forever"):
            message = f"`{option}` must be 'incomplete', 'result', 'forever', seconds, a timedelta or {EXAMPLES}."
            raise InvalidOption(message, option=option)
        return KeyScope(value), 0
    return KeyScope.WINDOW, longer_than(1)(value, option)


def read_aliases(value: Any, option: str) -> tuple[str, ...]:
    if not isinstance(value, tuple | list):
        raise InvalidOption(f"`{option}` must list names: {option}=['old_name'].", option=option)
    names = tuple(check_name(name, option) for name in value)
    if len(set(names)) != len(names):
        raise InvalidOption(f"`{option}` names a task twice.", option=option)
    return names


def read_middleware(value: Any, option: str) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list) or not all(callable(item) for item in value):
        raise InvalidOption(f"`{option}` must list functions.", option=option)
    return tuple(value)


def read_codec(value: Any, option: str) -> Codec:
    if not isinstance(value, Codec):
        raise InvalidOption(f"`{option}` must be a Codec, with name, encode and decode.", option=option)
    return value


def read_flag(value: Any, option: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(f"`{option}` must be True or False.", option=option)
    return value


def read_transaction(value: Any, option: str) -> Any:
    if not isinstance(value, bool) and not callable(value):
        message = f"`{option}` must be True, or a function that makes a session, such as a sessionmaker."
        raise InvalidOption(message, option=option)
    return value


def check_factory(factory: Any, *, is_async: bool) -> None:
    """Refuse an async sessionmaker for a sync task, and the other way round, when the task is declared."""
    names = {kind.__name__ for kind in type(factory).__mro__ if kind.__module__.startswith("sqlalchemy.")}
    if is_async and "sessionmaker" in names:
        raise InvalidOption("An async task needs an `async_sessionmaker` as `transaction`.", option="transaction")
    if not is_async and "async_sessionmaker" in names:
        raise InvalidOption("A plain function needs a `sessionmaker` as `transaction`.", option="transaction")


def read_expires(value: Any, option: str) -> tuple[Instant | None, Micros | None]:
    """An instant, or a duration from now."""
    if isinstance(value, datetime):
        return instant_us(value, option), None
    return None, duration_us(value, option)
