"""`holdfast file`: print the files of a file store, also while it is used or if it is damaged; and compact them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from holdfast.cli.exits import DONE, REFUSED, NothingMatched, confirm
from holdfast.cli.format import count, safe
from holdfast.cli.json_output import print_json, to_data
from holdfast.cli.options import CommandGroup, examples, json_option, yes_option
from holdfast.engines.file.compact import compact_store
from holdfast.engines.file.engine import path_of
from holdfast.engines.file.inspect import (
    InspectedChange,
    InspectedDamage,
    InspectedFile,
    InspectedFrame,
    InspectedStore,
    Item,
    UnfinishedWrite,
    inspect_store,
)
from holdfast.errors import EngineUnavailable
from holdfast.model.instants import Instant
from holdfast.model.job import JobRecord
from holdfast.runtime import SystemRuntime

KINDS = {
    InspectedStore: "store",
    InspectedFile: "file",
    InspectedFrame: "frame",
    InspectedChange: "change",
    UnfinishedWrite: "unfinished",
    InspectedDamage: "damage",
}
SECRETS = ("token", "settled_token", "reaped_token")
"""Fields that are not printed: with the token of a lease its job can be settled."""


place_argument = click.argument("place", metavar="DIR")
namespace_option = click.option(
    "--namespace", default="holdfast", metavar="NAME", help="The namespace of the store. Default: holdfast."
)


@click.group(
    cls=CommandGroup,
    epilog=examples("holdfast file inspect /var/lib/scanner", "holdfast file compact /var/lib/scanner"),
)
def file() -> None:
    """Look into the files of a file store, or compact them."""


@file.command(
    "compact",
    epilog=examples("holdfast file compact /var/lib/scanner", "holdfast file compact --drop-ended /var/lib/scanner"),
)
@place_argument
@namespace_option
@click.option("--drop-ended", is_flag=True, help="Delete all jobs that have ended, also if the disk is full.")
@yes_option
@json_option
def compact(place: str, namespace: str, drop_ended: bool, yes: bool, as_json: bool) -> None:
    """Replace the journal of a store by a snapshot of its jobs. No job is lost, and processes that use it go on.

    DIR is the folder of the store, or its address, file:///var/lib/scanner. A store also does this by itself, when its
    journal is long.

    --drop-ended leaves out the jobs that have succeeded, failed or been cancelled, with their results and unique keys.
    It needs space for the other jobs only, and takes that of the reserve if the disk is full.
    """
    folder = _folder(place)
    if drop_ended:
        confirm(f"Delete all jobs that have ended from {folder.absolute()}.", yes=yes)
    with _explained(folder, namespace):
        result = compact_store(folder, namespace, SystemRuntime(), drop_ended=drop_ended)
    if as_json:
        print_json(result._asdict())
    else:
        click.echo(f"{result.bytes_before:,} bytes before, {result.bytes_after:,} bytes now.")


@file.command("inspect", epilog=examples("holdfast file inspect /var/lib/scanner", "holdfast file inspect jobs --json"))
@place_argument
@namespace_option
@json_option
def inspect(place: str, namespace: str, as_json: bool) -> int:
    """Print what is written in the files of a store: frames, their changes, and what is damaged.

    DIR is the folder of the store, or its address, file:///var/lib/scanner.

    Changes nothing, takes no lock and needs no engine. Exits with 1 if something is damaged.
    """
    folder = _folder(place)
    counts: Counter[str] = Counter()
    damages: list[InspectedDamage] = []
    with _explained(folder, namespace):
        for item in inspect_store(folder, namespace):
            counts[KINDS[type(item)]] += 1
            if isinstance(item, InspectedDamage):
                damages.append(item)
            if as_json:
                print_json(_data(item), kind=KINDS[type(item)])
            else:
                click.echo(_line(item))
    if not as_json:
        click.echo()
        click.echo(
            f"{count(counts['file'], 'file')}, {count(counts['frame'], 'frame')}, {count(counts['change'], 'change')}. "
            + (f"{count(len(damages), 'place')} damaged:" if damages else "Nothing is damaged.")
        )
        for damage in damages:
            click.echo(_line(damage))
    return REFUSED if damages else DONE


def _folder(place: str) -> Path:
    return Path(path_of(place) if place.startswith("file:") else place)


@contextmanager
def _explained(folder: Path, namespace: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NothingMatched(f"There is no store with the namespace {namespace!r} in {folder.absolute()}.") from error
    except PermissionError as error:
        message = f"{folder.absolute()} cannot be read ({error}). Run the command as the user who owns the folder."
        raise EngineUnavailable(message, engine="file") from error


def _time(at: Instant) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)


def _data(item: Item) -> dict[str, Any]:
    if isinstance(item, InspectedChange):
        record = {name: value for name, value in to_data(item.record).items() if name not in SECRETS}
        data = {name: value for name, value in _fields(item).items() if name != "record"}
        return {**data, "type": _type(item), "record": record}
    if isinstance(item, InspectedFrame):
        return {**asdict(item), "at": _time(item.at)}
    return asdict(item)


def _fields(item: Item) -> dict[str, Any]:
    return {field.name: getattr(item, field.name) for field in fields(item)}


def _type(change: InspectedChange) -> str:
    return type(change.record).__name__.removesuffix("Record").lower()


def _line(item: Item) -> str:
    match item:
        case InspectedStore():
            lines = [
                f"{safe(item.folder)}   {safe(item.format) or 'no format'}   id {item.id}",
                f"synced to {item.synced_offset:,} in {item.synced_file}" if item.synced_file else "no mark of a sync",
            ]
            if item.suspect:
                lines.append(f"A SYNC HAS FAILED: {safe(item.suspect)}")
            return "\n".join([*lines, *(f"{safe(name)}   {size:,} bytes" for name, size in item.other_files.items())])
        case InspectedFile():
            return f"\n{item.file}   {item.size:,} bytes"
        case InspectedFrame():
            words = [
                f"frame {item.sequence} at {item.offset:,}",
                *([f"{_time(item.at):%Y-%m-%d %H:%M:%S.%f}Z"] if item.at else []),  # 0: the first frame of a store
                count(item.changes, "change"),
                f"{item.length:,} bytes",
                *item.flags,
            ]
            return f"  {'   '.join(words)}"
        case InspectedChange():
            return f"    {_change_text(item)}"
        case UnfinishedWrite():
            return (
                f"  {item.length:,} bytes at {item.offset:,} after the last complete frame: a write that is under way, "
                "or one that was cut off and not acknowledged"
            )
        case InspectedDamage():
            return f"  DAMAGED: {item.file} at {item.offset:,}: {safe(item.what)}"


def _change_text(change: InspectedChange) -> str:
    record, kind = change.record, _type(change)
    if not isinstance(record, JobRecord):
        shown = {name: value for name, value in to_data(record).items() if value}
        text = "  ".join(f"{name}={safe(value)}" for name, value in shown.items())
        return f"{kind}  {'removed  ' if change.removed else ''}{text}"
    name = f"{kind}  {safe(record.queue)} / {safe(record.id)}"
    if change.removed:
        return f"{name}  removed"
    payload = "payload as before" if change.without_payload else f"payload {len(record.payload):,} bytes"
    lane = f"  lane {safe(record.lane)}" if record.lane is not None else ""
    return f"{name}  {record.state.value}  task {safe(record.task) or '-'}{lane}  attempt {record.attempt}  {payload}"
