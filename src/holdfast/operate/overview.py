"""What is wrong with queues and workers: decided here, and shown by `status`, `top`, `queues list` and `doctor`.

Read are the counters of all queues and the records of the workers. Of queues in which jobs wait for a retry the newest
of these jobs are read, too, a bounded number: they tell which lanes wait, and which workers were lost. Where more wait,
the lanes of the newest blocked jobs are looked at as well.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.core.ended_workers import read_ended_workers
from holdfast.core.obstacles import clock_text
from holdfast.engine import Engine
from holdfast.model.findings import LANES, QUEUES, START_WORKER, TASKS, WORKERS, Finding
from holdfast.model.instants import Instant
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.observe import Find, QueueStats
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState, Reason
from holdfast.operate.words import age, jobs, names
from holdfast.views import QueueStatus, Shown, WorkerStatus

MAX_RETRYING_JOBS = 50
"""Read of one queue. They come with their payloads."""
MAX_RETRYING_QUEUES = 10
"""Those with the most retrying jobs."""
WORDS = {QUEUES.name: "no worker", TASKS.name: "unknown task", LANES.name: "lanes wait"}
"""The status of a queue by its first trouble."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StoreOverview(Shown):
    """All queues and workers, and what is wrong with them."""

    queues: tuple[QueueStatus, ...]
    workers: tuple[WorkerStatus, ...]
    words: dict[str, str]
    """The status of each queue: `open`, `paused`, `no worker`, `unknown task`, or `lanes wait` (for a retry)."""
    troubles: tuple[Finding, ...]
    """Queues without a worker are not among them if no worker at all is alive."""

    @property
    def has_worker(self) -> bool:
        """True if a worker is alive. A manager is none."""
        return any(worker.alive and not worker.is_manager for worker in self.workers)


def sum_of(queues: Sequence[QueueStatus]) -> QueueStatus:
    """The sum over all of them; its queue name is empty."""
    counts = Counter[JobState]()
    for queue in queues:
        counts.update(queue.counts)
    return QueueStatus(
        queue="",
        paused=bool(queues) and all(queue.paused for queue in queues),
        depth=sum(queue.depth for queue in queues),
        due=sum(queue.due for queue in queues),
        counts=dict(counts),
        oldest_due_at=min((q.oldest_due_at for q in queues if q.oldest_due_at is not None), default=None),
        next_due_at=min((q.next_due_at for q in queues if q.next_due_at is not None), default=None),
        ready_tasks=tuple(sorted({task for queue in queues for task in queue.ready_tasks})),
        succeeded=sum(queue.succeeded for queue in queues),
        failed=sum(queue.failed for queue in queues),
        cancelled=sum(queue.cancelled for queue in queues),
    )


async def read_overview(engine: Engine) -> StoreOverview:
    stats = (await engine.stats()).queues
    retrying = await read_retrying(engine, stats)
    answer, ended = await engine.workers(), await read_ended_workers(engine)
    return overview_of(stats, retrying, answer.workers, ended, answer.at.wall)


async def read_retrying(engine: Engine, stats: Sequence[QueueStats]) -> tuple[JobRecord, ...]:
    """The newest jobs that wait for a retry, of the queues that have the most of them."""
    counts = {one.queue: one.counts.get(JobState.RETRYING, 0) for one in stats}
    most = sorted((queue for queue, count in counts.items() if count), key=lambda queue: -counts[queue])
    blocked = {one.queue for one in stats if one.counts.get(JobState.BLOCKED)}
    found = list[JobRecord]()
    for queue in most[:MAX_RETRYING_QUEUES]:
        newest = (await engine.find(Find(queue=queue, state=JobState.RETRYING, limit=MAX_RETRYING_JOBS))).jobs
        more = await _read_heads(engine, queue) if queue in blocked and counts[queue] > len(newest) else []
        found += {job.id: job for job in (*newest, *more)}.values()
    return tuple(found)


async def _read_heads(engine: Engine, queue: str) -> list[JobRecord]:
    """Jobs that wait for a retry and are first in their lanes: of the lanes in which the newest blocked jobs are.

    They may be older than many other jobs that wait for a retry.
    """
    blocked = (await engine.find(Find(queue=queue, state=JobState.BLOCKED, limit=MAX_RETRYING_JOBS))).jobs
    names = sorted({job.lane for job in blocked if job.lane is not None})
    lanes = (await engine.lanes(queue, *names)).lanes if names else ()
    keys = [JobKey(queue, lane.head) for lane in lanes if lane.head is not None]
    heads = (await engine.get(*keys)).jobs if keys else ()
    return [job for job in heads if job is not None and job.state is JobState.RETRYING]


def overview_of(
    stats: Iterable[QueueStats],
    retrying: Sequence[JobRecord],
    records: Sequence[WorkerRecord],
    ended: frozenset[str],
    now: Instant,
) -> StoreOverview:
    """`ended`: workers whose process has certainly ended."""
    managers = {child: one.worker for one in records for child in one.children}
    workers = [
        WorkerStatus.of(one, now, ended=one.worker in ended, manager=managers.get(one.worker, "")) for one in records
    ]
    queues = [QueueStatus.of(one) for one in stats]
    any_alive = any(worker.alive and not worker.is_manager for worker in workers)
    words, troubles = dict[str, str](), [*_worker_troubles(records, ended, retrying, now)]
    for queue in queues:
        found = [] if queue.paused else [*_queue_troubles(queue, workers, retrying, now)]
        words[queue.queue] = "paused" if queue.paused else WORDS[found[0].check] if found else "open"
        troubles += [finding for finding in found if any_alive or finding.check != QUEUES.name]
    return StoreOverview(queues=tuple(queues), workers=tuple(workers), words=words, troubles=tuple(troubles))


def _queue_troubles(
    queue: QueueStatus, workers: Sequence[WorkerStatus], retrying: Sequence[JobRecord], now: Instant
) -> Iterator[Finding]:
    waiting = queue.depth - sum(queue.counts.get(state, 0) for state in (JobState.RUNNING, JobState.ASSIGNED))
    unknown = queue.unserved_tasks(workers)
    heads = [job for job in retrying if job.queue == queue.queue and job.lane is not None and job.due > now]
    if waiting and not queue.takers(workers):
        none, advice = f"No live worker takes from queue {queue.queue}", f"Start one: {START_WORKER} -q {queue.queue}"
        if queue.due:
            yield QUEUES.problem(f"{none}, and {jobs(queue.due, 'are due')}.", advice)
        else:
            yield QUEUES.warning(f"{none}. {jobs(waiting, 'are waiting')} there; none is due yet.", advice)
    elif unknown:
        tasks = names(f"task {task}" if task else "bare payloads" for task in unknown)
        task = next(filter(None, unknown), "NAME")
        yield TASKS.problem(
            f"Queue {queue.queue} has jobs of which its live workers do not know the task: {tasks}.",
            "Start a worker that imports the module of the task. If the task was renamed or removed, deploy the old "
            f"name, or cancel the jobs: holdfast jobs cancel --task {shlex.quote(task)}",
        )
    if heads and queue.counts.get(JobState.BLOCKED):
        yield _waiting_lanes(queue, heads, now)


def _waiting_lanes(queue: QueueStatus, heads: Sequence[JobRecord], now: Instant) -> Finding:
    """A job that is tried again is the head of its lane, and the others wait for it."""
    more = "" if queue.counts.get(JobState.RETRYING, 0) <= MAX_RETRYING_JOBS else " or more"
    lanes = "1 lane" if len(heads) == 1 and not more else f"{len(heads)}{more} lanes"
    first = min(heads, key=lambda job: job.due)
    return LANES.note(
        f"{lanes} of queue {queue.queue} wait{'s' if lanes == '1 lane' else ''} for a retry, next "
        f"{clock_text(first.due, now)}.",
        f"See the jobs that come first: holdfast queues list {shlex.quote(queue.queue)}. Let one run now with "
        f"`holdfast jobs trigger {shlex.quote(first.id)}`, or without it with `holdfast jobs cancel`.",
    )


def _worker_troubles(
    records: Sequence[WorkerRecord], ended: frozenset[str], retrying: Sequence[JobRecord], now: Instant
) -> Iterator[Finding]:
    live = {one.worker: one for one in records if one.is_alive(now) and one.worker not in ended}
    managers = {child: one.worker for one in live.values() for child in one.children}
    for manager in live.values():
        if len(manager.children) < manager.min_children:
            yield WORKERS.warning(
                f"Manager {manager.worker} has {len(manager.children)} workers, and should have "
                f"{manager.min_children} at least: it has just started, or its workers end again and again.",
                "Look into its log.",
            )
    lost, had_jobs = dict[str, tuple[Instant, str]](), False
    """When each was seen last, and a text that names it."""
    for one in records:
        place = f"{one.worker} (on {one.host or 'an unknown host'}, pid {one.pid}"
        if one.worker in managers and one.worker not in live and one.worker not in ended:
            yield WORKERS.warning(
                f"Worker {place}) has sent no heartbeat for {age(now - one.seen)}, and its manager "
                f"{managers[one.worker]} sees its process: it is stopped, or hangs. It is not replaced.",
                f"Let it go on (kill -CONT {one.pid}), or kill it (kill -KILL {one.pid}): then it is replaced.",
            )
        elif one.worker not in live:
            lost[one.worker] = one.seen, f"{place}, {'ended' if one.worker in ended else 'silent'})"
            had_jobs |= one.busy > 0
    for job in retrying:  # other workers remove the record of a dead one, and its jobs still name it
        if job.reason is Reason.WORKER_LOST and job.owner not in live and job.history:
            lost.setdefault(job.owner, (job.history[-1].ended, job.owner))
            had_jobs = True
    if lost:
        count = "1 worker lost" if len(lost) == 1 else f"{len(lost)} workers lost, the last"
        found = f"{count} {age(now - max(seen for seen, _ in lost.values()))} ago"
        yield (WORKERS.warning if had_jobs else WORKERS.note)(
            f"{found}, with {'' if had_jobs else 'no '}jobs: {names(text for _, text in lost.values())}.",
            "Look into its log. A live worker takes over its jobs: at once if it is on the same host, else when their "
            "leases have run out. A record is removed an hour after its last heartbeat.",
        )
