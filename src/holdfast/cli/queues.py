"""`holdfast queues`: list, pause, resume, clear and remove queues. `holdfast pools`: list and resize pools."""

from collections.abc import Sequence
from datetime import datetime

import click
from rich.console import RenderableType
from rich.text import Text

from holdfast.cli.exits import NothingMatched, confirm
from holdfast.cli.format import count, safe, short, wait_note
from holdfast.cli.json_output import print_json
from holdfast.cli.options import CommandGroup, Store, examples, on_store, yes_option
from holdfast.cli.progress import ProgressBar
from holdfast.cli.queue_names import check_pool, check_queue
from holdfast.cli.status import queue_table, word_text
from holdfast.cli.tables import console, number, state_text, table, text
from holdfast.cli.watch import present, watch_options
from holdfast.model.states import JobState
from holdfast.operate.overview import StoreOverview
from holdfast.views import LaneStatus, QueueStatus

name_argument = click.argument("name", metavar="NAME")
lane_option = click.option("--lane", metavar="LANE", help="Only this lane of the queue.")


@click.group(cls=CommandGroup, epilog=examples("holdfast queues list", "holdfast queues pause emails"))
def queues() -> None:
    """List, pause, resume, clear and remove queues; the first four work on lanes, too."""


@queues.command("list", epilog=examples("holdfast queues list --watch", "holdfast queues list ledger"))
@click.argument("name", metavar="[NAME]", required=False)
@on_store()
@watch_options
def list_(store: Store, name: str | None, interval_s: float | None) -> None:
    """List all queues; with NAME, the lanes of that queue."""
    if name is not None:
        check_queue(store, name)
    if name is None:
        present(
            store, lambda: queue_table(_queues(store), store.now), lambda: _print_all(_queues(store).queues), interval_s
        )
    else:
        present(
            store,
            lambda: _lane_table(_lanes(store, name), store.now),
            lambda: _print_all(_lanes(store, name)),
            interval_s,
        )


def _queues(store: Store) -> StoreOverview:
    overview = store.control.overview()
    if overview.queues:
        return overview
    raise NothingMatched("There is no queue yet.")


def _lanes(store: Store, name: str) -> list[LaneStatus]:
    if found := store.control.lanes(name):
        return found
    raise NothingMatched(f"Queue {name!r} has no lanes.")


def _print_all(listed: Sequence[object]) -> None:
    for status in listed:
        print_json(status)


@queues.command(epilog=examples("holdfast queues pause emails", "holdfast queues pause ledger --lane 3"))
@name_argument
@lane_option
@click.option("--create", is_flag=True, help="Create the queue or lane if it is unknown, paused before its first job.")
@on_store()
def pause(store: Store, name: str, lane: str | None, create: bool) -> None:
    """Stop workers from taking its jobs. Running jobs go on, and jobs can still be enqueued."""
    if not create:
        check_queue(store, name, lane, advice=" To pause it before its first job, add --create.")
    changed = store.control.pause(name, lane=lane)
    _print_change(store, name, lane, "paused", changed)


@queues.command(epilog=examples("holdfast queues resume emails"))
@name_argument
@lane_option
@on_store()
def resume(store: Store, name: str, lane: str | None) -> None:
    """Let workers take jobs of a paused queue or lane again."""
    check_queue(store, name, lane)
    changed = store.control.resume(name, lane=lane)
    _print_change(store, name, lane, "resumed", changed)


@queues.command(epilog=examples("holdfast queues clear emails", "holdfast queues clear ledger --lane 3 --yes"))
@name_argument
@lane_option
@yes_option
@on_store()
def clear(store: Store, name: str, lane: str | None, yes: bool) -> None:
    """Cancel all its jobs that have not ended, running jobs included."""
    check_queue(store, name, lane)
    status = store.control.status(name, lane=lane)
    if not status.depth:
        raise NothingMatched(f"There is nothing to clear in {_scope(name, lane)}.")
    running = 0
    if isinstance(status, QueueStatus):
        running = status.counts.get(JobState.RUNNING, 0) + status.counts.get(JobState.ASSIGNED, 0)
    claimed = f", {running:,} of them claimed by a worker" if running else ""
    confirm(f"Cancel {count(status.depth, 'job')} of {_scope(name, lane)}{claimed}.", yes=yes)
    with ProgressBar(f"clear {_scope(name, lane)}") as progress:
        progress(0, status.depth)  # it is one call: the bar shows that it goes on, and for how long
        cleared = store.control.clear(name, lane=lane)
    if store.as_json:
        print_json({"queue": name, "lane": lane, "count": cleared})
    else:
        click.echo(f"cleared  {safe(_scope(name, lane))}  {count(cleared, 'job')} cancelled")


@queues.command(epilog=examples("holdfast queues remove emials", "holdfast queues remove emials --yes"))
@name_argument
@yes_option
@on_store()
def remove(store: Store, name: str, yes: bool) -> None:
    """Remove a queue in which nothing is: its name, its counters, its lanes, the stored size of its pool.

    Refused while it has jobs, ended ones included, while it is paused, and while a live worker takes from it.
    """
    check_queue(store, name)
    stored = next((queue for queue in store.control.queues() if queue.queue == name), None)
    if stored is not None:
        ended = count(stored.succeeded + stored.failed + stored.cancelled, "ended job")
        confirm(f"Remove queue {name} with its counters ({ended}), its lanes and the size of its pool.", yes=yes)
    if stored is None or not store.control.remove_queue(name):
        raise NothingMatched(f"Queue {name!r} is not stored: no job was in it yet.")
    if store.as_json:
        print_json({"queue": name, "removed": True})
    else:
        click.echo(f"removed  queue {safe(name)}")


def _print_change(store: Store, name: str, lane: str | None, word: str, changed: bool) -> None:
    if store.as_json:
        print_json(store.control.status(name, lane=lane), changed=changed)
        return
    depth = store.control.status(name, lane=lane).depth
    before = "" if changed else ", it was paused before" if word == "paused" else ", it was not paused"
    click.echo(f"{word}  {safe(_scope(name, lane))}  {count(depth, 'job')}{before}")


def _scope(name: str, lane: str | None) -> str:
    return f"queue {name}" if lane is None else f"lane {lane} of queue {name}"


def _lane_table(lanes: list[LaneStatus], now: datetime) -> RenderableType:
    columns = ["lane", "status", "depth#", "head", "state", "note", "arrival#", "succeeded#", "failed#", "cancelled#"]
    return table(
        columns,
        [
            [
                text(lane.lane),
                word_text("paused" if lane.paused else "open"),
                number(lane.depth),
                text(short(lane.head) if lane.head else ""),
                state_text(lane.head_state) if lane.head_state else Text(),
                Text(wait_note(lane.head_state, lane.head_due_at, lane.head_error, now), style="dim"),
                Text("" if lane.arrival is None else str(lane.arrival)),
                number(lane.succeeded),
                number(lane.failed, "red"),
                number(lane.cancelled),
            ]
            for lane in lanes
        ],
        uncut=("state",),
        cut=("note",),
    )


# --- holdfast pools ---


@click.group(cls=CommandGroup, epilog=examples("holdfast pools list", "holdfast pools resize ledger 16"))
def pools() -> None:
    """List pools, and resize one."""


@pools.command("list", epilog=examples("holdfast pools list"))
@on_store()
def list_pools(store: Store) -> None:
    """List all pools: their lanes, and the older jobs that an unfinished resize waits for."""
    listed = store.control.pools()
    if not listed:
        raise NothingMatched("There is no pool yet.")
    if store.as_json:
        for pool in listed:
            print_json(pool)
        return
    rows = [[text(pool.name), number(pool.lanes), Text(str(pool.epoch)), number(pool.old_live)] for pool in listed]
    console().print(table(["pool", "lanes#", "epoch#", "moving#"], rows))


@pools.command(epilog=examples("holdfast pools resize ledger 16"))
@click.argument("name", metavar="NAME")
@click.argument("lanes", metavar="N", type=click.IntRange(min=1))
@on_store()
def resize(store: Store, name: str, lanes: int) -> None:
    """Change the number of lanes; each key stays in order. The stored number overrides the one in code."""
    check_pool(store, name)
    pool = store.control.resize(name, lanes)
    if store.as_json:
        print_json(pool)
        return
    verb = "runs" if pool.old_live == 1 else "run"
    moving = f", {count(pool.old_live, 'job')} of the old size {verb} first" if pool.old_live else ""
    click.echo(f"resized  pool {safe(name)}  {count(pool.lanes, 'lane')}{moving}")
