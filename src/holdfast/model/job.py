"""The record of a job: everything an engine stores about it.

Read this first. A job is named by (queue, id). Its record is a frozen value: every change makes a new one, and the
engine replaces the old one in one guarded step.

The fields form three groups:

* **the request**: what the producer sent. It never changes, except by `amend` (priority, due, lifetimes).
* **the lease**: who may settle the job now. `token` names the lease (random, compared for equality); `fence` is a
  number that only grows, for systems outside. Without a token there is no lease.
* **the end**: the outcome, and three separate instants that say how long each part of it is kept.
"""

from enum import StrEnum

from msgspec import Struct

from holdfast.model.instants import Instant, Micros
from holdfast.model.states import LEASED, LIVE, TERMINAL, WAITING, Hold, JobState, Reason
from holdfast.model.text import ErrorInfo

BARE_TASK = ""
"""The task of a bare payload, which a process pulls from a queue."""


class JobKey(Struct, frozen=True, gc=False, order=True):
    """A job's full name."""

    queue: str
    id: str


class KeyScope(StrEnum):
    """How long an id or a `unique_key` makes a second job a duplicate. A failed or cancelled job never does."""

    INCOMPLETE = "incomplete"
    """Until the job has ended."""
    RESULT = "result"
    """Until its result expires."""
    WINDOW = "window"
    """Until it has ended and a window, counted from its creation, has passed."""
    FOREVER = "forever"


class Given(Struct, frozen=True, gc=False, array_like=True):
    """Policy that was given at enqueue and is stored with the job. None: the worker's task declares it.

    `max_attempts = 0` means no limit, here and everywhere inside an engine.
    """

    max_attempts: int | None = None
    max_losses: int | None = None
    timeout: Micros | None = None
    lease_len: Micros | None = None
    result_ttl: Micros | None = None
    retention: Micros | None = None


NOTHING_GIVEN = Given()


class ProgressRecord(Struct, frozen=True, gc=False, array_like=True):
    """The latest progress that a handler reported; lease renewals transport it."""

    fraction: float
    note: str = ""


class AttemptOutcome(StrEnum):
    """How one run of a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    WORKER_LOST = "worker_lost"
    CANCELLED = "cancelled"


class AttemptRecord(Struct, frozen=True, gc=False, array_like=True):
    """One counted attempt that did not succeed, as an entry of the history."""

    number: int
    generation: int
    worker: str
    started: Instant
    ended: Instant
    outcome: AttemptOutcome
    error: ErrorInfo | None = None


class JobRecord(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """One job, as stored. Engines may pack it by position: add a new field at the end, with a default."""

    # The request
    queue: str
    id: str
    task: str = ""
    payload: bytes = b""
    codec: str = "json"
    metadata: dict[str, str] = {}
    payload_hash: bytes = b""
    """Hash of task and arguments, computed by the client. Empty: not compared."""
    priority: int = 0
    """Higher runs sooner."""
    lane: str | None = None
    unique_key: str | None = None
    key_scope: KeyScope = KeyScope.RESULT
    key_window: Micros = 0
    expires: Instant | None = None
    """Do not start the job later than this."""
    reply: tuple[str, ...] = ()
    """Processes to notify when the job ends."""
    given: Given = NOTHING_GIVEN

    # Where it is
    state: JobState = JobState.QUEUED
    hold: Hold = Hold.NONE
    generation: int = 0
    """How often the job was requeued or replaced."""
    arrival: int = 0
    """Only its order has a meaning; gaps are normal."""
    created: Instant = 0
    due: Instant = 0
    parents_left: int = 0
    attempt: int = 0
    """Number of attempts, counted at the claim."""
    losses: int = 0
    """How often its worker was lost while it held the lease."""

    # The lease
    owner: str = ""
    """The last worker that held it; not cleared when the lease ends."""
    token: str | None = None
    fence: int = 0
    lease_expires: Instant | None = None
    """On the lease clock."""
    lease_len: Micros = 0
    max_attempts: int = 0
    """The value that holds for this lease, so that any reaper can decide without the task's code."""
    max_losses: int = 0
    started: Instant | None = None
    """The first start of this generation."""
    last_started: Instant | None = None
    progress: ProgressRecord | None = None
    cancel_asked: bool = False
    cancel_note: str = ""
    settled_token: str | None = None
    """The token that its owner settled with last: a settlement that is sent again is recognised by it."""

    # The end
    finished: Instant | None = None
    reason: Reason | None = None
    note: str = ""
    result: bytes | None = None
    last_error: ErrorInfo | None = None
    history: tuple[AttemptRecord, ...] = ()
    visible_until: Instant = 0
    """Until then the record can be looked at (retention)."""
    result_until: Instant = 0
    """Until then a waiting caller or a duplicate gets the result or the final error."""
    key_until: Instant = 0
    """Until then the id (or the `unique_key`, if there is one) stays taken."""

    # The pool
    epoch: int = 0
    """The epoch of the pool when the job was placed; 0 outside pools."""
    pool_key: str | None = None

    # The lease that was lost last
    reaped_token: str | None = None
    """The token of the last lease that was reaped, until its owner reports that it lives (A8)."""
    loss_error: ErrorInfo | None = None
    """How the worker that holds the lease has ended, if its manager has reported it: for the reaper (A13)."""

    @property
    def job_key(self) -> JobKey:
        return JobKey(self.queue, self.id)

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def waiting(self) -> bool:
        return self.state in WAITING

    @property
    def leased(self) -> bool:
        return self.state in LEASED

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def id_until(self) -> int:
        """How long a succeeded job keeps its id. With a `unique_key`, `key_scope` applies to the key, not to the id."""
        return self.result_until if self.unique_key is not None else self.key_until

    @property
    def kept_until(self) -> int:
        """When the last of the three lifetimes ends, and the record may be deleted."""
        return max(self.visible_until, self.result_until, self.key_until)
