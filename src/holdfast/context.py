"""The context of a handler and its middleware: the job, the attempt, the state of the worker, and when to stop.

A `Context` is a view of one attempt. Most handlers do not use one, so it is made when it is first needed: the attempt
is in a context variable, and `Context.current()` makes the view.

An attempt is aborted for one of four reasons. An async handler is then cancelled; a sync handler in its thread has to
check (`ctx.aborted`, `ctx.check()`).
"""

from collections.abc import Awaitable, Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, cast

from holdfast.errors import Aborted, InvalidOption, UsageError
from holdfast.model.job import JobRecord, ProgressRecord
from holdfast.model.states import JobState
from holdfast.model.text import clean
from holdfast.model.work import Lease, lease_of
from holdfast.telemetry.current import CURRENT

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from holdfast.views import Job

    S = TypeVar("S", default=object)
else:
    from typing import TypeVar

    S = TypeVar("S")

__all__ = ["CURRENT", "AbortReason", "AttemptView", "Context", "Middleware", "Next", "Onion", "S", "Surround"]

NOTE_BYTES = 1_024


class AbortReason(StrEnum):
    """Why an attempt has to stop."""

    OWNERSHIP_LOST = "ownership_lost"
    """The lease is lost: another worker may run the job by now. The outcome of this attempt is dropped."""
    CANCEL = "cancel"
    """The job has a cancel request."""
    TIMEOUT = "timeout"
    """It has run for longer than its timeout."""
    SHUTDOWN = "shutdown"
    """The worker stops. The job is released and costs no attempt."""


class AttemptView(Protocol):
    """The attempt behind a context. A worker's running attempt is one."""

    abort_reason: AbortReason | None
    progress: ProgressRecord | None

    @property
    def lease(self) -> Lease: ...
    @property
    def state(self) -> Any: ...
    @property
    def worker(self) -> str: ...
    @property
    def context(self) -> "Context[Any]": ...
    @property
    def transactions(self) -> "TransactionsView": ...


class TransactionsView(Protocol):
    """The transactions of an attempt."""

    @property
    def tx(self) -> Any: ...
    def block(self) -> "Transaction": ...
    async def complete(self, result: Any, transaction: object) -> None: ...
    def complete_sync(self, result: Any, transaction: object) -> None: ...


class Transaction(Protocol):
    """`with` or `async with`; yields a connection to write with."""

    def __enter__(self) -> Any: ...
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...
    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...


class Context(Generic[S]):
    """The attempt as its handler sees it. Injected where the first parameter is annotated `Context`."""

    __slots__ = ("_attempt", "_job")

    def __init__(self, attempt: AttemptView) -> None:
        self._attempt = attempt
        self._job: Job | None = None

    @staticmethod
    def current() -> "Context[Any]":
        """The context of the attempt in which this code runs. `UsageError` outside of one."""
        attempt = CURRENT.get(None)
        if attempt is None:
            raise UsageError("There is no current Context: this code does not run inside a task.")
        return cast(AttemptView, attempt).context

    @classmethod
    def detached(
        cls, *, id: str, task: str, queue: str, payload: bytes = b"", codec: str = "json", state: Any = None
    ) -> "Context[Any]":
        """A context without a worker, for a task that is called directly. It is never aborted."""
        return _Detached(id=id, task=task, queue=queue, payload=payload, codec=codec, state=state).context

    @property
    def job(self) -> "Job":
        """The job as it was when this attempt began."""
        if self._job is None:
            from holdfast.views import Job

            self._job = Job.from_lease(self._attempt.lease)
        return self._job

    @property
    def attempt(self) -> int:
        """Which run of the job this is, from 1."""
        return self._attempt.lease.attempt

    @property
    def is_retry(self) -> bool:
        """True from the second attempt on."""
        return self._attempt.lease.attempt > 1

    @property
    def fence(self) -> int:
        """Grows with every lease of this job and this lane: give it to systems that can refuse a smaller one."""
        return self._attempt.lease.fence

    @property
    def arrival(self) -> int:
        """The arrival number of the job: its place in the order of its queue."""
        return self._attempt.lease.arrival

    @property
    def lane(self) -> str | None:
        """The lane of the job; None if it has none."""
        return self._attempt.lease.lane

    @property
    def lane_index(self) -> int | None:
        """The number of its lane, from 0, where the job is a pool's."""
        lane = self._attempt.lease.lane
        return None if self.pool is None or lane is None else int(lane)

    @property
    def pool(self) -> str | None:
        """The pool it came through. A pool's jobs have its name as their task and numbers as their lanes."""
        lease = self._attempt.lease
        numbered = lease.lane is not None and lease.lane.isascii() and lease.lane.isdigit()
        return lease.queue if numbered and lease.task == lease.queue else None

    @property
    def worker(self) -> str:
        """The name of the worker; empty in a detached context."""
        return self._attempt.worker

    @property
    def state(self) -> S:
        """The value that the lifespan yielded."""
        state: S = self._attempt.state
        return state

    @property
    def aborted(self) -> bool:
        """True if this attempt has to stop. Sync handlers check it in their loops."""
        return self._attempt.abort_reason is not None

    @property
    def abort_reason(self) -> AbortReason | None:
        """Why this attempt has to stop; None: it may go on."""
        return self._attempt.abort_reason

    def check(self) -> None:
        """Raise `Aborted` once the attempt has to stop."""
        reason = self._attempt.abort_reason
        if reason is not None:
            raise Aborted(reason.value)

    def progress(self, fraction: float, note: str = "") -> None:
        """Report progress from 0 to 1. It is stored within about a second, and the last one with the job's end.

        Reports in between cost no write: only the latest one is stored.
        """
        value: object = fraction
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise InvalidOption("`fraction` must be a number from 0 to 1.", option="fraction")
        self._attempt.progress = ProgressRecord(float(fraction), clean(note, NOTE_BYTES))

    # Transactions

    @property
    def tx(self) -> Any:
        """The transaction of `@jobs.task(transaction=...)`, begun on first use. It commits with the job's end.

        A connection of the store's own (`transaction=True`; in an async handler `await ctx.tx`), or your session.
        """
        return self._attempt.transactions.tx

    def transaction(self) -> Transaction:
        """A transaction for a part of the handler: `with ctx.transaction() as connection:`, or `async with`.

        It is committed together with the job's end, when the handler returns; or by itself, when the next one begins.
        """
        return self._attempt.transactions.block()

    async def acomplete(self, /, result: Any = None, *, transaction: Any) -> None:
        """End the job inside your own transaction. If that is rolled back, the job is tried again.

        Raises `LeaseLost` if another worker has the job by now: let it roll your transaction back.
        """
        await self._attempt.transactions.complete(result, transaction)

    def complete(self, /, result: Any = None, *, transaction: Any) -> None:
        """End the job inside your own transaction. If that is rolled back, the job is tried again.

        Raises `LeaseLost` if another worker has the job by now: let it roll your transaction back.
        """
        self._attempt.transactions.complete_sync(result, transaction)

    def __repr__(self) -> str:
        lease = self._attempt.lease
        return f"<Context of job {lease.id!r} ({lease.task}), attempt {lease.attempt}>"


class _Detached:
    """An attempt without a worker."""

    __slots__ = ("abort_reason", "context", "lease", "progress", "state", "worker")

    def __init__(self, *, id: str, task: str, queue: str, payload: bytes, codec: str, state: Any) -> None:
        self.lease = lease_of(
            JobRecord(
                queue=queue,
                id=id,
                task=task,
                payload=payload,
                codec=codec,
                state=JobState.RUNNING,
                attempt=1,
                token="",
                lease_expires=0,
                max_attempts=1,
                max_losses=1,
            )
        )
        self.state = state
        self.worker = ""
        self.abort_reason: AbortReason | None = None
        self.progress: ProgressRecord | None = None
        self.context: Context[Any] = Context(self)

    @property
    def transactions(self) -> TransactionsView:
        raise UsageError("This task was called directly; only a worker makes transactions and completes jobs.")


Next = Callable[[], Awaitable[Any]]
"""Runs the inner middleware, and then the handler. Returns what the handler returned."""

Onion = Callable[[Context[Any], Next], Awaitable[Any]]
"""An async function around the inner ones. It may read the result, replace it, call again, or refuse."""

Surround = Callable[[Context[Any]], Iterator[None]]
"""A generator with one `yield`: before and after the handler, where the handler runs."""

Middleware = Onion | Surround
"""Code around every attempt: `async def(ctx, proceed)`, which awaits `proceed()`; or a generator `def(ctx)` that yields
once, where the handler runs."""
