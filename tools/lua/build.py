"""Writes rules.lua."""

import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.model.states import TRANSITIONS
from tools.lua.emitter import literal
from tools.lua.program import Program
from tools.lua.refusal import Refused
from tools.lua.sources import Function, find_functions
from tools.lua.statements import translate

RULES = Path(__file__).parents[2] / "src/holdfast/engines/redis/lua/rules.lua"

HEADER = """\
-- The rules of Holdfast. Generated from src/holdfast/engines/ledger by `make lua`: change the ledger, not this file.
-- Each function is headed by its file and function there. A comment such as `-- L3` names a rule of docs/contract.md.
-- The state is `S` (state.lua), the step `step` (step.lua), the helpers `rt` (runtime.lua).
"""


class DialectError(Exception):
    """The ledger uses constructs that have no translation."""


def make_rules(texts: Mapping[str, str] | None = None) -> str:
    """The text of rules.lua. `texts`: sources of modules to use instead of those on the disk."""
    transitions = {"" if state is None else state: targets for state, targets in TRANSITIONS.items()}
    return f"{HEADER}\nR.TRANSITIONS = {literal(transitions)}\n\n{make_lua(find_functions(texts))}"


def make_lua(functions: list[Function]) -> str:
    """The constants and functions as Lua."""
    refusals: list[str] = []
    parts: dict[str, str] = {}
    try:
        program = Program(functions)
    except Refused as refused:
        raise DialectError(refused.at("")) from refused
    for function in functions:
        try:
            parts[function.name] = translate(program, function)
        except Refused as refused:
            refusals.append(refused.at(f"src/holdfast/{function.file}"))
    if refusals:
        raise DialectError("\n".join(refusals))
    constants = {**program.flags, **dict(sorted(program.constants.items()))}
    lines = [f"local {name} = {text}\n" for name, text in constants.items()]
    lines += [f"\n{text}\n" for _, text in sorted(program.copies.items())]
    # A property that is one expression stands where it is read.
    texts = [parts[one.name] for one in functions if not one.is_property or _is_called(one.name, parts)]
    return "".join(lines) + "\n" + "\n\n".join(texts) + "\n"


def _is_called(name: str, parts: Mapping[str, str]) -> bool:
    return any(f"R.{name}(" in text for other, text in parts.items() if other != name)


def main() -> int:
    try:
        text = make_rules()
    except DialectError as error:
        print(error, file=sys.stderr)
        return 1
    RULES.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
