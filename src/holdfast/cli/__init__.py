"""The command line: `holdfast worker`, `enqueue`, `status`, `jobs`, `queues` and so on.

A command uses the public API only: an App, its client, its control. One file holds one group of commands. click and
rich are imported in this package and nowhere below it, and each group is imported only when it is called.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from holdfast.cli.target import TargetApp


def main(
    argv: Sequence[str] | None = None,
    *,
    program: str = "holdfast",
    default: "TargetApp | None" = None,
    process_ends: bool | None = None,
) -> NoReturn:
    """Run a command line (default: the arguments of this process) and exit with its code.

    `default`: the App of a command that names none, in place of the configured one. `process_ends`: the process does
    nothing else afterwards (default: true without `argv`), so a worker may end it by force if its threads go on.
    """
    try:
        from holdfast.cli.exits import run
        from holdfast.cli.options import for_program
        from holdfast.cli.root import root
        from holdfast.files import open_closed_streams

        open_closed_streams()
        if process_ends is None:
            process_ends = argv is None
        code = run(for_program(root, program), argv, program=program, default=default, process_ends=process_ends)
    except KeyboardInterrupt:
        code = 130  # as `run` answers Ctrl-C
    sys.exit(code)
