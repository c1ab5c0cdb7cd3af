"""The oracle: could the ledger have answered this?

An engine answers on its own; the oracle steps the ledger with the same command, at the time the answer names,
and compares. With one caller at a time nearly everything follows from the rules, so the comparison is exact:
every field of every answer. What an engine is free in, and how the ledger follows it:

* **time**: the ledger takes the answer's `at`. It may stand still, it may not go back.
* **arrival numbers**: only their order inside a queue is compared. The oracle maps the engine's numbers to the
  ledger's (`Arrivals`). Cursors of `find` are arrival numbers too.
* **expired**: any order, and any of the expired leases if there are more than `limit`.
* **prune**: any of the jobs that may be deleted. The ledger then deletes the same ones; `more` must say whether some
  are left.

Notifications are hints and not compared. Tokens follow from claim id and rank, fences from the time, so both are exact.

**One call after the other.** If calls overlap, their order is not known, and a claim may pass over a job that another
call has locked. Overlapping calls are checked by `holdfast.testing.histories`, without the ledger.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.engines.ledger.ledger import Ledger
from holdfast.engines.ledger.prune import prune
from holdfast.engines.ledger.step import Step
from holdfast.engines.tables import Tables
from holdfast.model.command import A, Answer, Command
from holdfast.model.job import JobKey
from holdfast.model.observe import Audit, AuditAnswer, Find, FindAnswer, Prune, PruneAnswer
from holdfast.model.produce import Enqueue, EnqueueAnswer, GroupAccepted
from holdfast.model.work import Expired, ExpiredAnswer, ExpiredLease

ALL = 2**62
"""A limit that limits nothing."""


class Arrivals:
    """Two numberings of one queue's arrivals, the ledger's and the engine's: other numbers, the same order."""

    def __init__(self) -> None:
        self._ours: list[int] = []
        self._theirs: list[int] = []

    def agree(self, ours: int, theirs: int) -> bool:
        """Whether the pair fits the earlier pairs; if so, it is remembered."""
        place = bisect_left(self._ours, ours)
        if place < len(self._ours) and self._ours[place] == ours:
            return self._theirs[place] == theirs
        if place != bisect_left(self._theirs, theirs) or theirs in self._theirs[place : place + 1]:
            return False
        self._ours.insert(place, ours)
        self._theirs.insert(place, theirs)
        return True

    def ours(self, theirs: int) -> int | None:
        """The ledger's number for one of the engine's."""
        place = bisect_left(self._theirs, theirs)
        exists = place < len(self._theirs) and self._theirs[place] == theirs
        return self._ours[place] if exists else None


class Oracle:
    """Judges the answers of an engine that began empty, one call after the other.

    After the first refusal the ledger and the engine hold different jobs: the oracle cannot be used any more.
    """

    def __init__(self) -> None:
        self.ledger = Ledger(Tables())
        self._arrivals: dict[str, Arrivals] = {}

    def accept(self, command: Command[A], answer: A) -> str | None:
        """None: the ledger could have answered this. Otherwise the first thing that it could not, in a line."""
        problem = self._judge(command, answer)
        return None if problem is None else f"{type(command).__name__}: {problem}"

    def _judge(self, command: Command[Any], answer: Answer) -> str | None:
        clock, at = self.ledger.clock, answer.at
        if at.wall < clock.wall or at.lease < clock.lease:
            return f"time went back, from {clock} to {at}"
        match command, answer:
            case Expired(), ExpiredAnswer():
                return self._expired(command, answer)
            case Prune(), PruneAnswer():
                return self._prune(command, answer)
            case Find(), FindAnswer():
                return self._find(command, answer)
            case Enqueue(), EnqueueAnswer():
                return self._enqueue(command, answer)
            case Audit(), AuditAnswer():
                return self._audit(command, answer)
            case _:
                return self._same("", self.ledger.decide(command, at).answer, answer, None)

    # Verbs with a freedom of their own

    def _enqueue(self, command: Enqueue, answer: EnqueueAnswer) -> str | None:
        ours = self.ledger.decide(command, answer.at).answer
        if len(ours.groups) != len(answer.groups):
            return _lengths("groups", ours.groups, answer.groups)
        for number, (group, our, their) in enumerate(zip(command.groups, ours.groups, answer.groups, strict=True)):
            path = f"groups[{number}]"
            if not (isinstance(our, GroupAccepted) and isinstance(their, GroupAccepted)):
                problem = self._same(path, our, their, None)
            elif len(our.jobs) != len(their.jobs):
                problem = _lengths(f"{path}.jobs", our.jobs, their.jobs)
            else:
                problem = _first(
                    self._same(f"{path}.jobs[{place}]", one, other, new.queue)
                    for place, (new, one, other) in enumerate(zip(group.jobs, our.jobs, their.jobs, strict=True))
                )
            if problem is not None:
                return problem
        return None

    def _expired(self, command: Expired, answer: ExpiredAnswer) -> str | None:
        everything = self.ledger.decide(replace(command, limit=ALL), answer.at).answer
        listable = {JobKey(lease.queue, lease.id): lease for lease in everything.leases}
        names = [JobKey(lease.queue, lease.id) for lease in answer.leases]
        for number, (name, lease) in enumerate(zip(names, answer.leases, strict=True)):
            ours = listable.get(name)
            if ours is None:
                return f"leases[{number}] is {lease.id!r} of {lease.queue!r}, {self._why_not(lease)}"
            problem = self._same(f"leases[{number}]", ours, lease, lease.queue)
            if problem is not None:
                return problem
        if len(set(names)) != len(names):
            return f"leases names a job twice: {_names(answer.leases)}"
        wanted = min(command.limit, len(listable))
        if len(names) != wanted:
            return f"leases has {len(names)} of the {len(listable)} expired leases; the limit is {command.limit}"
        return None

    def _why_not(self, lease: ExpiredLease) -> str:
        job = self.ledger.state.job(lease.queue, lease.id)
        if job is None or job.lease_expires is None:
            return "which is not leased"
        if job.lease_expires > self.ledger.clock.lease:
            return "which has not expired"
        return "whose task the caller does not know"

    def _prune(self, command: Prune, answer: PruneAnswer) -> str | None:
        step = Step(self.ledger.state, answer.at)
        self.ledger.clock = answer.at
        problem = _choice("expired", answer.expired, _overdue(step), command.limit, "past their `expires`")
        if problem is not None:
            return problem
        # In two calls, since the expired jobs have to end before it is clear which jobs can be deleted.
        ours = prune(step, command, PruneAnswer(at=answer.at, expired=answer.expired))
        problem = _choice("deleted", answer.deleted, _deletable(step), command.limit, "ended and past their lifetimes")
        if problem is not None:
            return problem
        prune(step, command, PruneAnswer(at=answer.at, deleted=answer.deleted))
        step.close()
        if ours.workers != answer.workers:
            return _differ("workers", ours.workers, answer.workers)
        left = _overdue(step) or _deletable(step)
        if not answer.more and (left or step.state.ended_parents()):
            return f"more is False, but something is left: {_names(left) if left else 'children of ended jobs'}"
        at_limit = command.limit in (len(answer.expired), len(answer.deleted))
        if answer.more and not left and not step.state.ended_parents() and not at_limit:
            return "more is True, but nothing is left"
        return None

    def _find(self, command: Find, answer: FindAnswer) -> str | None:
        request = command
        if command.cursor is not None:
            cursor = self._of(command.queue).ours(command.cursor)
            if cursor is None:
                return f"no answer had the cursor {command.cursor}"
            request = replace(command, cursor=cursor)
        ours = self.ledger.decide(request, answer.at).answer
        problem = self._same("jobs", ours.jobs, answer.jobs, command.queue)
        if problem is not None:
            return problem
        if (ours.cursor is None) != (answer.cursor is None):
            return _differ("cursor", ours.cursor, answer.cursor)
        if ours.cursor is not None and answer.cursor is not None:
            return self._same_arrival("cursor", ours.cursor, answer.cursor, command.queue)
        return None

    def _audit(self, command: Audit, answer: AuditAnswer) -> str | None:
        if answer.problems:
            return f"the engine's structure is broken: {'; '.join(answer.problems)}"
        ours = self.ledger.decide(command, answer.at).answer.problems
        return f"the ledger's own structure is broken: {'; '.join(ours)}" if ours else None

    # Comparing

    def _of(self, queue: str) -> Arrivals:
        return self._arrivals.setdefault(queue, Arrivals())

    def _same(self, path: str, ours: object, theirs: object, queue: str | None) -> str | None:
        """The first place where the two differ in more than the numbering of arrivals."""
        if isinstance(ours, Struct) and type(ours) is type(theirs):
            queue = getattr(ours, "queue", queue)
            return _first(
                self._same_field(path, name, getattr(ours, name), getattr(theirs, name), queue)
                for name in ours.__struct_fields__
            )
        if isinstance(ours, tuple) and isinstance(theirs, tuple):
            if len(ours) != len(theirs):
                return _lengths(path, ours, theirs)
            return _first(
                self._same(f"{path}[{place}]", our, their, queue)
                for place, (our, their) in enumerate(zip(ours, theirs, strict=True))
            )
        return None if type(ours) is type(theirs) and ours == theirs else _differ(path, ours, theirs)

    def _same_field(self, path: str, name: str, ours: object, theirs: object, queue: str | None) -> str | None:
        path = f"{path}.{name}" if path else name
        if name == "arrival" and queue is not None and isinstance(ours, int) and isinstance(theirs, int):
            return self._same_arrival(path, ours, theirs, queue)
        return self._same(path, ours, theirs, queue)

    def _same_arrival(self, path: str, ours: int, theirs: int, queue: str) -> str | None:
        if self._of(queue).agree(ours, theirs):
            return None
        return f"{path} is {theirs}, which does not stand where the ledger's {ours} stands among the arrivals so far"


def _overdue(step: Step) -> list[JobKey]:
    """Waiting jobs past their `expires`."""
    return [job.job_key for job in step.state.expiring(step.now, ALL)]


def _deletable(step: Step) -> list[JobKey]:
    """Finished jobs that nothing keeps."""
    return [job.job_key for job in step.state.ended(step.now, ALL)]


def _first(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def _choice(field: str, chosen: Sequence[JobKey], possible: Collection[JobKey], limit: int, what: str) -> str | None:
    """Whether an engine's choice is one: nothing twice, nothing impossible, not too many."""
    impossible = [key for key in chosen if key not in possible]
    if impossible:
        return f"{field} has {_names(impossible)}, not among those {what}: {_names(possible)}"
    if len(set(chosen)) != len(chosen):
        return f"{field} names a job twice: {_names(chosen)}"
    return f"{field} has {len(chosen)} jobs; the limit is {limit}" if len(chosen) > limit else None


def _differ(path: str, ours: object, theirs: object) -> str:
    return f"{path or 'the answer'} is {theirs!r}; the ledger has {ours!r}"


def _lengths(path: str, ours: Sequence[object], theirs: Sequence[object]) -> str:
    return f"{path} has {len(theirs)}: {_names(theirs)}; the ledger has {len(ours)}: {_names(ours)}"


def _names(things: Iterable[Any]) -> str:
    """Jobs by their names, everything else as it is."""
    shown = [
        f"{thing.queue}/{thing.id}" if hasattr(thing, "id") and hasattr(thing, "queue") else repr(thing)
        for thing in things
    ]
    return f"[{', '.join(shown)}]"
