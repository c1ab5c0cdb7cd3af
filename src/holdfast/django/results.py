"""Jobs as Django's task results.

| state of the job | status |
|---|---|
| scheduled, blocked, queued, assigned, retrying | READY |
| running | RUNNING |
| succeeded | SUCCESSFUL |
| failed, cancelled | FAILED |

Arguments and return values are plain data, as they are stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils import timezone

from holdfast.context import Context
from holdfast.django.sync_code import refused_in_async_code
from holdfast.django.tasks_api import TaskError, TaskResult, TaskResultStatus, task_backends
from holdfast.errors import HoldfastError, JobCancelled, JobFailed
from holdfast.model.states import JobState
from holdfast.views import Job, moment

if TYPE_CHECKING:
    from holdfast.django.backend_apps import BackendApp

STATUS = {
    JobState.RUNNING: TaskResultStatus.RUNNING,
    JobState.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    JobState.FAILED: TaskResultStatus.FAILED,
    JobState.CANCELLED: TaskResultStatus.FAILED,
}
"""A state that is not here is READY."""

REFRESHED = (
    "errors",
    "_return_value",
    "finished_at",
    "started_at",
    "last_attempted_at",
    "status",
    "enqueued_at",
    "worker_ids",
    "job",
)


@dataclass(frozen=True, kw_only=True)
class HoldfastTaskResult(TaskResult):
    """Django's result, with the job as Holdfast has it."""

    enqueued_at: datetime | None = field(compare=False)
    """From `enqueue` by the clock of this process; from a job that was read by that of the store. `==` ignores it."""
    job: Job | None = field(default=None, repr=False, compare=False)
    """None until the job has been read: `refresh()`."""

    @property
    def attempts(self) -> int:
        """Counted attempts. `worker_ids` may have fewer: the history of a job has an end."""
        return len(self.worker_ids) if self.job is None else self.job.attempt

    @refused_in_async_code("refresh", "result.arefresh()")
    def refresh(self) -> None:
        """Read the job again."""
        self._copy(self.task.get_backend().get_result(self.id, queue_name=self.task.queue_name))

    async def arefresh(self) -> None:
        """Read the job again."""
        self._copy(await self.task.get_backend().aget_result(self.id, queue_name=self.task.queue_name))

    def _copy(self, other: Any) -> None:
        for name in REFRESHED:
            object.__setattr__(self, name, getattr(other, name))


def status_of(state: JobState) -> Any:
    return STATUS.get(state, TaskResultStatus.READY)


def enqueued(
    task: Any, alias: str, *, id: str, state: JobState, at: datetime, arguments: tuple[list[Any], dict[str, Any]]
) -> HoldfastTaskResult:
    """The result of a job that was just enqueued."""
    args, kwargs = arguments
    result = HoldfastTaskResult(
        task=task,
        id=id,
        status=status_of(state),
        enqueued_at=as_django(at),
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        worker_ids=[],
    )
    object.__setattr__(result, "_return_value", None)  # Django's class has no default, and `==` reads it
    return result


def result_of(task: Any, alias: str, job: Job, value: Any = None) -> HoldfastTaskResult:
    """The result of a job that was read. `value`: what it returned."""
    args, kwargs = job.arguments or ([], {})
    workers = [attempt.worker for attempt in job.attempts]
    if job.state is JobState.RUNNING:
        workers.append(job.worker)
    result = HoldfastTaskResult(
        task=_of_job(task, job),
        id=job.id,
        status=status_of(job.state),
        enqueued_at=as_django(job.enqueued_at),
        started_at=as_django(job.started_at),
        finished_at=as_django(job.finished_at),
        last_attempted_at=as_django(job.last_started_at),
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=list(_errors(job)),
        worker_ids=workers,
        job=job,
    )
    object.__setattr__(result, "_return_value", value)
    return result


def _errors(job: Job) -> list[Any]:
    errors = [(attempt.error.type, attempt.error.traceback) for attempt in job.attempts if attempt.error is not None]
    reason = ": ".join(part for part in (str(job.reason or ""), job.note) if part)
    if job.state is JobState.CANCELLED:
        errors.append((_path(JobCancelled), f"The job was cancelled ({reason})."))
    elif job.state is JobState.FAILED and (not job.attempts or job.attempts[-1].error is None):
        errors.append((_path(JobFailed), f"The job failed ({reason})."))
    return [TaskError(exception_class_path=path, traceback=text) for path, text in errors]


def _path(error: type[HoldfastError]) -> str:
    return f"{error.__module__}.{error.__qualname__}"


def _of_job(task: Any, job: Job) -> Any:
    """The task with the job's own queue, priority and time. It is not validated: the settings may have changed."""
    changes: Mapping[str, Any] = {"queue_name": job.queue, "priority": job.priority}
    if job.due_at > job.enqueued_at and job.attempt == 0:
        changes = {**changes, "run_after": as_django(job.due_at)}
    return unvalidated_copy(task, changes)


def unvalidated_copy(task: Any, changes: Mapping[str, Any]) -> Any:
    """The task with these fields. Django validates every task that is made in the usual way."""
    copy = object.__new__(type(task))
    for item in fields(task):
        object.__setattr__(copy, item.name, changes.get(item.name, getattr(task, item.name)))
    return copy


def as_django(at: datetime | None) -> datetime | None:
    """The time as Django writes it: naive, in the zone of the settings, if USE_TZ is off."""
    if at is None or settings.USE_TZ:
        return at
    naive: datetime = timezone.make_naive(at)
    return naive


def as_aware(at: datetime) -> datetime:
    """A time given by a user of Django."""
    return at if timezone.is_aware(at) else timezone.make_aware(at).astimezone(UTC)


class RunningResult:
    """The result of the job whose attempt runs here, and what its function has returned."""

    def __init__(self, task: Any, backend_app: "BackendApp", ctx: Context[Any], job: Job) -> None:
        self.sender: type[Any] = type(task_backends[backend_app.alias])
        self._app = backend_app.app
        self._declared = backend_app.tasks[task.module_path].holdfast
        self.value: Any = None
        self.result = result_of(task, backend_app.alias, job)
        object.__setattr__(self.result, "status", TaskResultStatus.RUNNING)
        object.__setattr__(self.result, "last_attempted_at", as_django(self._now()))
        if self.result.started_at is None:
            object.__setattr__(self.result, "started_at", self.result.last_attempted_at)
        self.result.worker_ids[:] = [*(attempt.worker for attempt in job.attempts), ctx.worker]

    def succeeded(self, at: datetime) -> HoldfastTaskResult:
        """The result of the job, which has succeeded: with the return value as it is stored."""
        job = self.result.job
        assert job is not None
        data = self._declared.encode_result(self.value, job._codec)
        value = self._app.client._decode(data, job._codec)
        object.__setattr__(self.result, "_return_value", value)
        object.__setattr__(self.result, "finished_at", as_django(at))
        object.__setattr__(self.result, "status", TaskResultStatus.SUCCESSFUL)
        return self.result

    def _now(self) -> datetime:
        return moment(self._app.runtime.wall())
