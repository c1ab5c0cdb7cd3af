"""Why a job has not ended, in a sentence.

Pure: it is given the record and what is known of its queue, its lane and the workers. Told where a wait runs out, and
once on the log while somebody waits and no worker can take the job.
"""

from dataclasses import dataclass
from datetime import datetime

from holdfast.model.job import JobRecord
from holdfast.model.observe import QueueStats
from holdfast.model.records import LaneRecord, WorkerRecord
from holdfast.model.states import Hold, JobState
from holdfast.views import is_alive, moment

ULID = 26
SHORT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What there is to know around one job. `place` is the store, `target` what to start a worker with."""

    job: JobRecord
    now: int
    queue: QueueStats | None = None
    lane: LaneRecord | None = None
    workers: tuple[WorkerRecord, ...] = ()
    place: str = ""
    target: str = ""
    shared: bool = True
    """Whether another process can work on this store."""

    @property
    def alive(self) -> list[WorkerRecord]:
        return [worker for worker in self.workers if is_alive(worker, self.now)]

    @property
    def able(self) -> list[WorkerRecord]:
        """Live workers that know the task and look at the queue."""
        return [w for w in self.alive if self.job.task in w.tasks and (not w.queues or self.job.queue in w.queues)]


def short(job_id: str) -> str:
    """An id as people are shown it: of a generated one the beginning, which is enough to find it by."""
    return job_id[:SHORT] if len(job_id) == ULID else job_id


def nobody_can(scene: Scene) -> str:
    """Why no worker will take the job however long one waits; empty where one can."""
    if scene.queue is not None and scene.queue.paused:
        return f"Queue {scene.job.queue} is paused."
    if scene.lane is not None and scene.lane.paused:
        return f"Lane {scene.job.lane} of queue {scene.job.queue} is paused."
    alive = scene.alive
    if not alive:
        return f"No live worker on {scene.place}."
    knowing = [worker for worker in alive if scene.job.task in worker.tasks]
    count = "1 worker is alive, it does not know" if len(alive) == 1 else f"{len(alive)} workers are alive, none knows"
    if not knowing:
        known = ", ".join(sorted({task for worker in alive for task in worker.tasks})) or "no task at all"
        return f"{count} task {scene.job.task!r}: they know {known}."
    if not scene.able:
        looked_at = ", ".join(sorted({queue for worker in knowing for queue in worker.queues}))
        return f"No live worker looks at queue {scene.job.queue}: those that know {scene.job.task!r} have {looked_at}."
    return ""


def hint(scene: Scene) -> str:
    """The line on the log; empty where somebody can take the job, and it is only a matter of time."""
    reason = nobody_can(scene)
    if not reason or scene.job.leased:
        return ""
    advice = ""
    if not scene.alive:
        how = f"holdfast worker {scene.target}".rstrip()
        advice = f"\n          Start one in another terminal:  {how}"
        if not scene.shared:
            advice = "\n          Start one in this process:  async with jobs.worker():"
    return f"holdfast: still waiting for {short(scene.job.id)} ({scene.job.task}). {reason}{advice}"


def why(scene: Scene) -> str:
    """What the job waits for."""
    job = scene.job
    match job.state:
        case JobState.RUNNING:
            return f"It has been running on {job.owner} for {_since(scene, job.last_started)} (attempt {job.attempt})."
        case JobState.ASSIGNED:
            return f"It is next on {job.owner}."
        case JobState.SCHEDULED if job.due > scene.now:
            return f"It is due at {_clock(job.due)}."
        case JobState.RETRYING if job.due > scene.now:
            error = f" with {job.last_error.type}: {job.last_error.message}" if job.last_error else ""
            return f"Attempt {job.attempt} failed{error}. The next one is due at {_clock(job.due)}."
        case JobState.BLOCKED if job.hold & Hold.PARENTS:
            return f"It comes after {job.parents_left} other jobs that have not ended."
        case JobState.BLOCKED if job.hold & Hold.LANE:
            head = "" if scene.lane is None or scene.lane.head is None else f" Job {scene.lane.head} is first."
            return f"It waits for its turn in lane {job.lane}.{head}"
    reason = nobody_can(scene)
    if reason:
        return reason
    busy = all(worker.busy >= worker.slots for worker in scene.able)
    return "It is due; all workers that know it are busy." if busy else "It is due and about to be taken."


def _since(scene: Scene, instant: int | None) -> str:
    seconds = (scene.now - (scene.now if instant is None else instant)) / 1_000_000
    return f"{seconds:.1f} s"


def _clock(instant: int) -> str:
    at: datetime = moment(instant).astimezone()
    return at.strftime("%H:%M:%S")
