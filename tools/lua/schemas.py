"""Tables of the fields of commands and answers, for the code that decodes and encodes them in Lua."""

from typing import Any, get_args

from holdfast.engines.ledger.ledger import RULES
from holdfast.model.instants import At
from holdfast.model.job import JobRecord
from holdfast.model.observe import Audit
from holdfast.model.produce import NewJob
from holdfast.model.work import Lease
from tools.lua.value_types import Type, fields_of, of_hint

HEADER = """\
-- The fields of commands and answers, and of what is in them. Generated from the classes in src/holdfast/model by
-- `make lua`. A type: `code` is "value" (text, number, boolean), "bytes", "record" (a stored job or lease), "struct"
-- (of the class `of`), "list" (of the type `of`), "dict" (names to values) or "union" (a table whose `kind` is its
-- class). An item of a list that is `optional` may be false, which stands for None. `at` of an answer is left out.
-- The tables make their entries when they are read, because every call of the script runs this file.
"""

RECORDS = frozenset({JobRecord, Lease})
TAIL = {"payload": "tail", "codec": None, "metadata": None}
"""Three fields of a new job travel as one."""


def make_schemas() -> str:
    """The text of schemas.lua."""
    commands: dict[str, type] = {}
    answers: dict[str, type] = {}
    for command, rule in RULES.items():
        if command is not Audit:
            commands[rule.__name__] = command
            answers[rule.__name__] = _answer_of(command)
    structs: dict[str, type] = {}
    for cls in [*commands.values(), *answers.values()]:
        _collect(of_hint(cls), structs)
    lines = [HEADER, "local schemas = {}"]
    lines += _lookup("commands", {verb: f'"{cls.__name__}"' for verb, cls in commands.items()})
    lines += _lookup("answers", {verb: f'"{cls.__name__}"' for verb, cls in answers.items()})
    lines += _lookup("structs", {name: _table(cls) for name, cls in sorted(structs.items())})
    return "\n".join(lines) + "\n"


def _lookup(name: str, entries: dict[str, str]) -> list[str]:
    """A table that makes its entries when they are read: a call needs few of them."""
    lines = [f"schemas.{name} = setmetatable({{}}, {{", "  __index = function(entries, name)", "    local entry"]
    word = "if"
    for key, text in entries.items():
        lines += [f'    {word} name == "{key}" then', "      entry = " + text.replace("\n", "\n      ")]
        word = "elseif"
    return [*lines, "    end", "    entries[name] = entry", "    return entry", "  end,", "})"]


def _answer_of(command: type) -> type:
    bases: Any = getattr(command, "__orig_bases__")  # noqa: B009 - a class of msgspec
    found: type = get_args(bases[0])[0]
    return found


def _collect(type_: Type, structs: dict[str, type]) -> None:
    for member in type_.members():
        if member.kind == "struct" and member.cls is not None and member.cls not in RECORDS:
            if member.cls is not At and member.cls.__name__ not in structs:
                structs[member.cls.__name__] = member.cls
                for field in fields_of(member.cls).values():
                    _collect(field, structs)
        else:
            for argument in member.args:
                _collect(argument, structs)


def _table(cls: type) -> str:
    fields = _fields(cls)
    return "{\n" + "".join(f"  {field},\n" for field in fields) + "}" if fields else "{}"


def _fields(cls: type) -> list[str]:
    found = []
    for name, type_ in fields_of(cls).items():
        wire = TAIL.get(name, name) if cls is NewJob else name
        if name != "at" and wire is not None:
            found.append(f'{{ name = "{wire}", {_type(type_)} }}')
    return found


def _type(type_: Type) -> str:
    match type_.kind:
        case "struct" if type_.cls in RECORDS:
            return 'code = "record"'
        case "struct" if type_.cls is not None:
            return f'code = "struct", of = "{type_.cls.__name__}"'
        case "union":
            return 'code = "union"'
        case "list":
            optional = ", optional = true" if type_.item.optional else ""
            return f'code = "list", of = {{ {_type(type_.item)}{optional} }}'
        case "dict":
            return 'code = "dict"'
        case "bytes":
            return 'code = "bytes"'
        case "int" | "float" | "bool" | "str" | "enum" | "flag":
            return 'code = "value"'
    raise TypeError(f"no code for {type_}")
