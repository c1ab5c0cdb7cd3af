"""What was asked and answered, and when.

The clock is a counter that ticks whenever a call is made and whenever an answer has come: all callers are in one
process, so nothing finer could be told apart. A call has its effect at some moment between its two ticks; nobody knows
when.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.engine import Engine
from holdfast.errors import Busy
from holdfast.model.command import A, Command
from holdfast.model.job import JobKey
from holdfast.model.observe import Prune
from holdfast.model.operate import Cancel, Pause, Requeue, Resume
from holdfast.model.produce import Enqueue, GroupAccepted
from holdfast.model.work import Exchange, Renew


class TickRange(NamedTuple):
    """Something happened after one tick and before another."""

    after: int
    before: int

    def precedes(self, other: "TickRange") -> bool:
        """Certainly, whatever happened in between."""
        return self.before < other.after


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of one caller. Without an answer it has failed; `error` says how, unless it was only `Busy`."""

    caller: str
    command: Command[Any]
    answer: Any
    moment: TickRange
    error: str = ""

    def overlaps(self, other: "RecordedCall") -> bool:
        return not self.moment.precedes(other.moment) and not other.moment.precedes(self.moment)


@dataclass(slots=True)
class History:
    """All calls, in the order of their answers."""

    calls: list[RecordedCall] = field(default_factory=list)
    drained: bool = False
    """At the end one caller finished all that was left."""
    busy: int = 0
    _ticks: Iterator[int] = field(default_factory=itertools.count)
    _named: dict[JobKey, list[RecordedCall]] | None = None
    _touched: dict[str, list[RecordedCall]] | None = None

    async def ask(self, engine: Engine, caller: str, command: Command[A]) -> A | None:
        """Send a command and write it down. None: it failed. To be turned away as `Busy` is no error."""
        asked = next(self._ticks)
        try:
            answer = await engine.perform(command)
        except Busy:
            self.busy += 1
            self.calls.append(RecordedCall(caller, command, None, TickRange(asked, next(self._ticks))))
            return None
        except Exception as error:
            self.calls.append(
                RecordedCall(
                    caller, command, None, TickRange(asked, next(self._ticks)), f"{type(error).__name__}: {error}"
                )
            )
            return None
        self.calls.append(RecordedCall(caller, command, answer, TickRange(asked, next(self._ticks))))
        return answer

    def naming(self, key: JobKey) -> list[RecordedCall]:
        """The calls that name a job, or were given it. Asked for when all calls are there."""
        if self._named is None:
            self._named = defaultdict(list)
            for call in self.calls:
                for name in sorted(names(call)):
                    self._named[name].append(call)
        return self._named.get(key, [])

    def touching(self, queue: str) -> list[RecordedCall]:
        """The calls that may have had a lane of a queue in hand: they name a job of it or a lane, or keep house."""
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
    """The jobs that a call has in hand. (What a claim looks at and leaves, nobody is told.)"""
    command, answer = call.command, call.answer
    match command:
        case Enqueue():
            asked = {JobKey(job.queue, job.id) for group in command.groups for job in group.jobs}
            told = set()
            for group, said in zip(command.groups, () if answer is None else answer.groups, strict=False):
                if isinstance(said, GroupAccepted):
                    told |= {JobKey(job.queue, one.id) for job, one in zip(group.jobs, said.jobs, strict=True)}
            return asked | told
        case Exchange():
            asked = {JobKey(one.queue, one.id) for one in command.settlements}
            asked |= {JobKey(one.queue, one.id) for one in command.starts}
            return asked if answer is None else asked | {lease.job_key for lease in answer.leases}
        case Renew():
            return {JobKey(one.queue, one.id) for one in command.jobs}
        case Cancel() | Requeue():
            return {JobKey(command.queue, id) for id in command.ids}
        case _:
            return set()
