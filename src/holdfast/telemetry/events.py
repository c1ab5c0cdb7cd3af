"""Events: what happened, as values. One class per kind of change.

The process that made a change builds its event, after the change is stored and only if there is a listener: a client
emits `Queued`, a worker emits `Started`. No part of Holdfast depends on an event; the record and its history are the
truth. As JSON an event has the name of its class in `event`.

`at` is microseconds since 1970 UTC; durations are microseconds too. `time` is the same instant as a `datetime`.
"""

from datetime import UTC, datetime, timedelta

from msgspec import Struct

from holdfast.model.instants import Instant, Micros
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Event(Struct, frozen=True, kw_only=True, tag=True, tag_field="event"):
    """Something happened."""

    at: Instant
    """Microseconds since 1970 UTC."""

    @property
    def time(self) -> datetime:
        """The same instant as an aware datetime."""
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
    """The store has accepted it. `state`: `queued`, `scheduled` (due later) or `blocked`."""

    state: JobState = JobState.QUEUED


class Assigned(JobEvent, frozen=True, kw_only=True):
    """A worker has prefetched it; its attempt has not begun."""


class Started(JobEvent, frozen=True, kw_only=True):
    """An attempt began, `waited` after the job was due."""

    waited: Micros = 0


class Progressed(JobEvent, frozen=True, kw_only=True):
    """Its handler has reported progress, from 0 to 1, and it is stored. At most about one a second for each job."""

    fraction: float
    note: str = ""


class Succeeded(JobEvent, frozen=True, kw_only=True):
    """Its handler returned, `ran` after the attempt began."""

    ran: Micros = 0


class Retrying(JobEvent, frozen=True, kw_only=True):
    """It will run again after `delay`: an attempt failed, was snoozed, released, or its worker was lost."""

    delay: Micros = 0
    reason: Reason | None = None
    note: str = ""
    error: ErrorInfo | None = None
    max_attempts: int = 0
    ran: Micros = 0


class Failed(JobEvent, frozen=True, kw_only=True):
    """It gave up: a dead letter."""

    reason: Reason | None = None
    note: str = ""
    error: ErrorInfo | None = None
    ran: Micros = 0


class Cancelled(JobEvent, frozen=True, kw_only=True):
    """It was cancelled: by a caller, by its handler, or because it had expired."""

    reason: Reason | None = None
    note: str = ""


class Reaped(JobEvent, frozen=True, kw_only=True):
    """Its lease expired, and `worker` took it from `owner`. Another event says what became of it."""

    owner: str = ""
    losses: int = 0


class OwnershipLost(JobEvent, frozen=True, kw_only=True):
    """`worker` ran it and must stop: the lease is lost, or could not be renewed in time."""


# Workers


class WorkerEvent(Event, frozen=True, kw_only=True):
    """Something happened to a worker."""

    worker: str


class WorkerStarted(WorkerEvent, frozen=True, kw_only=True):
    """It has a record in the store and begins to claim."""

    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    slots: int = 0


class WorkerStopping(WorkerEvent, frozen=True, kw_only=True):
    """It claims nothing more and waits up to `grace` for running attempts."""

    grace: Micros = 0
    running: int = 0


class WorkerStopped(WorkerEvent, frozen=True, kw_only=True):
    """It has stopped. It released `released` jobs that still ran."""

    released: int = 0


class LoopBlocked(WorkerEvent, frozen=True, kw_only=True):
    """Its event loop has been blocked for `blocked`; `stack` is the stack of the loop's thread."""

    blocked: Micros
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
    """All its live jobs, `count` of them, were cancelled."""

    count: int = 0


class QueueEmpty(QueueEvent, frozen=True, kw_only=True):
    """Its last job has ended. One worker emits it, once each time."""


class LaneEmpty(QueueEvent, frozen=True, kw_only=True):
    """The lane's last job has ended."""


class SoftLimit(QueueEvent, frozen=True, kw_only=True):
    """Its depth has reached the soft limit."""

    depth: int
    limit: int


class UnknownTask(QueueEvent, frozen=True, kw_only=True):
    """Jobs of this task wait, and no live worker has the task."""

    task: str
    job_id: str = ""


# The store


class StoreEvent(Event, frozen=True, kw_only=True):
    """Something happened to the store. `store` is its address without the login."""

    store: str


class HistoryLost(StoreEvent, frozen=True, kw_only=True):
    """It has lost jobs that it had acknowledged, under the names `keys`. Each process that used it emits this once."""

    keys: str = ""


class StoreError(StoreEvent, frozen=True, kw_only=True):
    """Calls of a worker or manager to the store fail. Emitted for the first error of each class, until one succeeds."""

    error: ErrorInfo
