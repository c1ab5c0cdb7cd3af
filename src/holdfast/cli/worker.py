"""`holdfast worker`: take jobs and run them, until told to stop."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from holdfast.app import App
from holdfast.cli.banner import banner
from holdfast.cli.exits import say
from holdfast.cli.lines import KINDS, JsonLines, Lines, Pad, Printer
from holdfast.cli.options import app_option, duration, examples, json_option
from holdfast.cli.records import event_data, line_of
from holdfast.cli.reload import Watch, start_anew
from holdfast.cli.screen import colour
from holdfast.cli.target import Found, find_app
from holdfast.cli.worker_log import set_up
from holdfast.errors import HoldfastError
from holdfast.telemetry.events import WorkerStarted
from holdfast.worker import Worker

COLOURS: dict[str, dict[str, Any]] = {"dim": {"dim": True}}


def queue_limit(value: str) -> tuple[str, int | None]:
    """`emails` or `emails:20`."""
    name, colon, limit = value.rpartition(":")
    if not colon or not limit.isdecimal():
        return value, None
    if not name or not int(limit):
        raise click.BadParameter(f"{value!r} leaves that queue no slots. Write NAME:SLOTS.")
    return name, int(limit)


@click.command(
    epilog=examples("holdfast worker shop.jobs", "holdfast worker shop.jobs:jobs -q emails:20 -q default:5 -c 25")
)
@click.argument("where", metavar="[TARGET]", required=False)
@app_option
@click.option(
    "-q",
    "--queue",
    "queues",
    type=queue_limit,
    multiple=True,
    metavar="NAME",
    help="Only this queue; NAME:SLOTS limits it.",
)
@click.option("-c", "--concurrency", type=click.IntRange(1, 100_000), metavar="N", help="Slots. Default 10.")
@click.option("--grace", type=duration, help="How long handlers may go on once it stops. Default 30s.")
@click.option("--name", metavar="NAME", help="Its name for operators; default the host's.")
@click.option("--until-empty", is_flag=True, help="End when nothing is due.")
@click.option("--migrate", is_flag=True, help="Bring the store's schema up to date first.")
@click.option("--reload", is_flag=True, help="Start anew when a Python file below this folder changes.")
@click.option("--lines/--no-lines", default=None, help="A line per change of a job. Default: on a terminal.")
@json_option
def worker(
    where: str | None,
    target: str | None,
    migrate: bool,
    reload: bool,
    lines: bool | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Take jobs and run them. TARGET is a module with an App in it, or module:name.

    SIGTERM and Ctrl-C stop it gently, a second time at once.
    """
    if where is not None and target is not None and where != target:
        raise click.UsageError(f"Which one: {where}, or --app {target}?")
    watch = Watch(os.getcwd()) if reload else None
    found = _loaded(where or target, watch)
    app = found.app
    limits: dict[str, int | None] = dict(options.pop("queues"))
    config = app.config
    shown = as_json or (sys.stdout.isatty() and config.log_format == "text" if lines is None else lines)
    set_up(config, lines=shown)
    created = not app.engine.capabilities.shared_between_hosts and not app.runtime.fs.exists(app.address)
    if migrate:
        app.migrate()
    worker = Worker(app, queues=limits or None, signals=True, **options)
    changed: list[str] = []

    def stop(file: str) -> None:
        changed.append(file)
        worker.stop()

    if watch is not None:
        watch.then(app.runtime, stop)
    with app, _printing(found, limits, created=created, as_json=as_json) if shown else _silent():
        worker.run()
    if changed:
        say(f"{os.path.relpath(changed[0])} has changed: starting anew.")
        start_anew()


def _loaded(target: str | None, watch: Watch | None) -> Found:
    """The App. While files are watched, a module that cannot be imported is no end: it will change."""
    try:
        return find_app(target)
    except HoldfastError as error:
        if watch is None:
            raise
        say(f"{error} Waiting for a change.")
        watch.wait(App[Any]().runtime)
        start_anew()


@contextmanager
def _silent() -> Iterator[None]:
    yield


@contextmanager
def _printing(found: Found, limits: Mapping[str, int | None], *, created: bool, as_json: bool) -> Iterator[None]:
    """The banner once the worker is at work, and then its lines."""
    app = found.app
    pad: Pad = JsonLines() if as_json else Lines(app.runtime, app.registry, _paint())

    def begin(event: WorkerStarted) -> None:
        told = line_of(event_data(event)) + "\n" if as_json else banner(app, found.name, event, limits, created=created)
        _write(told)

    app.on(WorkerStarted)(begin)
    for kind in KINDS:
        app.on(kind)(pad.hear)
    printer = Printer(app.runtime, pad, _write)
    try:
        yield
    finally:
        printer.close()


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _paint() -> Callable[[str, str], str]:
    if not colour():
        return lambda text, style: text
    return lambda text, style: click.style(text, **COLOURS.get(style, {"fg": style})) if style else text
