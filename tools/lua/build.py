"""Writes rules.lua."""

import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.model.states import TRANSITIONS
from tools.lua.emitter import literal
from tools.lua.program import Program
from tools.lua.refusal import Refused
from tools.lua.sources import find_functions
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
    functions = find_functions(texts)
    refusals: list[str] = []
    program = Program(functions)
    parts = []
    for function in functions:
        try:
            parts.append(translate(program, function))
        except Refused as refused:
            refusals.append(refused.at(f"src/holdfast/{function.file}"))
    if refusals:
        raise DialectError("\n".join(refusals))
    transitions = {"" if state is None else state: targets for state, targets in TRANSITIONS.items()}
    lines = [HEADER]
    lines += [f"local {name} = {text}" for name, text in program.flags.items()]
    lines += [f"local {name} = {text}" for name, text in sorted(program.constants.items())]
    lines.append(f"\nR.TRANSITIONS = {literal(transitions)}")
    return "\n".join(lines) + "\n\n" + "\n\n".join(parts) + "\n"


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
