"""`holdfast manager` keeps a number of worker processes, and so does `holdfast worker --processes N`."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

import holdfast
from holdfast.cli.exits import ChildrenKilled, Invocation, NoChildStarted
from holdfast.cli.format import safe
from holdfast.cli.options import app_option, duration, examples
from holdfast.cli.start_signals import StartSignals
from holdfast.cli.target import TargetApp, find_app, only_target, store_facts
from holdfast.cli.worker import RawArguments, raw_arguments, set_up_log, warn_about_queues, write_text
from holdfast.cli.worker import worker as worker_command
from holdfast.config import MAX_CHILDREN
from holdfast.files import discard_output
from holdfast.manager import Manager
from holdfast.manager.output import LogStream
from holdfast.runtime import Runtime

OWN_OPTIONS = frozenset({"queues", "concurrency", "grace", "name"})
"""Options of a worker that the manager reads itself. All others of `holdfast worker` are passed on as they are."""
NOT_FOR_CHILDREN = frozenset({"where", "target", "migrate", "reload", "until_empty", "processes", "manager_fd"})
"""Options of `holdfast worker` that make no sense with a manager, or that it carries out itself."""


def _worker_options() -> list[click.Parameter]:
    return [option for option in worker_command.params if option.name not in NOT_FOR_CHILDREN]


@click.command(
    cls=RawArguments,
    epilog=examples(
        "holdfast manager shop.jobs --min 2 --max 8",
        "holdfast manager shop.jobs -c 20 -q emails --max-jobs 10000",
        "holdfast manager --interval 2s --idle-before-down 5m",
    ),
)
@click.argument("where", metavar="[TARGET]", required=False)
@app_option
@click.option("--min", type=click.IntRange(1, MAX_CHILDREN), metavar="N", help="Fewest workers. Default 1.")
@click.option(
    "--max", type=click.IntRange(1, MAX_CHILDREN), metavar="N", help="Most workers. Default 4, or --min if higher."
)
@click.option("--interval", type=duration, metavar="TIME", help="Time between two looks at the load. Default 5s.")
@click.option(
    "--idle-before-down",
    type=duration,
    metavar="TIME",
    help="For how long fewer workers must be enough before the number falls. Default 1m.",
)
@click.option("--migrate", is_flag=True, help="Bring the store's schema up to date first.")
@click.pass_context
def manager(
    ctx: click.Context,
    /,
    where: str | None,
    target: str | None,
    migrate: bool,
    **options: Any,
) -> None:
    """Start worker processes, and keep their number between --min and --max. TARGET as for `holdfast worker`.

    The number rises at once when jobs wait, and falls when fewer workers were enough for some time. A worker that dies
    is replaced, and its jobs run again at once. Options of `holdfast worker` apply to each worker.

    SIGTERM and Ctrl-C stop all workers gently, a second one at once. SIGHUP replaces them one after the other.

    Exit codes: 6 if no worker could start, 7 if workers did not stop in time and were killed.
    """
    own = {name: options[name] for name in ("min", "max", "interval", "idle_before_down")}
    run_manager(ctx, only_target(where, target), migrate=migrate, sizes=own, options=options)


manager.params += _worker_options()


def run_manager(
    ctx: click.Context,
    target: str | None,
    *,
    migrate: bool,
    sizes: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Run a manager until it is stopped. `options`: those of a worker."""
    with StartSignals(managed=True) as signals:
        found = find_app(target)
        app = found.app
        style = options["log_format"] or app.config.log_format
        on_terminal = sys.stdout.isatty() and style != "json" and not options["as_json"]
        with_lines = on_terminal if options["lines"] is None else options["lines"]
        with _log_stream(app.runtime) as stream:
            if style != "none":
                set_up_log(app.config.log_level, style, with_lines=False, stream=stream)
            if migrate:
                app.migrate()
            queues: dict[str, int | None] = dict(options["queues"]) or dict.fromkeys(found.queues)
            warn_about_queues(found.app, queues)
            arguments = _passed_on(ctx)
            if with_lines and options["lines"] is None:
                arguments.append("--lines")
            is_embedded = ctx.ensure_object(Invocation).default is not None
            keeper = Manager(
                app,
                target,
                queues=queues or None,
                **{name: options[name] for name in OWN_OPTIONS - {"queues"}},
                **sizes,
                signals=True,
                arguments=arguments,
                program=_program(ctx) if is_embedded else None,
            )
            with_banner = with_lines and not options["as_json"]
            with app:
                keeper.run(on_ready=lambda: write_text(banner(found, keeper)) if with_banner else None)
                signals.worker_has_stopped()
        if keeper.failure:
            raise NoChildStarted(keeper.failure)
        if keeper.killed:
            raise ChildrenKilled(f"{keeper.killed} workers did not stop in time and were killed. Their jobs run again.")


@contextmanager
def _log_stream(runtime: Runtime) -> Iterator[LogStream]:
    """Standard error, for a log that never delays the manager. If nobody reads it at the end, the rest is dropped."""
    stream = LogStream(runtime, sys.stderr)
    try:
        yield stream
    finally:
        if not stream.close():
            discard_output(2)


def _passed_on(ctx: click.Context) -> list[str]:
    """The options of a worker that the user has given, as they were written."""
    given, _, _ = ctx.command.make_parser(ctx).parse_args(raw_arguments(ctx))
    words: list[str] = []
    for option in _worker_options():
        if option.name in OWN_OPTIONS or option.name not in given or not isinstance(option, click.Option):
            continue
        value = given[option.name]
        if option.is_flag:
            words.append(option.opts[-1] if value else option.secondary_opts[-1])
        else:
            for each in value if option.multiple else [value]:
                words += [option.opts[-1], str(each)]
    return words


def _program(ctx: click.Context) -> list[str]:
    """How a program that embeds this command line starts a worker: as it was started itself, with another command."""
    tail = [str(ctx.info_name), *raw_arguments(ctx)]
    words = sys.orig_argv[1:]
    if words[-len(tail) :] == tail:
        words = words[: -len(tail)]
    elif str(ctx.info_name) in words:
        words = words[: words.index(str(ctx.info_name))]
    return [sys.executable, *words, "worker"]


def banner(target: TargetApp, manager: Manager) -> str:
    """The first lines of a manager.

    holdfast 0.1.0 · manager ada-7f3c09ab · app jobs:jobs
    store    sqlite  /home/you/shop/jobs.db   durable (every commit synced)
    workers  2 to 8 · 10 slots each
    ready    Ctrl-C stops gently, twice stops now
    """
    facts, limits = store_facts(target.app), manager.limits
    size = f"{limits.min} to {limits.max}" if limits.min < limits.max else str(limits.min)
    lines = [
        f"holdfast {holdfast.__version__} · manager {manager.name} · app {target.name}",
        f"store    {facts.engine}  {facts.place}   {facts.promise}",
        f"workers  {size} · {limits.slots} slots each",
        "ready    Ctrl-C stops gently, twice stops now",
    ]
    return "".join(f"{safe(line)}\n" for line in lines)
