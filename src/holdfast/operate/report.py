"""The report of a job: how it came out, how long it waited and ran, and what happened to it, in order.

Nothing of it is stored. The events are told from the record and its history, so a job that failed twice and then
succeeded has a report like any other. The record keeps one due time, the last: how long a start before the last one
waited is not known (0), nor, once a job was tried again or requeued, whether it was scheduled at first (`queued`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.model.job import AttemptRecord as Run
from holdfast.model.job import JobRecord
from holdfast.model.states import Hold, JobState, Reason
from holdfast.telemetry.events import Cancelled, Failed, JobEvent, Queued, Retrying, Started, Succeeded
from holdfast.views import CodecNamed, Job, Shown, runs_of

_FROM_THE_FIRST = Hold.LANE | Hold.PARENTS | Hold.EPOCH
"""What holds a job back, if it does, from the moment it is accepted."""


@dataclass(frozen=True, slots=True, repr=False)
class Report(Shown):
    """`outcome` is None while the job has not ended. `waited` and `ran` are seconds; `ran` is over all attempts."""

    job: Job
    outcome: JobState | None
    reason: Reason | None
    waited: float | None
    ran: float
    events: tuple[JobEvent, ...]


def report_of(record: JobRecord, codec_named: CodecNamed) -> Report:
    """The report as far as it goes by now."""
    waited = None if record.started is None else (record.started - record.created) / 1_000_000
    ran = sum(run.ended - run.started for run in runs_of(record)) / 1_000_000
    outcome = record.state if record.terminal else None
    return Report(Job.from_record(record, codec_named), outcome, record.reason, waited, ran, tuple(_events(record)))


def _events(record: JobRecord) -> Iterator[JobEvent]:
    told: dict[str, Any] = {"queue": record.queue, "job_id": record.id, "task": record.task, "lane": record.lane}
    yield Queued(at=record.created, state=_state_at_first(record), **told)
    runs = runs_of(record)
    final = runs[-1] if runs and runs[-1].ended == record.finished else None
    for run in runs:
        mine = {**told, "attempt": run.number, "worker": run.worker}
        yield Started(at=run.started, waited=_waited(record, run.started), **mine)
        if run is not final:
            yield Retrying(at=run.ended, error=run.error, ran=run.ended - run.started, **mine)
    if record.state is JobState.RUNNING and record.last_started is not None:
        at = record.last_started
        yield Started(at=at, waited=_waited(record, at), attempt=record.attempt, worker=record.owner, **told)
    if record.finished is not None:
        yield _end(record, record.finished, final, told)


def _state_at_first(record: JobRecord) -> JobState:
    if record.hold & _FROM_THE_FIRST:
        return JobState.BLOCKED
    tried = record.started is not None and record.due > record.started
    if record.generation or tried:
        return JobState.QUEUED
    return JobState.SCHEDULED if record.due > record.created else JobState.QUEUED


def _waited(record: JobRecord, started: int) -> int:
    """From when it was due; known of the last start, since another due time came with every one before."""
    return started - record.due if started == record.last_started and record.due <= started else 0


def _end(record: JobRecord, at: int, run: Run | None, told: dict[str, Any]) -> JobEvent:
    told = {**told, "attempt": record.attempt, "worker": record.owner}
    ran = 0 if run is None else run.ended - run.started
    if record.state is JobState.SUCCEEDED:
        return Succeeded(at=at, ran=ran, **told)
    told |= {"reason": record.reason, "note": record.note}
    if record.state is JobState.FAILED:
        return Failed(at=at, ran=ran, error=record.last_error, **told)
    return Cancelled(at=at, **told)
