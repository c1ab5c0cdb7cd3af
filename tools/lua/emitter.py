"""Lines of Lua, and pieces of expressions with their type and precedence."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag, StrEnum
from typing import Any

from msgspec import Struct

from holdfast.model import produce, records
from tools.lua.value_types import ANY, Type, fields_of

KINDS = frozenset(
    {
        *(records.QueueRecord, records.LaneRecord, records.PoolRecord, records.WorkerRecord),
        *(records.Edge, produce.GroupAccepted, produce.GroupFull, produce.GroupConflict, produce.GroupOrphan),
    }
)
"""Classes whose tables have the field `kind`."""

_KEYWORDS = frozenset(
    {
        *("and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not"),
        *("or", "repeat", "return", "then", "true", "until", "while"),
    }
)
_TAKEN = frozenset(
    {
        *("R", "S", "T", "rt", "Hold", "a", "b", "item", "bit", "math", "string", "table", "next", "ipairs", "pairs"),
        *("type", "assert", "tonumber", "redis"),
    }
)
"""Names that generated code uses for itself."""

WIDTH = 110


class Level(IntEnum):
    """How tightly an operator binds in Lua."""

    OR = 1
    AND = 2
    COMPARE = 3
    CONCAT = 4
    ADD = 5
    MULTIPLY = 6
    UNARY = 7
    ATOM = 9


@dataclass(frozen=True)
class Code:
    """An expression in Lua."""

    text: str
    type: Type = ANY
    level: Level = Level.ATOM
    stable: bool = False
    """It reads variables and fields of records only: statements before it do not change its value."""
    fresh: bool = False
    """A table that was made just now, and that nothing else refers to."""

    def within(self, level: Level) -> str:
        """The text as operand of an operator of this level."""
        return self.text if self.level >= level else f"({self.text})"

    def typed(self, type_: Type) -> "Code":
        return replace(self, type=type_)


NIL = Code("nil", Type("none"), stable=True)


def lua_name(name: str) -> str:
    return name + "_" if name in _KEYWORDS or name in _TAKEN else name


def field_of(table: str, name: str) -> str:
    return f'{table}["{name}"]' if name in _KEYWORDS else f"{table}.{name}"


def quoted(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    out = []
    for byte in data:
        if chr(byte) in '"\\':
            out.append("\\" + chr(byte))
        elif 32 <= byte < 127:
            out.append(chr(byte))
        else:
            out.append(f"\\{byte:03d}")
    return '"' + "".join(out) + '"'


def literal(value: Any) -> str:
    """A constant as Lua text. None is `nil`."""
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case StrEnum():
            return quoted(value.value)
        case IntFlag():
            return f"Hold.{value.name}"
        case int():
            return str(value)
        case str() | bytes():
            return quoted(value)
        case tuple() | list() if not hasattr(value, "_fields"):
            return table([literal(one) for one in value])
        case frozenset() | set():
            return table([f"[{one}] = true" for one in sorted(map(literal, value))])
        case dict():
            return table([f"[{literal(key)}] = {literal(one)}" for key, one in value.items()])
        case Struct():
            parts = [f"{name} = {literal(getattr(value, name))}" for name in fields_of(type(value))]
            return table(kind_of(type(value)) + [part for part in parts if not part.endswith(" = nil")])
    raise TypeError(f"no literal for {value!r}")


def kind_of(cls: type) -> list[str]:
    return [f'kind = "{cls.__name__}"'] if cls in KINDS else []


def table(parts: list[str]) -> str:
    if not parts:
        return "{}"
    flat = "{ " + ", ".join(parts) + " }"
    if len(flat) <= WIDTH and "\n" not in flat:
        return flat
    return "{\n" + "".join("  " + part.replace("\n", "\n  ") + ",\n" for part in parts) + "}"


class Emitter:
    """Collects lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = 0
        self._temps = 0

    def emit(self, text: str) -> None:
        self.lines += ["  " * self.indent + line for line in text.split("\n")]

    @contextmanager
    def indented(self) -> Iterator[None]:
        self.indent += 1
        yield
        self.indent -= 1

    @contextmanager
    def captured(self) -> Iterator[list[str]]:
        """Collect lines apart."""
        before, self.lines = self.lines, []
        try:
            yield self.lines
        finally:
            self.lines = before

    @contextmanager
    def tried(self) -> Iterator[list[str]]:
        """Collect lines that are thrown away."""
        temps = self._temps
        with self.captured() as lines:
            yield lines
        self._temps = temps

    def temp(self, hint: str) -> str:
        self._temps += 1
        return f"{hint}_{self._temps}"

    def spill(self, code: Code, hint: str = "value") -> Code:
        """Evaluate it now, into a variable."""
        name = self.temp(hint)
        self.emit(f"local {name} = {code.text}")
        return Code(name, code.type, stable=True)
