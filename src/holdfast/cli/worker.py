"""`holdfast worker`: take jobs and run them until it is stopped. Its banner, its lines and its log."""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

import holdfast
from holdfast.app import App
from holdfast.cli.exits import Invocation, JobsLeft, print_message
from holdfast.cli.format import safe, setting
from holdfast.cli.json_output import event_data, to_line
from holdfast.cli.options import Store, app_option, duration, examples, json_option, size
from holdfast.cli.queue_names import unknown_queue
from holdfast.cli.reload import FileWatch, restart
from holdfast.cli.start_signals import StartSignals
from holdfast.cli.tables import use_colour
from holdfast.cli.target import TargetApp, find_app, only_target, store_facts
from holdfast.cli.worker_lines import KINDS, EventBuffer, JsonLines, Printer, TextLines
from holdfast.config import MAX_CHILDREN, MAX_SLOTS
from holdfast.errors import HoldfastError
from holdfast.model.instants import SECOND
from holdfast.runtime import SystemRuntime
from holdfast.telemetry.events import WorkerStarted
from holdfast.telemetry.logs import LogTarget, configure
from holdfast.worker import Worker
from holdfast.worker.manager_channel import ManagerChannel

COLOURS: dict[str, dict[str, Any]] = {"dim": {"dim": True}}
MODULES_WITH_EVENTS = frozenset({"reporting", "reaper"})
"""Modules of the worker whose log lines repeat an event."""

QueueLimits = Mapping[str, int | None]
"""Slots per queue; None: no limit."""


def queue_limit(value: str) -> tuple[str, int | None]:
    """`emails` or `emails:20`."""
    if "," in value:
        each = " ".join(f"-q {name.strip()}" for name in value.split(","))
        raise click.BadParameter(f"{value!r} names one queue. Give the option once for each: {each}")
    name, colon, limit = value.rpartition(":")
    if not colon or not limit.isdecimal():
        return value, None
    if not name or not int(limit):
        raise click.BadParameter(f"{value!r} gives that queue no slots. Write NAME:SLOTS.")
    return name, int(limit)


RAW = "holdfast.raw_arguments"


class RawArguments(click.Command):
    """A command that keeps its arguments as they were written: a manager passes them on to its workers."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[RAW] = tuple(args)
        return super().parse_args(ctx, args)


def raw_arguments(ctx: click.Context) -> list[str]:
    return list(ctx.meta[RAW])


@click.command(
    cls=RawArguments,
    epilog=examples("holdfast worker shop.jobs", "holdfast worker shop.jobs:jobs -q emails:20 -q default:5 -c 25"),
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
@click.option("-c", "--concurrency", type=click.IntRange(1, MAX_SLOTS), metavar="N", help="Slots. Default 10.")
@click.option("--grace", type=duration, help="How long handlers may run on after a stop. Default 30s.")
@click.option("--name", metavar="NAME", help="Name of the worker. Default: the host's name.")
@click.option("--max-jobs", type=click.IntRange(0), metavar="N", help="Stop gently after N jobs. Default 0: never.")
@click.option(
    "--max-memory", type=size, metavar="SIZE", help="Stop gently above this, such as 512MiB. Default 0: never."
)
@click.option(
    "--processes", type=click.IntRange(1, MAX_CHILDREN), metavar="N", help="Work with this number of processes."
)
@click.option("--until-empty", is_flag=True, help="Stop when nothing is left to run; see above.")
@click.option("--migrate", is_flag=True, help="Bring the store's schema up to date first.")
@click.option("--reload", is_flag=True, help="Restart when a Python file below this folder changes.")
@click.option("--lines/--no-lines", default=None, help="Print a line per change of a job. Default: on a terminal.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json", "none"]),
    help="Format of the log on standard error, if the App has not configured logging itself. none: set up no log. "
    "Default: the setting log_format, or text.",
)
@click.option("--manager-fd", type=click.IntRange(0), hidden=True, help="The channel to the manager; only it gives it.")
@json_option
@click.pass_context
def worker(
    ctx: click.Context,
    /,
    where: str | None,
    target: str | None,
    processes: int | None,
    migrate: bool,
    reload: bool,
    lines: bool | None,
    log_format: str | None,
    as_json: bool,
    manager_fd: int | None,
    **options: Any,
) -> None:
    """Take jobs and run them. TARGET is a module with an App in it, or module:name.

    SIGTERM and Ctrl-C stop it gently: it claims nothing more, lets jobs finish for the time of --grace, and releases
    the others, which costs them no attempt. A second one stops it at once. SIGHUP stops it gently, too. A worker that
    has not stopped ten seconds after its grace, because code blocks it, is ended by force.

    With --until-empty it waits for jobs that are queued, running, retrying, blocked, or due within a minute. It leaves
    jobs of paused queues, jobs due later, jobs of tasks that it does not have, and jobs blocked by these: then it says
    how many, and its exit code is 5.

    Exit codes: 0 stopped, also by a signal or by --max-jobs and --max-memory; 1 ended by force, or by an error of its
    own; 2 usage or configuration; 3 the store cannot be reached at the start; 5 see above.
    """
    target = only_target(where, target)
    if processes is not None:
        from holdfast.cli.manager import run_manager

        if reload or options["until_empty"]:
            raise click.UsageError("--processes goes with neither --reload nor --until-empty.")
        shared = {"lines": lines, "log_format": log_format, "as_json": as_json, **options}
        run_manager(ctx, target, migrate=migrate, sizes={"min": processes, "max": processes}, options=shared)
        return
    if reload and manager_fd is not None:
        raise click.UsageError("--reload is for a worker that has no manager.")
    with StartSignals(managed=manager_fd is not None) as signals:
        channel = None if manager_fd is None else ManagerChannel(SystemRuntime(), manager_fd)
        if channel is not None:
            channel.start()
        watch = FileWatch(os.getcwd()) if reload else None
        target_app = _load(target, watch)
        app = target_app.app
        limits: dict[str, int | None] = dict(options.pop("queues")) or dict.fromkeys(target_app.queues)
        style = log_format or app.config.log_format
        with_lines = as_json or (sys.stdout.isatty() and style != "json" if lines is None else lines)
        if style != "none" and not set_up_log(app.config.log_level, style, with_lines=with_lines) and log_format:
            print_message(f"--log-format {log_format} has no effect: the App has configured logging itself.")
        store_file = app.engine.store_file
        created = bool(store_file) and not app.runtime.fs.exists(store_file)
        if channel is None:  # else the manager has done so
            warn_about_queues(app, limits)
        if migrate:
            app.migrate()
        process_ends = ctx.ensure_object(Invocation).process_ends
        worker = Worker(app, queues=limits or None, signals=True, channel=channel, process_ends=process_ends, **options)
        changed: list[str] = []

        def stop(file: str) -> None:
            changed.append(file)
            worker.stop()

        store = Store(target_app, as_json)
        if watch is not None:
            watch.on_change(app.runtime, stop)
        with app, _printing(target_app, limits, created=created, as_json=as_json) if with_lines else _silent():
            if channel is None:
                warn_about_unknown_queues(store, limits, until_empty=options["until_empty"])
            worker.run()
            signals.worker_has_stopped()
        if changed:
            print_message(f"{os.path.relpath(changed[0])} has changed. Restarting.")
            restart()
        if worker.left.total:
            raise JobsLeft(str(worker.left))


def warn_about_queues(app: App[Any], names: Iterable[str]) -> None:
    """`emails:x` is the name of a queue, and more probably a mistake. Other names may be queues of producers."""
    declared = {task.policy.queue for task in app.registry.values()}
    for name in sorted(set(names) - declared):
        if ":" in name:
            print_message(
                f"No task of this App has the queue {name!r}. To limit slots, give a number, as in emails:20."
            )


def warn_about_unknown_queues(store: Store, names: Iterable[str], *, until_empty: bool) -> None:
    """A queue may get its first job later, so say nothing, unless the name is like another or there is no later."""
    for name in sorted(names):
        message = unknown_queue(store, name)
        if message and (until_empty or message.endswith("?")):
            print_message(message)


def _load(target: str | None, watch: FileWatch | None) -> TargetApp:
    """The App. With --reload, a module that cannot be imported does not end the command: it waits for a change."""
    try:
        return find_app(target)
    except HoldfastError as error:
        if watch is None:
            raise
        print_message(f"{error} Waiting for a change.")
        watch.wait(App[Any]().runtime)
        restart()


# --- Output ---


@contextmanager
def _silent() -> Iterator[None]:
    yield


@contextmanager
def _printing(target: TargetApp, limits: QueueLimits, *, created: bool, as_json: bool) -> Iterator[None]:
    """Print the banner when the worker has started, and then its lines."""
    app = target.app
    buffer: EventBuffer = JsonLines() if as_json else TextLines(app.runtime, app.registry, line_paint())

    def on_start(event: WorkerStarted) -> None:
        if as_json:
            write_text(to_line(event_data(event)) + "\n")
        else:
            write_text(banner(app, target.name, event, limits, created=created))

    app.on(WorkerStarted)(on_start)
    for kind in KINDS:
        app.on(kind)(buffer.add)
    printer = Printer(app.runtime, buffer, write_text)
    try:
        yield
    finally:
        printer.close()


def write_text(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def line_paint() -> Callable[[str, str], str]:
    """Colours for the lines of events, on a terminal that has them."""
    if not use_colour():
        return lambda text, style: text
    return lambda text, style: click.style(text, **COLOURS.get(style, {"fg": style})) if style else text


def banner(app: App[Any], name: str, started: WorkerStarted, limits: QueueLimits, *, created: bool) -> str:
    """The first lines of a worker.

    holdfast 0.1.0 · worker ada-7f3c09ab · app jobs:jobs
    store    sqlite  /home/you/shop/jobs.db   created · durable (every commit synced)
    tasks    flaky  resize
    queues   default · 10 slots · lease 30 s
    ready    Ctrl-C stops gently, twice stops now
    """
    facts = store_facts(app)
    new = "created · " if created else ""
    queues = [f"{queue}:{limit}" if (limit := limits.get(queue)) else queue for queue in started.queues]
    lines = [
        f"holdfast {holdfast.__version__} · worker {started.worker} · app {name}",
        f"store    {facts.engine}  {facts.place}   {new}{facts.promise}",
        f"tasks    {'  '.join(started.tasks) or 'none: declare some with @jobs.task'}",
        f"queues   {'  '.join(queues) or 'none'} · {started.slots} slots{_lease(app)}",
        "ready    Ctrl-C stops gently, twice stops now",
    ]
    return "".join(f"{safe(line)}\n" for line in lines)


def _lease(app: App[Any]) -> str:
    leases = sorted({task.policy.lease for task in app.registry.values() if not task.policy.remote})
    if not leases:
        return ""
    low, high = (setting(lease / SECOND) for lease in (leases[0], leases[-1]))
    return f" · lease {low}" if low == high else f" · leases {low} to {high}"


# --- Log ---


def set_up_log(level: str, style: str, *, with_lines: bool, stream: LogTarget | None = None) -> bool:
    """Log to `stream`, by default standard error. If the worker also prints lines, the log leaves out what they say.

    False: the App has configured logging itself, and nothing was changed.
    """
    handler = configure(level, "json" if style == "json" else "text", stream or sys.stderr)
    if handler is None:
        return False
    if style == "text":
        handler.setFormatter(_SafeFormatter(handler.formatter))
    if with_lines:
        handler.addFilter(_has_no_line)
    return True


def _has_no_line(record: logging.LogRecord) -> bool:
    if record.name not in ("holdfast.worker", "holdfast.reaper"):
        return True
    return record.levelno >= logging.WARNING and record.module not in MODULES_WITH_EVENTS


class _SafeFormatter(logging.Formatter):
    """The text of another formatter, without control characters."""

    def __init__(self, inner: logging.Formatter | None) -> None:
        super().__init__()
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(safe(line.expandtabs(4)) for line in self._inner.format(record).split("\n"))
