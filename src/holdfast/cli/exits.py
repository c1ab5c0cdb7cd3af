"""How a command ends: its exit code, its error message, and the question before it changes something for good.

    0  done                              3  the store cannot be reached
    1  refused, or the job failed        4  nothing matched
    2  wrong usage, configuration        5  `worker --until-empty` has left jobs
       or schema of the store
    6  no child of a manager could start
    7  children of a manager had to be killed
                                         130  Ctrl-C

`HOLDFAST_DEBUG=1` shows the traceback as well.
"""

import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from holdfast.cli.format import safe, safe_lines
from holdfast.errors import EngineError, HoldfastError, JobNotFound, SchemaMismatch, UsageError
from holdfast.files import discard_output
from holdfast.model.findings import START_WORKER

if TYPE_CHECKING:
    from holdfast.cli.target import TargetApp

DONE = 0
REFUSED = 1
USAGE = 2
UNREACHABLE = 3
NOTHING = 4
LEFT = 5
NO_CHILD = 6
CHILDREN_KILLED = 7
INTERRUPTED = 130

EXIT_CODES = {
    DONE: "done",
    REFUSED: "refused, or the job failed",
    USAGE: "wrong usage or configuration, or the schema of the store does not fit",
    UNREACHABLE: "the store cannot be reached",
    NOTHING: "nothing matched",
    LEFT: "`worker --until-empty` has left jobs",
    NO_CHILD: "no worker of a manager could start",
    CHILDREN_KILLED: "workers of a manager had to be killed",
    INTERRUPTED: "Ctrl-C",
}
"""All codes and what each means."""

STORE_OPTIONS = ("--app", "--url", "--namespace")
DEBUG = "HOLDFAST_DEBUG"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""A disk that takes no more output."""


@dataclass(slots=True)
class Invocation:
    """One run of the command line: the `obj` of its contexts."""

    program: str
    """`holdfast`, or the name of the program that embeds it."""
    default: "TargetApp | None" = None
    """See `target.find`."""
    worker_command: str = START_WORKER
    """Starts a worker for the App in use."""
    store_options: str = ""
    """The options that name the store in use, as they must be given to another command."""
    process_ends: bool = False
    """The process does nothing else after the command."""

    def advice(self, text: str) -> str:
        """A text that advises a command, as the command must be given here."""
        text = text.replace(START_WORKER, self.worker_command)
        migrate = f"{self.program} migrate{self.store_options}"  # may contain backslashes
        text = re.sub(r"(?<!\S)(`?)holdfast migrate\b", lambda found: found[1] + migrate, text)
        return text.replace("Run: holdfast ", f"Run: {self.program} ")


class CommandEnd(click.ClickException):
    """The command ends here. The message says why."""

    def show(self, file: object = None) -> None:
        print_message(self.message)


class NothingMatched(CommandEnd):
    exit_code = NOTHING


class JobsLeft(CommandEnd):
    exit_code = LEFT


class NoChildStarted(CommandEnd):
    exit_code = NO_CHILD


class ChildrenKilled(CommandEnd):
    exit_code = CHILDREN_KILLED


class NotDone(CommandEnd):
    exit_code = REFUSED


def run(
    command: click.Command,
    argv: Sequence[str] | None = None,
    *,
    program: str = "holdfast",
    default: "TargetApp | None" = None,
    process_ends: bool = False,
) -> int:
    """Run a command line and return its exit code. `default`: see `target.find`."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A command must not fail because the terminal's encoding lacks a character.
            stream.reconfigure(errors="backslashreplace")
    invocation = Invocation(program, default, process_ends=process_ends)
    debug = os.environ.get(DEBUG, "") not in ("", "0")
    try:
        code = command.main(
            args=None if argv is None else list(argv), prog_name=program, standalone_mode=False, obj=invocation
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except click.ClickException as error:
        error.show()
        if hint := _usage_hint(error):
            click.echo(hint, err=True)
        return error.exit_code
    except click.Abort as error:
        if not isinstance(error.__cause__, KeyboardInterrupt):  # then click has ended the line with ^C
            click.echo("", err=True)
        return INTERRUPTED
    except HoldfastError as error:
        if debug:
            traceback.print_exception(error)
        print_message(invocation.advice(str(error)))
        return code_of(error)
    except OSError as error:
        if error.errno not in FULL or error.filename is not None:  # else standard output cannot be written
            raise
        discard_output(sys.stdout.fileno())  # what is left in its buffer must not fail again when the process ends
        print_message(f"Standard output cannot be written: {error.strerror}.")
        return REFUSED


def _usage_hint(error: click.ClickException) -> str:
    """Where the App and the store of a command are named."""
    if isinstance(error, click.NoSuchOption) and error.option_name in STORE_OPTIONS:
        return "Write it after the command."
    command = error.ctx.command if isinstance(error, click.UsageError) and error.ctx is not None else None
    takes_app = command is not None and any("--app" in parameter.opts for parameter in command.params)
    return "To name the App, write --app NAME." if takes_app and error.message.startswith("Got unexpected") else ""


def code_of(error: HoldfastError) -> int:
    match error:
        case JobNotFound():
            return NOTHING
        case UsageError() | SchemaMismatch():  # a supervisor gains nothing by another start
            return USAGE
        case EngineError():
            return UNREACHABLE
        case _:
            return REFUSED


def print_message(text: str) -> None:
    """Print a message for people on standard error."""
    first, *rest = safe_lines(text) or [""]
    click.echo(f"holdfast: {first.removeprefix('holdfast: ')}", err=True)
    for line in rest:
        click.echo(line, err=True)


def confirm(action: str, *, yes: bool) -> None:
    """Print the action and ask whether to go on. Without a terminal to ask on, `--yes` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{safe(action)} Add --yes to confirm: standard input is not a terminal.")
    if not click.confirm(f"{safe(action)} Go on?", err=True):
        raise NotDone("Nothing was done.")
