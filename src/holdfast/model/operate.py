"""Operating: cancel, requeue, trigger, delete, amend; pause, resume, clear, remove; pools."""

from enum import StrEnum

from msgspec import Struct

from holdfast.model.command import Answer, Command
from holdfast.model.instants import Instant, Micros
from holdfast.model.produce import DepthLimit
from holdfast.model.records import PoolRecord
from holdfast.model.states import JobState


class CancelStatus(StrEnum):
    CANCELLED = "cancelled"
    REQUESTED = "requested"
    FINISHED = "finished"
    NOT_FOUND = "not_found"


class CancelResult(Struct, frozen=True, gc=False):
    status: CancelStatus
    state: JobState | None = None


class CancelJobsAnswer(Answer, frozen=True, gc=False, kw_only=True):
    jobs: tuple[CancelResult, ...]


class Cancel(Command[CancelJobsAnswer], frozen=True, gc=False, kw_only=True):
    queue: str
    ids: tuple[str, ...]
    note: str = ""


class OperateStatus(StrEnum):
    """What an operator's verb did to one job."""

    DONE = "done"
    NOT_FOUND = "not_found"
    WRONG_STATE = "wrong_state"
    KEY_TAKEN = "key_taken"
    QUEUE_FULL = "queue_full"


class OperateResult(Struct, frozen=True, gc=False):
    status: OperateStatus
    state: JobState | None = None
    """The new state if the verb was applied, else the state that was found."""


class OperateAnswer(Answer, frozen=True, gc=False, kw_only=True):
    jobs: tuple[OperateResult, ...]


class Requeue(Command[OperateAnswer], frozen=True, gc=False, kw_only=True):
    """Make failed or cancelled jobs live again, at the tail: attempts and losses start at 0, the history stays."""

    queue: str
    ids: tuple[str, ...]
    limits: tuple[DepthLimit, ...] = ()


class Trigger(Command[OperateAnswer], frozen=True, gc=False, kw_only=True):
    """Make scheduled or retrying jobs due now."""

    queue: str
    ids: tuple[str, ...]


class Delete(Command[OperateAnswer], frozen=True, gc=False, kw_only=True):
    """Remove finished jobs, with key and history."""

    queue: str
    ids: tuple[str, ...]


class Amend(Command[OperateAnswer], frozen=True, gc=False, kw_only=True):
    """Change what was given: lifetimes of any job, priority of a live one, due time of a waiting one.

    `reply` adds a process to notify when the job ends.
    """

    queue: str
    ids: tuple[str, ...]
    result_ttl: Micros | None = None
    retention: Micros | None = None
    priority: int | None = None
    due: Instant | None = None
    reply: str | None = None


class ScopeAnswer(Answer, frozen=True, gc=False, kw_only=True):
    """How many jobs the verb changed. `changed` is false if the scope was already paused or not paused."""

    count: int
    changed: bool = True


class Pause(Command[ScopeAnswer], frozen=True, gc=False, kw_only=True):
    queue: str
    lane: str | None = None


class Resume(Command[ScopeAnswer], frozen=True, gc=False, kw_only=True):
    queue: str
    lane: str | None = None


class Clear(Command[ScopeAnswer], frozen=True, gc=False, kw_only=True):
    """Cancel every live job of a queue or lane, running ones included. Counters and pause stay."""

    queue: str
    lane: str | None = None


class EmptiedAnswer(Answer, frozen=True, gc=False, kw_only=True):
    emptied: bool


class Emptied(Command[EmptiedAnswer], frozen=True, gc=False, kw_only=True):
    """Ask whether the queue has run empty. Only one caller gets `emptied` true each time."""

    queue: str


class RemoveStatus(StrEnum):
    REMOVED = "removed"
    NOT_FOUND = "not_found"
    HAS_JOBS = "has_jobs"
    PAUSED = "paused"
    SERVED = "served"


class RemoveQueueAnswer(Answer, frozen=True, gc=False, kw_only=True):
    """What was done, and if nothing: the number of stored jobs, or the live workers that take from the queue."""

    status: RemoveStatus
    jobs: int = 0
    workers: tuple[str, ...] = ()


class RemoveQueue(Command[RemoveQueueAnswer], frozen=True, gc=False, kw_only=True):
    """Remove a queue without jobs, pause and live workers: its name, its totals, its lanes, the size of its pool."""

    queue: str


class PoolAnswer(Answer, frozen=True, gc=False, kw_only=True):
    pool: PoolRecord
    changed: bool


class PutPool(Command[PoolAnswer], frozen=True, gc=False, kw_only=True):
    """Declare a pool. If it exists, the stored number of lanes wins and is returned."""

    name: str
    lanes: int


class Resize(Command[PoolAnswer], frozen=True, gc=False, kw_only=True):
    """Change the number of lanes. Refused (`changed` false) while an earlier resize is not complete."""

    name: str
    lanes: int


class PoolsAnswer(Answer, frozen=True, gc=False, kw_only=True):
    pools: tuple[PoolRecord, ...]


class Pools(Command[PoolsAnswer], frozen=True, gc=False, kw_only=True):
    """The pool with this name, or all pools, by name."""

    name: str | None = None
