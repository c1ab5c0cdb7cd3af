"""The output of the demo: the same lines on a terminal and in a log; only the progress bar is redrawn."""

import sys

BAR_WIDTH = 32
"""Characters of the progress bar."""


class Screen:
    """Plain text; colours and redrawing only on a terminal."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self._drawn_lines = 0

    def line(self, text: str = "") -> None:
        self._keep_drawn()
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def head(self, text: str) -> None:
        self.line()
        self.line(f"\x1b[1m{text}\x1b[0m" if self.live else text)

    def good(self, text: str) -> None:
        self.line(f"   \x1b[32m✓\x1b[0m {text}" if self.live else f"   ✓ {text}")

    def bad(self, text: str) -> None:
        self.line(f"   \x1b[31m✗\x1b[0m {text}" if self.live else f"   ✗ {text}")

    def redraw(self, lines: list[str]) -> None:
        """Lines that replace those drawn last. Nothing without a terminal: the last state is printed by `line`."""
        if self.live:
            if self._drawn_lines:
                sys.stdout.write(f"\x1b[{self._drawn_lines}A")
            sys.stdout.write("".join(f"\x1b[2K{line}\n" for line in lines))
            sys.stdout.flush()
            self._drawn_lines = len(lines)

    def _keep_drawn(self) -> None:
        self._drawn_lines = 0


def bar(done: int, of: int) -> str:
    filled = BAR_WIDTH * done // of if of else BAR_WIDTH
    return "━" * filled + "╌" * (BAR_WIDTH - filled)
