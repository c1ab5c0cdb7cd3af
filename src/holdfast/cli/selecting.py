"""Which jobs a command is about: ids, beginnings of ids, or a filter.

An id is looked for in all queues. What is no id of any job may be the beginning of one, as the worker prints them;
it counts if it is the beginning of exactly one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import wraps
from typing import Any

import click

from holdfast.cli.options import Function, Store, duration, queue_option
from holdfast.errors import AmbiguousId, JobNotFound
from holdfast.model.states import JobState
from holdfast.views import Job

LEAST = 4
"""Letters that a beginning must have."""
PAGE = 1_000
MOST_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What to look for; None: whatever it is. `limit` None: all."""

    state: str | None = None
    task: str | None = None
    queue: str | None = None
    lane: str | None = None
    since: float | None = None
    limit: int | None = None
    everything: bool = False

    @property
    def empty(self) -> bool:
        chosen = (self.state, self.task, self.queue, self.lane, self.since)
        return not self.everything and all(value is None for value in chosen)


def filter_options(function: Function) -> Function:
    """`--state`, `--task` and so on, given to the command as one `Filter`."""

    @click.option(
        "--state", type=click.Choice([state.value for state in JobState]), metavar="STATE", help="Only in this state."
    )
    @click.option("--task", metavar="NAME", help="Only this task.")
    @queue_option
    @click.option("--lane", metavar="NAME", help="Only this lane.")
    @click.option("--since", type=duration, help="Enqueued no longer ago than this, such as 2h.")
    @click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many.")
    @click.option("--all", "everything", is_flag=True, help="Every one there is.")
    @wraps(function)
    def command(*args: Any, **options: Any) -> Any:
        chosen = Filter(**{item.name: options.pop(item.name) for item in fields(Filter)})
        return function(*args, chosen=chosen, **options)

    return command


def matching(store: Store, chosen: Filter) -> Iterator[Job]:
    """The jobs that fit, queue by queue, state by state, the newest first."""
    since = None if chosen.since is None else store.now - timedelta(seconds=chosen.since)
    left = chosen.limit
    cursor: str | None = None
    while left is None or left > 0:
        page = store.control.find(
            state=chosen.state,
            task=chosen.task,
            queue=chosen.queue,
            lane=chosen.lane,
            since=since,
            limit=PAGE if left is None else min(left, PAGE),
            cursor=cursor,
        )
        yield from page
        left = None if left is None else left - len(page)
        cursor = page.cursor
        if cursor is None:
            return


def matching_in(store: Store, chosen: Filter, states: Sequence[JobState]) -> Iterator[Job]:
    """The same, over these states."""
    left = chosen.limit
    for state in states:
        if left == 0:
            return
        for job in matching(store, replace(chosen, state=state.value, limit=left)):
            yield job
            left = None if left is None else left - 1


def named(store: Store, ids: Sequence[str], queue: str | None = None) -> list[Job]:
    """The jobs of these ids, each once, in this order."""
    found: dict[tuple[str, str], Job] = {}
    for job_id in ids:
        job = one(store, job_id, queue)
        found[job.queue, job.id] = job
    return list(found.values())


def one(store: Store, job_id: str, queue: str | None = None) -> Job:
    """The job of this id, or the only one whose id begins like this."""
    try:
        return store.control.get(job_id, queue=queue)
    except JobNotFound:
        if len(job_id) < LEAST:
            raise
    alike = [job for job in matching(store, Filter(queue=queue)) if job.id.startswith(job_id)]
    if not alike:
        raise JobNotFound(job_id=job_id, queue=queue)
    if len(alike) > 1:
        raise AmbiguousId(_several(job_id, alike), job_id=job_id, queues=sorted({job.queue for job in alike}))
    return alike[0]


def _several(beginning: str, alike: Sequence[Job]) -> str:
    lines = [f"  {job.id}  {job.task}  {job.state}  in queue {job.queue}" for job in alike[:MOST_LISTED]]
    more = [f"  and {len(alike) - MOST_LISTED:,} more"] if len(alike) > MOST_LISTED else []
    return "\n".join(
        [f"{len(alike):,} jobs have an id that begins with {beginning!r}. Give more of it:", *lines, *more]
    )
