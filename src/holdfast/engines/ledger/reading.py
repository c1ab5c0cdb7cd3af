"""Readers: they see stored states and change nothing."""

from holdfast.engines.ledger.step import Step
from holdfast.model.job import JobRecord
from holdfast.model.observe import (
    Audit,
    AuditAnswer,
    Find,
    FindAnswer,
    Get,
    GetAnswer,
    Lanes,
    LanesAnswer,
    Now,
    NowAnswer,
    QueueStats,
    Stats,
    StatsAnswer,
)
from holdfast.model.records import LaneRecord, QueueRecord
from holdfast.model.states import JobState

JOBS_PER_READ = 1_000
"""A search with a filter reads at least this many jobs at a time: a store may have to look at all for each read."""


def now(step: Step, command: Now) -> NowAnswer:
    return NowAnswer(at=step.at)


def get(step: Step, command: Get) -> GetAnswer:
    # RD1: a job that is due and not promoted yet is read as scheduled or retrying.
    return GetAnswer(at=step.at, jobs=tuple([step.state.job(key.queue, key.id) for key in command.jobs]))


def find(step: Step, command: Find) -> FindAnswer:
    """Newest arrival first. The cursor is the last arrival looked at."""
    # RD3: never more than `scan` rows; the cursor goes on even where no row matched.
    jobs: list[JobRecord] = []
    below, looked_at = command.cursor, 0
    least = JOBS_PER_READ if _has_filter(command) else 0
    while True:
        # One more than is wanted, to know whether there is more.
        count = min(max(command.limit - len(jobs), least), command.scan - looked_at)
        page = step.state.newest(command.queue, command.state, below, count + 1)
        for job in page[:count]:
            if len(jobs) == command.limit:
                return FindAnswer(at=step.at, jobs=tuple(jobs), cursor=below)
            looked_at, below = looked_at + 1, job.arrival
            if _matches(job, command):
                jobs.append(job)
        if len(page) <= count:
            return FindAnswer(at=step.at, jobs=tuple(jobs))
        if len(jobs) == command.limit or looked_at == command.scan:
            return FindAnswer(at=step.at, jobs=tuple(jobs), cursor=below)


def _has_filter(find: Find) -> bool:
    return find.task is not None or find.lane is not None or find.since is not None or bool(find.metadata)


def _matches(job: JobRecord, find: Find) -> bool:
    return (
        (find.task is None or job.task == find.task)
        and (find.lane is None or job.lane == find.lane)
        and (find.since is None or job.created >= find.since)
        and all(job.metadata.get(name) == value for name, value in find.metadata.items())
    )


def stats(step: Step, command: Stats) -> StatsAnswer:
    names = command.queues
    if names is None:
        names = tuple(record.queue for record in step.state.queues())
    return StatsAnswer(at=step.at, queues=tuple([queue_stats(step, name) for name in names]))


def queue_stats(step: Step, name: str) -> QueueStats:
    # RD2: `due` is the queued jobs and those that have fallen due. RD4: tasks with queued jobs.
    state = step.state
    record = state.queue(name) or QueueRecord(queue=name)
    counts = dict(state.counts(name))
    fallen, since = state.count_due(name, step.now)
    ready = state.first_ready(name)
    oldest = min(ready.values(), default=None)
    if since is not None and (oldest is None or since < oldest):
        oldest = since
    return QueueStats(
        queue=name,
        paused=record.paused,
        counts=counts,
        due=counts.get(JobState.QUEUED, 0) + fallen,
        oldest_due=oldest,
        next_due=state.next_due(name),
        totals=record.totals,
        ready_tasks=tuple(sorted(ready)),
        clearing=state.is_clearing(name),
    )


def lanes(step: Step, command: Lanes) -> LanesAnswer:
    # RD5: without a read of the other lanes.
    if command.lanes is None:
        return LanesAnswer(at=step.at, lanes=tuple(step.state.lanes(command.queue)))
    found: list[LaneRecord] = []
    for name in command.lanes:
        lane = step.state.lane(command.queue, name)
        if lane is not None:
            found.append(lane)
    return LanesAnswer(at=step.at, lanes=tuple(found))


def audit(step: Step, command: Audit) -> AuditAnswer:
    return AuditAnswer(at=step.at, problems=tuple(step.state.problems(step.now)))
