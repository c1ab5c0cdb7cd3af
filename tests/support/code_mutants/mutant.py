"""One planted bug."""

from pathlib import Path
from typing import NamedTuple

SOURCE = "src/holdfast"


class Mutant(NamedTuple):
    """In `file`, below `src/holdfast`, `right` becomes `wrong`."""

    name: str
    file: str
    right: str
    """A text that occurs exactly once in the file."""
    wrong: str
    why: str
    """What the bug does, in one sentence."""
    tests: tuple[str, ...] = ()
    """Arguments of pytest, files or tests: at least one of these tests fails."""
    equivalent: str = ""
    """Why no test can notice it. Such a mutant is not run."""

    def applied(self, text: str) -> str:
        """The text of the file with the bug. Raises `DoesNotApply` if the code has moved."""
        found = text.count(self.right)
        if found != 1:
            raise DoesNotApply(f"{self.name!r}: its text occurs {found} times in {self.file}, not once. Repair it.")
        return text.replace(self.right, self.wrong)

    def path(self, root: Path) -> Path:
        return root / SOURCE / self.file


class DoesNotApply(Exception):
    """The text to replace is not there, or is there more than once."""
