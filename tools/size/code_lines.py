"""Code lines: lines that are neither blank nor comment nor docstring.

They are counted so that nobody gains by deleting prose.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "src/holdfast"
LEFT_OUT = "testing"
"""A package for the tests of users."""
GENERATED = "rules.lua"
NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)


class Count(NamedTuple):
    files: int
    lines: int


def of_python(source: str) -> int:
    """The number of code lines. A statement that is only a text is a docstring, of whatever it stands under."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def of_text(source: str, comment: str) -> int:
    """The same for SQL and Lua, which have no docstrings. `comment` begins a line that is one."""
    return sum(1 for line in map(str.strip, source.splitlines()) if line and not line.startswith(comment))


def of_package() -> dict[str, Count]:
    """The Python files of each folder directly below `holdfast`, those beside the folders, and SQL and Lua."""
    counts: dict[str, list[int]] = {}
    for name, lines in _files():
        counts.setdefault(name, []).append(lines)
    return {name: Count(len(found), sum(found)) for name, found in counts.items()}


def _files() -> Iterator[tuple[str, int]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        top, *rest = path.relative_to(PACKAGE).parts
        if top != LEFT_OUT:
            name = f"{top}/{rest[0]}" if len(rest) > 1 and top == "engines" else top if rest else "(beside the folders)"
            yield f"`{name}`" if rest else name, of_python(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.sql")):
        yield "SQL", of_text(path.read_text(encoding="utf-8"), "--")
    for path in sorted(PACKAGE.rglob("*.lua")):
        name = "Lua, generated" if path.name == GENERATED else "Lua"
        yield name, of_text(path.read_text(encoding="utf-8"), "--")
