"""`holdfast jobs`: look at jobs, and act on them. `holdfast dead` lists those that gave up."""

from dataclasses import replace
from datetime import datetime
from itertools import islice

import click
from rich.text import Text

from holdfast.cli.detail import show_job, show_report
from holdfast.cli.escape import cut, safe
from holdfast.cli.exits import NothingMatched, say
from holdfast.cli.options import Store, examples, on_store, queue_option
from holdfast.cli.records import data_of, emit, event_data
from holdfast.cli.screen import console, state_text, table, text
from holdfast.cli.selecting import Filter, filter_options, matching, named
from holdfast.cli.spans import span
from holdfast.cli.verbs import cancel, delete, requeue, trigger
from holdfast.errors import HoldfastError
from holdfast.model.states import JobState
from holdfast.views import Job

LIMIT = 50
LONGEST_NOTE = 100


@click.group(epilog=examples("holdfast jobs list --state failed --since 2h", "holdfast jobs show 01JCQ7N1"))
def jobs() -> None:
    """Look at jobs, cancel them, bring them back."""


@jobs.command("list", epilog=examples("holdfast jobs list --task resize --since 2h", "holdfast jobs list --all --json"))
@on_store()
@filter_options
def list_(store: Store, chosen: Filter) -> None:
    """Jobs, queue by queue and state by state, the newest first."""
    listing(store, chosen)


@click.command(epilog=examples("holdfast dead", "holdfast dead --task charge --json"))
@on_store()
@filter_options
def dead(store: Store, chosen: Filter) -> None:
    """Jobs that gave up: the dead letters. The same as jobs list --state failed."""
    listing(store, replace(chosen, state=JobState.FAILED.value))


@jobs.command(epilog=examples("holdfast jobs show 01JCQ7N1", "holdfast jobs show order-42 --queue mails"))
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@queue_option
@on_store()
def show(store: Store, ids: tuple[str, ...], queue: str | None) -> None:
    """All there is to know of a job: its life, attempts and errors, arguments and result."""
    for at, job in enumerate(named(store, ids, queue)):
        result = _result(store, job)
        if store.as_json:
            emit(job, arguments=job.arguments, **result)
        else:
            if at:
                click.echo()
            show_job(job, result, store.now)


@jobs.command(epilog=examples("holdfast jobs report 01JCQ7N1"))
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@queue_option
@on_store()
def report(store: Store, ids: tuple[str, ...], queue: str | None) -> None:
    """How a job came out, how long it waited and ran, and what happened to it in order."""
    for at, job in enumerate(named(store, ids, queue)):
        told = store.control.report(job.id, queue=job.queue)
        if store.as_json:
            emit({**data_of(told), "events": [event_data(event) for event in told.events]})
        else:
            if at:
                click.echo()
            show_report(told)


for verb in (cancel, trigger, requeue, delete):
    jobs.add_command(verb)


def listing(store: Store, chosen: Filter) -> None:
    """Print the jobs that fit; at most so many, unless somebody wants all of them."""
    limit = chosen.limit or (None if chosen.everything else LIMIT)
    wanted = replace(chosen, limit=None if limit is None else limit + 1)
    if store.as_json:
        found = 0
        for job in islice(matching(store, wanted), limit):
            emit(job)
            found += 1
        if not found:
            raise NothingMatched("No job matches.")
        return
    listed = list(matching(store, wanted))
    if not listed:
        raise NothingMatched("No job matches.")
    console().print(_table(listed[:limit], store.now))
    if limit is not None and len(listed) > limit:
        say(f"These are the first {limit:,}. See more with --limit N, or all with --all.")


def _table(listed: list[Job], now: datetime) -> object:
    lanes = any(job.lane is not None for job in listed)
    columns = ["id", "task", "queue", *(["lane"] if lanes else []), "state", "attempt#", "age#", "note"]
    rows = [
        [
            text(job.id),
            text(job.task),
            text(job.queue),
            *([text(job.lane or "")] if lanes else []),
            state_text(job.state),
            Text(f"{job.attempt}/{job.max_attempts}" if job.max_attempts else str(job.attempt)),
            Text(span((now - job.enqueued_at).total_seconds())),
            Text(note_of(job, now), style="dim"),
        ]
        for job in listed
    ]
    return table(columns, rows, whole=("id",))


def note_of(job: Job, now: datetime) -> str:
    """The one thing to know of a job besides its state."""
    if job.state in (JobState.SCHEDULED, JobState.RETRYING) and job.due_at > now:
        due = f"in {span((job.due_at - now).total_seconds())}"
        return f"{due}  {_error(job)}".rstrip()
    if job.state is JobState.RUNNING:
        return f"on {safe(job.worker)}"
    if job.state in (JobState.FAILED, JobState.CANCELLED):
        return _error(job) or cut(f"{job.reason or ''} {job.note}".strip(), LONGEST_NOTE)
    return ""


def _error(job: Job) -> str:
    error = job.last_error
    return "" if error is None else cut(f"{error.type.rpartition('.')[2]}: {error.message}", LONGEST_NOTE)


def _result(store: Store, job: Job) -> dict[str, object]:
    """Its result, if it has one that is still kept."""
    if job.state is not JobState.SUCCEEDED:
        return {}
    try:
        return {"result": store.client.handle(job.id, queue=job.queue).result(timeout=0)}
    except HoldfastError:
        return {}
