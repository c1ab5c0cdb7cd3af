"""Reads out of the answers: which generations of jobs there were, who held leases, and how each ended.

A generation runs from the enqueue or requeue that began it to its end. A **grant** is one lease in it. Of both, begin
and end are only known to lie between two ticks. Some facts cannot be read from the answers with certainty, such as
which of two overlapping cancels ended which generation. Such a generation is `vague`, and nothing is concluded from it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.model.job import JobKey
from holdfast.model.observe import Get
from holdfast.model.operate import Cancel, CancelStatus, OperateStatus, Requeue
from holdfast.model.produce import Enqueue, EnqueueStatus, GroupAccepted, NewJob
from holdfast.model.states import TERMINAL, JobState
from holdfast.model.work import Exchange, Lease, Settlement, SettleStatus
from holdfast.testing.histories.record import History, RecordedCall, TickRange

TOOK_EFFECT = frozenset({SettleStatus.APPLIED, SettleStatus.CANCELLED_INSTEAD})


@dataclass(slots=True)
class SettlementAnswer:
    """One settlement and its answer."""

    call: RecordedCall
    settlement: Settlement
    status: SettleStatus

    @property
    def reap(self) -> bool:
        return self.settlement.listed_expiry is not None


@dataclass(slots=True)
class Grant:
    """One lease: from the claim that gave it to the settlement that ended it."""

    lease: Lease
    call: RecordedCall
    answers: list[SettlementAnswer] = field(default_factory=list)
    """Every settlement that was sent with its token, with the answer."""

    @property
    def key(self) -> JobKey:
        return self.lease.job_key

    @property
    def effects(self) -> list[SettlementAnswer]:
        """The settlements that may have ended it. The owner's may be answered `applied` more than once."""
        return [answer for answer in self.answers if answer.status in TOOK_EFFECT]

    @property
    def end(self) -> TickRange | None:
        effects = self.effects
        if not effects:
            return None
        first = min(answer.call.ticks.before for answer in effects)
        return TickRange(min(answer.call.ticks.after for answer in effects), first)

    @property
    def ended_as(self) -> JobState | None:
        effects = self.effects
        if not effects:
            return None
        instead = any(answer.status is SettleStatus.CANCELLED_INSTEAD for answer in effects)
        return JobState.CANCELLED if instead else effects[0].settlement.target


@dataclass(slots=True)
class Generation:
    """One generation of a job. `job` is what its producer sent; arrival and state come from the answer, if any."""

    key: JobKey
    number: int
    began: TickRange
    call: RecordedCall
    job: NewJob
    arrival: int | None = None
    state: JobState | None = None
    grants: list[Grant] = field(default_factory=list)
    ended: TickRange | None = None
    ended_as: JobState | None = None
    vague: bool = False

    @property
    def lane(self) -> str | None:
        """None also if a pool chose it and no answer says which."""
        return self.grants[0].lease.lane if self.grants else self.job.lane

    @property
    def first_grant(self) -> TickRange | None:
        return self.grants[0].call.ticks if self.grants else None

    def surely_live(self, during: TickRange) -> bool:
        """From before the first tick until after the second."""
        return not self.vague and self.began.before < during.after and not self.may_have_ended(during)

    def may_live(self, during: TickRange) -> bool:
        """At some moment between the two."""
        return self.began.after < during.before and (
            self.vague or self.ended is None or self.ended.before > during.after
        )

    def may_have_ended(self, during: TickRange) -> bool:
        return self.ended is not None and (self.vague or self.ended.after < during.before)

    def __str__(self) -> str:
        return f"{self.key.queue}/{self.key.id} (generation {self.number})"


@dataclass(slots=True)
class Generations:
    """All generations and leases of one history, and the contradictions found while reading it."""

    by_key: dict[JobKey, list[Generation]] = field(default_factory=dict)
    grants: dict[str, Grant] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Generation]:
        return (generation for generations in self.by_key.values() for generation in generations)

    def of(self, key: JobKey) -> list[Generation]:
        return self.by_key.get(key, [])

    def in_queue(self, queue: str) -> list[Generation]:
        return [generation for generation in self if generation.key.queue == queue]

    def lanes(self) -> dict[tuple[str, str], list[Generation]]:
        """The generations of each lane, as far as it is known."""
        found: dict[tuple[str, str], list[Generation]] = defaultdict(list)
        for generation in self:
            if generation.lane is not None:
                found[generation.key.queue, generation.lane].append(generation)
        return found


def read(history: History) -> Generations:
    generations = Generations()
    created, requeued, cancelled, last_numbers = _events(history, generations)
    _settlements(history, generations)
    grants: dict[JobKey, list[Grant]] = defaultdict(list)
    for grant in sorted(generations.grants.values(), key=lambda one: one.lease.fence):
        grants[grant.key].append(grant)
    for key in sorted({*created, *requeued, *grants}):
        last = max([last_numbers[key], *(generation.number for generation in created[key])])
        _begin(generations, key, created[key], requeued[key], last)
        _hand_out(generations, key, grants[key])
        _end(generations, key, cancelled[key])
    return generations


def _events(
    history: History, generations: Generations
) -> tuple[
    dict[JobKey, list[Generation]],
    dict[JobKey, list[RecordedCall]],
    dict[JobKey, list[RecordedCall]],
    dict[JobKey, int],
]:
    """What was created, requeued and cancelled, by job; and the last generation that was seen of each."""
    created: dict[JobKey, list[Generation]] = defaultdict(list)
    requeued: dict[JobKey, list[RecordedCall]] = defaultdict(list)
    cancelled: dict[JobKey, list[RecordedCall]] = defaultdict(list)
    last_numbers: dict[JobKey, int] = defaultdict(int)
    for call in history.calls:
        command, answer = call.command, call.answer
        if answer is None:
            continue
        if isinstance(command, Enqueue):
            for generation in _created(call, command):
                created[generation.key].append(generation)
        elif isinstance(command, Requeue):
            for id, result in zip(command.ids, answer.jobs, strict=True):
                if result.status is OperateStatus.DONE:
                    requeued[JobKey(command.queue, id)].append(call)
        elif isinstance(command, Cancel):
            for id, result in zip(command.ids, answer.jobs, strict=True):
                if result.status is CancelStatus.CANCELLED:
                    cancelled[JobKey(command.queue, id)].append(call)
        elif isinstance(command, Exchange):
            for lease in answer.leases:
                grant = generations.grants.setdefault(lease.token, Grant(lease, call))
                if grant.call is not call:
                    generations.problems.append(f"two claims were given the token {lease.token}")
                last_numbers[lease.job_key] = max(last_numbers[lease.job_key], lease.generation)
        elif isinstance(command, Get):
            for record in answer.jobs:
                if record is not None:
                    last_numbers[record.job_key] = max(last_numbers[record.job_key], record.generation)
    return created, requeued, cancelled, last_numbers


def _created(call: RecordedCall, command: Enqueue) -> Iterator[Generation]:
    for group, result in zip(command.groups, call.answer.groups, strict=True):
        if isinstance(result, GroupAccepted):
            for job, one in zip(group.jobs, result.jobs, strict=True):
                if one.status is EnqueueStatus.CREATED:
                    key = JobKey(job.queue, one.id)
                    yield Generation(key, one.generation, call.ticks, call, job, one.arrival, one.state)


def _settlements(history: History, generations: Generations) -> None:
    for call in history.calls:
        if isinstance(call.command, Exchange) and call.answer is not None:
            for settlement, status in zip(call.command.settlements, call.answer.settled, strict=True):
                grant = generations.grants.get(settlement.token)
                if grant is None:
                    generations.problems.append(f"the token {settlement.token} was settled, and no caller got it")
                else:
                    grant.answers.append(SettlementAnswer(call, settlement, status))


def _begin(
    generations: Generations, key: JobKey, created: list[Generation], requeued: list[RecordedCall], last: int
) -> None:
    """Each generation has one beginning. An enqueue says which it began; requeues fill the gaps, in their order."""
    by_number = {generation.number: generation for generation in created}
    gaps = [number for number in range(last + 1) if number not in by_number]
    name = f"{key.queue}/{key.id}"
    if len(by_number) != len(created):
        numbers = sorted(generation.number for generation in created)
        generations.problems.append(f"{name} was created more than once in one generation: {numbers}")
    if len(gaps) != len(requeued):
        generations.problems.append(
            f"{name} has had {last + 1} last_numbers, but was created {len(created)} and requeued {len(requeued)} times"
        )
    requeued = sorted(requeued, key=lambda call: call.ticks.before)
    vague = _any_overlap(requeued)
    for number, call in zip(gaps, requeued, strict=False):
        before = by_number.get(number - 1)
        if before is not None:
            by_number[number] = Generation(key, number, call.ticks, call, before.job, vague=vague)
    generations.by_key[key] = [by_number[number] for number in sorted(by_number)]


def _hand_out(generations: Generations, key: JobKey, grants: list[Grant]) -> None:
    """The leases of a job to its generations. They are sorted by fence."""
    mine = {generation.number: generation for generation in generations.of(key)}
    for grant in grants:
        generation = mine.get(grant.lease.generation)
        if generation is None:
            generations.problems.append(
                f"{key.queue}/{key.id}: a lease of generation {grant.lease.generation}, never begun"
            )
            continue
        generation.grants.append(grant)
        if generation.arrival is None:
            generation.arrival = grant.lease.arrival


def _end(generations: Generations, key: JobKey, cancelled: list[RecordedCall]) -> None:
    """Settlements say by their token which generation they ended; cancels ended those that are left, in order."""
    left = []
    for generation in generations.of(key):
        last = [grant for grant in generation.grants if grant.ended_as in TERMINAL]
        if len(last) > 1:
            generations.problems.append(
                f"{generation} ended more than once, by {', '.join(one.lease.token for one in last)}"
            )
        if last:
            generation.ended, generation.ended_as = last[0].end, last[0].ended_as
        else:
            left.append(generation)
    cancelled = sorted(cancelled, key=lambda call: call.ticks.before)
    vague = _any_overlap(cancelled)
    if len(cancelled) > len(left):
        generations.problems.append(
            f"{key.queue}/{key.id} was cancelled {len(cancelled)} times while it waited,"
            f" but {len(left)} generations ended so"
        )
    for generation, call in zip(left, cancelled, strict=False):
        generation.ended, generation.ended_as = call.ticks, JobState.CANCELLED
        generation.vague = generation.vague or vague


def _any_overlap(calls: Iterable[RecordedCall]) -> bool:
    """Whether their order is open. They are sorted by when they were answered."""
    last = -1
    for call in calls:
        if call.ticks.after < last:
            return True
        last = call.ticks.before
    return False
