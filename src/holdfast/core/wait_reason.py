"""Why a job has not ended, in a sentence or two, made of its obstacles (`core/obstacles.py`).

The text goes into `WaitTimeout`, into one log line while a caller waits and no worker can take the job, and to
operators (`control.why`, `holdfast why`, `holdfast jobs show`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from holdfast.codec import codec_for
from holdfast.core.obstacles import (
    NEEDS_OPERATOR,
    JobFacts,
    Obstacle,
    clock_text,
    error_text,
    list_obstacles,
    seconds_text,
)
from holdfast.model.job import JobRecord
from holdfast.model.states import JobState
from holdfast.views import CodecNamed, Job, Shown

ULID_CHARS = 26
SHORT_CHARS = 8


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Why(Shown):
    """Why a job has not ended. `text` says it in words; for an ended job it says how the job ended."""

    job: Job
    text: str
    obstacles: tuple[Obstacle, ...]
    """Everything that keeps it from running now. None: it runs, has ended, or a worker is about to take it."""
    lease_until: datetime | None = None
    """When the lease of its worker ends, unless the worker renews it."""
    cancel_requested: bool = False
    """A cancel was requested while it ran; its worker stops it."""


def explain(facts: JobFacts, codec_named: CodecNamed = codec_for) -> Why:
    """The job with all its obstacles."""
    obstacles = list_obstacles(facts, _describe)
    return Why(
        job=Job.from_record(facts.job, codec_named),
        text=_describe(facts, obstacles),
        obstacles=obstacles,
        lease_until=facts.lease_until(facts.job),
        cancel_requested=facts.job.cancel_asked and facts.job.leased,
    )


def wait_reason(facts: JobFacts) -> str:
    """What the job waits for; empty if it has ended."""
    return "" if facts.job.terminal else _describe(facts, list_obstacles(facts, _describe))


def warning(facts: JobFacts) -> str:
    """The log line for a waiting caller; empty if a worker has the job or can take it."""
    obstacles = [obstacle for obstacle in list_obstacles(facts, _describe) if obstacle.kind in NEEDS_OPERATOR]
    if not obstacles:
        return ""
    reason = " ".join(obstacle.text for obstacle in obstacles)
    advice = ""
    if not facts.alive:
        where = "in another terminal" if facts.shared else "in this process"
        advice = f"\n          Start one {where}:  {facts.how_to_start}"
    return f"holdfast: still waiting for {short(facts.job.id)} ({facts.job.task}). {reason}{advice}"


def short(job_id: str) -> str:
    """An id as users are shown it. The beginning of a generated id is enough to find the job."""
    return job_id[:SHORT_CHARS] if len(job_id) == ULID_CHARS else job_id


def _describe(facts: JobFacts, obstacles: tuple[Obstacle, ...]) -> str:
    if facts.job.terminal:
        return _end_text(facts.job, facts.now)
    if facts.job.state is JobState.RUNNING:
        return " ".join(_run_sentences(facts))
    return " ".join(_once(obstacles)) or "It is due and about to be taken."


def _once(obstacles: tuple[Obstacle, ...]) -> Iterator[str]:
    """The text of each obstacle, without those that the text about the head of the lane has."""
    of_head = {inner.text for obstacle in obstacles for inner in obstacle.behind}
    return (obstacle.text for obstacle in obstacles if obstacle.text not in of_head)


def _run_sentences(facts: JobFacts) -> Iterator[str]:
    job, now = facts.job, facts.now
    since = now if job.last_started is None else job.last_started
    yield f"It has been running on {job.owner} for {seconds_text(now - since)} (attempt {job.attempt})."
    if job.lease_expires is not None and job.lease_expires < facts.lease_now:
        late = seconds_text(facts.lease_now - job.lease_expires)
        reaper = "another worker takes it over" if facts.alive else "a worker takes it over as soon as one is alive"
        yield f"Its lease ran out {late} ago: {reaper}."
    elif all(worker.worker != job.owner for worker in facts.alive):
        yield "That worker sends no heartbeat: another takes the job over when its lease has ended, or sooner."
    if job.cancel_asked:
        yield "A cancel was requested."


def _end_text(job: JobRecord, now: int) -> str:
    at = "" if job.finished is None else f" at {clock_text(job.finished, now)}"
    reason = "" if job.reason is None or job.state is JobState.SUCCEEDED else f" ({job.reason.replace('_', ' ')})"
    cause = job.note
    if not cause and job.last_error is not None and job.state is JobState.FAILED:
        cause = error_text(job.last_error)
    cause = f": {cause.rstrip('.')}" if cause else ""
    attempts = "1 attempt" if job.attempt == 1 else f"{job.attempt} attempts"
    verb = {JobState.SUCCEEDED: "succeeded", JobState.FAILED: "failed"}.get(job.state, "was cancelled")
    return f"It {verb}{at} after {attempts}{reason}{cause}."
