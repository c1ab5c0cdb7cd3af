"""Out of the answers: who lived, who held what, how it ended.

A **life** is one generation of a job, from the enqueue or requeue that began it to its end. A **grant** is one lease in
it. Both begin and end at moments that are known only to lie between two ticks. What cannot be read out of the answers
for certain (which of two overlapping cancels ended which life) makes a life `vague`: nothing is proved by it.
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
    """One settlement and what was answered."""

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
    told: list[SettlementAnswer] = field(default_factory=list)
    """Every settlement that was sent with its token."""

    @property
    def key(self) -> JobKey:
        return self.lease.job_key

    @property
    def effects(self) -> list[SettlementAnswer]:
        """Those that ended it. The owner's own may be told so more than once, and then any of them may have been it."""
        return [told for told in self.told if told.status in TOOK_EFFECT]

    @property
    def end(self) -> TickRange | None:
        effects = self.effects
        if not effects:
            return None
        first = min(told.call.moment.before for told in effects)
        return TickRange(min(told.call.moment.after for told in effects), first)

    @property
    def ended_as(self) -> JobState | None:
        effects = self.effects
        if not effects:
            return None
        instead = any(told.status is SettleStatus.CANCELLED_INSTEAD for told in effects)
        return JobState.CANCELLED if instead else effects[0].settlement.target


@dataclass(slots=True)
class Generation:
    """One generation of a job. `job` is as its producer asked for it; arrival and state as answered, if they were."""

    key: JobKey
    generation: int
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
        """None also where a pool chose it and nobody was told."""
        return self.grants[0].lease.lane if self.grants else self.job.lane

    @property
    def first_grant(self) -> TickRange | None:
        return self.grants[0].call.moment if self.grants else None

    def surely_lives(self, during: TickRange) -> bool:
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
        return f"{self.key.queue}/{self.key.id} (generation {self.generation})"


@dataclass(slots=True)
class Generations:
    """Everything that was read out of one history, and what could not be."""

    by_key: dict[JobKey, list[Generation]] = field(default_factory=dict)
    grants: dict[str, Grant] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Generation]:
        return (life for lives in self.by_key.values() for life in lives)

    def of(self, key: JobKey) -> list[Generation]:
        return self.by_key.get(key, [])

    def in_queue(self, queue: str) -> list[Generation]:
        return [life for life in self if life.key.queue == queue]

    def lanes(self) -> dict[tuple[str, str], list[Generation]]:
        """The lives of each lane, as far as it is known."""
        found: dict[tuple[str, str], list[Generation]] = defaultdict(list)
        for life in self:
            if life.lane is not None:
                found[life.key.queue, life.lane].append(life)
        return found


def read(history: History) -> Generations:
    lives = Generations()
    created, requeued, cancelled, generations = _events(history, lives)
    _settlements(history, lives)
    grants: dict[JobKey, list[Grant]] = defaultdict(list)
    for grant in sorted(lives.grants.values(), key=lambda one: one.lease.fence):
        grants[grant.key].append(grant)
    for key in sorted({*created, *requeued, *grants}):
        last = max([generations[key], *(life.generation for life in created[key])])
        _begin(lives, key, created[key], requeued[key], last)
        _hand_out(lives, key, grants[key])
        _end(lives, key, cancelled[key])
    return lives


def _events(
    history: History, lives: Generations
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
    generations: dict[JobKey, int] = defaultdict(int)
    for call in history.calls:
        command, answer = call.command, call.answer
        if answer is None:
            continue
        if isinstance(command, Enqueue):
            for life in _created(call, command):
                created[life.key].append(life)
        elif isinstance(command, Requeue):
            for id, said in zip(command.ids, answer.jobs, strict=True):
                if said.status is OperateStatus.DONE:
                    requeued[JobKey(command.queue, id)].append(call)
        elif isinstance(command, Cancel):
            for id, said in zip(command.ids, answer.jobs, strict=True):
                if said.status is CancelStatus.CANCELLED:
                    cancelled[JobKey(command.queue, id)].append(call)
        elif isinstance(command, Exchange):
            for lease in answer.leases:
                known = lives.grants.setdefault(lease.token, Grant(lease, call))
                if known.call is not call:
                    lives.problems.append(f"two claims were given the token {lease.token}")
                generations[lease.job_key] = max(generations[lease.job_key], lease.generation)
        elif isinstance(command, Get):
            for record in answer.jobs:
                if record is not None:
                    generations[record.job_key] = max(generations[record.job_key], record.generation)
    return created, requeued, cancelled, generations


def _created(call: RecordedCall, command: Enqueue) -> Iterator[Generation]:
    for group, said in zip(command.groups, call.answer.groups, strict=True):
        if isinstance(said, GroupAccepted):
            for job, one in zip(group.jobs, said.jobs, strict=True):
                if one.status is EnqueueStatus.CREATED:
                    key = JobKey(job.queue, one.id)
                    yield Generation(key, one.generation, call.moment, call, job, one.arrival, one.state)


def _settlements(history: History, lives: Generations) -> None:
    for call in history.calls:
        if isinstance(call.command, Exchange) and call.answer is not None:
            for settlement, status in zip(call.command.settlements, call.answer.settled, strict=True):
                grant = lives.grants.get(settlement.token)
                if grant is None:
                    lives.problems.append(f"the token {settlement.token} was settled, and nobody was given it")
                else:
                    grant.told.append(SettlementAnswer(call, settlement, status))


def _begin(lives: Generations, key: JobKey, created: list[Generation], requeued: list[RecordedCall], last: int) -> None:
    """Each generation has one beginning. An enqueue says which it began; requeues fill the gaps, in their order."""
    known = {life.generation: life for life in created}
    gaps = [number for number in range(last + 1) if number not in known]
    name = f"{key.queue}/{key.id}"
    if len(known) != len(created):
        numbers = sorted(life.generation for life in created)
        lives.problems.append(f"{name} was created more than once in one life: generations {numbers}")
    if len(gaps) != len(requeued):
        lives.problems.append(
            f"{name} has had {last + 1} generations, but was created {len(created)} and requeued {len(requeued)} times"
        )
    requeued = sorted(requeued, key=lambda call: call.moment.before)
    vague = _any_overlap(requeued)
    for number, call in zip(gaps, requeued, strict=False):
        before = known.get(number - 1)
        if before is not None:
            known[number] = Generation(key, number, call.moment, call, before.job, vague=vague)
    lives.by_key[key] = [known[number] for number in sorted(known)]


def _hand_out(lives: Generations, key: JobKey, grants: list[Grant]) -> None:
    """The leases of a job to its lives. They are sorted by fence."""
    mine = {life.generation: life for life in lives.of(key)}
    for grant in grants:
        life = mine.get(grant.lease.generation)
        if life is None:
            lives.problems.append(f"{key.queue}/{key.id}: a lease of generation {grant.lease.generation}, never begun")
            continue
        life.grants.append(grant)
        if life.arrival is None:
            life.arrival = grant.lease.arrival


def _end(lives: Generations, key: JobKey, cancelled: list[RecordedCall]) -> None:
    """Settlements say by their token which life they ended; cancels ended those that are left, in order."""
    left = []
    for life in lives.of(key):
        last = [grant for grant in life.grants if grant.ended_as in TERMINAL]
        if len(last) > 1:
            lives.problems.append(f"{life} ended more than once, by {', '.join(one.lease.token for one in last)}")
        if last:
            life.ended, life.ended_as = last[0].end, last[0].ended_as
        else:
            left.append(life)
    cancelled = sorted(cancelled, key=lambda call: call.moment.before)
    vague = _any_overlap(cancelled)
    if len(cancelled) > len(left):
        lives.problems.append(
            f"{key.queue}/{key.id} was cancelled {len(cancelled)} times while it waited, but {len(left)} lives ended so"
        )
    for life, call in zip(left, cancelled, strict=False):
        life.ended, life.ended_as = call.moment, JobState.CANCELLED
        life.vague = life.vague or vague


def _any_overlap(calls: Iterable[RecordedCall]) -> bool:
    """Whether their order is open. They are sorted by when they were answered."""
    last = -1
    for call in calls:
        if call.moment.after < last:
            return True
        last = call.moment.before
    return False
