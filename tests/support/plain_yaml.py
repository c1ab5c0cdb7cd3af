"""Reads the YAML of `deploy/`: block mappings and lists, lists of JSON in one line, plain scalars, comment lines.

It refuses what it does not know. For a reader of all YAML the tests would need one more package.
"""

import json
import re
from typing import Any

_KEY = re.compile(r"([A-Za-z][A-Za-z0-9/._-]*):(?: (.+))?")


class _Lines:
    def __init__(self, text: str) -> None:
        self._lines = [
            (len(line) - len(line.lstrip(" ")), line.strip())
            for line in text.splitlines()
            if line.strip() and not line.lstrip().startswith("#")
        ]

    def next(self) -> tuple[int, str] | None:
        return self._lines[0] if self._lines else None

    def take(self) -> str:
        return self._lines.pop(0)[1]

    def replace(self, indent: int, text: str) -> None:
        self._lines[0] = (indent, text)


def read_yaml(text: str) -> Any:
    lines = _Lines(text)
    value = _block(lines, 0)
    assert lines.next() is None, f"not understood: {lines.next()}"
    return value


def _block(lines: _Lines, indent: int) -> Any:
    head = lines.next()
    assert head is not None
    assert head[0] == indent, f"wrong indent: {head}"
    return _list(lines, indent) if head[1].startswith("- ") else _mapping(lines, indent)


def _list(lines: _Lines, indent: int) -> list[Any]:
    values = []
    while (head := lines.next()) is not None and head[0] == indent and head[1].startswith("- "):
        lines.replace(indent + 2, head[1].removeprefix("- "))
        values.append(_block(lines, indent + 2))
    return values


def _mapping(lines: _Lines, indent: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    while (head := lines.next()) is not None and head[0] == indent and not head[1].startswith("- "):
        match = _KEY.fullmatch(lines.take())
        assert match is not None, f"not understood: {head[1]}"
        key, scalar = match.groups()
        assert key not in values, f"{key} is there twice"
        if scalar is not None:
            values[key] = _scalar(scalar)
        else:
            following = lines.next()
            assert following is not None
            assert following[0] > indent, f"{key} has no value"
            values[key] = _block(lines, following[0])
    return values


def _scalar(text: str) -> Any:
    if text.startswith("[") or text in ("true", "false") or text.isdecimal():
        return json.loads(text)
    assert not re.search(r"^[&*!|>%@`{\"'?-]|: | #", text), f"not understood: {text}"
    return text
