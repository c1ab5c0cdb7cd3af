"""`make size`: the tables of docs/contributing/size.md as they are now, beside those that are committed.

`make size WRITE=1` writes them into the page.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from tools.size import code_lines
from tools.size.walks import walks

PAGE = Path(__file__).parents[2] / "docs/contributing/size.md"
TABLES = "<!-- tables: make size WRITE=1 -->\n"
NO_PYTHON = ("SQL", "Lua", "Lua, generated")

Row = tuple[str, ...]


def rows() -> list[Row]:
    counts = code_lines.of_package()
    python = [count for name, count in counts.items() if name not in NO_PYTHON]
    total = code_lines.Count(sum(count.files for count in python), sum(count.lines for count in python))
    return [
        ("part", "files", "code lines"),
        *((name, f"{count.files:,}", f"{count.lines:,}") for name, count in sorted(counts.items(), key=_order)),
        ("Python in all", f"{total.files:,}", f"{total.lines:,}"),
        ("path", "calls", "functions", "files"),
        *((walk.name, *(f"{number:,}" for number in walk[1:])) for walk in walks()),
    ]


def _order(item: tuple[str, code_lines.Count]) -> tuple[bool, str]:
    return item[0] in NO_PYTHON, item[0]


def to_text(rows: Sequence[Row]) -> str:
    """The rows as two tables; the second begins where the length of the rows changes."""
    lines: list[str] = []
    for before, row in zip([(), *rows], rows, strict=False):
        if before and len(before) != len(row):
            lines.append("")
        lines.append(f"| {' | '.join(row)} |")
        if len(before) != len(row):
            lines.append(f"|---|{'---:|' * (len(row) - 1)}")
    return "".join(f"{line}\n" for line in lines)


def read(page: str) -> list[Row]:
    """The rows of the committed tables."""
    found = page.partition(TABLES)[2].splitlines()
    return [tuple(line.strip("| ").split(" | ")) for line in found if line.startswith("| ")]


def difference(before: Sequence[Row], now: Sequence[Row]) -> str:
    """Each row as it is now, with what it was if that differs."""
    known = {row[0]: row for row in before}
    lines = []
    for row in now:
        old = known.pop(row[0], None)
        was = "" if old == row else "   new" if old is None else f"   was {'  '.join(old[1:])}"
        lines.append(f"{row[0]:30}{''.join(f'{cell:>12}' for cell in row[1:])}{was}")
    return "\n".join([*lines, *(f"{name:30}   gone" for name in known)])


def main(arguments: list[str]) -> None:
    page, now = PAGE.read_text(encoding="utf-8"), rows()
    print(difference(read(page), now))
    if "--write" in arguments:
        PAGE.write_text(page.partition(TABLES)[0] + TABLES + to_text(now), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
