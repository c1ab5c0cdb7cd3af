"""`holdfast status`: queues, workers and the store at a glance. `holdfast workers`: list workers, and stop one."""

import socket
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

import click
from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.cli.exits import NotDone, NothingMatched
from holdfast.cli.format import safe, span
from holdfast.cli.json_output import print_json, to_data
from holdfast.cli.options import CommandGroup, Store, examples, on_store
from holdfast.cli.tables import LEVEL_STYLES, number, table, text
from holdfast.cli.target import store_facts
from holdfast.cli.watch import present, watch_options
from holdfast.model.findings import Level
from holdfast.model.states import JobState
from holdfast.operate.overview import StoreOverview
from holdfast.views import QueueStatus, WorkerStatus

WORD_STYLES = {"open": "", "paused": "yellow", "lanes wait": "yellow"}
"""The others are red."""
NO_QUEUE = "There is no queue yet: no job has been enqueued."


@click.command(epilog=examples("holdfast status", "holdfast status --watch", "holdfast status --json --app shop.jobs"))
@on_store()
@watch_options
def status(store: Store, interval_s: float | None) -> None:
    """Show the store, its queues with their counts, and its workers."""
    present(store, lambda: _view(store), lambda: _print_objects(store), interval_s)


def _print_objects(store: Store) -> None:
    print_json({**asdict(store_facts(store.app)), "blocked_by": store.control.blocked_by()}, kind="store")
    overview = store.control.overview()
    for queue in overview.queues:
        more = {"status": overview.words[queue.queue], "unserved_tasks": queue.unserved_tasks(overview.workers)}
        print_json({**to_data(queue), **more}, kind="queue")
    for worker in overview.workers:
        print_json(worker, kind="worker")
    for finding in overview.troubles:
        print_json(finding, kind="trouble")


def _view(store: Store) -> RenderableType:
    facts, overview = store_facts(store.app), store.control.overview()
    blocked_by = store.control.blocked_by()
    parts: list[RenderableType] = [
        Text(f"store   {facts.engine}  ").append(text(facts.place, "bold")).append(f"   {facts.promise}", "dim"),
        Text(),
        queue_table(overview, store.now) if overview.queues else Text(NO_QUEUE),
        Text(),
    ]
    if overview.workers:
        parts.append(worker_table(overview.workers, store.now))
    if blocked_by:
        parts += [
            Text("No process can write. ", "red").append(text(blocked_by)),
            Text("Workers send no heartbeat meanwhile: a silent one may be alive."),
        ]
    else:
        parts += trouble_lines(store, overview)
    return Group(*parts)


def trouble_lines(store: Store, overview: StoreOverview) -> list[Text]:
    """What is wrong, the worst first. `holdfast doctor` says in addition what to do."""
    worst = sorted(overview.troubles, key=lambda finding: -list(Level).index(finding.level))
    lines = [text(finding.found, LEVEL_STYLES[finding.level]) for finding in worst]
    if not overview.has_worker:
        hint = Text("No worker is alive. Start one in another terminal:  ")
        lines.append(hint.append(store.target.worker_command, "bold"))
    return lines


def queue_table(overview: StoreOverview, now: datetime) -> RenderableType:
    columns = ["queue", "ready#", "running#", "scheduled#", "blocked#", "retrying#", "failed#", "oldest#", "status"]
    return table(columns, [_queue_row(queue, overview.words[queue.queue], now) for queue in overview.queues])


def _queue_row(queue: QueueStatus, word: str, now: datetime) -> list[Text]:
    def jobs_in(*states: JobState) -> int:
        return sum(queue.counts.get(state, 0) for state in states)

    oldest = queue.oldest_due_at
    return [
        text(queue.queue),
        number(jobs_in(JobState.QUEUED)),
        number(jobs_in(JobState.RUNNING, JobState.ASSIGNED), "cyan"),
        number(jobs_in(JobState.SCHEDULED)),
        number(jobs_in(JobState.BLOCKED)),
        number(jobs_in(JobState.RETRYING), "yellow"),
        number(jobs_in(JobState.FAILED), "red"),
        Text("" if oldest is None or oldest > now else span((now - oldest).total_seconds())),
        word_text(word),
    ]


def word_text(word: str) -> Text:
    """The status of a queue, or of a lane."""
    return Text(word, style=WORD_STYLES.get(word, "red"))


def worker_table(workers: Sequence[WorkerStatus], now: datetime) -> RenderableType:
    columns = ["worker", "status", "busy#", "slots#", "seen#", "pid#", "queues", "tasks"]
    return table(columns, [_worker_row(worker, now) for worker in _below_managers(workers)], cut=("tasks",))


def _below_managers(workers: Sequence[WorkerStatus]) -> list[WorkerStatus]:
    """By name, and the children of a manager after it."""
    names = {worker.name for worker in workers}
    return sorted(
        workers,
        key=lambda worker: (
            (worker.manager if worker.manager in names else worker.name),
            not worker.is_manager,
            worker.name,
        ),
    )


def worker_state_text(worker: WorkerStatus) -> Text:
    if not worker.alive:
        return Text("ended" if worker.ended else "silent", style="red")
    return Text("stopping", style="yellow") if worker.stopping else Text("alive", style="green")


def _worker_row(worker: WorkerStatus, now: datetime) -> list[Text]:
    return [
        text(f"  {worker.name}" if worker.manager else worker.name),
        worker_state_text(worker),
        Text("") if worker.is_manager else number(worker.busy, "cyan"),
        Text("") if worker.is_manager else number(worker.slots),
        Text(span((now - worker.seen_at).total_seconds())),
        Text(str(worker.pid)),
        text(manager_text(worker) if worker.is_manager else " ".join(worker.queues)),
        text(" ".join(worker.tasks)),
    ]


def manager_text(manager: WorkerStatus) -> str:
    low, high, count = manager.min_children, manager.max_children, len(manager.children)
    size = f"{low} to {high}" if low < high else str(low)
    return f"manager of {size} workers, now {count}"


# --- holdfast workers ---


@click.group(cls=CommandGroup, epilog=examples("holdfast workers list", "holdfast workers stop web-1-7f3c09ab"))
def workers() -> None:
    """List workers, and stop one."""


@workers.command(
    "list",
    epilog=examples("holdfast workers list", "holdfast workers list --watch", "holdfast workers list --here --json"),
)
@click.option("--here", is_flag=True, help="Only live workers of this host, for a probe: exit code 4 if there is none.")
@on_store()
@watch_options
def list_(store: Store, interval_s: float | None, here: bool) -> None:
    """Every worker and manager with a recent heartbeat. The workers of a manager follow it."""

    def listed() -> list[WorkerStatus]:
        found = store.control.workers()
        if here:
            found = [worker for worker in found if _is_live_here(worker)]
        if found:
            return found
        raise NothingMatched("No worker of this host is alive." if here else "There is no worker.")

    def print_objects() -> None:
        for worker in listed():
            print_json(worker)

    present(store, lambda: worker_table(listed(), store.now), print_objects, interval_s)


def _is_live_here(worker: WorkerStatus) -> bool:
    return worker.alive and worker.host == socket.gethostname() and not worker.is_manager


@workers.command(epilog=examples("holdfast workers stop web-1-7f3c09ab"))
@click.argument("name", metavar="NAME")
@on_store()
def stop(store: Store, name: str) -> None:
    """Ask a worker, or a manager with its workers, to stop gently.

    A prefix of its name is enough if it fits one only. A manager replaces a worker of its own that stops.
    """
    names = [worker.name for worker in store.control.workers()]
    matches = [name] if name in names else [other for other in names if other.startswith(name)]
    if not matches:
        raise NothingMatched(f"There is no worker {name!r}.")
    if len(matches) > 1:
        lines = [f"The names of {len(matches)} workers begin with {name!r}. Name one:", *(f"  {m}" for m in matches)]
        raise NotDone("\n".join(lines))
    store.control.stop_worker(matches[0])
    if store.as_json:
        print_json({"name": matches[0], "stopping": True})
    else:
        click.echo(f"stopping  {safe(matches[0])}  it finishes its running jobs first")
