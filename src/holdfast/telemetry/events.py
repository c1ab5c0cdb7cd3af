"""Events: what happened, as values. One class per kind of change, named by a bare participle.

An event is built only when somebody listens, after the change is in the store, and by whoever made it: a client tells
of `Queued`, a worker of `Started`. Nothing depends on an event; the record and its history are the truth.
As JSON it carries the name of its kind in `event`.

`at` is microseconds since 1970 UTC, and durations are microseconds too; `time` is the same instant as a `datetime`.
"""

from datetime import UTC, datetime, timedelta

from msgspec import Struct

from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Event(Struct, frozen=True, kw_only=True, tag=True, tag_field="event"):
    """Something happened."""

    at: int

    @property
    def time(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self.at)


# Jobs


class JobEvent(Event, frozen=True, kw_only=True):
    """Something happened to a job."""

    queue: str
    job_id: str
    task: str
    attempt: int = 0
    lane: str | None = None
    worker: str = ""


class Queued(JobEvent, frozen=True, kw_only=True):
    """Accepted. `state` says whether it is due, waits for its time, or is held back."""

    state: JobState = JobState.QUEUED


class Assigned(JobEvent, frozen=True, kw_only=True):
    """Taken ahead of need by a worker; its attempt has not begun."""


class Started(JobEvent, frozen=True, kw_only=True):
    """An attempt began, `waited` after the job was due."""

    waited: int = 0


class Succeeded(JobEvent, frozen=True, kw_only=True):
    """Its handler returned, `ran` after the attempt began."""

    ran: int = 0


class Retrying(JobEvent, frozen=True, kw_only=True):
    """It will run again after `delay`: an attempt failed, was snoozed, released, or its worker was lost."""

    delay: int = 0
    reason: Reason | None = None
    note: str = ""
    error: ErrorInfo | None = None
    max_attempts: int = 0
    ran: int = 0


class Failed(JobEvent, frozen=True, kw_only=True):
    """It gave up: a dead letter."""

    reason: Reason | None = None
    note: str = ""
    error: ErrorInfo | None = None
    ran: int = 0


class Cancelled(JobEvent, frozen=True, kw_only=True):
    """It ended because someone asked, or because it was no longer wanted."""

    reason: Reason | None = None
    note: str = ""


class Reaped(JobEvent, frozen=True, kw_only=True):
    """Its lease ran out, and `worker` took it from `owner`. What became of it follows as an event of its own."""

    owner: str = ""
    losses: int = 0


class OwnershipLost(JobEvent, frozen=True, kw_only=True):
    """`worker` ran it and must stop: the lease is lost, or could not be renewed in time."""


# Workers


class WorkerEvent(Event, frozen=True, kw_only=True):
    """Something happened to a worker."""

    worker: str


class WorkerStarted(WorkerEvent, frozen=True, kw_only=True):
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    slots: int = 0


class WorkerStopping(WorkerEvent, frozen=True, kw_only=True):
    """It takes no more work and waits up to `grace` for what runs."""

    grace: int = 0
    running: int = 0


class WorkerStopped(WorkerEvent, frozen=True, kw_only=True):
    """It is gone. `released` jobs were given back."""

    released: int = 0


class LoopBlocked(WorkerEvent, frozen=True, kw_only=True):
    """Its event loop has not turned for `blocked`; `stack` shows where it is."""

    blocked: int
    stack: str
    job_ids: tuple[str, ...] = ()


# Queues and lanes


class QueueEvent(Event, frozen=True, kw_only=True):
    """Something happened to a queue, or to one lane of it."""

    queue: str
    lane: str | None = None


class QueuePaused(QueueEvent, frozen=True, kw_only=True):
    """No claim takes from it."""


class QueueResumed(QueueEvent, frozen=True, kw_only=True):
    """Claims take from it again."""


class QueueCleared(QueueEvent, frozen=True, kw_only=True):
    """`count` jobs were cancelled at once."""

    count: int = 0


class QueueEmpty(QueueEvent, frozen=True, kw_only=True):
    """Its last job has ended. Told once each time, by one worker."""


class LaneEmpty(QueueEvent, frozen=True, kw_only=True):
    """The lane's last job has ended."""


class SoftLimit(QueueEvent, frozen=True, kw_only=True):
    """It has filled up to its soft limit."""

    depth: int
    limit: int


class UnknownTask(QueueEvent, frozen=True, kw_only=True):
    """Jobs of this task wait, and no live worker knows it."""

    task: str
    job_id: str = ""
