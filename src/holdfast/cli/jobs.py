"""`holdfast jobs`: list jobs, show one in full, report on one. `holdfast dead` lists the dead letters.

Only `show` prints arguments and results.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import islice

import click
from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.cli.event_text import describe
from holdfast.cli.exits import print_message
from holdfast.cli.format import LONGEST_NOTE, clock, cut, error_text, instant, safe, safe_lines, span, wait_note
from holdfast.cli.job_selection import Filter, filter_options, jobs_by_id, matching, nothing_found
from holdfast.cli.job_verbs import cancel, delete, requeue, trigger
from holdfast.cli.json_output import event_data, print_json, readable_json, to_data
from holdfast.cli.options import CommandGroup, Store, examples, on_store, queue_option
from holdfast.cli.tables import console, pairs, state_text, table, text
from holdfast.cli.watch import present, watch_options
from holdfast.core.wait_reason import Why
from holdfast.errors import HoldfastError, JobNotFound
from holdfast.model.job import AttemptOutcome
from holdfast.model.states import JobState, Reason
from holdfast.operate.report import Report
from holdfast.process_death import deaths_text
from holdfast.views import Attempt, Job

DEFAULT_LIMIT = 50
TABLE_JOBS = 500
"""A longer list is several tables, so that it begins at once and fits into the memory."""
ATTEMPT_COLUMNS = ("attempt#", "outcome", "started", "ran#", "worker", "error")
LONGEST_ERROR = 200
LONGEST_VALUE = 2_000


@click.group(
    cls=CommandGroup, epilog=examples("holdfast jobs list --state failed --since 2h", "holdfast jobs show 01JCQ7N1")
)
def jobs() -> None:
    """List, show, cancel, trigger, requeue and delete jobs."""


for verb in (cancel, trigger, requeue, delete):
    jobs.add_command(verb)


# --- jobs list, dead ---


@jobs.command(
    "list",
    epilog=examples("holdfast jobs list --task resize --since 2h", "holdfast jobs list --metadata customer=7 --json"),
)
@on_store()
@filter_options
@watch_options
def list_(store: Store, chosen: Filter, interval_s: float | None) -> None:
    """List jobs: queue by queue, in each queue state by state, in each state the newest first."""
    print_list(store, chosen, interval_s)


@click.command(epilog=examples("holdfast dead", "holdfast dead --task charge --json"))
@on_store()
@filter_options
@watch_options
def dead(store: Store, chosen: Filter, interval_s: float | None) -> None:
    """List the dead letters. The same as jobs list --state failed."""
    print_list(store, replace(chosen, state=JobState.FAILED.value), interval_s)


def print_list(store: Store, chosen: Filter, interval_s: float | None) -> None:
    """Print the jobs that match: at most `DEFAULT_LIMIT`, unless the filter has a limit or asks for all."""
    limit = chosen.limit or (sys.maxsize if chosen.everything else DEFAULT_LIMIT)
    one_more = replace(chosen, limit=limit + 1)
    order = "by queue and state, the newest first"
    more = f"These are the first {limit:,}, {order}. See more with --limit N, or all with --all."

    def pages(size: int) -> Iterator[list[Job]]:
        """The jobs, `size` at a time; at the end an empty page if there are more than `limit`."""
        found, left = matching(store, one_more), limit
        while page := list(islice(found, min(size, left))):
            yield page
            left -= len(page)
        if left == limit:
            raise nothing_found(store, "No job matches.", chosen)
        if next(found, None) is not None:
            yield []

    def print_objects() -> None:
        for page in pages(1):
            for job in page:
                print_json(job)

    def view() -> RenderableType:
        (listed, *cut_off) = pages(limit)
        rows = _job_table(listed, store.now)
        return Group(rows, Text(more, style="dim")) if cut_off else rows

    if interval_s is None and not store.as_json:
        for page in pages(TABLE_JOBS):
            if page:
                console().print(_job_table(page, store.now))
            else:
                print_message(more)
    else:
        present(store, view, print_objects, interval_s)


def _job_table(listed: list[Job], now: datetime) -> RenderableType:
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
            Text(_note(job, now), style="dim"),
        ]
        for job in listed
    ]
    return table(columns, rows, ids=("id",), uncut=("state",), cut=("note",))


def _note(job: Job, now: datetime) -> str:
    """What a reader needs most besides the state: the due time, the worker, the error."""
    if job.state in (JobState.SCHEDULED, JobState.RETRYING):
        lost = job.reason is Reason.WORKER_LOST
        return ("worker lost, " if lost else "") + wait_note(
            job.state, job.due_at, None if lost else job.last_error, now
        )
    if job.state is JobState.RUNNING:
        return f"on {safe(job.worker)}"
    if job.state is JobState.FAILED and job.reason is Reason.WORKER_LOST and job.losses:
        return cut(_losses_text(job), LONGEST_NOTE)
    if job.state in (JobState.FAILED, JobState.CANCELLED):
        return error_text(job.last_error, LONGEST_NOTE) or cut(f"{job.reason or ''} {job.note}".strip(), LONGEST_NOTE)
    return ""


def _losses_text(job: Job) -> str:
    """The causes of its losses since it was enqueued or requeued, each with its number."""
    last = job.attempts[-1].generation if job.attempts else 0
    lost = [run for run in job.attempts if run.outcome is AttemptOutcome.WORKER_LOST and run.generation == last]
    return deaths_text(run.error for run in lost) or "its worker was lost before it began"


# --- jobs show ---


@jobs.command(epilog=examples("holdfast jobs show 01JCQ7N1", "holdfast jobs show order-42 --queue mails"))
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@queue_option
@on_store()
def show(store: Store, ids: tuple[str, ...], queue: str | None) -> None:
    """Show a job in full: what it waits for, times, attempts, errors, arguments and result."""
    for place, job in enumerate(jobs_by_id(store, ids, queue)):
        result = _result(store, job)
        why = _why(store, job)
        waits_for = "" if why is None or job.state is JobState.RUNNING else why.text
        cancelling = why is not None and why.cancel_requested
        if store.as_json:
            print_json(job, arguments=job.arguments, waits_for=waits_for, cancel_requested=cancelling, **result)
        else:
            if place:
                click.echo()
            _print_job(job, waits_for, result, store.now, cancelling=cancelling)


def _why(store: Store, job: Job) -> Why | None:
    """Why the job has not ended; None if it has."""
    if job.finished:
        return None
    try:
        return store.control.why(job.id, queue=job.queue)
    except JobNotFound:  # it was deleted after it was read
        return None


def _result(store: Store, job: Job) -> dict[str, object]:
    """`{"result": value}`; empty if the job has no result or it is no longer kept."""
    if job.state is not JobState.SUCCEEDED:
        return {}
    try:
        return {"result": store.client.handle(job.id, queue=job.queue).result(timeout=0)}
    except HoldfastError:
        return {}


def _print_job(job: Job, waits_for: str, result: Mapping[str, object], now: datetime, *, cancelling: bool) -> None:
    parts: list[RenderableType] = [pairs(_job_facts(job, waits_for, result, now, cancelling=cancelling))]
    if job.attempts:
        parts += [Text(), table(ATTEMPT_COLUMNS, _attempt_rows(job), uncut=("started",), wide=("error",))]
    if job.last_error is not None and job.last_error.traceback:
        parts += [Text(), *(Text(line, style="dim") for line in safe_lines(job.last_error.traceback))]
    console().print(Group(*parts), soft_wrap=False)


def _job_facts(
    job: Job, waits_for: str, result: Mapping[str, object], now: datetime, *, cancelling: bool
) -> Iterator[tuple[str, RenderableType]]:
    yield "job", text(job.id, "bold")
    yield "task", text(job.task)
    yield "queue", text(job.queue)
    if job.lane is not None:
        yield "lane", text(job.lane)
    if job.pool_key is not None:
        yield "key", text(job.pool_key)
    state = state_text(job.state)
    cause = " · ".join(safe(part) for part in (job.reason, job.note) if part)
    yield "state", state.append(f"  {cause}", style="dim") if cause else state
    if cancelling:
        yield "cancel", Text("requested: its worker stops it", style="yellow")
    if waits_for:
        yield "waits for", text(waits_for)
    yield "attempts", Text(f"{job.attempt} of {job.max_attempts}" if job.max_attempts else str(job.attempt))
    if job.losses:
        yield "losses", text(f"{job.losses}: {_losses_text(job)}")
    if job.priority:
        yield "priority", Text(str(job.priority))
    if job.progress is not None:
        yield "progress", text(f"{job.progress.fraction:.0%}  {job.progress.note}".rstrip())
    if job.worker and not job.finished:
        yield "worker", text(job.worker)
    yield "enqueued", Text(instant(job.enqueued_at, now))
    for name, at in (
        ("due", None if job.finished or job.due_at <= now else job.due_at),
        ("expires", None if job.finished else job.expires_at),
        ("started", job.started_at),
        ("finished", job.finished_at),
    ):
        if at is not None:
            yield name, Text(instant(at, now))
    for key, value in sorted(job.metadata.items()):
        yield "metadata", text(f"{key} = {value}")
    yield "arguments", text(_arguments_text(job))
    if "result" in result:
        yield "result", text(cut(readable_json(result["result"]), LONGEST_VALUE))


def _arguments_text(job: Job) -> str:
    """The arguments as they stand in a call."""
    if job.arguments is None:
        return "cannot be read: the stored bytes need another codec, or are not the arguments of a call"
    args, kwargs = job.arguments
    items = [*map(readable_json, args), *(f"{name}={readable_json(value)}" for name, value in kwargs.items())]
    return cut(", ".join(items) or "none", LONGEST_VALUE)


def _attempt_rows(job: Job) -> Iterator[list[Text]]:
    generation = 0
    for attempt in job.attempts:
        if attempt.generation != generation:
            generation = attempt.generation
            yield [Text("·", style="dim"), Text("requeued", style="dim"), *(Text() for _ in range(4))]
        yield _attempt_row(attempt)


def _attempt_row(attempt: Attempt) -> list[Text]:
    return [
        Text(str(attempt.number)),
        text(attempt.outcome.value),
        Text(clock(attempt.started_at)),
        Text(span(attempt.ran)),
        text(attempt.worker),
        text(error_text(attempt.error, LONGEST_ERROR)),
    ]


# --- jobs report ---


@jobs.command(epilog=examples("holdfast jobs report 01JCQ7N1"))
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@queue_option
@on_store()
def report(store: Store, ids: tuple[str, ...], queue: str | None) -> None:
    """Show how a job ended, how long it waited and ran, and its events in order."""
    for place, job in enumerate(jobs_by_id(store, ids, queue)):
        job_report = store.control.report(job.id, queue=job.queue)
        if store.as_json:
            print_json({**to_data(job_report), "events": [event_data(event) for event in job_report.events]})
        else:
            if place:
                click.echo()
            _print_report(job_report)


def _print_report(report: Report) -> None:
    job = report.job
    facts: list[tuple[str, RenderableType]] = [
        ("job", text(job.id, "bold")),
        ("task", text(job.task)),
        ("queue", text(job.queue)),
        ("outcome", state_text(job.state) if report.outcome is not None else text(f"not ended: {job.state}")),
    ]
    if report.reason is not None:
        facts.append(("reason", text(" · ".join(filter(None, (report.reason, job.note))))))
    facts.append(("attempts", Text(str(job.attempt))))
    if job.losses:
        facts.append(("losses", text(f"{job.losses}: {_losses_text(job)}")))
    facts.append(("waited", Text("not started yet" if report.waited is None else span(report.waited))))
    facts.append(("ran", Text(span(report.ran))))
    rows = [
        [Text(clock(event.time)), Text(line.word, style=line.style), Text(line.figure), Text(line.rest)]
        for event in report.events
        if (line := describe(event)) is not None
    ]
    console().print(Group(pairs(facts), Text(), table(["at", "event", "", ""], rows)))
