"""A handle on a job, from an enqueue or from its id: wait for it, look at it, cancel it."""

from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar, cast

from holdfast.blocking import blocking
from holdfast.core.connection import StoreConnection
from holdfast.core.job_end import wait_for_end
from holdfast.core.waiting import EndedJob
from holdfast.durations import Duration
from holdfast.errors import (
    InvalidArguments,
    JobCancelled,
    JobFailed,
    JobNotFound,
    ResultExpired,
    UsageError,
    duration_us,
)
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.produce import Accepted, EnqueueStatus
from holdfast.model.states import JobState
from holdfast.operate.operating import cancel_job, find_key
from holdfast.operate.report import Report, report_of
from holdfast.views import CancelAnswer, Job, Receipt

R = TypeVar("R")

DecodeResult = Callable[[bytes, str], R]
"""From stored bytes, and the name of the codec that wrote them."""


class Handle(Generic[R]):
    """`handle.result()` waits for the return value of the task; `handle.refresh()` reads the job as it is now.

    Making one does no I/O. It may be shared between threads, and made again from the id.
    """

    __slots__ = ("_accepted", "_decode", "_in_transaction", "_origin", "_store", "id", "queue")

    def __init__(
        self,
        store: StoreConnection,
        key: JobKey,
        decode: DecodeResult[R],
        *,
        origin: str = "",
        accepted: Accepted | None = None,
        in_transaction: bool = False,
    ) -> None:
        self._store = store
        self._decode = decode
        self._origin = origin
        self._accepted = accepted
        self._in_transaction = in_transaction
        """Enqueued in a user's transaction, and not read since."""
        self.id: str = key.id
        """The id of the job: your own, or a generated one."""
        self.queue: str = key.queue
        """Empty if the handle was made from a bare id and has not been used yet."""

    @property
    def receipt(self) -> Receipt | None:
        """The answer to the enqueue; None if the handle was made from an id."""
        return None if self._accepted is None else Receipt.of(self._accepted)

    @property
    def created(self) -> bool:
        """True if the enqueue that made this handle created the job."""
        return self._accepted is not None and self._accepted.status is EnqueueStatus.CREATED

    async def aresult(self, /, *, timeout: Duration | None = None) -> R:
        """The return value, once the job has ended. Raises JobFailed, JobCancelled, WaitTimeout,
        ResultExpired or JobNotFound."""
        completed = self._accepted is not None and self._accepted.status is EnqueueStatus.COMPLETED
        if completed and self._accepted is not None and self._accepted.result is not None:
            return self.decoded(self._accepted.result, self._accepted.codec)
        return self.result_of(await self._wait_for_end(timeout))

    result = blocking(aresult)

    async def areport(self, /, *, timeout: Duration | None = None) -> Report:
        """The report of the job, once it has ended; also of a failed one. Raises WaitTimeout."""
        ended = await self._wait_for_end(timeout)
        return report_of(ended.record or self._not_found(), self._store.codec_named)

    report = blocking(areport)

    async def arefresh(self, /) -> Job:
        """The job as it is now."""
        return Job.from_record((await self._read()).record or self._not_found(), self._store.codec_named)

    refresh = blocking(arefresh)

    async def acancel(self, /, reason: str = "") -> CancelAnswer:
        """Cancel it before it runs, or request its worker to stop it."""
        return await cancel_job(self._store, await self._key(), reason)

    cancel = blocking(acancel)

    async def _key(self) -> JobKey:
        """Its queue and id. A handle made from a bare id searches the queues when it is first used."""
        if not self.queue:
            self.queue = (await find_key(self._store, self.id, None)).queue
        return JobKey(self.queue, self.id)

    async def _read(self) -> EndedJob:
        key = await self._key()
        answer = await (await self._store.engine()).get(key)
        return EndedJob(answer.jobs[0], answer.at.wall)

    async def _wait_for_end(self, timeout: Duration | None) -> EndedJob:
        limit_s = None if timeout is None else duration_us(timeout, "timeout") / 1_000_000
        found = await self._read()
        if self._in_transaction and found.record is None:
            raise UsageError(
                f"Job {self.id!r} was enqueued in a transaction that has not been committed, or was rolled back. "
                "Commit before you wait for it."
            )
        self._in_transaction = False
        if found.record is None or found.record.terminal:
            return found
        return await wait_for_end(self._store, await self._key(), limit_s=limit_s, origin=self._origin)

    def result_of(self, ended: EndedJob) -> R:
        """The result of a job that has ended, or the error that says how it ended."""
        record = ended.record
        if record is None:
            self._not_found()
        if record.state is not JobState.SUCCEEDED:
            raise _error_of(record)
        if ended.now >= record.result_until:
            raise ResultExpired(job_id=self.id, queue=self.queue)
        if record.result is None:
            return cast(R, None)
        return self.decoded(record.result, record.codec)

    def decoded(self, result: bytes, codec: str) -> R:
        """A stored result. InvalidArguments: a worker with other code has stored it, and it does not fit here."""
        try:
            return self._decode(result, codec)
        except InvalidArguments as error:
            message = (
                f"Job {self.id!r} in queue {self.queue!r} has succeeded, and its stored result does not fit: {error}"
            )
            raise InvalidArguments(message, task=error.task, field=error.field) from None

    def _not_found(self) -> NoReturn:
        message = ""
        if self._accepted is not None:
            message = (
                f"Job {self.id!r} of queue {self.queue!r} is no longer in the store: it was deleted, was lost, or has "
                "ended and was kept for no longer. Nothing says whether it ran."
            )
        raise JobNotFound(message, job_id=self.id, queue=self.queue)

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
