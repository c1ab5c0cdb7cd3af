"""One job in full, for people: `jobs show` and `jobs report`. The only place where arguments and results are shown."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.cli.describe import describe
from holdfast.cli.escape import cut, safe, safe_lines
from holdfast.cli.records import LONGEST_VALUE, json_of, value_of
from holdfast.cli.screen import console, pairs, state_text, table, text
from holdfast.cli.spans import clock, instant, span
from holdfast.operate.report import Report
from holdfast.views import Attempt, Job

LONGEST_ERROR = 200


def show_job(job: Job, result: Mapping[str, object], now: datetime) -> None:
    parts: list[RenderableType] = [pairs(_facts(job, result, now))]
    if job.attempts:
        parts += [Text(), table(["attempt#", "outcome", "started", "ran#", "worker", "error"], _attempts(job))]
    if job.last_error is not None and job.last_error.traceback:
        parts += [Text(), *(Text(line, style="dim") for line in safe_lines(job.last_error.traceback))]
    console().print(Group(*parts), soft_wrap=False)


def _facts(job: Job, result: Mapping[str, object], now: datetime) -> Iterator[tuple[str, RenderableType]]:
    yield "job", text(job.id, "bold")
    yield "task", text(job.task)
    yield "queue", text(job.queue)
    if job.lane is not None:
        yield "lane", text(job.lane)
    state = state_text(job.state)
    why = " · ".join(safe(part) for part in (job.reason, job.note) if part)
    yield "state", state.append(f"  {why}", style="dim") if why else state
    yield "attempts", Text(f"{job.attempt} of {job.max_attempts}" if job.max_attempts else str(job.attempt))
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
    yield "arguments", text(call_of(job))
    if "result" in result:
        yield "result", text(value_of(result["result"]))


def call_of(job: Job) -> str:
    """What the task was called with, as somebody would write it."""
    if job.arguments is None:
        return "cannot be read here: the stored bytes need another codec, or are no call"
    args, kwargs = job.arguments
    written = [*map(json_of, args), *(f"{name}={json_of(value)}" for name, value in kwargs.items())]
    return cut(", ".join(written) or "none", LONGEST_VALUE)


def _attempts(job: Job) -> Iterator[list[RenderableType]]:
    generation = 0
    for attempt in job.attempts:
        if attempt.generation != generation:
            generation = attempt.generation
            yield [Text("·", style="dim"), Text("brought back", style="dim"), *(Text() for _ in range(4))]
        yield _attempt(attempt)


def _attempt(attempt: Attempt) -> list[RenderableType]:
    error = attempt.error
    said = "" if error is None else cut(f"{error.type.rpartition('.')[2]}: {error.message}", LONGEST_ERROR)
    return [
        Text(str(attempt.number)),
        text(attempt.outcome.value),
        Text(clock(attempt.started_at)),
        Text(span(attempt.ran)),
        text(attempt.worker),
        text(said),
    ]


def show_report(report: Report) -> None:
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
    facts.append(("waited", Text("not started yet" if report.waited is None else span(report.waited))))
    facts.append(("ran", Text(span(report.ran))))
    rows = [
        [Text(clock(event.time)), Text(told.word, style=told.style), Text(told.first), Text(told.rest)]
        for event in report.events
        if (told := describe(event)) is not None
    ]
    console().print(Group(pairs(facts), Text(), table(["at", "event", "", ""], rows)))
