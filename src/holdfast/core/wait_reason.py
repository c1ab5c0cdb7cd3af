"""Why a job has not ended, in a sentence or two.

Pure functions over the job's record and the records of its queue, its lane, its pool and the workers. The text goes
into `WaitTimeout`, into one log line while a caller waits and no worker can take the job, and to operators
(`control.waits_for`, `holdfast jobs show`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.model.instants import SECOND
from holdfast.model.job import BARE_TASK, JobRecord
from holdfast.model.observe import QueueStats
from holdfast.model.records import LaneRecord, PoolRecord, WorkerRecord
from holdfast.model.states import Hold, JobState
from holdfast.views import moment

ULID_CHARS = 26
SHORT_CHARS = 8
ERROR_CHARS = 200
"""A longer message of an error is cut; `jobs show` has all of it."""
TAKEN_WITHIN_US = 2 * SECOND
"""An idle worker takes a due job within this time. After it, the reason names what else may hold the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedJob:
    """A job and the records around it. `store` is the address, `target` the argument for `holdfast worker`."""

    job: JobRecord
    now: int
    queue: QueueStats | None = None
    lane: LaneRecord | None = None
    head: JobRecord | None = None
    """The head of the lane, if it is another job."""
    pool: PoolRecord | None = None
    workers: tuple[WorkerRecord, ...] = ()
    store: str = ""
    target: str = ""
    shared: bool = True
    """True if another process can work on this store."""

    @property
    def alive(self) -> list[WorkerRecord]:
        """Live workers, without managers."""
        return [worker for worker in self.workers if worker.is_alive(self.now) and not worker.max_children]

    @property
    def able(self) -> list[WorkerRecord]:
        """Live workers that have the task and take from the queue."""
        return [w for w in self.alive if self.job.task in w.tasks and (not w.queues or self.job.queue in w.queues)]

    @property
    def queue_name(self) -> str:
        return f"{'Queue' if self.pool is None else 'Pool'} {self.job.queue}"


def short(job_id: str) -> str:
    """An id as users are shown it. The beginning of a generated id is enough to find the job."""
    return job_id[:SHORT_CHARS] if len(job_id) == ULID_CHARS else job_id


def no_worker_reason(facts: UnfinishedJob) -> str:
    """Why no worker will ever take the job; empty if one can."""
    job = facts.job
    if facts.queue is not None and facts.queue.paused:
        return f"{facts.queue_name} is paused."
    if facts.lane is not None and facts.lane.paused:
        return f"Lane {job.lane} of {facts.queue_name.lower()} is paused."
    alive = facts.alive
    if not alive:
        return f"No live worker on {facts.store}."
    if job.task == BARE_TASK and not facts.able:
        return f"No live process pulls from queue {job.queue}."
    with_task = [worker for worker in alive if job.task in worker.tasks]
    one = len(alive) == 1
    count = "1 worker is alive, it does not know" if one else f"{len(alive)} workers are alive, none knows"
    if not with_task:
        tasks = ", ".join(sorted({task for worker in alive for task in worker.tasks if task})) or "no task at all"
        return f"{count} task {job.task!r}: {'it knows' if one else 'they know'} {tasks}."
    if not facts.able:
        queues = ", ".join(sorted({queue for worker in with_task for queue in worker.queues}))
        return f"No live worker looks at queue {job.queue}: those that know {job.task!r} have {queues}."
    if all(worker.stop_asked for worker in facts.able):
        return f"Every live worker that can take it is stopping: {', '.join(w.worker for w in facts.able)}."
    return ""


def warning(facts: UnfinishedJob) -> str:
    """The log line for a waiting caller; empty if a worker has the job or can take it."""
    reason = no_worker_reason(facts)
    if not reason or facts.job.leased:
        return ""
    advice = ""
    if not facts.alive:
        how = f"holdfast worker {facts.target}".rstrip()
        advice = f"\n          Start one in another terminal:  {how}"
        if not facts.shared:
            advice = "\n          Start one in this process:  async with jobs.worker():"
    return f"holdfast: still waiting for {short(facts.job.id)} ({facts.job.task}). {reason}{advice}"


def wait_reason(facts: UnfinishedJob) -> str:
    """What the job waits for; empty if it has ended."""
    job = facts.job
    match job.state:
        case JobState.SUCCEEDED | JobState.FAILED | JobState.CANCELLED:
            return ""
        case JobState.RUNNING:
            since = facts.now if job.last_started is None else job.last_started
            return f"It has been running on {job.owner} for {_seconds(facts.now - since)} (attempt {job.attempt})."
        case JobState.ASSIGNED:
            return f"It is next on {job.owner}."
        case JobState.SCHEDULED if job.due > facts.now:
            return f"It is due at {_clock(job.due, facts.now)}."
        case JobState.RETRYING if job.due > facts.now:
            return f"Attempt {job.attempt} failed{_error(job)}. The next one is due at {_clock(job.due, facts.now)}."
        case JobState.BLOCKED if job.hold & ~Hold.PAUSED:
            return " ".join(_holds(facts))
    return no_worker_reason(facts) or _ready_reason(facts)


def _holds(facts: UnfinishedJob) -> Iterator[str]:
    """What holds a blocked job, in the order in which it can be released."""
    job = facts.job
    if job.hold & Hold.ARRIVING:
        yield "It came in a transaction, and the next call that enqueues to its queue or claims from it admits it."
    if job.hold & Hold.PARENTS:
        parents = "1 other job that has" if job.parents_left == 1 else f"{job.parents_left} other jobs that have"
        yield f"It comes after {parents} not ended."
    if job.hold & Hold.EPOCH:
        count = "" if facts.pool is None else f" ({facts.pool.old_live} left)"
        yield f"It waits until the jobs of the earlier size of pool {job.queue} have ended{count}."
    if job.hold & Hold.LANE:
        yield f"It waits for its turn in lane {job.lane}."
        if facts.head is not None:
            reason = wait_reason(replace(facts, job=facts.head, head=None))
            yield f"Job {facts.head.id} is first, and is {facts.head.state}: {reason[:1].lower()}{reason[1:]}"


def _ready_reason(facts: UnfinishedJob) -> str:
    """A worker can take the job, and has not taken it yet."""
    job = facts.job
    if facts.queue is not None and facts.queue.clearing:
        return f"{facts.queue_name} is being cleared; no job of it is claimed meanwhile."
    able = [worker for worker in facts.able if not worker.stop_asked]
    if all(worker.slots and worker.busy >= worker.slots for worker in able):
        return "It is due; all workers that know it are busy."
    if facts.now - job.due <= TAKEN_WITHIN_US:
        return "It is due and about to be taken."
    return (
        f"It has been due for {_seconds(facts.now - job.due)}, and a worker that knows it has free slots. Jobs of "
        "higher priority may come first, or the `concurrency` of its task or its queue may be in use."
    )


def _error(job: JobRecord) -> str:
    if job.last_error is None:
        return ""
    message = job.last_error.message
    return f" with {job.last_error.type}: {message[:ERROR_CHARS]}{'…' if len(message) > ERROR_CHARS else ''}"


def _seconds(duration_us: int) -> str:
    return f"{duration_us / SECOND:.1f} s"


def _clock(instant: int, now: int) -> str:
    """The time of day, and the date if it is not today."""
    at, today = moment(instant).astimezone(), moment(now).astimezone().date()
    return at.strftime("%H:%M:%S" if at.date() == today else "%Y-%m-%d %H:%M:%S")
