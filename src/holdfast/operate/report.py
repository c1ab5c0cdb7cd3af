"""The report of a job: its outcome, how long it waited and ran, and its events in order.

The report is not stored. It is derived from the record and its history. The record keeps only the last due time. So the
waiting time of earlier starts is unknown (0). After a retry or a requeue it is unknown whether the job was scheduled
at first (then `queued`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.model.job import AttemptOutcome, JobRecord
from holdfast.model.job import AttemptRecord as Run
from holdfast.model.states import Hold, JobState, Reason
from holdfast.telemetry.events import Cancelled, Failed, JobEvent, Queued, Retrying, Started, Succeeded
from holdfast.views import CodecNamed, Job, Shown, runs_of

_FROM_THE_FIRST = Hold.LANE | Hold.PARENTS | Hold.EPOCH
"""Holds that a job can have only from the moment it is accepted."""
_REASON = {AttemptOutcome.WORKER_LOST: Reason.WORKER_LOST, AttemptOutcome.TIMED_OUT: Reason.TIMEOUT}
"""Of a run that was repeated; other outcomes have several reasons."""


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
    """The report up to now."""
    waited = None if record.started is None else (record.started - record.created) / 1_000_000
    ran = sum(run.ended - run.started for run in runs_of(record)) / 1_000_000
    outcome = record.state if record.terminal else None
    return Report(Job.from_record(record, codec_named), outcome, record.reason, waited, ran, tuple(_events(record)))


def _events(record: JobRecord) -> Iterator[JobEvent]:
    common: dict[str, Any] = {"queue": record.queue, "job_id": record.id, "task": record.task, "lane": record.lane}
    yield Queued(at=record.created, state=_state_at_first(record), **common)
    runs = runs_of(record)
    final = runs[-1] if runs and runs[-1].ended == record.finished else None
    for place, run in enumerate(runs):
        of_run = {**common, "attempt": run.number, "worker": run.worker}
        yield Started(at=run.started, waited=_waited(record, run.started), **of_run)
        ended_job = _ended_before_requeue(record, runs, place)
        if ended_job and run.outcome is AttemptOutcome.CANCELLED:
            yield Cancelled(at=run.ended, **of_run)
        elif ended_job:
            yield Failed(
                at=run.ended, reason=_REASON.get(run.outcome), error=run.error, ran=run.ended - run.started, **of_run
            )
        elif run is not final:
            yield Retrying(
                at=run.ended,
                reason=_REASON.get(run.outcome),
                error=run.error,
                ran=run.ended - run.started,
                delay=_delay(record, run.ended) if run is runs[-1] else 0,
                **of_run,
            )
    if record.state is JobState.RUNNING and record.last_started is not None:
        at = record.last_started
        yield Started(at=at, waited=_waited(record, at), attempt=record.attempt, worker=record.owner, **common)
    if record.finished is not None:
        yield _end(record, record.finished, final, common)


def _ended_before_requeue(record: JobRecord, runs: Sequence[Run], place: int) -> bool:
    """True for the last run before a requeue: it was not repeated."""
    later = runs[place + 1].generation if place + 1 < len(runs) else record.generation
    return runs[place].generation < later


def _state_at_first(record: JobRecord) -> JobState:
    if record.hold & _FROM_THE_FIRST:
        return JobState.BLOCKED
    tried = record.started is not None and record.due > record.started
    if record.generation or tried:
        return JobState.QUEUED
    return JobState.SCHEDULED if record.due > record.created else JobState.QUEUED


def _delay(record: JobRecord, ended: int) -> int:
    """Microseconds from the end of the last attempt to the next one. Known while the job waits for it."""
    return record.due - ended if record.state is JobState.RETRYING and record.due > ended else 0


def _waited(record: JobRecord, started: int) -> int:
    """Microseconds from due time to start. Known for the last start only: the record has no earlier due times."""
    return started - record.due if started == record.last_started and record.due <= started else 0


def _end(record: JobRecord, at: int, run: Run | None, common: dict[str, Any]) -> JobEvent:
    fields = {**common, "attempt": record.attempt, "worker": record.owner}
    ran = 0 if run is None else run.ended - run.started
    if record.state is JobState.SUCCEEDED:
        return Succeeded(at=at, ran=ran, **fields)
    fields |= {"reason": record.reason, "note": record.note}
    if record.state is JobState.FAILED:
        return Failed(at=at, ran=ran, error=record.last_error, **fields)
    return Cancelled(at=at, **fields)
