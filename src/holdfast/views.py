"""What users are shown: jobs, attempts, answers, queues and workers as plain frozen values.

Inside the package, instants are microseconds and a record has fifty fields. Here they are aware datetimes, and only the
fields that users need. A view is a copy of one moment: read again to see what has changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

from holdfast.codec import Codec, codec_for
from holdfast.errors import HoldfastError
from holdfast.model import job as stored
from holdfast.model.instants import FOREVER
from holdfast.model.job import AttemptOutcome, JobRecord
from holdfast.model.observe import QueueStats
from holdfast.model.operate import CancelResult
from holdfast.model.produce import Accepted
from holdfast.model.records import LaneRecord, PoolRecord, WorkerRecord
from holdfast.model.states import TERMINAL, JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.model.work import Lease

CodecNamed = Callable[[str], Codec]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


def moment(instant: int) -> datetime:
    """Microseconds since 1970 as a datetime; the last one that there is for an instant that never comes."""
    return _EPOCH + timedelta(microseconds=instant) if instant < FOREVER else _LAST


def _moment(instant: int | None) -> datetime | None:
    return None if instant is None else moment(instant)


class Shown:
    """A repr with plain values, `state='queued'`, and without private fields."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = []
        for item in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            if item.repr:
                value = getattr(self, item.name)
                shown.append(f"{item.name}={str(value) if isinstance(value, StrEnum) else value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, slots=True, repr=False)
class Receipt(Shown):
    """The answer to an enqueue.

    `position` and `depth` are known for lanes, `depth` also for queues with a limit; otherwise they are None. In
    a user's transaction on PostgreSQL a job with a lane, a pool or parents has neither, and is `blocked`, also if its
    lane is empty: it takes its place after the commit.
    """

    answer: Literal["created", "duplicate", "completed"]
    state: JobState
    arrival: int
    position: int | None = None
    depth: int | None = None
    lane: str | None = None
    """Also one that a pool has chosen. None outside lanes, and in a transaction after which the pool chooses it."""

    @classmethod
    def of(cls, accepted: Accepted) -> "Receipt":
        place = (accepted.position, accepted.depth, accepted.lane)
        return cls(accepted.status.value, accepted.state, accepted.arrival, *place)


@dataclass(frozen=True, slots=True, repr=False)
class CancelAnswer(Shown):
    """`cancelled`: it will not run. `requested`: its worker will stop it. `finished`: it had ended, in `state`."""

    answer: Literal["cancelled", "requested", "finished", "not_found"]
    state: JobState | None = None

    @classmethod
    def of(cls, answer: CancelResult) -> "CancelAnswer":
        return cls(answer.status.value, answer.state)


@dataclass(frozen=True, slots=True)
class Progress:
    """The last progress that a handler reported. A job that has succeeded is at 1.0, whatever it reported last."""

    fraction: float
    note: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Attempt(Shown):
    """One run of a job that has ended."""

    number: int
    worker: str
    started_at: datetime
    ended_at: datetime
    outcome: AttemptOutcome
    error: ErrorInfo | None = None
    generation: int = 0
    """How often the job had been requeued or replaced before this run."""

    @property
    def ran(self) -> float:
        """Seconds."""
        return (self.ended_at - self.started_at).total_seconds()

    @classmethod
    def of(cls, entry: stored.AttemptRecord) -> "Attempt":
        began, ended = moment(entry.started), moment(entry.ended)
        return cls(entry.number, entry.worker, began, ended, entry.outcome, entry.error, entry.generation)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Job(Shown):
    """A job, as it was when it was read. `arrival`: its place in the order of its queue. `fence` grows with each lease
    of the job and of its lane."""

    id: str
    task: str
    queue: str
    lane: str | None
    pool_key: str | None = None
    """The key with which it was sent to a pool."""
    state: JobState
    priority: int
    attempt: int
    """Runs begun."""
    max_attempts: int | None
    """None: no limit, or not decided before the first attempt."""
    losses: int
    """How often its worker, or the process of its handler, was lost."""
    arrival: int
    fence: int
    metadata: dict[str, str]
    progress: Progress | None = None
    enqueued_at: datetime
    due_at: datetime
    expires_at: datetime | None = None
    started_at: datetime | None = None
    """The first run since it was enqueued or requeued."""
    last_started_at: datetime | None = None
    finished_at: datetime | None = None
    reason: Reason | None = None
    note: str = ""
    """Free text beside the reason."""
    last_error: ErrorInfo | None = None
    attempts: tuple[Attempt, ...] = ()
    """Every run that has ended, the first and the last nineteen of them."""
    worker: str = ""
    """The last worker that had a lease on it."""
    _payload: bytes = field(default=b"", repr=False, compare=False)
    _codec: str = field(default="json", repr=False, compare=False)
    _codec_named: CodecNamed = field(default=codec_for, repr=False, compare=False)

    @property
    def finished(self) -> bool:
        """True if it succeeded, failed or was cancelled."""
        return self.state in TERMINAL

    @property
    def arguments(self) -> tuple[list[Any], dict[str, Any]] | None:
        """The arguments of the call, as plain data; None if the stored bytes cannot be read here."""
        try:
            args, kwargs = self._codec_named(self._codec).decode(self._payload)
        except (HoldfastError, TypeError, ValueError):
            return None
        return (args, kwargs) if isinstance(args, list) and isinstance(kwargs, dict) else None

    @classmethod
    def from_record(cls, record: JobRecord, codec_named: CodecNamed = codec_for) -> "Job":
        at_enqueue = record.given.max_attempts
        return cls(
            **_common(record),
            max_attempts=(record.max_attempts if at_enqueue is None else at_enqueue) or None,
            progress=_progress(record),
            pool_key=record.pool_key,
            last_started_at=_moment(record.last_started),
            finished_at=_moment(record.finished),
            reason=record.reason,
            note=record.note,
            last_error=record.last_error,
            attempts=tuple(Attempt.of(run) for run in runs_of(record)),
            worker=record.owner,
            _codec_named=codec_named,
        )

    @classmethod
    def from_lease(cls, lease: Lease, codec_named: CodecNamed = codec_for) -> "Job":
        """As its worker sees it at the start of an attempt."""
        return cls(**_common(lease), max_attempts=lease.max_attempts or None, _codec_named=codec_named)


def _common(job: JobRecord | Lease) -> dict[str, Any]:
    """The fields that a record and a lease share."""
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "lane": job.lane,
        "state": job.state,
        "priority": job.priority,
        "attempt": job.attempt,
        "losses": job.losses,
        "arrival": job.arrival,
        "fence": job.fence,
        "metadata": dict(job.metadata),
        "enqueued_at": moment(job.created),
        "due_at": moment(job.due),
        "expires_at": _moment(job.expires),
        "started_at": _moment(job.started),
        "_payload": job.payload,
        "_codec": job.codec,
    }


def _progress(record: JobRecord) -> Progress | None:
    progress = record.progress
    if progress is None:
        return None
    return Progress(1.0 if record.state is JobState.SUCCEEDED else progress.fraction, progress.note)


def runs_of(record: JobRecord) -> tuple[stored.AttemptRecord, ...]:
    """Every run that has ended: the history, and the successful run, which only the record itself has."""
    if record.state is not JobState.SUCCEEDED or record.finished is None:
        return record.history
    last = stored.AttemptRecord(
        number=record.attempt,
        generation=record.generation,
        worker=record.owner,
        started=record.finished if record.last_started is None else record.last_started,
        ended=record.finished,
        outcome=AttemptOutcome.SUCCEEDED,
    )
    return (*record.history, last)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QueueStatus(Shown):
    """The depth and the counters of a queue. `depth`: jobs that have not ended. `due`: jobs that could run now."""

    queue: str
    paused: bool
    depth: int
    due: int
    counts: dict[JobState, int]
    """Jobs in the store by state, finished ones included while they are kept."""
    oldest_due_at: datetime | None
    next_due_at: datetime | None
    ready_tasks: tuple[str, ...]
    """Tasks that have queued jobs, by name."""
    succeeded: int
    """Since the queue exists, as the two below."""
    failed: int
    cancelled: int

    @classmethod
    def of(cls, stats: QueueStats) -> "QueueStatus":
        return cls(
            queue=stats.queue,
            paused=stats.paused,
            depth=stats.depth,
            due=stats.due,
            counts=dict(stats.counts),
            oldest_due_at=_moment(stats.oldest_due),
            next_due_at=_moment(stats.next_due),
            ready_tasks=stats.ready_tasks,
            succeeded=stats.totals.succeeded,
            failed=stats.totals.failed,
            cancelled=stats.totals.cancelled,
        )

    def unserved_tasks(self, workers: "Sequence[WorkerStatus]") -> tuple[str, ...]:
        """The tasks with queued jobs that none of these workers takes from this queue."""
        served = {task for worker in self.takers(workers) for task in worker.tasks}
        return tuple(task for task in self.ready_tasks if task not in served)

    def takers(self, workers: "Sequence[WorkerStatus]") -> "list[WorkerStatus]":
        """Those of these workers that take jobs from this queue."""
        return [worker for worker in workers if worker.alive and not worker.stopping and self.queue in worker.queues]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LaneStatus(Shown):
    """The depth and the counters of a lane. `head`: the job whose turn it is. `arrival`: its arrival number.

    `head_state`, `head_due_at` and `head_error` are its state, when it is due, and the error of its last attempt.
    """

    queue: str
    lane: str
    paused: bool
    depth: int
    head: str | None
    arrival: int | None
    succeeded: int
    failed: int
    cancelled: int
    head_state: JobState | None = None
    head_due_at: datetime | None = None
    head_error: ErrorInfo | None = None

    @classmethod
    def of(cls, lane: LaneRecord, head: JobRecord | None) -> "LaneStatus":
        return cls(
            queue=lane.queue,
            lane=lane.lane,
            paused=lane.paused,
            depth=lane.depth,
            head=lane.head,
            arrival=None if head is None else head.arrival,
            succeeded=lane.totals.succeeded,
            failed=lane.totals.failed,
            cancelled=lane.totals.cancelled,
            head_state=None if head is None else head.state,
            head_due_at=None if head is None else moment(head.due),
            head_error=None if head is None else head.last_error,
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PoolSize(Shown):
    """The number of lanes of a pool, and the jobs of its old size that have not ended."""

    name: str
    lanes: int
    epoch: int
    old_live: int

    @classmethod
    def of(cls, pool: PoolRecord) -> "PoolSize":
        return cls(name=pool.name, lanes=pool.lanes, epoch=pool.epoch, old_live=pool.old_live)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WorkerStatus(Shown):
    """A worker, or a manager of workers, as of its last heartbeat."""

    name: str
    host: str
    pid: int
    tasks: tuple[str, ...]
    queues: tuple[str, ...]
    slots: int
    busy: int
    started_at: datetime
    seen_at: datetime
    alive: bool
    """Its last heartbeat is at most three heartbeat intervals old, and its process is not known to have ended."""
    stopping: bool
    ended: bool = False
    """Its process has ended. Known on its own host only."""
    manager: str = ""
    children: tuple[str, ...] = ()
    min_children: int = 0
    max_children: int = 0

    @property
    def is_manager(self) -> bool:
        """True if it keeps workers, and runs no jobs itself."""
        return self.max_children > 0

    @classmethod
    def of(cls, worker: WorkerRecord, now: int, *, ended: bool = False, manager: str = "") -> "WorkerStatus":
        return cls(
            name=worker.worker,
            host=worker.host,
            pid=worker.pid,
            tasks=worker.tasks,
            queues=worker.queues,
            slots=worker.slots,
            busy=0 if ended else worker.busy,
            started_at=moment(worker.started),
            seen_at=moment(worker.seen),
            alive=worker.is_alive(now) and not ended,
            stopping=worker.stop_asked,
            ended=ended,
            manager=manager,
            children=worker.children,
            min_children=worker.min_children,
            max_children=worker.max_children,
        )
