"""Reads a file while other processes append lines to it."""

from pathlib import Path


def whole_lines(log: Path) -> list[str]:
    """The lines so far. A write that crosses a page of the file is seen in two parts, so a last part is left out."""
    return log.read_text().rpartition("\n")[0].splitlines() if log.exists() else []
