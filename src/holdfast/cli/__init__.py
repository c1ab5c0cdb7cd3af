"""The command line: `holdfast worker`, `enqueue`, `status`, `jobs`, `queues` and so on.

A command uses the public API only: an App, its client, its control. One file holds one group of commands. click and
rich are imported in this package and nowhere below it, and each group is imported only when it is called.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from holdfast.cli.target import TargetApp


def main(
    argv: Sequence[str] | None = None, *, program: str = "holdfast", default: "TargetApp | None" = None
) -> NoReturn:
    """Run a command line (default: the arguments of this process) and exit with its code.

    `default`: the App of a command that names none, in place of the configured one.
    """
    try:
        _open_closed_streams()
        from holdfast.cli.exits import run
        from holdfast.cli.root import root
    except KeyboardInterrupt:
        sys.exit(130)  # as `run` answers Ctrl-C

    sys.exit(run(root, argv, program=program, default=default))


def _open_closed_streams() -> None:
    """Replace standard streams that are closed (`>&-`). Else a file of the store could get the number of one, and what
    a library prints would be written into it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the end
