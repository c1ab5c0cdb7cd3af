"""What is shown to programs: values as one JSON object per line, under the field names of their classes."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from math import isfinite
from typing import Any

import click

from holdfast.cli.escape import cut

LONGEST_VALUE = 2_000


def data_of(value: Any) -> Any:
    """A value as JSON knows it. Instants become ISO text, durations seconds; what is private stays out."""
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | str():
            return value
        case float():
            return value if isfinite(value) else str(value)
        case datetime() | date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(data_of(key)): data_of(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [data_of(item) for item in value]
        case bytes():
            return value.hex()
    if is_dataclass(value):
        return {item.name: data_of(getattr(value, item.name)) for item in fields(value) if item.name[0] != "_"}
    if names := getattr(value, "__struct_fields__", None):
        return {name: data_of(getattr(value, name)) for name in names}
    return str(value)


def event_data(event: object) -> dict[str, Any]:
    """An event, with the name of its kind."""
    return {"event": type(event).__name__, **data_of(event)}


def line_of(value: Any) -> str:
    """Only ASCII, so that no stored text can reach a terminal as more than text."""
    return json.dumps(data_of(value), separators=(", ", ": "))


def emit(value: Any, **more: Any) -> None:
    """One object on a line; `more` goes before its fields."""
    click.echo(line_of({**more, **data_of(value)} if more else value))


def json_of(value: Any) -> str:
    """For people: in their own letters. It still has to be made safe for a terminal."""
    return json.dumps(data_of(value), ensure_ascii=False)


def value_of(value: Any) -> str:
    """An argument or a result, safe, and not endless."""
    return cut(json_of(value), LONGEST_VALUE)
