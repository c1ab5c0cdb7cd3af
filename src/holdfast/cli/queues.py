"""`holdfast queues`: look at queues and their lanes, pause them, let them go on, clear them."""

import click
from rich.text import Text

from holdfast.cli.asking import confirm
from holdfast.cli.escape import safe
from holdfast.cli.exits import NothingMatched
from holdfast.cli.options import Store, examples, on_store, yes_option
from holdfast.cli.records import emit
from holdfast.cli.screen import console, number, table, text
from holdfast.cli.spans import count, short
from holdfast.cli.status import queue_table
from holdfast.model.states import JobState
from holdfast.views import LaneStatus, QueueStatus

name_argument = click.argument("name", metavar="NAME")
lane_option = click.option("--lane", metavar="LANE", help="Only this lane of it.")


@click.group(epilog=examples("holdfast queues list", "holdfast queues pause emails"))
def queues() -> None:
    """Look at queues and lanes, pause, resume and clear them."""


@queues.command("list", epilog=examples("holdfast queues list", "holdfast queues list ledger"))
@click.argument("name", metavar="[NAME]", required=False)
@on_store()
def list_(store: Store, name: str | None) -> None:
    """Every queue; of one that is named, its lanes."""
    found = store.control.queues() if name is None else store.control.lanes(name)
    if not found:
        raise NothingMatched("There is no queue yet." if name is None else f"Queue {name!r} has no lanes.")
    if store.as_json:
        for status in found:
            emit(status)
    elif name is None:
        console().print(queue_table([q for q in found if isinstance(q, QueueStatus)], store.now))
    else:
        console().print(_lane_table([lane for lane in found if isinstance(lane, LaneStatus)]))


@queues.command(epilog=examples("holdfast queues pause emails", "holdfast queues pause ledger --lane 3"))
@name_argument
@lane_option
@on_store()
def pause(store: Store, name: str, lane: str | None) -> None:
    """No job of it is taken any more. What runs goes on, and so does enqueueing."""
    changed = store.control.pause(name, lane=lane)
    _tell(store, name, lane, "paused", changed)


@queues.command(epilog=examples("holdfast queues resume emails"))
@name_argument
@lane_option
@on_store()
def resume(store: Store, name: str, lane: str | None) -> None:
    """Let a paused queue or lane run again."""
    changed = store.control.resume(name, lane=lane)
    _tell(store, name, lane, "resumed", changed)


@queues.command(epilog=examples("holdfast queues clear emails", "holdfast queues clear ledger --lane 3 --yes"))
@name_argument
@lane_option
@yes_option
@on_store()
def clear(store: Store, name: str, lane: str | None, yes: bool) -> None:
    """Cancel everything in it that has not ended, running jobs included."""
    status = store.control.status(name, lane=lane)
    if not status.depth:
        raise NothingMatched(f"There is nothing to clear in {_scope(name, lane)}.")
    running = 0
    if isinstance(status, QueueStatus):
        running = status.counts.get(JobState.RUNNING, 0) + status.counts.get(JobState.ASSIGNED, 0)
    also = f", {running:,} of them with a worker" if running else ""
    confirm(f"Cancel {count(status.depth, 'job')} of {_scope(name, lane)}{also}.", yes=yes)
    cleared = store.control.clear(name, lane=lane)
    if store.as_json:
        emit({"queue": name, "lane": lane, "count": cleared})
    else:
        click.echo(f"cleared  {safe(_scope(name, lane))}  {count(cleared, 'job')} cancelled")


def _tell(store: Store, name: str, lane: str | None, word: str, changed: bool) -> None:
    if store.as_json:
        emit(store.control.status(name, lane=lane), changed=changed)
        return
    depth = store.control.status(name, lane=lane).depth
    before = "" if changed else ", as it was before" if word == "paused" else ", it was not paused"
    click.echo(f"{word}  {safe(_scope(name, lane))}  {count(depth, 'job')}{before}")


def _scope(name: str, lane: str | None) -> str:
    return f"queue {name}" if lane is None else f"lane {lane} of queue {name}"


def _lane_table(lanes: list[LaneStatus]) -> object:
    columns = ["lane", "status", "depth#", "head", "arrival#", "succeeded#", "failed#", "cancelled#"]
    return table(
        columns,
        [
            [
                text(lane.lane),
                Text("paused", style="yellow") if lane.paused else Text("open"),
                number(lane.depth),
                text(short(lane.head) if lane.head else ""),
                Text("" if lane.arrival is None else str(lane.arrival)),
                number(lane.succeeded),
                number(lane.failed, "red"),
                number(lane.cancelled),
            ]
            for lane in lanes
        ],
    )
