"""Working: claim, start, settle, renew, reap.

The hot path is one command, `Exchange`: settlements of what has ended, starts of what was prefetched, and a
claim for the slots that are free, in one round trip and one commit.

A lease is named by a token: the claim's random id and the rank in it. A settlement applies only while its
token is the current one. That one guard serves worker, reaper, canceller and operator.
"""

from enum import StrEnum

from msgspec import Struct

from holdfast.model.command import Answer, Command
from holdfast.model.instants import Instant, Micros
from holdfast.model.job import Given, JobKey, Progress
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo


class TaskClaim(Struct, frozen=True, gc=False, kw_only=True):
    """What this worker will take of one task, and the terms of the lease (what was given at enqueue wins)."""

    task: str
    lease_len: Micros
    max_attempts: int = 0
    max_losses: int = 5
    limit: int | None = None


class QueueClaim(Struct, frozen=True, gc=False):
    queue: str
    tasks: tuple[TaskClaim, ...]
    limit: int | None = None


class Claim(Struct, frozen=True, gc=False, kw_only=True):
    """Up to `limit` jobs to run and `prefetch` more to hold ready, from the queues in this order.

    `claim_id` is random and new for each request. Sent again because the answer was lost, it returns the
    leases it still holds and takes nothing new; after an answer has been read it must not be used again.
    """

    claim_id: str
    worker: str
    queues: tuple[QueueClaim, ...]
    limit: int
    prefetch: int = 0


class Lease(Struct, frozen=True, gc=False, array_like=True):
    """A claimed job: what a worker needs to run and settle it."""

    queue: str
    id: str
    generation: int
    task: str
    payload: bytes
    codec: str
    metadata: dict[str, str]
    priority: int
    lane: str | None
    arrival: int
    created: Instant
    due: Instant
    expires: Instant | None
    state: JobState
    attempt: int
    losses: int
    token: str
    fence: int
    lease_expires: Instant
    lease_len: Micros
    max_attempts: int
    max_losses: int
    started: Instant | None
    given: Given

    @property
    def job_key(self) -> JobKey:
        return JobKey(self.queue, self.id)


class Settlement(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What to write because an attempt ended. Made by `outcome.decide`; engines only apply it.

    `target` is the state to go to: `succeeded`, `failed`, `cancelled`, `retrying`, `scheduled` (snooze) or
    `queued` (release). With `listed_expiry` it is a reaper's: it applies only if the lease still expires
    exactly then, and that has passed; and it adds a loss.
    """

    queue: str
    id: str
    token: str
    target: JobState
    reason: Reason | None = None
    note: str = ""
    delay: Micros = 0
    """For `retrying` and `scheduled`: on the engine's clock."""
    due: Instant | None = None
    """For `scheduled`: an instant instead of a delay."""
    refund: bool = False
    """Give the attempt back."""
    result: bytes | None = None
    error: ErrorInfo | None = None
    result_ttl: Micros | None = None
    retention: Micros | None = None
    listed_expiry: Instant | None = None
    lane: str | None = None
    """The job's lane, where it is known: an engine that locks lanes then takes it before any job. Only a hint."""


class SettleStatus(StrEnum):
    APPLIED = "applied"
    CANCELLED_INSTEAD = "cancelled_instead"
    """Someone had asked to cancel, and the settlement would have let the job run again."""
    LOST = "lost"
    """The token is not the current one: a late answer, refused."""
    GONE = "gone"
    """There is no such job."""


class Start(Struct, frozen=True, gc=False):
    """An assigned job is about to run."""

    queue: str
    id: str
    token: str


class StartStatus(StrEnum):
    STARTED = "started"
    LOST = "lost"
    CANCEL = "cancel"
    """Someone asked to cancel: settle it instead."""
    HOLD = "hold"
    """Its queue or lane is paused: release it instead."""


class LaneName(Struct, frozen=True, gc=False, order=True):
    queue: str
    lane: str


class ExchangeAnswer(Answer, frozen=True, gc=False, kw_only=True):
    settled: tuple[SettleStatus, ...] = ()
    started: tuple[StartStatus, ...] = ()
    emptied: tuple[LaneName, ...] = ()
    """Lanes whose last job has just ended."""
    leases: tuple[Lease, ...] = ()
    next_due: Instant | None = None
    """When the next waiting job of the claimed queues falls due."""


class Exchange(Command[ExchangeAnswer], frozen=True, gc=False, kw_only=True):
    settlements: tuple[Settlement, ...] = ()
    starts: tuple[Start, ...] = ()
    claim: Claim | None = None


class Renewal(Struct, frozen=True, gc=False):
    queue: str
    id: str
    token: str
    progress: Progress | None = None


class RenewStatus(StrEnum):
    HELD = "held"
    LOST = "lost"
    CANCEL = "cancel"
    """Held, and someone asked to cancel."""
    HOLD = "hold"
    """Held, assigned, and its queue or lane is paused: release it."""


class RenewResult(Struct, frozen=True, gc=False):
    status: RenewStatus
    lease_expires: Instant | None = None


class RenewAnswer(Answer, frozen=True, gc=False, kw_only=True):
    jobs: tuple[RenewResult, ...]


class Renew(Command[RenewAnswer], frozen=True, gc=False, kw_only=True):
    jobs: tuple[Renewal, ...]


class ExpiredLease(Struct, frozen=True, gc=False, kw_only=True):
    """A lease past its expiry, with what a reaper needs to decide. No payload: reapers decode nothing."""

    queue: str
    id: str
    task: str
    token: str
    owner: str
    lease_expires: Instant
    state: JobState
    attempt: int
    losses: int
    max_attempts: int
    max_losses: int
    cancel_asked: bool


class ExpiredAnswer(Answer, frozen=True, gc=False, kw_only=True):
    leases: tuple[ExpiredLease, ...]


class Expired(Command[ExpiredAnswer], frozen=True, gc=False, kw_only=True):
    """List expired leases of these tasks (None: all), and of any task once expired for ten lease lengths."""

    worker: str
    limit: int = 500
    tasks: tuple[str, ...] | None = None


class DisownAnswer(Answer, frozen=True, gc=False, kw_only=True):
    leases: tuple[JobKey, ...]


class Disown(Command[DisownAnswer], frozen=True, gc=False, kw_only=True):
    """These workers are known to be dead: their leases expire now."""

    workers: tuple[str, ...]


class HeartbeatAnswer(Answer, frozen=True, gc=False, kw_only=True):
    stop: bool


class Heartbeat(Command[HeartbeatAnswer], frozen=True, gc=False, kw_only=True):
    worker: WorkerRecord


class WorkersAnswer(Answer, frozen=True, gc=False, kw_only=True):
    workers: tuple[WorkerRecord, ...]


class Workers(Command[WorkersAnswer], frozen=True, gc=False, kw_only=True):
    """All worker records, by name."""


class WorkerAnswer(Answer, frozen=True, gc=False, kw_only=True):
    found: bool


class StopWorker(Command[WorkerAnswer], frozen=True, gc=False, kw_only=True):
    worker: str


class ForgetWorker(Command[WorkerAnswer], frozen=True, gc=False, kw_only=True):
    """A worker that ends cleanly takes its record with it."""

    worker: str
