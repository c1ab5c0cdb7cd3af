"""`holdfast tasks`: which tasks are known, and to whom.

A task may be known here (the App of this command declares it), known to live workers, or to nobody: then its queued
jobs wait, most often for a worker with the new code, or because the task was renamed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from holdfast.cli.exits import NothingMatched
from holdfast.cli.format import safe
from holdfast.cli.json_output import print_json
from holdfast.cli.options import CommandGroup, Store, examples, on_store
from holdfast.cli.tables import number, table, text
from holdfast.cli.watch import present, watch_options
from holdfast.model.job import BARE_TASK
from holdfast.task import Task
from holdfast.views import QueueStatus, WorkerStatus


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task by name. The empty name stands for bare payloads, which processes pull."""

    task: str
    here: bool
    """The App of this command declares it."""
    alias_of: str
    """The name of the task of that App that has this one as an alias; else empty."""
    queue: str
    """Its queue in that App."""
    workers: tuple[str, ...]
    """Live workers that have it, stopping ones left out."""
    queued_in: tuple[str, ...]
    """Queues that have queued jobs of it. Scheduled, blocked and retrying jobs do not count."""
    unserved_in: tuple[str, ...]
    """Those of them from which no live worker takes its jobs."""

    @property
    def known_to_nobody(self) -> bool:
        """It has queued jobs, and neither a live worker nor this App knows it."""
        return bool(self.queued_in) and not self.workers and not self.here


@click.group(cls=CommandGroup, epilog=examples("holdfast tasks list --app shop.jobs"))
def tasks() -> None:
    """List tasks."""


@tasks.command("list", epilog=examples("holdfast tasks list --app shop.jobs", "holdfast tasks list --json"))
@on_store()
@watch_options
def list_(store: Store, interval_s: float | None) -> None:
    """List tasks, and who knows them: this App, live workers, or nobody."""

    def print_objects() -> None:
        for task in read_tasks(store):
            print_json(task, known_to_nobody=task.known_to_nobody)

    present(store, lambda: _view(store), print_objects, interval_s)


def read_tasks(store: Store) -> list[TaskStatus]:
    """By name; from the counters of the queues and the records of the workers, so the jobs are not read."""
    alive = [worker for worker in store.control.workers() if worker.alive and not worker.stopping]
    queues = store.control.queues()
    registry = store.app.registry
    of_workers = {name for worker in alive for name in worker.tasks}
    names = sorted(
        {*registry, *registry.aliases, *of_workers, *(name for queue in queues for name in queue.ready_tasks)}
    )
    if not names:
        raise NothingMatched("No task is known: neither this App nor a live worker has one, and no job is queued.")
    return [_status_of(name, registry.find(name), alive, queues) for name in names]


def _status_of(
    name: str, task: Task[..., Any] | None, alive: Sequence[WorkerStatus], queues: Sequence[QueueStatus]
) -> TaskStatus:
    """`task`: the one of this App that has this name or alias."""
    return TaskStatus(
        task=name,
        here=task is not None,
        alias_of="" if task is None or task.name == name else task.name,
        queue="" if task is None else task.queue,
        workers=tuple(worker.name for worker in alive if name in worker.tasks),
        queued_in=tuple(queue.queue for queue in queues if name in queue.ready_tasks),
        unserved_in=tuple(queue.queue for queue in queues if name in queue.unserved_tasks(alive)),
    )


def _view(store: Store) -> RenderableType:
    rows = [
        [
            _name_text(task),
            text(task.queue),
            Text("yes" if task.here else "no", style="" if task.here else "dim"),
            number(len(task.workers)),
            text(" ".join(task.queued_in)),
            _status(task),
        ]
        for task in read_tasks(store)
    ]
    return table(["task", "queue", "here", "workers#", "queued in", "status"], rows)


def _name_text(task: TaskStatus) -> Text:
    if task.task == BARE_TASK:
        return Text("(bare payloads)", style="dim")
    return text(task.task).append(f"  alias of {safe(task.alias_of)}" if task.alias_of else "", style="dim")


def _status(task: TaskStatus) -> Text:
    if task.known_to_nobody:
        return Text("known to nobody", style="red")
    if task.unserved_in:
        return text(f"no worker in {' '.join(task.unserved_in)}", "red")
    return Text("known to workers", style="green") if task.workers else Text("no worker, no job", style="dim")
