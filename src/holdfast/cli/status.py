"""`holdfast status`: queues, workers and the store at a glance."""

from collections.abc import Sequence
from datetime import datetime

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast.cli.escape import cut
from holdfast.cli.facts import facts_of
from holdfast.cli.options import Store, duration, examples, on_store
from holdfast.cli.records import emit
from holdfast.cli.screen import console, number, table, text
from holdfast.cli.spans import span
from holdfast.model.states import JobState
from holdfast.views import QueueStatus, WorkerStatus

LONGEST_LIST = 60


@click.command(epilog=examples("holdfast status", "holdfast status --watch", "holdfast status --json --app shop.jobs"))
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option("--interval", type=duration, default="1s", metavar="TIME", help="With --watch: how often. Default 1s.")
@on_store()
def status(store: Store, watch: bool, interval: float) -> None:
    """What waits, what runs, what failed; who works on it; and where it is kept."""
    if not watch:
        _once(store)
        return
    pause = store.app.runtime.event()  # nobody sets it: it is waited for, and Ctrl-C ends that
    screen = console()
    if store.as_json or not screen.is_terminal:
        while True:
            _once(store)
            pause.wait(interval)
    with Live(_view(store), console=screen, auto_refresh=False, transient=False) as live:
        while not pause.wait(interval):
            live.update(_view(store), refresh=True)


def _once(store: Store) -> None:
    if not store.as_json:
        console().print(_view(store))
        return
    emit(facts_of(store.app), kind="store")
    for queue in store.control.queues():
        emit(queue, kind="queue")
    for worker in store.control.workers():
        emit(worker, kind="worker")


def _view(store: Store) -> RenderableType:
    facts = facts_of(store.app)
    queues, workers = store.control.queues(), store.control.workers()
    parts: list[RenderableType] = [
        Text(f"store   {facts.engine}  ").append(text(facts.place, "bold")).append(f"   {facts.promise}", "dim"),
        Text(),
        queue_table(queues, store.now) if queues else Text("No queue yet: nothing has been enqueued."),
        Text(),
    ]
    if workers:
        parts.append(worker_table(workers, store.now))
    if not any(worker.alive for worker in workers):
        parts.append(
            Text("No worker is alive. Start one in another terminal:  ").append(store.found.start_a_worker, "bold")
        )
    return Group(*parts)


def queue_table(queues: Sequence[QueueStatus], now: datetime) -> RenderableType:
    columns = [
        "queue",
        "ready#",
        "running#",
        "scheduled#",
        "blocked#",
        "retrying#",
        "failed#",
        "oldest#",
        "status",
    ]
    return table(columns, [_queue(queue, now) for queue in queues])


def _queue(queue: QueueStatus, now: datetime) -> list[RenderableType]:
    def of(*states: JobState) -> int:
        return sum(queue.counts.get(state, 0) for state in states)

    oldest = queue.oldest_due_at
    return [
        text(queue.queue),
        number(of(JobState.QUEUED)),
        number(of(JobState.RUNNING, JobState.ASSIGNED), "cyan"),
        number(of(JobState.SCHEDULED)),
        number(of(JobState.BLOCKED)),
        number(of(JobState.RETRYING), "yellow"),
        number(of(JobState.FAILED), "red"),
        Text("" if oldest is None or oldest > now else span((now - oldest).total_seconds())),
        Text("paused", style="yellow") if queue.paused else Text("open"),
    ]


def worker_table(workers: Sequence[WorkerStatus], now: datetime) -> RenderableType:
    columns = ["worker", "status", "busy#", "slots#", "seen#", "pid#", "queues", "tasks"]
    return table(columns, [_worker(worker, now) for worker in workers])


def _worker(worker: WorkerStatus, now: datetime) -> list[RenderableType]:
    if not worker.alive:
        status = Text("silent", style="red")
    else:
        status = Text("stopping", style="yellow") if worker.stopping else Text("alive", style="green")
    return [
        text(worker.name),
        status,
        number(worker.busy, "cyan"),
        number(worker.slots),
        Text(span((now - worker.seen_at).total_seconds())),
        Text(str(worker.pid)),
        Text(cut(" ".join(worker.queues), LONGEST_LIST)),
        Text(cut(" ".join(worker.tasks), LONGEST_LIST)),
    ]
