"""`holdfast why`: why a job has not ended. Each obstacle in its way, who holds it, and when it ends."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime

import click
from rich.console import RenderableType
from rich.text import Text

from holdfast.cli.format import instant, safe, span
from holdfast.cli.job_selection import jobs_by_id
from holdfast.cli.json_output import print_json, to_data
from holdfast.cli.options import Store, examples, on_store, queue_option
from holdfast.cli.tables import console, pairs, state_text, text
from holdfast.core.obstacles import Holder, Obstacle
from holdfast.core.wait_reason import Why
from holdfast.model.findings import START_WORKER


@click.command(epilog=examples("holdfast why 01JCQ7N1", "holdfast why order-42 --queue mails --json"))
@click.argument("ids", metavar="JOB...", nargs=-1, required=True)
@queue_option
@on_store()
def why(store: Store, ids: tuple[str, ...], queue: str | None) -> None:
    """Say why a job has not ended.

    It lists everything that keeps the job from running, who holds it, and when it ends. For a running job it says who
    runs it, and for an ended one how it ended. JOB is an id, or the beginning of one.
    """
    for place, job in enumerate(jobs_by_id(store, ids, queue)):
        answer = store.control.why(job.id, queue=job.queue)
        answer = replace(answer, obstacles=_advised(answer.obstacles, store.target.worker_command))
        if store.as_json:
            print_json(_data(answer))
        else:
            if place:
                click.echo()
            console().print(pairs(_rows(answer, store.now)))


def _advised(obstacles: Iterable[Obstacle], command: str) -> tuple[Obstacle, ...]:
    """With the command that starts a worker for the App in use."""
    return tuple(
        replace(one, ends=one.ends.replace(START_WORKER, command), behind=_advised(one.behind, command))
        for one in obstacles
    )


def _data(why: Why) -> dict[str, object]:
    """The job in short, and the obstacles with all their fields."""
    job = why.job
    return {
        "id": job.id,
        "queue": job.queue,
        "task": job.task,
        "lane": job.lane,
        "state": job.state,
        "attempt": job.attempt,
        "text": why.text,
        "obstacles": to_data(why.obstacles),
        "worker": job.worker,
        "started_at": job.last_started_at,
        "lease_until": why.lease_until,
        "progress": to_data(job.progress),
        "cancel_requested": why.cancel_requested,
        "finished_at": job.finished_at,
        "reason": job.reason,
    }


def _rows(why: Why, now: datetime) -> Iterator[tuple[str, RenderableType]]:
    job = why.job
    lane = "" if job.lane is None else f", lane {safe(job.lane)}"
    yield "job", text(job.id, "bold").append(f"  {safe(job.task)}  in queue {safe(job.queue)}{lane}", style="not bold")
    yield "state", state_text(job.state)
    if not why.obstacles:
        yield "why", text(why.text)
    if why.lease_until is not None:
        yield from _lease_rows(why, now)
    for number, obstacle in enumerate(why.obstacles, 1):
        yield from _obstacle_rows(obstacle, f"{number} of {len(why.obstacles)}", now)


def _lease_rows(why: Why, now: datetime) -> Iterator[tuple[str, RenderableType]]:
    job = why.job
    yield "worker", text(job.worker)
    if job.last_started_at is not None:
        yield "since", Text(instant(job.last_started_at, now))
    yield "lease", Text("" if why.lease_until is None else f"until {instant(why.lease_until, now)}")
    yield "attempt", Text(f"{job.attempt} of {job.max_attempts}" if job.max_attempts else str(job.attempt))
    if job.progress is not None:
        yield "progress", text(f"{job.progress.fraction:.0%}  {job.progress.note}".rstrip())


def _obstacle_rows(obstacle: Obstacle, place: str, now: datetime) -> Iterator[tuple[str, RenderableType]]:
    yield f"obstacle {place}", text(obstacle.kind.value, "bold yellow")
    yield "", text(obstacle.text)
    if obstacle.holders:
        yield "  held by", text(", ".join(_holder_text(holder, now) for holder in obstacle.holders))
    ends = instant(obstacle.ends_at, now) if obstacle.ends_at is not None else obstacle.ends
    yield "  ends", text(ends)


def _holder_text(holder: Holder, now: datetime) -> str:
    if holder.state is None:
        return f"{holder.kind} {holder.name}"
    state = holder.state.value
    if holder.worker:
        state += f" on {holder.worker}"
    if holder.lease_until is not None:
        left = (holder.lease_until - now).total_seconds()
        state += (
            f", lease until {instant(holder.lease_until, now)}" if left >= 0 else f", lease ended {span(-left)} ago"
        )
    return f"{holder.kind} {holder.name} ({state})"
