"""The record of a job: everything an engine remembers of it.

Read this first. A job is named by (queue, id). Its record is a frozen value: every change makes a new one,
and the engine swaps them in one guarded step.

Three groups of fields move together:

* **the request** — what the producer said. Never changes, but for `amend` (priority, due, TTLs).
* **the lease** — who may settle it now: `token` names the lease (random, compared for equality), `fence`
  is a number that only grows, for systems outside. No token, no lease.
* **the end** — how it came out, and three separate clocks that say how long which part of it is kept.
"""

from enum import StrEnum

from msgspec import Struct

from holdfast.model.instants import Instant, Micros
from holdfast.model.states import LEASED, LIVE, TERMINAL, WAITING, Hold, JobState, Reason
from holdfast.model.text import ErrorInfo


class JobKey(Struct, frozen=True, gc=False, order=True):
    """A job's full name."""

    queue: str
    id: str


class KeyScope(StrEnum):
    """For how long an id or a `unique_key` turns away a second job. A failed or cancelled job never does."""

    INCOMPLETE = "incomplete"
    """While the job has not ended."""
    RESULT = "result"
    """And then until its result expires."""
    WINDOW = "window"
    """And then until a window, counted from creation, has passed."""
    FOREVER = "forever"


class Given(Struct, frozen=True, gc=False, array_like=True):
    """Policy that was given at enqueue and so travels with the job. None: the worker's registry decides.

    `max_attempts = 0` means for ever, here and in every other place inside the engine.
    """

    max_attempts: int | None = None
    max_losses: int | None = None
    timeout: Micros | None = None
    lease_len: Micros | None = None
    result_ttl: Micros | None = None
    retention: Micros | None = None


NOTHING_GIVEN = Given()


class Progress(Struct, frozen=True, gc=False, array_like=True):
    """What a handler last said of itself; carried by lease renewals."""

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
    """One counted run that did not succeed, as the history keeps it."""

    number: int
    generation: int
    worker: str
    started: Instant
    ended: Instant
    outcome: AttemptOutcome
    error: ErrorInfo | None = None


class JobRecord(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """One job, as stored. Engines may pack it by position: a new field goes to the end and has a default."""

    # The request
    queue: str
    id: str
    task: str = ""
    payload: bytes = b""
    codec: str = "json"
    metadata: dict[str, str] = {}
    payload_hash: bytes = b""
    """Taken by the client over task and arguments; empty: not compared."""
    priority: int = 0
    """Higher runs sooner."""
    lane: str | None = None
    unique_key: str | None = None
    key_scope: KeyScope = KeyScope.RESULT
    key_window: Micros = 0
    expires: Instant | None = None
    """Do not start later than this."""
    reply: tuple[str, ...] = ()
    """Processes to tell when the job ends."""
    given: Given = NOTHING_GIVEN

    # Where it is
    state: JobState = JobState.QUEUED
    hold: Hold = Hold.NONE
    generation: int = 0
    """How often the record was requeued or replaced."""
    arrival: int = 0
    """Order only; gaps are normal."""
    created: Instant = 0
    due: Instant = 0
    parents_left: int = 0
    attempt: int = 0
    """Runs begun, counted at claim."""
    losses: int = 0
    """Workers that went away with it."""

    # The lease
    owner: str = ""
    """The last worker to hold it; stays after the lease has ended."""
    token: str | None = None
    fence: int = 0
    lease_expires: Instant | None = None
    """On the lease clock."""
    lease_len: Micros = 0
    max_attempts: int = 0
    """In force in this lease, so that any reaper can decide without the task's code."""
    max_losses: int = 0
    started: Instant | None = None
    """The first start of this generation."""
    last_started: Instant | None = None
    progress: Progress | None = None
    cancel_asked: bool = False
    cancel_note: str = ""
    settled_token: str | None = None
    """The lease that its owner settled last: a settlement sent again is recognised by it."""

    # The end
    finished: Instant | None = None
    reason: Reason | None = None
    note: str = ""
    result: bytes | None = None
    last_error: ErrorInfo | None = None
    history: tuple[AttemptRecord, ...] = ()
    visible_until: Instant = 0
    """Retention: the record can be looked at."""
    result_until: Instant = 0
    """A waiting caller or a duplicate is answered with the result or the final error."""
    key_until: Instant = 0
    """The id (or the `unique_key`, where there is one) stays taken."""

    # The pool
    epoch: int = 0
    """The pool's size it was placed under; 0 outside pools."""
    pool_key: str | None = None

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
        """How long a succeeded job keeps its id: with a `unique_key`, the scope governs the key instead."""
        return self.result_until if self.unique_key is not None else self.key_until

    @property
    def kept_until(self) -> int:
        """When the last of the three clocks runs out, and the record may go."""
        return max(self.visible_until, self.result_until, self.key_until)
