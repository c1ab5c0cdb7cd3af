"""Why a job has not ended, in a sentence.

Pure functions over the job's record and the records of its queue, its lane and the workers. The sentence goes into
`WaitTimeout`, and into one log line while a caller waits and no worker can take the job.
"""

from dataclasses import dataclass
from datetime import datetime

from holdfast.model.job import JobRecord
from holdfast.model.observe import QueueStats
from holdfast.model.records import LaneRecord, WorkerRecord
from holdfast.model.states import Hold, JobState
from holdfast.views import is_alive, moment

ULID_CHARS = 26
SHORT_CHARS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedJob:
    """A job and the records around it. `store` is the address, `target` the argument for `holdfast worker`."""

    job: JobRecord
    now: int
    queue: QueueStats | None = None
    lane: LaneRecord | None = None
    workers: tuple[WorkerRecord, ...] = ()
    store: str = ""
    target: str = ""
    shared: bool = True
    """True if another process can work on this store."""

    @property
    def alive(self) -> list[WorkerRecord]:
        return [worker for worker in self.workers if is_alive(worker, self.now)]

    @property
    def able(self) -> list[WorkerRecord]:
        """Live workers that have the task and take from the queue."""
        return [w for w in self.alive if self.job.task in w.tasks and (not w.queues or self.job.queue in w.queues)]


def short(job_id: str) -> str:
    """An id as users are shown it. The beginning of a generated id is enough to find the job."""
    return job_id[:SHORT_CHARS] if len(job_id) == ULID_CHARS else job_id


def no_worker_reason(facts: UnfinishedJob) -> str:
    """Why no worker will ever take the job; empty if one can."""
    if facts.queue is not None and facts.queue.paused:
        return f"Queue {facts.job.queue} is paused."
    if facts.lane is not None and facts.lane.paused:
        return f"Lane {facts.job.lane} of queue {facts.job.queue} is paused."
    alive = facts.alive
    if not alive:
        return f"No live worker on {facts.store}."
    with_task = [worker for worker in alive if facts.job.task in worker.tasks]
    count = "1 worker is alive, it does not know" if len(alive) == 1 else f"{len(alive)} workers are alive, none knows"
    if not with_task:
        tasks = ", ".join(sorted({task for worker in alive for task in worker.tasks})) or "no task at all"
        return f"{count} task {facts.job.task!r}: they know {tasks}."
    if not facts.able:
        queues = ", ".join(sorted({queue for worker in with_task for queue in worker.queues}))
        return f"No live worker looks at queue {facts.job.queue}: those that know {facts.job.task!r} have {queues}."
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
    """What the job waits for."""
    job = facts.job
    match job.state:
        case JobState.RUNNING:
            return f"It has been running on {job.owner} for {_since(facts, job.last_started)} (attempt {job.attempt})."
        case JobState.ASSIGNED:
            return f"It is next on {job.owner}."
        case JobState.SCHEDULED if job.due > facts.now:
            return f"It is due at {_clock(job.due)}."
        case JobState.RETRYING if job.due > facts.now:
            error = f" with {job.last_error.type}: {job.last_error.message}" if job.last_error else ""
            return f"Attempt {job.attempt} failed{error}. The next one is due at {_clock(job.due)}."
        case JobState.BLOCKED if job.hold & Hold.PARENTS:
            return f"It comes after {job.parents_left} other jobs that have not ended."
        case JobState.BLOCKED if job.hold & Hold.LANE:
            head = "" if facts.lane is None or facts.lane.head is None else f" Job {facts.lane.head} is first."
            return f"It waits for its turn in lane {job.lane}.{head}"
    reason = no_worker_reason(facts)
    if reason:
        return reason
    busy = all(worker.busy >= worker.slots for worker in facts.able)
    return "It is due; all workers that know it are busy." if busy else "It is due and about to be taken."


def _since(facts: UnfinishedJob, instant: int | None) -> str:
    seconds = (facts.now - (facts.now if instant is None else instant)) / 1_000_000
    return f"{seconds:.1f} s"


def _clock(instant: int) -> str:
    at: datetime = moment(instant).astimezone()
    return at.strftime("%H:%M:%S")
