"""Whether the tasks of this process can run the stored jobs: a check before a release is deployed.

Every live job is read, page by page, and its payload is decoded as a worker of this process would do it. Only reading
commands are sent, and the store is never migrated. A job that is enqueued or changes its state meanwhile may be missed,
or counted twice.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum

from holdfast.core.connection import StoreConnection
from holdfast.declare.registry import Registry
from holdfast.errors import EngineUnavailable, InvalidArguments
from holdfast.model.job import JobRecord
from holdfast.model.observe import Find
from holdfast.model.states import JobState
from holdfast.model.text import check_name

CHECKED_STATES = (
    JobState.BLOCKED,
    JobState.SCHEDULED,
    JobState.RETRYING,
    JobState.QUEUED,
    JobState.ASSIGNED,
    JobState.RUNNING,
)
"""In the order in which most jobs pass through them: a job that moves on meanwhile is rather read twice than missed."""
MAX_PAGE_JOBS = 200
"""Jobs read at once, if their payloads are small. At most this many large payloads come as a surprise."""
PAGE_BYTES = 4 * 1024 * 1024
"""Bytes of payloads that a page should have. Its number of jobs follows from the payloads of the last page."""
FIRST_PAGE_JOBS = 50
"""Of each queue and state."""
MAX_EXAMPLES = 5
"""Jobs named for each problem."""
MAX_PROBLEMS = 1_000
"""Different problems listed. Jobs with others are only counted."""

OnPage = Callable[[int, int], object]
"""Called after each page with the number of jobs read so far, and of all jobs that there were at the beginning."""


class Misfit(StrEnum):
    """Why a stored job cannot be run by the code of this process."""

    UNKNOWN_TASK = "unknown_task"
    """No task has its name, nor an alias of it; or no queue of payloads is declared for it."""
    DOES_NOT_FIT = "does_not_fit"
    """The payload can be read, and is not a call of the task as it is declared. A worker would retry the job."""
    UNREADABLE = "unreadable"
    """The payload cannot be read: an unknown codec, or damaged bytes. A worker would fail the job."""


@dataclass(frozen=True, slots=True)
class JobExample:
    """A job that cannot be run."""

    queue: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckProblem:
    """Jobs that cannot be run for the same reason."""

    reason: Misfit
    task: str
    """The stored name; empty for a bare payload."""
    field: str
    """The parameter or field that does not fit; empty if it is the whole call."""
    message: str
    """The error of the first one."""
    jobs: int
    examples: tuple[JobExample, ...]
    """At most five of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What `jobs.check()` has found."""

    checked: int
    """Jobs whose payload was read."""
    misfits: int
    """Those of them that the code of this process cannot run."""
    problems: tuple[CheckProblem, ...]
    """Each with its number of jobs and some ids; the most frequent first. At most 1,000."""

    @property
    def fits(self) -> bool:
        """True if every job that was read can be run."""
        return not self.misfits


async def check_stored(
    store: StoreConnection, registry: Registry, queues: Collection[str], on_page: OnPage | None
) -> CheckReport:
    """Read all live jobs, of these queues or of all, and decode each."""
    names = [check_name(queue, "queue") for queue in queues]
    if store.is_missing:
        raise EngineUnavailable(
            f"There is no store at {store.address}: none was made yet, or its file was moved or removed. "
            "Nothing was checked.",
            engine=store.process.engine.scheme,
        )
    engine = await store.engine_without_migration()
    stats = (await engine.stats(*names)).queues
    total = sum(one.counts.get(state, 0) for one in stats for state in CHECKED_STATES)
    check = _Check(registry)
    for one in stats:
        for state in CHECKED_STATES:
            if not one.counts.get(state):
                continue
            cursor: int | None = None
            check.page_jobs = FIRST_PAGE_JOBS
            while True:
                found = await engine.find(Find(queue=one.queue, state=state, limit=check.page_jobs, cursor=cursor))
                check.add(found.jobs)
                if on_page is not None and found.jobs:
                    on_page(check.checked, total)
                cursor = found.cursor
                if cursor is None:
                    break
    return check.report()


class _Group:
    """Jobs with the same problem."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.jobs = 0
        self.examples: list[JobExample] = []


class _Check:
    """Decodes pages of jobs, and groups those that do not fit."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._groups: dict[tuple[Misfit, str, str], _Group] = {}
        self.checked = self._misfits = 0
        self.page_jobs = FIRST_PAGE_JOBS

    def add(self, jobs: Collection[JobRecord]) -> None:
        size = 0
        for job in jobs:
            size += len(job.payload)
            self.checked += 1
            self._decode(job)
        if jobs:
            fitting = PAGE_BYTES * len(jobs) // max(size, 1)
            self.page_jobs = max(1, min(MAX_PAGE_JOBS, fitting, 4 * self.page_jobs))

    def _decode(self, job: JobRecord) -> None:
        registry = self._registry
        task = registry.find(job.task) if job.task else registry.payloads.get(job.queue)
        if task is None:
            what = f"task {job.task!r}" if job.task else f"payload type for queue {job.queue!r}"
            self._misfit(job, Misfit.UNKNOWN_TASK, "" if job.task else job.queue, f"There is no {what} here.")
            return
        try:
            task.decode_arguments(job.payload, job.codec)
        except InvalidArguments as error:
            self._misfit(job, Misfit.DOES_NOT_FIT, error.field, str(error))
        except Exception as error:  # an unknown codec, damaged bytes, or an error in a codec or a type of the user's
            self._misfit(job, Misfit.UNREADABLE, "", f"{type(error).__name__}: {error}")

    def _misfit(self, job: JobRecord, reason: Misfit, field: str, message: str) -> None:
        self._misfits += 1
        key = (reason, job.task, field)
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= MAX_PROBLEMS:
                return
            group = self._groups[key] = _Group(message)
        group.jobs += 1
        if len(group.examples) < MAX_EXAMPLES:
            group.examples.append(JobExample(job.queue, job.id))

    def report(self) -> CheckReport:
        problems = [
            CheckProblem(
                reason=reason,
                task=task,
                field=field,
                message=group.message,
                jobs=group.jobs,
                examples=tuple(group.examples),
            )
            for (reason, task, field), group in self._groups.items()
        ]
        problems.sort(key=lambda problem: (-problem.jobs, problem.task, problem.field))
        return CheckReport(checked=self.checked, misfits=self._misfits, problems=tuple(problems))
