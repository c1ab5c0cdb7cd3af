"""The verbs of workers: claim, start, settle, renew, reap.

The most frequent command is `Exchange`: settlements of ended attempts, starts of prefetched jobs, and a claim for the
free slots, in one round trip and one commit.

A lease is named by a token: the claim's random id and the job's place in the claim. A settlement applies only while its
token is the current one. This one guard protects against late workers, reapers, cancels and operators alike.
"""

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.command import Answer, Command
from holdfast.model.instants import Instant, Micros
from holdfast.model.job import Given, JobKey, JobRecord, ProgressRecord
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo


class TaskClaim(Struct, frozen=True, gc=False, kw_only=True):
    """A task in a claim, with the lease that its jobs get. A value given at enqueue wins."""

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
    """Up to `limit` jobs to run and `prefetch` more to assign, from the queues in this order.

    `claim_id` is random and new for each claim. If the answer was lost and the same claim is sent again, it returns
    the leases that it still holds and takes nothing new. After its answer was read, a `claim_id` must not be reused.
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


_FIELDS_OF_RECORD = ", ".join(f"job.{name}" for name in Lease.__struct_fields__)
lease_of: Callable[[JobRecord], Lease] = eval(f"lambda job: Lease({_FIELDS_OF_RECORD})", {"Lease": Lease})
"""The lease on a job, as its worker gets it: the record's fields of the same names.

It is compiled from the names because each claimed job passes here: `attrgetter` takes four times as long.
"""


class Settlement(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What to write because an attempt ended. `outcome.decide` makes it; engines only apply it.

    `target` is the new state: `succeeded`, `failed`, `cancelled`, `retrying`, `scheduled` (snooze) or `queued`
    (release). A settlement with `listed_expiry` is a reaper's: it applies only if the lease still expires exactly at
    that time and the time has passed; and it adds a loss.
    """

    queue: str
    id: str
    token: str
    target: JobState
    reason: Reason | None = None
    note: str = ""
    delay: Micros = 0
    """For `retrying` and `scheduled`: counted from the engine's time."""
    due: Instant | None = None
    """For `scheduled`: an instant instead of a delay."""
    refund: bool = False
    """The attempt does not count."""
    result: bytes | None = None
    error: ErrorInfo | None = None
    result_ttl: Micros | None = None
    retention: Micros | None = None
    listed_expiry: Instant | None = None
    progress: ProgressRecord | None = None
    """The last progress of the attempt, if no renewal has stored it."""
    lane: str | None = None
    """The job's lane, if the sender knows it. A hint: an engine that locks lanes can lock it before any job."""
    loss: bool = False
    """The process of the handler has died: the owner lives, and adds a loss itself (A11)."""

    def with_progress(self, progress: ProgressRecord | None) -> "Settlement":
        return replace(self, progress=progress)


class SettleStatus(StrEnum):
    APPLIED = "applied"
    CANCELLED_INSTEAD = "cancelled_instead"
    """A cancel was requested, and the settlement would have let the job run again."""
    LOST = "lost"
    """The token is not the current one: the late settlement is refused."""
    GONE = "gone"
    """There is no such job."""
    BUSY = "busy"
    """Another transaction has locked the job or its lane: nothing was written. Send the settlement again."""


class Start(Struct, frozen=True, gc=False):
    """An assigned job starts to run."""

    queue: str
    id: str
    token: str


class StartStatus(StrEnum):
    STARTED = "started"
    LOST = "lost"
    CANCEL = "cancel"
    """A cancel was requested: settle it instead."""
    HOLD = "hold"
    """Its queue or lane is paused: release it instead."""
    BUSY = "busy"
    """Another transaction has locked the job: nothing was written. Send the start again."""


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
    progress: ProgressRecord | None = None


class RenewStatus(StrEnum):
    HELD = "held"
    LOST = "lost"
    CANCEL = "cancel"
    """Held, and a cancel was requested."""
    HOLD = "hold"
    """Held, assigned, and its queue or lane is paused: release it."""
    BUSY = "busy"
    """Held but not extended, because another transaction has locked the job: renew it again soon."""


class RenewResult(Struct, frozen=True, gc=False):
    status: RenewStatus
    lease_expires: Instant | None = None


class RenewAnswer(Answer, frozen=True, gc=False, kw_only=True):
    jobs: tuple[RenewResult, ...]


class Renew(Command[RenewAnswer], frozen=True, gc=False, kw_only=True):
    jobs: tuple[Renewal, ...]


class ExpiredLease(Struct, frozen=True, gc=False, kw_only=True):
    """An expired lease, with all that a reaper needs to decide. It has no payload: reapers decode nothing."""

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
    loss_error: ErrorInfo | None = None
    """How its worker has ended, if that is known (A13)."""


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
    """The processes of these workers have ended: their leases expire now."""

    workers: tuple[str, ...]
    error: ErrorInfo | None = None
    """How they have ended; None: that is not known."""


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
    """A worker that stops removes its record."""

    worker: str
