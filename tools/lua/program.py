"""What the functions of rules.lua share: constants, flags, and the names of functions."""

import ast
from enum import IntFlag
from typing import Any

from holdfast.engines.ledger.state import State
from holdfast.model.instants import At
from holdfast.model.job import JobRecord
from holdfast.model.produce import NewJob
from holdfast.model.work import LaneName
from tools.lua.emitter import kind_of, literal, table
from tools.lua.refusal import Refused
from tools.lua.sources import IN_RUNTIME, Function
from tools.lua.value_types import INT, STR, Type, fields_of, list_of, of_hint

OPENED_BY_STATE = ("metadata",)
"""Fields of a stored job that are in its `tail`; the state opens it."""
ADDED_BY_STATE = ("payload_apart", "pool_hash_hi", "pool_hash_lo")
"""Fields of a stored job that no rule reads, and that stay with it."""


def stored_name(cls: type, name: str) -> str:
    """The name of a field in Lua: payload and metadata of a job are one field, which only the state opens."""
    return "tail" if name == "payload" and cls in (JobRecord, NewJob) else name


class Program:
    """Collected while the functions are translated."""

    state = State

    def __init__(self, functions: list[Function]) -> None:
        self.functions: dict[tuple[str, str], Function] = {}
        self.constants: dict[str, str] = {}
        self.flags: dict[str, str] = {}
        self.copies: dict[str, str] = {}
        self.step_fields: dict[str, Type] = {
            "now": INT,
            "at": of_hint(At),
            "topics": Type("set", (STR,)),
            "emptied": list_of(of_hint(LaneName)),
        }
        names: dict[str, Function] = {}
        for function in functions:
            other = names.setdefault(function.name, function)
            if other is not function:
                raise Refused(function.node, f"`{function.name}` is also a function of {other.file}: rename one")
            self.functions[function.module.__name__, function.title] = function

    def copy_of(self, cls: type) -> str:
        """The Lua function that copies a record of this class: all fields at once, twice as fast as one by one."""
        name = f"copy_{cls.__name__}"
        fields = [stored_name(cls, field) for field in fields_of(cls)]
        if cls is JobRecord:
            fields = [field for field in fields if field not in OPENED_BY_STATE] + list(ADDED_BY_STATE)
        parts = kind_of(cls) + [f"{field} = record.{field}" for field in fields]
        body = ("return " + table(parts)).replace("\n", "\n  ")
        self.copies[name] = f"local function {name}(record)\n  {body}\nend"
        return name

    def constant(self, name: str, value: Any) -> str:
        """The Lua variable of a constant of a module."""
        text = literal(value)
        if self.constants.setdefault(name, text) != text:
            raise ValueError(f"two constants have the name {name}: rename one")
        return name

    def use_flags(self, cls: type[IntFlag]) -> None:
        parts = ", ".join(f"{member.name} = {member.value}" for member in cls.__members__.values())
        self.flags[cls.__name__] = f"{{ {parts} }}"

    def function(self, found: Any) -> Function | None:
        """The function that a Python function becomes."""
        return self.functions.get((getattr(found, "__module__", ""), getattr(found, "__qualname__", "")))

    def method(self, node: ast.AST, cls: type, name: str) -> Function:
        function = self.functions.get((cls.__module__, f"{cls.__name__}.{name}"))
        if function is None or f"{cls.__name__}.{name}" in IN_RUNTIME:
            raise Refused(node, f"{cls.__name__}.{name} is not translated")
        return function
