"""A job that was enqueued, or is known by its id: wait for it, look at it, cancel it."""

from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar, cast

from holdfast.blocking import blocking
from holdfast.core.asking import ended
from holdfast.core.link import Link
from holdfast.core.waiting import Ended
from holdfast.errors import JobCancelled, JobFailed, JobNotFound, ResultExpired, UsageError, duration_us
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.produce import Accepted, EnqueueStatus
from holdfast.model.retry import Duration
from holdfast.model.states import JobState
from holdfast.operate.operating import cancel_job, find_key
from holdfast.operate.report import Report, report_of
from holdfast.views import CancelAnswer, Job, Receipt

R = TypeVar("R")

DecodeResult = Callable[[bytes, str], R]
"""From stored bytes, and the name of the codec that wrote them."""


class Handle(Generic[R]):
    """`handle.result()` waits for what the task returns; `handle.refresh()` looks at the job as it is now.

    It is a name and does no I/O by itself. It may be shared between threads and made again from the id.
    """

    __slots__ = ("_accepted", "_decode", "_joined", "_link", "_origin", "id", "queue")

    def __init__(
        self,
        link: Link,
        key: JobKey,
        decode: DecodeResult[R],
        *,
        origin: str = "",
        accepted: Accepted | None = None,
        joined: bool = False,
    ) -> None:
        self._link = link
        self._decode = decode
        self._origin = origin
        self._accepted = accepted
        self._joined = joined
        """Enqueued in a transaction of the user's, and not seen since."""
        self.id = key.id
        self.queue = key.queue
        """Empty where the handle was made from a bare id and has not been used yet."""

    @property
    def receipt(self) -> Receipt | None:
        """The answer to the enqueue; None where the handle was made from an id."""
        return None if self._accepted is None else Receipt.of(self._accepted)

    @property
    def created(self) -> bool:
        """Whether the enqueue that made this handle made the job as well."""
        return self._accepted is not None and self._accepted.status is EnqueueStatus.CREATED

    async def aresult(self, /, *, timeout: Duration | None = None) -> R:
        """What the task returned, once it has. Raises JobFailed, JobCancelled, WaitTimeout or ResultExpired."""
        completed = self._accepted is not None and self._accepted.status is EnqueueStatus.COMPLETED
        if completed and self._accepted is not None and self._accepted.result is not None:
            return self._decode(self._accepted.result, self._accepted.codec)
        return self.result_of(await self._ended(timeout))

    result = blocking(aresult)

    async def areport(self, /, *, timeout: Duration | None = None) -> Report:
        """How it came out, once it has; a job that failed has a report like any other. Raises WaitTimeout."""
        over = await self._ended(timeout)
        return report_of(over.record or self._not_there(), self._link.codec_named)

    report = blocking(areport)

    async def arefresh(self, /) -> Job:
        """The job as it is now."""
        return Job.from_record((await self._look()).record or self._not_there(), self._link.codec_named)

    refresh = blocking(arefresh)

    async def acancel(self, /, reason: str = "") -> CancelAnswer:
        """Keep it from running, or ask its worker to stop it."""
        return await cancel_job(self._link, await self._key(), reason)

    cancel = blocking(acancel)

    async def _key(self) -> JobKey:
        """Its full name. A handle made from a bare id looks for the queue when it is first used."""
        if not self.queue:
            self.queue = (await find_key(self._link, self.id, None)).queue
        return JobKey(self.queue, self.id)

    async def _look(self) -> Ended:
        key = await self._key()
        got = await (await self._link.engine()).get(key)
        return Ended(got.jobs[0], got.at.wall)

    async def _ended(self, timeout: Duration | None) -> Ended:
        limit = None if timeout is None else duration_us(timeout, "timeout") / 1_000_000
        seen = await self._look()
        if self._joined and seen.record is None:
            raise UsageError(
                f"Job {self.id!r} was enqueued in a transaction that has not been committed, or was rolled back: to "
                "wait for it here is to wait for yourself. Commit first."
            )
        self._joined = False
        if seen.record is None or seen.record.terminal:
            return seen
        return await ended(self._link, await self._key(), limit=limit, origin=self._origin)

    def result_of(self, over: Ended) -> R:
        """The result of a job that has ended, or the error that says how it ended."""
        record = over.record
        if record is None:
            if self._accepted is not None:  # it was there: it has ended, and nothing of it was to be kept
                raise ResultExpired(job_id=self.id, queue=self.queue)
            self._not_there()
        if record.state is not JobState.SUCCEEDED:
            raise _error_of(record)
        if over.now >= record.result_until:
            raise ResultExpired(job_id=self.id, queue=self.queue)
        if record.result is None:
            return cast(R, None)
        return self._decode(record.result, record.codec)

    def _not_there(self) -> NoReturn:
        raise JobNotFound(job_id=self.id, queue=self.queue)

    def __repr__(self) -> str:
        return f"<Handle of job {self.id!r} in queue {self.queue!r}>"


def _error_of(record: JobRecord) -> JobFailed | JobCancelled:
    reason = "" if record.reason is None else record.reason.value
    if record.state is JobState.CANCELLED:
        return JobCancelled(job_id=record.id, task=record.task, attempts=record.attempt, reason=record.note or reason)
    message = ""
    if record.note:
        message = (
            f"Job {record.id!r} ({record.task}) failed at attempt {record.attempt}: {reason} ({record.note}). "
            "Fix the cause, then requeue it."
        )
    return JobFailed(
        message,
        job_id=record.id,
        task=record.task,
        attempts=record.attempt,
        reason=reason,
        error=record.last_error,
    )
