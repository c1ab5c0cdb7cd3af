"""Records which command was sent, what was answered, and when.

The clock is a counter that ticks when a call is sent and when its answer has arrived. All callers are in one process,
so a finer order cannot be observed. A call takes effect at an unknown point between its two ticks.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.engine import Engine
from holdfast.errors import Busy
from holdfast.model.command import A, Command
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.observe import Get, Prune
from holdfast.model.operate import Cancel, Pause, Requeue, Resume
from holdfast.model.produce import Enqueue, GroupAccepted
from holdfast.model.work import Exchange, Renew

ANSWER_WITHIN_S = 60.0
"""PF1: a call that takes longer waits for something without a limit."""


class TickRange(NamedTuple):
    """A range: something happened after one tick and before another."""

    after: int
    before: int

    def precedes(self, other: "TickRange") -> bool:
        """True if this certainly happened before the other."""
        return self.before < other.after


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of one caller. Without an answer it has failed; `error` says how, unless it was only `Busy`."""

    caller: str
    command: Command[Any]
    answer: Any
    ticks: TickRange
    error: str = ""

    def overlaps(self, other: "RecordedCall") -> bool:
        return not self.ticks.precedes(other.ticks) and not other.ticks.precedes(self.ticks)


@dataclass(slots=True)
class History:
    """All calls, in the order of their answers."""

    calls: list[RecordedCall] = field(default_factory=list)
    drained: bool = False
    """True if one caller has finished all jobs at the end."""
    busy: int = 0
    cross_queue_atomic: bool = True
    """The engine's capability. False: each queue has its own time, and an answer has the latest."""
    lane_order: dict[str, list[str]] = field(default_factory=dict)
    """The ids of jobs by lane, in the order in which they came, where that is certain."""
    released: list[JobKey] = field(default_factory=list)
    """Jobs that must not be cancelled because of their parents."""
    _ticks: Iterator[int] = field(default_factory=itertools.count)
    _named: dict[JobKey, list[RecordedCall]] | None = None
    _touched: dict[str, list[RecordedCall]] | None = None

    async def ask(self, engine: Engine, caller: str, command: Command[A]) -> A | None:
        """Send a command and record it. None: it failed. `Busy` does not count as an error."""
        asked_at = next(self._ticks)
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                answer = await engine.perform(command)
        except Busy:
            self.busy += 1
            self.calls.append(RecordedCall(caller, command, None, TickRange(asked_at, next(self._ticks))))
            return None
        except Exception as error:
            self.calls.append(
                RecordedCall(
                    caller, command, None, TickRange(asked_at, next(self._ticks)), f"{type(error).__name__}: {error}"
                )
            )
            return None
        self.calls.append(RecordedCall(caller, command, answer, TickRange(asked_at, next(self._ticks))))
        return answer

    def records(self) -> dict[JobKey, JobRecord | None]:
        """What was stored of each job at the last look."""
        found: dict[JobKey, JobRecord | None] = {}
        for call in self.calls:
            if isinstance(call.command, Get) and call.answer is not None:
                found.update(zip(call.command.jobs, call.answer.jobs, strict=True))
        return found

    def naming(self, key: JobKey) -> list[RecordedCall]:
        """The calls that name a job, or got a lease on it. Call it when all calls are recorded."""
        if self._named is None:
            self._named = defaultdict(list)
            for call in self.calls:
                for name in sorted(names(call)):
                    self._named[name].append(call)
        return self._named.get(key, [])

    def touching(self, queue: str) -> list[RecordedCall]:
        """The calls that may have worked on a lane of a queue: they name a job or lane of it, or prune."""
        if self._touched is None:
            self._touched = defaultdict(list)
            for call in self.calls:
                queues = {name.queue for name in names(call)}
                if isinstance(call.command, Pause | Resume):
                    queues.add(call.command.queue)
                for name in queues:
                    self._touched[name].append(call)
                if isinstance(call.command, Prune):
                    self._touched[""].append(call)
        return self._touched.get(queue, []) + self._touched.get("", [])


def names(call: RecordedCall) -> set[JobKey]:
    """The jobs that a call works on, as far as its command and answer name them."""
    command, answer = call.command, call.answer
    match command:
        case Enqueue():
            named = {JobKey(job.queue, job.id) for group in command.groups for job in group.jobs}
            accepted = set()
            for group, group_answer in zip(command.groups, () if answer is None else answer.groups, strict=False):
                if isinstance(group_answer, GroupAccepted):
                    accepted |= {
                        JobKey(job.queue, one.id) for job, one in zip(group.jobs, group_answer.jobs, strict=True)
                    }
            return named | accepted
        case Exchange():
            named = {JobKey(one.queue, one.id) for one in command.settlements}
            named |= {JobKey(one.queue, one.id) for one in command.starts}
            return named if answer is None else named | {lease.job_key for lease in answer.leases}
        case Renew():
            return {JobKey(one.queue, one.id) for one in command.jobs}
        case Cancel() | Requeue():
            return {JobKey(command.queue, id) for id in command.ids}
        case _:
            return set()
