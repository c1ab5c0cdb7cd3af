"""Every error Holdfast raises, in one tree.

    HoldfastError
    ├── UsageError            the calling code is wrong; nothing was written
    │   ├── InvalidArguments (.task .field)                                 also ValueError, TypeError
    │   ├── InvalidOption (.option)                                         also ValueError
    │   ├── UnknownTask (.task)                                             also LookupError
    │   ├── DuplicateTask (.task)  BlockingCall (.method .twin)  Unsupported (.capability .engine)
    │   └── WrongDatabase (.expected .found)  ConfigError (.key .source)
    ├── Refused               the store refused the call, by rule; nothing was written
    │   ├── QueueFull (.queue .lane .depth .limit)  Busy (.queue .waited)  PayloadTooLarge (.size .limit)
    │   ├── IdConflict (.job_id .queue)  KeyTaken (.key .queue .job_id .holder)  AmbiguousId (.job_id .queues)
    │   ├── JobNotFound (.job_id .queue)                                    also LookupError
    │   └── ResultExpired (.job_id .queue)  WrongState (.job_id .state .verb)
    ├── LeaseLost             (.job_id .queue) a stale owner answered late; nothing changed
    ├── JobError              (.job_id .task .attempts) how a job ended, raised to the caller that waits
    │   └── JobFailed (.reason .error)  JobCancelled (.reason)
    ├── WaitTimeout           (.job_id .waited .why) the job goes on            also TimeoutError
    └── EngineError           (.engine) the store has a problem
        ├── EngineUnavailable nothing happened                                  also ConnectionError
        ├── OutcomeUnknown    (.verb .job_ids) it may or may not have happened
        └── SchemaMismatch (.found .wanted)  StorageFull  HistoryLost  CorruptRecord (.where .job_id)
    Interrupt(BaseException)  raised by handlers: Retry Snooze GiveUp Cancel; raised into them: Aborted

Every error takes a message, then its facts by keyword. The message says what happened, to which job or queue, and what
to do; without one, the facts make it. It never quotes a payload: payloads hold secrets.
"""

# All other modules import this one. So the checks of durations and instants, which `Interrupt` needs, are here too.

from collections.abc import Iterable
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, ClassVar, Protocol

from holdfast.durations import EXAMPLES, Duration, micros_of, seconds_of

LONGEST = 100 * 366 * 86_400 * 1_000_000
"""A century in microseconds. A longer duration is a mistake, and engines could not add it to an instant."""


def duration_us(value: object, option: str) -> int:
    """Microseconds of a duration: seconds, a `timedelta` or text such as "30s". `InvalidOption` says what is wrong."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, str):
        seconds = seconds_of(seconds)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        kind = "this text" if isinstance(value, str) else type(value).__name__
        raise InvalidOption(f"`{option}` must be seconds, a timedelta or {EXAMPLES}, not {kind}.", option=option)
    if not 0 <= seconds <= LONGEST // 1_000_000:  # nor NaN, which compares as false
        raise InvalidOption(f"`{option}` must be between zero and a hundred years.", option=option)
    return round(seconds * 1_000_000)


def instant_us(value: object, option: str) -> int:
    """Microseconds since 1970 UTC of an aware `datetime`; a naive one is refused, since it names no instant."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidOption(f"`{option}` must be a datetime with a time zone, like datetime.now(UTC).", option=option)
    return micros_of(value)


class ErrorText(Protocol):
    """An exception as text, as another process sees it. `ErrorInfo` in the model is one."""

    @property
    def type(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def traceback(self) -> str: ...


def dotted_name(cls: type) -> str:
    """`module.QualName`: the only form in which a class is ever stored."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _revive(cls: type[BaseException], args: tuple[object, ...], state: dict[str, Any]) -> BaseException:
    """A copy made without `__init__`, whose parameters are facts while `args` holds the finished message."""
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class _Portable(BaseException):  # lets an error with its own `__init__` be copied and be sent to another process
    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, dict(self.__dict__))


class HoldfastError(_Portable, Exception):
    """The root: `except HoldfastError` catches whatever Holdfast raises at its callers."""


class UsageError(HoldfastError):
    """The calling code is wrong. Nothing was written."""


class InvalidArguments(UsageError, ValueError, TypeError):
    """The arguments do not fit the task's signature, or they or the result cannot be stored."""

    def __init__(self, message: str, *, task: str = "", field: str = "") -> None:
        self.task, self.field = task, field
        super().__init__(message)


class InvalidOption(UsageError, ValueError):
    """A parameter of Holdfast itself has a value it cannot have."""

    def __init__(self, message: str, *, option: str) -> None:
        self.option = option
        super().__init__(message)


class UnknownTask(UsageError, LookupError):
    """No task of this name is registered in this process."""

    def __init__(self, message: str = "", *, task: str, known: Iterable[str] = ()) -> None:
        self.task = task
        near = ", ".join(map(repr, get_close_matches(task, known)))
        hint = f"Did you mean {near}?" if near else "Import the module that declares it first."
        super().__init__(message or f"No task is named {task!r} here. {hint}")


class DuplicateTask(UsageError):
    """Two functions were declared under one task name."""

    def __init__(self, message: str = "", *, task: str) -> None:
        self.task = task
        super().__init__(message or f"Two functions are declared as task {task!r}. Give one of them another name=.")


class BlockingCall(UsageError):
    """A blocking method was called on a running event loop, which it would have stopped."""

    def __init__(self, message: str = "", *, method: str, twin: str) -> None:
        self.method, self.twin = method, twin
        super().__init__(message or f"{method}() would block the running event loop. Use `await {twin}()` here.")


class Unsupported(UsageError):
    """The engine in use lacks a capability that the call needs."""

    def __init__(self, message: str = "", *, capability: str, engine: str) -> None:
        self.capability, self.engine = capability, engine
        super().__init__(message or f"The {engine} engine lacks {capability!r}, which this needs. Use another engine.")


class WrongDatabase(UsageError):
    """The transaction is on another database than the jobs. No worker would find a job there."""

    def __init__(self, message: str = "", *, expected: str, found: str) -> None:
        self.expected, self.found = expected, found
        super().__init__(
            message or f"The jobs are in {expected}, the transaction is on {found}. Use one with the jobs."
        )


class ConfigError(UsageError):
    """A configuration key is unknown, or its value is wrong."""

    def __init__(self, message: str, *, key: str, source: str = "") -> None:
        self.key, self.source = key, source
        super().__init__(message)


class Refused(HoldfastError):
    """The store refused the call, by rule. Nothing was written."""


class QueueFull(Refused):
    """The queue or lane holds as many live jobs as it may."""

    def __init__(self, message: str = "", *, queue: str, depth: int, limit: int, lane: str | None = None) -> None:
        self.queue, self.lane, self.depth, self.limit = queue, lane, depth, limit
        full = f"Queue {queue!r} is full" if lane is None else f"Lane {lane!r} of queue {queue!r} is full"
        super().__init__(message or f"{full} ({depth} jobs, limit {limit}). Try later, or wait with wait_for_room=.")


class IdConflict(Refused):
    """The id is taken by a job of another task or with other arguments."""

    def __init__(self, message: str = "", *, job_id: str, queue: str) -> None:
        self.job_id, self.queue = job_id, queue
        taken = f"Job {job_id!r} of queue {queue!r} has another task or other arguments."
        super().__init__(message or f"{taken} Use another id, or unique_key= where arguments may differ.")


class KeyTaken(Refused):
    """A dead job cannot come back, because its unique key is held by another job."""

    def __init__(self, message: str = "", *, job_id: str, queue: str, key: str, holder: str = "") -> None:
        self.job_id, self.queue, self.key, self.holder = job_id, queue, key, holder
        taken = f"its unique key {key!r} is held by {f'job {holder!r}' if holder else 'another job'}"
        super().__init__(message or f"Cannot requeue job {job_id!r} of queue {queue!r}: {taken}. Let that end first.")


class AmbiguousId(Refused):
    """A bare id matches jobs in more than one queue."""

    def __init__(self, message: str = "", *, job_id: str, queues: Iterable[str]) -> None:
        self.job_id, self.queues = job_id, tuple(queues)
        super().__init__(message or f"Job {job_id!r} is in {len(self.queues)} queues. Name one of {list(self.queues)}.")


class Busy(Refused):
    """Another open transaction held an id, a key, or SQLite's write lock for too long. `waited` is in seconds."""

    def __init__(self, message: str = "", *, queue: str, waited: float) -> None:
        self.queue, self.waited = queue, waited
        held = f"An id or key of queue {queue!r} was held in an open transaction for {waited:g} s."
        super().__init__(message or f"{held} Try again, and keep transactions that enqueue short.")


class PayloadTooLarge(Refused):
    """A payload or a result is larger than its limit."""

    def __init__(self, message: str = "", *, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(message or f"{size} bytes are too many, the limit is {limit}. Pass a reference to the data.")


class JobNotFound(Refused, LookupError):
    """There is no such job, or no longer."""

    def __init__(self, message: str = "", *, job_id: str, queue: str | None = None) -> None:
        self.job_id, self.queue = job_id, queue
        where = "any queue" if queue is None else f"queue {queue!r}"
        super().__init__(message or f"There is no job {job_id!r} in {where}: check the id. It may have been pruned.")


class ResultExpired(Refused):
    """The job succeeded, but its result is no longer kept."""

    def __init__(self, message: str = "", *, job_id: str, queue: str) -> None:
        self.job_id, self.queue = job_id, queue
        gone = f"Job {job_id!r} of queue {queue!r} succeeded, but its result is no longer kept."
        super().__init__(message or f"{gone} Ask sooner, or raise result_ttl.")


class WrongState(Refused):
    """The job is in a state in which this cannot be done to it."""

    def __init__(self, message: str = "", *, job_id: str, state: str, verb: str) -> None:
        self.job_id, self.state, self.verb = job_id, state, verb
        super().__init__(message or f"Cannot {verb} job {job_id!r}: it is {state}. Look at it again before you decide.")


class LeaseLost(HoldfastError):
    """A late answer: another worker has the job by now, or it has ended. The answer changed nothing."""

    def __init__(self, message: str = "", *, job_id: str, queue: str) -> None:
        self.job_id, self.queue = job_id, queue
        lost = f"The lease on job {job_id!r} of queue {queue!r} is lost, so this answer changed nothing."
        super().__init__(message or f"{lost} Stop working on the job: another worker may have it.")


class JobError(HoldfastError):
    """A job did not succeed; raised to the caller that waits for its result."""

    def __init__(self, message: str, *, job_id: str, task: str, attempts: int) -> None:
        self.job_id, self.task, self.attempts = job_id, task, attempts
        super().__init__(message)


class JobFailed(JobError):
    """The job gave up. `error` is the text of its last exception, or None where no handler raised one."""

    def __init__(
        self, message: str = "", *, job_id: str, task: str, attempts: int, reason: str, error: ErrorText | None = None
    ) -> None:
        self.reason, self.error, name = reason, error, repr(task)[1:-1]  # escaped: no line break can forge a line
        last = "" if error is None else f" Last error: {error.type}: {error.message.rstrip('.')}."
        text = f"Job {job_id!r} ({name}) failed at attempt {attempts}: {reason}.{last} Fix the cause, then requeue it."
        super().__init__(message or text, job_id=job_id, task=task, attempts=attempts)

    def caused_by(self, cls: type[BaseException]) -> bool:
        """Whether the last error was of exactly this class. Names are compared; no class is ever rebuilt."""
        return self.error is not None and self.error.type == dotted_name(cls)


class JobCancelled(JobError):
    """The job was cancelled."""

    def __init__(self, message: str = "", *, job_id: str, task: str, attempts: int, reason: str) -> None:
        self.reason = reason
        text = f"Job {job_id!r} ({repr(task)[1:-1]}) was cancelled: {reason}. Requeue it if it should run after all."
        super().__init__(message or text, job_id=job_id, task=task, attempts=attempts)


class WaitTimeout(HoldfastError, TimeoutError):
    """The time to wait is over and the job has not ended. `why` says what the job waits for, if that is known."""

    def __init__(self, message: str = "", *, job_id: str, waited: float, why: str = "") -> None:
        self.job_id, self.waited, self.why = job_id, waited, why
        late = f"Job {job_id!r} had not ended after {waited:g} s.{f' {why}' if why else ''}"
        super().__init__(message or f"{late} It goes on; ask for its result later.")


class EngineError(HoldfastError):
    """The store has a problem. `engine` says which store, without its password."""

    standard: ClassVar[str] = "The store has a problem. Look at its logs, then try again."

    def __init__(self, message: str = "", *, engine: str = "") -> None:
        self.engine = engine
        super().__init__(message or (f"{engine}: {self.standard}" if engine else self.standard))


class EngineUnavailable(EngineError, ConnectionError):
    """The store cannot be reached. Nothing happened."""

    standard = "The store cannot be reached and nothing happened. Try again once it answers."


class OutcomeUnknown(EngineError):
    """The answer was lost: the call may or may not have taken effect."""

    standard = "The answer was lost. Look the jobs up by id, or repeat the call with the same ids: that is safe."
    found_by_reading: ClassVar[bool] = True  # False: the write can be read, and may still get lost in a failover

    def __init__(self, message: str = "", *, verb: str, job_ids: Iterable[str] = (), engine: str = "") -> None:
        self.verb, self.job_ids = verb, tuple(job_ids)
        of = f" of {', '.join(repr(one)[1:-1] for one in self.job_ids)}" if self.job_ids else ""
        super().__init__(message or f"{verb}{of} may or may not have happened. {self.standard}", engine=engine)


class SchemaMismatch(EngineError):
    """The store's schema is older or newer than this code."""

    def __init__(self, message: str = "", *, found: str, wanted: str, engine: str = "") -> None:
        self.found, self.wanted = found, wanted
        text = f"The store's schema is {found}, this release needs {wanted}. Run `holdfast migrate`."
        super().__init__(message or text, engine=engine)


class StorageFull(EngineError):
    """The store has no space left."""

    standard = "The store is full. Nothing was written, the stored jobs are safe. Free some space and try again."


class HistoryLost(EngineError):
    """The store has lost acknowledged jobs: emptied, restarted without its data or failed over. Nothing was written."""

    standard = "The store has lost acknowledged jobs; this call wrote nothing. Enqueue again what is missing."


class CorruptRecord(EngineError):
    """Stored bytes are damaged. `where` names the place, `job_id` the job if it is known."""

    def __init__(self, message: str = "", *, where: str, job_id: str = "", engine: str = "") -> None:
        self.where, self.job_id = where, job_id
        of = f" of job {job_id!r}" if job_id else ""
        text = f"{where}{of} is corrupt and was set aside. Restore a backup, or enqueue the job again."
        super().__init__(message or text, engine=engine)


class Interrupt(_Portable):
    """A handler ends without returning or failing. Not an `Exception`: `except Exception` must not hide it."""

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str):
            raise InvalidOption(f"`reason` must be text, not {type(reason).__name__}.", option="reason")
        self.reason = reason
        super().__init__(reason)


class Retry(Interrupt):
    """Try again after `delay` (kept in µs) or the back-off. Costs an attempt: `raise Retry("why", delay=5)`."""

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        self.delay = None if delay is None else duration_us(delay, "delay")
        super().__init__(reason)


class Snooze(Interrupt):
    """Run again after `delay` or at `at` (kept in µs). Costs no attempt: `raise Snooze(delay=60)`."""

    def __init__(self, *, delay: Duration | None = None, at: datetime | None = None, reason: str = "") -> None:
        if (delay is None) == (at is None):
            raise InvalidOption("Snooze needs `delay` or `at`, and not both.", option="delay")
        self.delay = None if delay is None else duration_us(delay, "delay")
        self.at = None if at is None else instant_us(at, "at")
        super().__init__(reason)


class GiveUp(Interrupt):
    """Fail now, even if attempts are left: `raise GiveUp("card expired")`."""


class Cancel(Interrupt):
    """End as cancelled: `raise Cancel("order withdrawn")`."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class Aborted(Interrupt):
    """Raised into a handler that must stop; `reason` says why (lease lost, cancel, timeout, shutdown)."""
