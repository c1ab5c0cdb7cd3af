"""Finds the jobs in the store, and compares them with the job that a test expects.

Two calls are the same if the handler would get the same arguments, whether they are passed by position or by name, with
or without their default. An option is compared only if the test names it:
`assert_enqueued(resize.using(queue="bulk"), "cat.png")`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from holdfast.declare.policy import UsingOptions
from holdfast.errors import HoldfastError
from holdfast.model.instants import SECOND, Micros
from holdfast.model.job import JobRecord
from holdfast.model.observe import Find, Stats
from holdfast.model.produce import NewJob
from holdfast.model.states import JobState
from holdfast.task import Task
from holdfast.testing.harness_engine import HarnessEngine
from holdfast.views import moment

MAX_JOBS_SHOWN = 5
"""Jobs that a failure message lists."""
MAX_VALUE_CHARS = 200
"""Longer values are cut in a failure message."""
_MISSING = object()


def _seconds(duration_us: Micros | None) -> float | None:
    return None if duration_us is None else duration_us / SECOND


def stored(
    engine: HarnessEngine, *, task: str | None = None, queue: str | None = None, state: JobState | None = None
) -> list[JobRecord]:
    """The jobs in the store, in the order of their arrival."""
    queues = [each.queue for each in engine.perform_now(Stats()).queues if queue in (None, each.queue)]
    states = list(JobState) if state is None else [state]
    found = [job for name in queues for each in states for job in _found(engine, Find(queue=name, state=each))]
    return sorted((job for job in found if task in (None, job.task)), key=lambda job: job.arrival)


def _found(engine: HarnessEngine, find: Find) -> Iterator[JobRecord]:
    while True:
        page = engine.perform_now(find)
        yield from page.jobs
        if page.cursor is None:
            return
        find = Find(queue=find.queue, state=find.state, cursor=page.cursor)


# --- Options ---

_SAME_NAME = (
    UsingOptions.__annotations__.keys() & set(NewJob.__struct_fields__) & set(JobRecord.__struct_fields__)
) - {"expires"}
"""Options that are a field of the same name in a new job and in a record. `expires` is left out: given as a duration,
it depends on when the job was enqueued."""
_OPTIONS: dict[str, tuple[Callable[[NewJob], Any], Callable[[JobRecord], Any]]] = {
    **{name: (attrgetter(name), attrgetter(name)) for name in _SAME_NAME},
    "delay": (lambda job: job.delay / SECOND, lambda record: (record.due - record.created) / SECOND),
    "at": (lambda job: moment(job.due or 0), lambda record: moment(record.due)),
    "max_attempts": (lambda job: job.given.max_attempts, lambda record: record.given.max_attempts),
    "timeout": (lambda job: _seconds(job.given.timeout), lambda record: _seconds(record.given.timeout)),
    "result_ttl": (lambda job: _seconds(job.given.result_ttl), lambda record: _seconds(record.given.result_ttl)),
    "retention": (lambda job: _seconds(job.given.retention), lambda record: _seconds(record.given.retention)),
}
"""The options of `using` that can be compared: how to read each from a new job, and from a stored record."""


# --- One call ---


@dataclass(frozen=True, slots=True)
class Difference:
    name: str
    found: Any
    expected: Any

    def __str__(self) -> str:
        return f"{self.name}: {_shown(self.found)}, expected {_shown(self.expected)}"


class Expected:
    """A call of a task that a test expects to find."""

    def __init__(self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.task = task
        self._options = [name for name in _OPTIONS if name in task._chosen]
        named = (
            task if "id" in task._chosen else task.using(id="expected")
        )  # else making the draft would take the next random id
        self._job = named.draft(*args, **kwargs).job
        self._arguments = self._bound(self._job.payload, self._job.codec)
        assert self._arguments is not None, "A draft can be read back, or it is refused."

    def _bound(self, payload: bytes, codec: str) -> dict[str, Any] | None:
        """Each parameter with its value. None: the bytes do not fit the task."""
        try:
            return _bound(self.task, payload, codec)
        except HoldfastError:
            return None

    def differences(self, record: JobRecord) -> list[Difference]:
        """The differences from the expected job. Empty: it is the expected one."""
        return [*self._other_arguments(record), *self._other_options(record)]

    def _other_arguments(self, record: JobRecord) -> list[Difference]:
        if (record.payload, record.codec) == (self._job.payload, self._job.codec):
            return []
        expected, found = self._arguments or {}, self._bound(record.payload, record.codec)
        if found is None:
            return [Difference("arguments", "bytes that do not fit the task", _call(self.task.name, expected))]
        return [
            Difference(name, found.get(name, _MISSING), value)
            for name, value in expected.items()
            if not _same(found.get(name, _MISSING), value)
        ]

    def _other_options(self, record: JobRecord) -> list[Difference]:
        options = {name: _OPTIONS[name] for name in self._options}
        compared = [Difference(name, found(record), expected(self._job)) for name, (expected, found) in options.items()]
        return [each for each in compared if not _same(each.found, each.expected)]

    # The message

    def complaint(self, engine: HarnessEngine) -> str:
        """Why no job in the store is the expected one."""
        lines = [f"No job was enqueued as {_call(self.task.name, self._arguments or {})}."]
        jobs = stored(engine, task=self.task.name)
        if not jobs:
            return " ".join([lines[0], contents(engine)])
        lines.append(f"Of task {self.task.name} there {'is 1 job' if len(jobs) == 1 else f'are {len(jobs)} jobs'}:")
        nearest = sorted(jobs, key=lambda job: len(self.differences(job)))
        for job in nearest[:MAX_JOBS_SHOWN]:
            lines.append(f"  {job.id} in queue {job.queue}, {job.state}")
            lines += [f"    {difference}" for difference in self.differences(job)]
        if len(jobs) > MAX_JOBS_SHOWN:
            lines.append(f"  and {len(jobs) - MAX_JOBS_SHOWN} more")
        return "\n".join(lines)


def contents(engine: HarnessEngine) -> str:
    """The contents of the store, in one sentence."""
    counted = Counter(job.task or "(a bare payload)" for job in stored(engine))
    if not counted:
        return "Nothing was enqueued at all."
    return f"Enqueued were: {', '.join(f'{task} ×{count}' for task, count in sorted(counted.items()))}."


def call_of(task: Task[..., Any], record: JobRecord) -> str:
    """The stored call as Python code."""
    try:
        return _call(record.task, _bound(task, record.payload, record.codec))
    except HoldfastError:
        return f"{record.task}(bytes that do not fit the task)"


def _bound(task: Task[..., Any], payload: bytes, codec: str) -> dict[str, Any]:
    """Each parameter with its value, in the order in which they are declared."""
    signature = task._definition.signature
    values = signature.bound(task.decode_arguments(payload, codec))
    return {name: values[name] for name in signature.names if name in values}


def _call(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{parameter}={_shown(value)}' for parameter, value in arguments.items())})"


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"


def _same(found: Any, expected: Any) -> bool:
    """Equal; but True and 1 count as different, because they read differently."""
    try:
        return isinstance(found, bool) is isinstance(expected, bool) and bool(found == expected)
    except Exception:  # values whose comparison raises
        return False
