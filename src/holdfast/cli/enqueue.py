"""`holdfast enqueue`: enqueue a job from the command line.

Each ARG is JSON if it is valid JSON, and text otherwise: `3` is a number, `cat.png` is text, `'"3"'` is the text 3.
If the task declares a type that the JSON value does not fit, and the text does, it is text: `3` for a `str`.
`name=value` is an argument by name.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.format import safe
from holdfast.cli.json_output import print_json, readable_json
from holdfast.cli.options import Store, duration, examples, metadata_option, on_store, time
from holdfast.errors import InvalidArguments, UnknownTask

if TYPE_CHECKING:
    from holdfast.handle import Handle
    from holdfast.task import Task

_NAMED = re.compile(r"([^\W\d]\w*)=(.*)", re.DOTALL)
_OPTIONS = ("delay", "at", "id", "queue", "lane", "priority", "metadata", "wait")


@click.command(
    epilog=examples(
        "holdfast enqueue resize cat.png width=320",
        "holdfast enqueue resize dog.png --id dog --delay 10m --metadata customer=7",
        "holdfast enqueue report --args arguments.json --wait 30s",
        "holdfast enqueue add -- -1 2",
    )
)
@click.argument("task", metavar="TASK")
@click.argument("values", metavar="[ARG]... [NAME=VALUE]...", nargs=-1)
@click.option("--args", "file", metavar="FILE", help="Arguments as JSON, a list or an object; - is standard input.")
@click.option("--delay", type=duration, help="Do not run it before this time from now, such as 10m.")
@click.option("--at", type=time, help="Do not run it before this time, such as 2030-01-31T08:00+01:00.")
@click.option("--id", "job_id", metavar="ID", help="Your own id. The same id twice is one job.")
@click.option("--queue", metavar="NAME", help="Use this queue instead of the task's own.")
@click.option("--lane", metavar="NAME", help="Run one after the other with the other jobs of this lane.")
@click.option("--priority", type=int, metavar="N", help="Jobs with a higher number run first.")
@metadata_option("Text to find it by: see jobs list --metadata. May be given more than once.")
@click.option("--wait", type=duration, help="Wait this long for the result, and print it.")
@on_store(create=True)
def enqueue(
    store: Store, task: str, values: tuple[str, ...], file: str | None, wait: float | None, **options: Any
) -> None:
    """Enqueue one job of TASK.

    Each ARG is JSON if it is valid JSON and fits the task, and text otherwise.
    """
    declared = _task(store, task).using(**_given(options))
    args, kwargs = _arguments(values, file, declared.fits)
    try:
        handle = declared.enqueue(*args, **kwargs)
    except InvalidArguments as error:
        unknown = f"Task {task!r} has no parameter `{error.field}`."
        if error.field not in _OPTIONS or not str(error).startswith(unknown):
            raise
        raise InvalidArguments(
            f"{unknown} It is an option of this command: --{error.field}.", task=task, field=error.field
        ) from error
    if wait is None:
        _print_receipt(store, handle)
        return
    if not store.as_json:
        click.echo(safe(handle.id), err=True)
    result = handle.result(timeout=wait)
    if store.as_json:
        print_json({"id": handle.id, "queue": handle.queue, "receipt": handle.receipt, "result": result})
    else:
        click.echo(safe(readable_json(result)))


def _task(store: Store, name: str) -> "Task[..., Any]":
    """Refuse a name that the App does not declare: a misspelt name would become a job that no worker can run."""
    tasks = store.app.registry
    if len(tasks) and tasks.find(name) is None:
        raise UnknownTask(task=name, known=tasks)
    return store.client.task(name)


def _given(options: dict[str, Any]) -> Any:
    """The options that were given, as keywords of `using`."""
    options["id"] = options.pop("job_id")
    return {name: value for name, value in options.items() if value is not None and value != {}}


def _print_receipt(store: Store, handle: "Handle[Any]") -> None:
    receipt = handle.receipt
    if store.as_json:
        print_json({"id": handle.id, "queue": handle.queue, "receipt": receipt})
    elif receipt is not None:
        place = "" if receipt.position is None else f"  position {receipt.position} of {receipt.depth}"
        click.echo(f"{safe(handle.id)}  {receipt.answer}  {receipt.state} in queue {safe(handle.queue)}{place}")


# --- Arguments ---


Fits = Callable[[int | str, Any], bool]
"""Whether a value fits the parameter at a position, or of a name."""


def _arguments(values: tuple[str, ...], file: str | None, fits: Fits) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = _from_file(file) if file is not None else ([], {})
    for value in values:
        named = _NAMED.fullmatch(value)
        if named is None:
            args.append(_read(value, len(args), fits))
        elif named[1] in kwargs:
            raise click.UsageError(f"The argument {named[1]} is given twice.")
        else:
            kwargs[named[1]] = _read(named[2], named[1], fits)
    return args, kwargs


def _read(value: str, parameter: int | str, fits: Fits) -> Any:
    try:
        read = json.loads(value, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return value
    return value if not fits(parameter, read) and fits(parameter, value) else read


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is text")


def _from_file(file: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        arguments = json.loads(text, parse_constant=_no_number)
    except (OSError, ValueError, RecursionError) as error:
        raise click.UsageError(f"--args {file} cannot be read as JSON: {safe(error)}") from error
    match arguments:
        case list():
            return arguments, {}
        case dict():
            return [], arguments
        case _:
            raise click.UsageError(f"--args {file} must contain a list or an object.")
