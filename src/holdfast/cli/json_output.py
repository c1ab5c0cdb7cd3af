"""Output for programs: values as one JSON object per line, under the field names of their classes.

One dialect for `--json`, for the events of `worker --json` and for the log: instants are ISO text in UTC with
microseconds, durations are seconds, an error is an object with `type`, `message` and `traceback`.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from math import isfinite
from typing import Any

import click

from holdfast.model.instants import SECOND
from holdfast.telemetry.events import Event
from holdfast.telemetry.logs import iso_text


def to_data(value: Any) -> Any:
    """A value in the types of JSON. Instants become ISO text, durations seconds; private fields are left out."""
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | str():
            return value
        case float():
            return value if isfinite(value) else str(value)
        case datetime():
            return iso_text(value)
        case date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(to_data(key)): to_data(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [to_data(item) for item in value]
        case bytes():
            return value.hex()
    if is_dataclass(value):
        return {item.name: to_data(getattr(value, item.name)) for item in fields(value) if item.name[0] != "_"}
    if names := getattr(value, "__struct_fields__", None):
        return {name: to_data(getattr(value, name)) for name in names}
    return str(value)


EVENT_DURATIONS = ("waited", "ran", "delay", "grace", "blocked")
"""Fields of events in microseconds."""


def event_data(event: Event) -> dict[str, Any]:
    """An event with the name of its kind."""
    data: dict[str, Any] = {"event": type(event).__name__, **to_data(event), "at": iso_text(event.time)}
    for name in EVENT_DURATIONS:
        if name in data:
            data[name] /= SECOND
    return data


def to_line(value: Any) -> str:
    """Only ASCII: stored text cannot send control characters to a terminal."""
    return json.dumps(to_data(value), separators=(", ", ": "))


def print_json(value: Any, **more: Any) -> None:
    """Print one object on one line; `more` stands before its fields."""
    click.echo(to_line({**more, **to_data(value)} if more else value))


def readable_json(value: Any) -> str:
    """JSON for people, in their own letters. Pass it through `safe` or `cut` before it is printed."""
    return json.dumps(to_data(value), ensure_ascii=False)
