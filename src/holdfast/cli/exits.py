"""How a command ends: its exit code, and one clear line where something went wrong.

    0  done                              3  the store cannot be reached
    1  refused, or the job failed        4  nothing matched
    2  wrong usage or configuration      130  Ctrl-C

`HOLDFAST_DEBUG=1` shows the traceback as well.
"""

import os
import sys
import traceback
from collections.abc import Sequence

import click

from holdfast.cli.escape import safe_lines
from holdfast.errors import EngineError, HoldfastError, JobNotFound, UsageError

DONE = 0
REFUSED = 1
USAGE = 2
UNREACHABLE = 3
NOTHING = 4
INTERRUPTED = 130

DEBUG = "HOLDFAST_DEBUG"


class Ending(click.ClickException):
    """The command ends here, with a line that says why."""

    def show(self, file: object = None) -> None:
        say(self.message)


class NothingMatched(Ending):
    exit_code = NOTHING


class NotDone(Ending):
    exit_code = REFUSED


def run(command: click.Command, argv: Sequence[str] | None = None) -> int:
    """Run a command line and answer its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a letter is no reason to fail
    # Taken out of the environment, where the configuration would not know it as a setting.
    debug = os.environ.pop(DEBUG, "") not in ("", "0")
    try:
        code = command.main(args=None if argv is None else list(argv), prog_name="holdfast", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        click.echo("", err=True)
        return INTERRUPTED
    except HoldfastError as error:
        if debug:
            traceback.print_exception(error)
        say(str(error))
        return code_of(error)


def code_of(error: HoldfastError) -> int:
    match error:
        case JobNotFound():
            return NOTHING
        case UsageError():
            return USAGE
        case EngineError():
            return UNREACHABLE
        case _:
            return REFUSED


def say(text: str) -> None:
    """A line for people, beside the output."""
    first, *rest = safe_lines(text) or [""]
    click.echo(f"holdfast: {first.removeprefix('holdfast: ')}", err=True)
    for line in rest:
        click.echo(line, err=True)
