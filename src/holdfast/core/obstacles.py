"""What keeps a job from running: every obstacle, who holds it, and when it ends.

Pure functions over the job's record and the records of its queue, its lane, its pool and the workers. This is the only
place that lists obstacles. `core/wait_reason.py` makes of them the sentences of `WaitTimeout`, of `holdfast jobs show`
and of the log; `control.why` and `holdfast why` show the obstacles themselves.

All obstacles are listed, not only the one that ends next: a job that is due in an hour and whose task no worker knows
has two. Two of them are listed only if there is no other: that all workers are busy, and that a worker with free slots
has not taken the job. They say nothing about a job that could not be taken anyway.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from holdfast.model.instants import SECOND, Micros
from holdfast.model.job import BARE_TASK, JobRecord
from holdfast.model.observe import QueueStats
from holdfast.model.records import LaneRecord, PoolRecord, WorkerRecord
from holdfast.model.states import Hold, JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.views import Shown, moment

ERROR_CHARS = 200
"""A longer message of an error is cut; `jobs show` has all of it."""
TAKEN_WITHIN_US: Micros = 2 * SECOND
"""An idle worker takes a due job within this time. After it, an obstacle names what else may hold the job."""


class ObstacleKind(StrEnum):
    """What holds a job back."""

    STORE = "store"
    """Another process keeps every write of the store waiting."""
    EXPIRED = "expired"
    """It was not started before `expires`."""
    PAYLOAD = "payload"
    """Its stored bytes cannot be decoded: the worker that takes it fails it at once."""
    ARRIVING = "arriving"
    """It came in a user's transaction and is not placed yet."""
    PARENTS = "parents"
    RESIZE = "resize"
    """Its pool was resized, and jobs of the earlier size have not ended."""
    LANE = "lane"
    """Another job is the head of its lane."""
    DUE = "due"
    RETRY = "retry"
    """An attempt failed, and the delay before the next one has not passed."""
    QUEUE_PAUSED = "queue_paused"
    LANE_PAUSED = "lane_paused"
    CLEARING = "clearing"
    """Its queue is being cleared."""
    NO_WORKER = "no_worker"
    """No worker is alive."""
    UNKNOWN_TASK = "unknown_task"
    """No live worker knows its task."""
    UNSERVED_QUEUE = "unserved_queue"
    """No live worker that knows its task takes from its queue."""
    WORKERS_STOPPING = "workers_stopping"
    WORKERS_BUSY = "workers_busy"
    ASSIGNED = "assigned"
    """A worker has claimed it ahead and has not started it."""
    NOT_TAKEN = "not_taken"
    """A worker with free slots can take it, and has not taken it for a while."""


NEEDS_OPERATOR = frozenset(
    {
        ObstacleKind.QUEUE_PAUSED,
        ObstacleKind.LANE_PAUSED,
        ObstacleKind.NO_WORKER,
        ObstacleKind.UNKNOWN_TASK,
        ObstacleKind.UNSERVED_QUEUE,
        ObstacleKind.WORKERS_STOPPING,
    }
)
"""They last until an operator does something."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Holder(Shown):
    """Who holds an obstacle. The last three fields are those of a job: its state, and its lease if a worker has it."""

    kind: str
    """`job`, `worker`, `queue`, `lane` or `pool`."""
    name: str
    state: JobState | None = None
    worker: str = ""
    lease_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Obstacle(Shown):
    """One thing that keeps a job from running."""

    kind: ObstacleKind
    text: str
    """What it is, as a sentence."""
    holders: tuple[Holder, ...] = ()
    ends: str
    """When it ends, or what ends it."""
    ends_at: datetime | None = None
    """The time at which it ends, if that is known."""
    behind: "tuple[Obstacle, ...]" = ()
    """For a lane: the obstacles of the job that is first in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """A job and the records around it. `store` is the address, `target` the argument for `holdfast worker`."""

    job: JobRecord
    now: int
    lease_now: int = 0
    """The same moment on the lease clock."""
    queue: QueueStats | None = None
    lane: LaneRecord | None = None
    head: JobRecord | None = None
    """The head of the lane, if it is another job."""
    pool: PoolRecord | None = None
    workers: tuple[WorkerRecord, ...] = ()
    undecodable: bool = False
    """Its bytes were read here, with the codec that is stored with them, and are damaged."""
    blocked_by: str = ""
    """What keeps every write waiting (`Engine.blocked_by`). Only read for operators."""
    store: str = ""
    target: str = ""
    shared: bool = True
    """True if another process can work on this store."""

    @property
    def alive(self) -> list[WorkerRecord]:
        return [worker for worker in self.workers if worker.is_alive(self.now) and not worker.is_manager]

    @property
    def able(self) -> list[WorkerRecord]:
        """Live workers that have the task and take from the queue."""
        return [w for w in self.alive if self.job.task in w.tasks and (not w.queues or self.job.queue in w.queues)]

    @property
    def queue_name(self) -> str:
        return f"{'Queue' if self.pool is None else 'Pool'} {self.job.queue}"

    @property
    def how_to_start(self) -> str:
        """The command, or the code, that starts a worker."""
        return f"holdfast worker {self.target}".rstrip() if self.shared else "async with jobs.worker():"

    def lease_until(self, job: JobRecord) -> datetime | None:
        """When the lease of a job ends, on the wall clock; None without a lease."""
        if job.lease_expires is None or not job.leased:
            return None
        return moment(self.now + job.lease_expires - self.lease_now)


Describe = Callable[[JobFacts, tuple[Obstacle, ...]], str]
"""Makes one text of a job and its obstacles."""


def list_obstacles(facts: JobFacts, describe: Describe) -> tuple[Obstacle, ...]:
    """Every obstacle of the job. None: it runs, has ended, or a worker is about to take it.

    `describe` makes the text about the head of its lane.
    """
    job = facts.job
    if job.state is JobState.ASSIGNED:
        return (_assigned(facts),)
    if not job.waiting:
        return ()
    obstacles = (
        *_of_the_job(facts),
        *_of_holds(facts, describe),
        *_of_time(facts),
        *_of_the_queue(facts),
        *_of_workers(facts),
    )
    return obstacles or tuple(_of_slots(facts))


def _assigned(facts: JobFacts) -> Obstacle:
    job = facts.job
    holder = Holder(kind="worker", name=job.owner, lease_until=facts.lease_until(job))
    return Obstacle(
        kind=ObstacleKind.ASSIGNED,
        text=f"It is next on {job.owner}.",
        holders=(holder,),
        ends="when that worker has a free slot",
    )


def _of_the_job(facts: JobFacts) -> Iterator[Obstacle]:
    job = facts.job
    if facts.blocked_by:
        yield Obstacle(
            kind=ObstacleKind.STORE,
            text=f"No process can write to the store: {facts.blocked_by}",
            ends="when that process goes on or ends",
        )
    if job.expires is not None and job.expires <= facts.now:
        yield Obstacle(
            kind=ObstacleKind.EXPIRED,
            text=f"It has expired: it was to start before {clock_text(job.expires, facts.now)}.",
            ends="never: the next prune of a worker cancels it",
        )
    if facts.undecodable:
        yield Obstacle(
            kind=ObstacleKind.PAYLOAD,
            text=f"Its stored payload cannot be read ({job.codec}); the worker that takes it fails it at once.",
            ends="never: enqueue it again with sound data",
        )


def _of_holds(facts: JobFacts, describe: Describe) -> Iterator[Obstacle]:
    """What holds a blocked job, in the order in which it can be released."""
    job = facts.job
    if job.state is not JobState.BLOCKED:
        return
    if job.hold & Hold.ARRIVING:
        yield Obstacle(
            kind=ObstacleKind.ARRIVING,
            text="It came in a transaction, and the next call that enqueues to its queue or claims from it admits it.",
            ends="with the next enqueue to its queue, or the next claim of a worker",
        )
    if job.hold & Hold.PARENTS:
        one = job.parents_left == 1
        parents = "1 other job that has" if one else f"{job.parents_left} other jobs that have"
        yield Obstacle(
            kind=ObstacleKind.PARENTS,
            text=f"It comes after {parents} not ended.",
            ends="when that job has ended" if one else "when these jobs have ended",
        )
    if job.hold & Hold.EPOCH:
        yield _resize(facts)
    if job.hold & Hold.LANE:
        yield _lane(facts, describe)


def _resize(facts: JobFacts) -> Obstacle:
    pool = facts.pool
    count = "" if pool is None else f" ({pool.old_live} left)"
    epoch = "" if pool is None else f": those placed before epoch {pool.epoch}"
    return Obstacle(
        kind=ObstacleKind.RESIZE,
        text=f"It waits until the jobs of the earlier size of pool {facts.job.queue} have ended{count}.",
        holders=(Holder(kind="pool", name=facts.job.queue),),
        ends=f"when the jobs of the earlier size have ended{epoch}",
    )


def _lane(facts: JobFacts, describe: Describe) -> Obstacle:
    text, head = f"It waits for its turn in lane {facts.job.lane}.", facts.head
    if head is None:
        return Obstacle(kind=ObstacleKind.LANE, text=text, ends="when the jobs before it have ended")
    of_head = replace(facts, job=head, head=None, undecodable=False)
    obstacles = list_obstacles(of_head, describe)
    reason = describe(of_head, obstacles)
    worker = head.owner if head.leased else ""
    ends = f"when job {head.id} has ended, and those between them"
    if head.state is JobState.RETRYING and head.due > facts.now:
        ends += f". Now: `holdfast jobs trigger {head.id}` runs it, `holdfast jobs cancel {head.id}` leaves it out"
    return Obstacle(
        kind=ObstacleKind.LANE,
        text=f"{text} Job {head.id} is first, and is {head.state}: {reason[:1].lower()}{reason[1:]}",
        holders=(
            Holder(kind="job", name=head.id, state=head.state, worker=worker, lease_until=facts.lease_until(head)),
        ),
        ends=ends,
        behind=obstacles,
    )


def _of_time(facts: JobFacts) -> Iterator[Obstacle]:
    job = facts.job
    if job.due <= facts.now:
        return
    at = clock_text(job.due, facts.now)
    cause = "" if job.last_error is None else f" with {error_text(job.last_error)}"
    failed = job.attempt and job.reason not in (Reason.SNOOZED, Reason.RELEASED)
    if job.state is JobState.RETRYING or (job.state is JobState.BLOCKED and failed):
        yield Obstacle(
            kind=ObstacleKind.RETRY,
            text=f"Attempt {job.attempt} failed{cause}. The next one is due at {at}.",
            ends=f"at {at}",
            ends_at=moment(job.due),
        )
    else:
        yield Obstacle(kind=ObstacleKind.DUE, text=f"It is due at {at}.", ends=f"at {at}", ends_at=moment(job.due))


def _of_the_queue(facts: JobFacts) -> Iterator[Obstacle]:
    job, name = facts.job, facts.queue_name
    if facts.queue is not None and facts.queue.paused:
        yield Obstacle(
            kind=ObstacleKind.QUEUE_PAUSED,
            text=f"{name} is paused.",
            holders=(Holder(kind="queue", name=job.queue),),
            ends=f"when it is resumed: holdfast queues resume {job.queue}",
        )
    if facts.lane is not None and facts.lane.paused:
        yield Obstacle(
            kind=ObstacleKind.LANE_PAUSED,
            text=f"Lane {job.lane} of {name.lower()} is paused.",
            holders=(Holder(kind="lane", name=job.lane or ""),),
            ends=f"when it is resumed: holdfast queues resume {job.queue} --lane {job.lane}",
        )
    if facts.queue is not None and facts.queue.clearing:
        yield Obstacle(
            kind=ObstacleKind.CLEARING,
            text=f"{name} is being cleared; no job of it is claimed meanwhile.",
            holders=(Holder(kind="queue", name=job.queue),),
            ends="when the clear is done",
        )


def _of_workers(facts: JobFacts) -> Iterator[Obstacle]:
    """Why no worker will take the job."""
    job, alive = facts.job, facts.alive
    if not alive:
        yield Obstacle(
            kind=ObstacleKind.NO_WORKER,
            text=f"No live worker on {facts.store}.",
            ends=f"when a worker starts: {facts.how_to_start}",
        )
        return
    if job.task == BARE_TASK and not facts.able:
        yield Obstacle(
            kind=ObstacleKind.UNSERVED_QUEUE,
            text=f"No live process pulls from queue {job.queue}.",
            ends="when a process pulls from it",
        )
        return
    with_task = [worker for worker in alive if job.task in worker.tasks]
    one = len(alive) == 1
    if not with_task:
        count = "1 worker is alive, it does not know" if one else f"{len(alive)} workers are alive, none knows"
        tasks = ", ".join(sorted({task for worker in alive for task in worker.tasks if task})) or "no task at all"
        yield Obstacle(
            kind=ObstacleKind.UNKNOWN_TASK,
            text=f"{count} task {job.task!r}: {'it knows' if one else 'they know'} {tasks}.",
            ends="when a worker starts whose code has the task",
        )
    elif not facts.able:
        queues = ", ".join(sorted({queue for worker in with_task for queue in worker.queues}))
        yield Obstacle(
            kind=ObstacleKind.UNSERVED_QUEUE,
            text=f"No live worker looks at queue {job.queue}: those that know {job.task!r} have {queues}.",
            holders=_workers(with_task),
            ends=f"when a worker starts with -q {job.queue}",
        )
    elif all(worker.stop_asked for worker in facts.able):
        yield Obstacle(
            kind=ObstacleKind.WORKERS_STOPPING,
            text=f"Every live worker that can take it is stopping: {', '.join(w.worker for w in facts.able)}.",
            holders=_workers(facts.able),
            ends="when another worker starts",
        )


def _of_slots(facts: JobFacts) -> Iterator[Obstacle]:
    """Why a job that a worker can take has not been taken."""
    able = [worker for worker in facts.able if not worker.stop_asked]
    if all(worker.slots and worker.busy >= worker.slots for worker in able):
        yield Obstacle(
            kind=ObstacleKind.WORKERS_BUSY,
            text="It is due; all workers that know it are busy.",
            holders=_workers(able),
            ends="when one of them has a free slot",
        )
    elif facts.now - facts.job.due > TAKEN_WITHIN_US:
        yield Obstacle(
            kind=ObstacleKind.NOT_TAKEN,
            text=f"It has been due for {seconds_text(facts.now - facts.job.due)}, and a worker that knows it has free "
            "slots. Jobs of higher priority may come first, or the `concurrency` of its task or its queue may be in "
            "use.",
            holders=_workers(able),
            ends="when these jobs have run",
        )


def _workers(workers: list[WorkerRecord]) -> tuple[Holder, ...]:
    return tuple(Holder(kind="worker", name=worker.worker) for worker in workers)


def error_text(error: ErrorInfo) -> str:
    """The type and the message of an error, not too long."""
    return f"{error.type}: {error.message[:ERROR_CHARS]}{'…' if len(error.message) > ERROR_CHARS else ''}"


def seconds_text(duration_us: int) -> str:
    return f"{duration_us / SECOND:.1f} s"


def clock_text(instant: int, now: int) -> str:
    """The time of day, and the date if it is not today."""
    at, today = moment(instant).astimezone(), moment(now).astimezone().date()
    return at.strftime("%H:%M:%S" if at.date() == today else "%Y-%m-%d %H:%M:%S")
