"""Commands and answers as short Python text, so that a failure reads like a script.

Only what differs from the default is shown, and instants count from where the run began: `T + 10 * SECOND`.
"""

import inspect
from enum import Enum
from typing import Any

from holdfast.model.instants import DAY, FOREVER, HOUR, MILLISECOND, MINUTE, SECOND

_UNITS = ((DAY, "DAY"), (HOUR, "HOUR"), (MINUTE, "MINUTE"), (SECOND, "SECOND"), (MILLISECOND, "MILLISECOND"))


class Script:
    """Writes values as text; `wall` and `lease` are the instants that the text calls T and L."""

    def __init__(self, wall: int, lease: int) -> None:
        self._defaults: dict[type, dict[str, object]] = {}
        self._starts = (("T", wall), ("L", lease)) if wall != lease else (("T", wall),)

    def text(self, value: object) -> str:
        """The value as a Python expression."""
        match value:
            case Enum():
                return f"{type(value).__name__}.{value.name}"
            case bool() | None:
                return repr(value)
            case int():
                return self._number(value)
            case tuple():
                return "(" + "".join(f"{self.text(item)}, " for item in value).removesuffix(" ") + ")"
            case dict():
                return (
                    "{"
                    + ", ".join(f"{self.text(key)}: {self.text(item_value)}" for key, item_value in value.items())
                    + "}"
                )
            case _ if hasattr(value, "__struct_fields__"):
                return self._struct(value)
            case _:
                return repr(value)

    def _struct(self, value: Any) -> str:
        defaults = self._defaults_of(type(value))
        shown = [
            f"{name}={self.text(item_value)}"
            for name in value.__struct_fields__
            if (item_value := getattr(value, name)) != defaults[name] and item_value != {} and name != "at"
        ]
        return f"{type(value).__name__}({', '.join(shown)})"

    def _defaults_of(self, kind: type) -> dict[str, object]:
        defaults = self._defaults.get(kind)
        if defaults is None:
            parameters = inspect.signature(kind).parameters
            defaults = self._defaults[kind] = {name: parameter.default for name, parameter in parameters.items()}
        return defaults

    def _number(self, value: int) -> str:
        if value == FOREVER:
            return "FOREVER"
        for name, start in self._starts:
            if -DAY <= value - start <= 1_000 * DAY and value > DAY:
                return f"{name} + {duration(value - start)}" if value != start else name
        return duration(value) if value >= MILLISECOND else str(value)


def duration(value: int) -> str:
    """A whole number of the largest unit that divides it."""
    for unit, name in _UNITS:
        if value and value % unit == 0:
            return name if value == unit else f"{value // unit} * {name}"
    return str(value)
