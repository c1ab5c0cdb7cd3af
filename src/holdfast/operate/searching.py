"""Search for jobs over all queues and states, page by page.

An engine lists one queue in one state. A search goes through the pairs of queue and state in a fixed order; its cursor
says in which pair, and where in it, the next page begins.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from holdfast.core.connection import StoreConnection
from holdfast.engine import Engine
from holdfast.errors import InvalidOption, instant_us
from holdfast.model.observe import Find
from holdfast.model.states import JobState
from holdfast.model.text import check_metadata, check_name
from holdfast.views import Job

MAX_JOBS = 1_000
"""Jobs on a page."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs, and the cursor of the next page."""

    jobs: tuple[Job, ...]
    cursor: str | None = None

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, index: int) -> Job:
        return self.jobs[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What to search for. None: any."""

    state: JobState | None
    task: str | None
    queue: str | None
    lane: str | None
    since: int | None
    metadata: dict[str, str]

    @classmethod
    def of(
        cls,
        *,
        state: JobState | str | None = None,
        task: str | None = None,
        queue: str | None = None,
        lane: str | None = None,
        since: datetime | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> "Search":
        return cls(
            state=None if state is None else _state(state),
            task=None if task is None else check_name(task, "task"),
            queue=None if queue is None else check_name(queue, "queue"),
            lane=None if lane is None else check_name(lane, "lane"),
            since=None if since is None else instant_us(since, "since"),
            metadata=check_metadata(metadata or {}),
        )

    async def page(self, store: StoreConnection, limit: int, cursor: str | None) -> Page:
        """The next `limit` jobs, or fewer: a page may be short, even empty, and still have a cursor."""
        if type(limit) is not int or not 1 <= limit <= MAX_JOBS:
            raise InvalidOption(f"`limit` must be a whole number from 1 to {MAX_JOBS}.", option="limit")
        engine = await store.engine()
        pairs = await self._pairs(engine)
        start, inside = _read(cursor, pairs)
        jobs: list[Job] = []
        for index in range(start, len(pairs)):
            queue, state = pairs[index]
            found = await engine.find(self._find(queue, state, limit - len(jobs), inside))
            jobs += [Job.from_record(record, store.codec_named) for record in found.jobs]
            inside = found.cursor
            if inside is not None:
                return Page(tuple(jobs), _write(queue, state, inside))
            if len(jobs) >= limit:
                more = index + 1 < len(pairs)
                return Page(tuple(jobs), _write(*pairs[index + 1], None) if more else None)
        return Page(tuple(jobs))

    async def _pairs(self, engine: Engine) -> list[tuple[str, JobState]]:
        queues = [self.queue] if self.queue is not None else [q.queue for q in (await engine.stats()).queues]
        states = list(JobState) if self.state is None else [self.state]
        return [(queue, state) for queue in queues for state in states]

    def _find(self, queue: str, state: JobState, limit: int, cursor: int | None) -> Find:
        return Find(
            queue=queue,
            state=state,
            task=self.task,
            lane=self.lane,
            since=self.since,
            metadata=self.metadata,
            limit=limit,
            cursor=cursor,
        )


def _state(value: JobState | str) -> JobState:
    try:
        return JobState(value)
    except ValueError as error:
        states = ", ".join(JobState)
        raise InvalidOption(f"`state` must be one of {states}.", option="state") from error


def _write(queue: str, state: JobState, inside: int | None) -> str:
    import json

    return json.dumps([queue, state.value, inside], separators=(",", ":"))


def _read(cursor: str | None, pairs: list[tuple[str, JobState]]) -> tuple[int, int | None]:
    """The index of the first pair, and the cursor inside it. A queue that no longer exists is skipped."""
    if cursor is None:
        return 0, None
    import json

    try:
        queue, state, inside = json.loads(cursor)
        wanted = (str(queue), JobState(state))
        if inside is not None and type(inside) is not int:
            raise ValueError("not a number")
    except (TypeError, ValueError) as error:
        raise InvalidOption("`cursor` must come from an earlier page.", option="cursor") from error
    if wanted in pairs:
        return pairs.index(wanted), inside
    return next((index for index, pair in enumerate(pairs) if pair[0] > wanted[0]), len(pairs)), None
