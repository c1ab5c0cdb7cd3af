"""`holdfast enqueue`: a job from the command line.

Each ARG is JSON if it can be read as such, and text otherwise: `3` is a number, `cat.png` is text, `'"3"'` is the text
3. `name=value` is an argument by name.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import click

from holdfast.cli.escape import safe
from holdfast.cli.options import Store, duration, examples, on_store, time
from holdfast.cli.records import emit, json_of
from holdfast.errors import UnknownTask
from holdfast.handle import Handle
from holdfast.task import Task

_NAMED = re.compile(r"([^\W\d]\w*)=(.*)", re.DOTALL)


@click.command(
    epilog=examples(
        "holdfast enqueue resize cat.png width=320",
        "holdfast enqueue resize dog.png --id dog --delay 10m",
        "holdfast enqueue report --args arguments.json --wait 30s",
        "holdfast enqueue add -- -1 2",
    )
)
@click.argument("task", metavar="TASK")
@click.argument("values", metavar="[ARG]... [NAME=VALUE]...", nargs=-1)
@click.option("--args", "file", metavar="FILE", help="Arguments as JSON, a list or an object; - is standard input.")
@click.option("--delay", type=duration, help="Not before so long from now, such as 10m.")
@click.option("--at", type=time, help="Not before this moment, such as 2030-01-31T08:00+01:00.")
@click.option("--id", "job_id", metavar="ID", help="Your own id: the same one twice is one job.")
@click.option("--queue", metavar="NAME", help="Another queue than the task's own.")
@click.option("--lane", metavar="NAME", help="One after the other with the others of this lane.")
@click.option("--priority", type=int, metavar="N", help="Higher runs sooner.")
@click.option("--wait", type=duration, help="Wait so long for the result, and print it.")
@on_store(create=True)
def enqueue(
    store: Store, task: str, values: tuple[str, ...], file: str | None, wait: float | None, **options: Any
) -> None:
    """Enqueue one job of TASK.

    Each ARG is JSON if it can be read as such, and text otherwise.
    """
    args, kwargs = _arguments(values, file)
    handle = _task(store, task).using(**_chosen(options)).enqueue(*args, **kwargs)
    if wait is None:
        _accepted(store, handle)
        return
    if not store.as_json:
        click.echo(safe(handle.id), err=True)
    result = handle.result(timeout=wait)
    if store.as_json:
        emit({"id": handle.id, "queue": handle.queue, "receipt": handle.receipt, "result": result})
    else:
        click.echo(safe(json_of(result)))


def _task(store: Store, name: str) -> Task[..., Any]:
    """With an App at hand its tasks are all there are: a typing error shall not become a job nobody can run."""
    known = store.app.registry
    if len(known) and name not in known:
        raise UnknownTask(task=name, known=known)
    return store.client.task(name)


def _chosen(options: dict[str, Any]) -> Any:
    options["id"] = options.pop("job_id")
    return {name: value for name, value in options.items() if value is not None}


def _accepted(store: Store, handle: Handle[Any]) -> None:
    receipt = handle.receipt
    if store.as_json:
        emit({"id": handle.id, "queue": handle.queue, "receipt": receipt})
    elif receipt is not None:
        place = "" if receipt.position is None else f"  position {receipt.position} of {receipt.depth}"
        click.echo(f"{safe(handle.id)}  {receipt.answer}  {receipt.state} in queue {safe(handle.queue)}{place}")


# --- Arguments ---


def _arguments(values: tuple[str, ...], file: str | None) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = _from_file(file) if file is not None else ([], {})
    for value in values:
        found = _NAMED.fullmatch(value)
        if found is None:
            args.append(_read(value))
        elif found[1] in kwargs:
            raise click.UsageError(f"The argument {found[1]} is given twice.")
        else:
            kwargs[found[1]] = _read(found[2])
    return args, kwargs


def _read(value: str) -> Any:
    try:
        return json.loads(value, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return value


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is text")


def _from_file(file: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        said = json.loads(text, parse_constant=_no_number)
    except (OSError, ValueError, RecursionError) as error:
        raise click.UsageError(f"--args {file} cannot be read as JSON: {safe(error)}") from error
    match said:
        case list():
            return said, {}
        case dict():
            return [], said
        case _:
            raise click.UsageError(f"--args {file} must hold a list or an object.")
