"""Which jobs a command works on: ids, prefixes of ids, or a filter.

An id is searched in all queues. Text that is not the id of a job may be a prefix of one, as the worker prints it. A
prefix must fit exactly one job.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import wraps
from typing import Any

import click

from holdfast.cli.exits import NothingMatched
from holdfast.cli.options import Function, Store, duration, metadata_option, queue_option
from holdfast.cli.queue_names import unknown_queue
from holdfast.errors import AmbiguousId, JobNotFound
from holdfast.model.states import JobState
from holdfast.views import Job

SHORTEST_PREFIX = 4
"""Characters. A shorter prefix fits too many jobs to be meant."""
PAGE_SIZE = 1_000
MAX_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Conditions of a search; None: any. `limit` None: no limit."""

    state: str | None = None
    task: str | None = None
    queue: str | None = None
    lane: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    since_s: float | None = None
    limit: int | None = None
    everything: bool = False

    @property
    def empty(self) -> bool:
        conditions = (self.state, self.task, self.queue, self.lane, self.since_s)
        return not self.everything and not self.metadata and all(value is None for value in conditions)


def nothing_found(store: Store, message: str, chosen: Filter) -> NothingMatched:
    """The end of a command whose filter has found nothing. It says so if the queue of the filter does not exist."""
    return NothingMatched(" ".join(filter(None, (message, unknown_queue(store, chosen.queue)))))


def filter_options(function: Function) -> Function:
    """Options `--state`, `--task` and so on, which the command gets as one `Filter`."""

    @click.option(
        "--state",
        type=click.Choice([state.value for state in JobState]),
        metavar="STATE",
        help="Only jobs in this state.",
    )
    @click.option("--task", metavar="NAME", help="Only this task.")
    @queue_option
    @click.option("--lane", metavar="NAME", help="Only this lane.")
    @metadata_option("Only jobs whose metadata has this value under this key; several: all of them.")
    @click.option("--since", "since_s", type=duration, help="Only jobs enqueued within this time, such as 2h.")
    @click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N jobs.")
    @click.option("--all", "everything", is_flag=True, help="All jobs.")
    @wraps(function)
    def command(*args: Any, **options: Any) -> Any:
        chosen = Filter(**{item.name: options.pop(item.name) for item in fields(Filter)})
        return function(*args, chosen=chosen, **options)

    return command


def matching(store: Store, chosen: Filter) -> Iterator[Job]:
    """The jobs that match, by queue and state, the newest first."""
    since = None if chosen.since_s is None else store.now - timedelta(seconds=chosen.since_s)
    left = chosen.limit
    cursor: str | None = None
    while left is None or left > 0:
        page = store.control.find(
            state=chosen.state,
            task=chosen.task,
            queue=chosen.queue,
            lane=chosen.lane,
            since=since,
            metadata=chosen.metadata,
            limit=PAGE_SIZE if left is None else min(left, PAGE_SIZE),
            cursor=cursor,
        )
        yield from page
        left = None if left is None else left - len(page)
        cursor = page.cursor
        if cursor is None:
            return


def matching_in(store: Store, chosen: Filter, states: Sequence[JobState]) -> Iterator[Job]:
    """The same for several states."""
    left = chosen.limit
    for state in states:
        if left == 0:
            return
        for job in matching(store, replace(chosen, state=state.value, limit=left)):
            yield job
            left = None if left is None else left - 1


def jobs_by_id(store: Store, ids: Sequence[str], queue: str | None = None) -> list[Job]:
    """The jobs with these ids or prefixes, each once, in this order."""
    jobs: dict[tuple[str, str], Job] = {}
    for job_id in ids:
        job = job_by_id(store, job_id, queue)
        jobs[job.queue, job.id] = job
    return list(jobs.values())


def job_by_id(store: Store, job_id: str, queue: str | None = None) -> Job:
    """The job with this id, or the only one whose id has this prefix."""
    try:
        return store.control.get(job_id, queue=queue)
    except JobNotFound as error:
        if len(job_id) < SHORTEST_PREFIX:
            hint = f"To name a job by the beginning of its id, give {SHORTEST_PREFIX} characters or more."
            raise NothingMatched(f"{error} {hint}") from error
    matches = [job for job in matching(store, Filter(queue=queue)) if job.id.startswith(job_id)]
    if not matches:
        raise JobNotFound(job_id=job_id, queue=queue)
    if len(matches) > 1:
        raise AmbiguousId(_ambiguous(job_id, matches), job_id=job_id, queues=sorted({job.queue for job in matches}))
    return matches[0]


def _ambiguous(prefix: str, matches: Sequence[Job]) -> str:
    lines = [f"  {job.id}  {job.task}  {job.state}  in queue {job.queue}" for job in matches[:MAX_LISTED]]
    more = [f"  and {len(matches) - MAX_LISTED:,} more"] if len(matches) > MAX_LISTED else []
    return "\n".join([f"{len(matches):,} jobs have an id that begins with {prefix!r}. Give more of it:", *lines, *more])
