"""The command line: `holdfast worker`, `enqueue`, `status`, `jobs`, `queues` and so on.

It uses what any program could use: an App, its client, its control. One file holds one group of commands; click and
rich are imported here and nowhere below, and each group only when it is called.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command line (that of the process, unless told) and exit with its code."""
    from holdfast.cli.exits import run
    from holdfast.cli.root import root

    sys.exit(run(root, argv))
