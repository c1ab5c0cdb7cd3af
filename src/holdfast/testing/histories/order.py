"""Order: one job of a lane at a time and in its turn, claims by rank, nothing of what is paused."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from holdfast.model.operate import Pause, Resume
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Exchange, Lease
from holdfast.testing.histories.generations import Generation, Generations, Grant
from holdfast.testing.histories.record import History, RecordedCall, TickRange

FOR_EVER = 2**62


def problems(history: History, lives: Generations, seen: Counter[str]) -> Iterator[str]:
    for (queue, lane), members in lives.lanes().items():
        yield from _lane(f"lane {lane} of {queue}", members, seen)
    switches = _switches(history)
    claims = [call for call in history.calls if isinstance(call.command, Exchange) and call.command.claim is not None]
    for call in claims:
        if call.answer is not None:
            yield from _claim(call)
            yield from _paused(call, switches, seen)
    yield from _passed_over(history, lives, claims, switches, seen)


# --- Lanes ---


def _lane(name: str, members: list[Generation], seen: Counter[str]) -> Iterator[str]:
    grants = sorted((grant for life in members for grant in life.grants), key=lambda grant: grant.lease.fence)
    held = [(grant.call.moment.before, FOR_EVER if grant.end is None else grant.end.after) for grant in grants]
    if most_at_once(held) > 1:
        yield f"{name}: two leases at once"
    heads = [
        (life.first_grant.before, FOR_EVER if life.ended is None else life.ended.after)
        for life in members
        if life.first_grant is not None and not life.vague
    ]
    if most_at_once(heads) > 1:
        yield f"{name}: a job was leased before the head had ended"
    yield from _fences(name, grants)
    for life in members:
        yield from _turn(name, life, members, seen)


def _fences(name: str, grants: list[Grant]) -> Iterator[str]:
    for one, following in pairwise(grants):
        if one.lease.fence == following.lease.fence or following.call.moment.precedes(one.call.moment):
            yield (
                f"{name}: fence {following.lease.fence} of {following.lease.token} is not above"
                f" {one.lease.fence} of {one.lease.token}, which came first"
            )


def _turn(name: str, life: Generation, members: list[Generation], seen: Counter[str]) -> Iterator[str]:
    """Whoever became the head was the best of those who surely waited then.

    It became the head after it had come and after every head before it had ended, and before it was leased. Who was
    there all that time, and still is, was passed over.
    """
    if life.first_grant is None or life.arrival is None:
        return
    chosen = TickRange(life.began.after, life.first_grant.before)
    for other in members:
        first = other.first_grant
        if other is not life and first is not None and first.precedes(life.first_grant) and other.ended is not None:
            if other.vague:
                return
            chosen = TickRange(max(chosen.after, other.ended.after), chosen.before)
    for other in members:
        if other is life or other.arrival is None or not other.surely_lives(chosen):
            continue
        if other.first_grant is not None and other.first_grant.after < chosen.before:
            continue  # it may have been the head before
        seen["turns in lanes"] += 1
        if (-other.job.priority, other.arrival) < (-life.job.priority, life.arrival):
            yield f"{name}: {life} was leased before {other}, which had waited in front of it"


def most_at_once(stretches: Iterable[tuple[int, int]]) -> int:
    """The largest number of stretches that cover one tick. One that ends before it begins covers none."""
    steps = [step for begin, end in stretches if begin < end for step in ((begin, 1), (end, -1))]
    most = now = 0
    for _, change in sorted(steps):
        now += change
        most = max(most, now)
    return most


# --- Claims ---


def _claim(call: RecordedCall) -> Iterator[str]:
    claim = _of(call)
    leases: tuple[Lease, ...] = call.answer.leases
    if len(leases) > claim.limit + claim.prefetch:
        yield f"{call.caller}: claim {claim.claim_id} got {len(leases)} of {claim.limit}+{claim.prefetch} leases"
    for number, lease in enumerate(leases):
        state = JobState.RUNNING if number < claim.limit else JobState.ASSIGNED
        if lease.state is not state or lease.token != f"{claim.claim_id}.{number}":
            yield f"{call.caller}: lease {number} of claim {claim.claim_id} is {lease.token}, {lease.state}"
    places = {wanted.queue: place for place, wanted in enumerate(claim.queues)}
    ranks = [(places.get(lease.queue, -1), *_rank(lease)) for lease in leases]
    if any(place == -1 for place, *_ in ranks):
        yield f"{call.caller}: claim {claim.claim_id} got leases of queues that it did not name"
    elif ranks != sorted(ranks):
        yield f"{call.caller}: claim {claim.claim_id} got its leases out of order"


def _of(call: RecordedCall) -> Claim:
    assert isinstance(call.command, Exchange)
    assert call.command.claim is not None
    return call.command.claim


def _rank(lease: Lease) -> tuple[int, int, int]:
    return (-lease.priority, lease.due, lease.arrival)


# --- Pauses ---

Scope = tuple[str, str | None]


def _switches(history: History) -> dict[Scope, list[RecordedCall]]:
    found: dict[Scope, list[RecordedCall]] = defaultdict(list)
    for call in history.calls:
        if isinstance(call.command, Pause | Resume):
            found[call.command.queue, call.command.lane].append(call)
    return found


def _paused(call: RecordedCall, switches: dict[Scope, list[RecordedCall]], seen: Counter[str]) -> Iterator[str]:
    """After a pause was answered, and as long as nobody has asked to resume, nothing is claimed."""
    for lease in call.answer.leases:
        for scope in ((lease.queue, None), (lease.queue, lease.lane)):
            pauses = [one for one in switches.get(scope, ()) if isinstance(one.command, Pause)]
            resumes = [one for one in switches.get(scope, ()) if isinstance(one.command, Resume)]
            seen["claims beside pauses"] += bool(pauses)
            for pause in pauses:
                if pause.moment.precedes(call.moment) and not any(
                    one.moment.after < call.moment.before and not one.moment.precedes(pause.moment) for one in resumes
                ):
                    yield f"{call.caller}: {lease.token} was given of {scope}, which {pause.caller} had paused"
                    return


def _may_be_paused(switches: dict[Scope, list[RecordedCall]], life: Generation, during: TickRange) -> bool:
    for scope in ((life.key.queue, None), (life.key.queue, life.lane)):
        for pause in switches.get(scope, ()):
            if isinstance(pause.command, Pause) and pause.moment.after < during.before:
                resumed = any(
                    isinstance(one.command, Resume)
                    and pause.moment.precedes(one.moment)
                    and one.moment.before < during.after
                    for one in switches[scope]
                )
                if not resumed:
                    return True
    return False


# --- Who was passed over ---


@dataclass(slots=True)
class ClaimableRange:
    """A stretch in which a job surely could have been claimed, from when it is due on."""

    life: Generation
    stretch: TickRange
    rank: tuple[int, int, int]
    waits: bool = False
    """It is not queued yet: whoever claims moves it up first, if nobody has its lane in hand."""

    @property
    def due(self) -> int:
        return self.rank[1]


def _passed_over(
    history: History,
    lives: Generations,
    claims: list[RecordedCall],
    switches: dict[Scope, list[RecordedCall]],
    seen: Counter[str],
) -> Iterator[str]:
    """A claim that nobody else was beside takes the best, and leaves nothing while it has room."""
    ready: dict[str, list[ClaimableRange]] = defaultdict(list)
    for life in lives:
        for one in _stretches(life):
            ready[life.key.queue].append(one)
    for call in claims:
        if call.answer is None:
            continue
        beside = [other for other in claims if other is not call and other.overlaps(call)]
        touched = {wanted.queue for other in beside for wanted in _of(other).queues}
        claim = _of(call)
        for place, wanted in enumerate(claim.queues):
            if wanted.queue in touched:
                continue
            seen["claims beside nobody"] += 1
            tasks = {task.task for task in wanted.tasks}
            for one in ready[wanted.queue]:
                if (
                    one.stretch.after < call.moment.after
                    and call.moment.before < one.stretch.before
                    and one.due <= call.answer.at.wall
                    and one.life.job.task in tasks
                    and not _may_be_paused(switches, one.life, TickRange(one.stretch.after, call.moment.before))
                    and not _in_hand(history, call, one)
                ):
                    seen["jobs left behind"] += 1
                    yield from _outranked(call, claim, place, one)


def _in_hand(history: History, call: RecordedCall, one: ClaimableRange) -> bool:
    """Whether another call may have been on the job, or on the lane that it waits in, while this one claimed."""
    others = history.naming(one.life.key)
    if one.waits and one.life.lane is not None:
        others = others + history.touching(one.life.key.queue)
    return any(other is not call and other.overlaps(call) for other in others)


def _outranked(call: RecordedCall, claim: Claim, place: int, one: ClaimableRange) -> Iterator[str]:
    leases: tuple[Lease, ...] = call.answer.leases
    if len(leases) < claim.limit + claim.prefetch:
        yield f"{call.caller}: claim {claim.claim_id} had room, and left {one.life} behind, which was ready"
        return
    later = {wanted.queue for wanted in claim.queues[place + 1 :]}
    for lease in leases:
        if lease.queue in later or (lease.queue == one.life.key.queue and _rank(lease) > one.rank):
            yield f"{call.caller}: {lease.token} was given, and {one.life} was ready and better"
            return


def _stretches(life: Generation) -> Iterator[ClaimableRange]:
    """From each answer after which the job waits for nothing but its due time, to the next call that takes it."""
    if life.vague or life.arrival is None:
        return
    ends = [grant.call.moment.after for grant in life.grants]
    ends.append(FOR_EVER if life.ended is None else life.ended.after)
    if life.state is JobState.QUEUED or (life.state is JobState.SCHEDULED and life.lane is None):
        due = life.call.answer.at.wall + life.job.delay
        waits = life.state is not JobState.QUEUED
        yield ClaimableRange(
            life, TickRange(life.began.before, ends[0]), (-life.job.priority, due, life.arrival), waits
        )
    for number, grant in enumerate(life.grants):
        if grant.end is None or len(grant.effects) > 1:
            continue
        effect = grant.effects[0]
        match grant.ended_as:
            case JobState.QUEUED:
                due = grant.lease.due
            case JobState.RETRYING | JobState.SCHEDULED:
                due = effect.call.answer.at.wall + effect.settlement.delay
            case _:
                continue
        waits = grant.ended_as is not JobState.QUEUED
        stretch = TickRange(grant.end.before, ends[number + 1])
        yield ClaimableRange(life, stretch, (-life.job.priority, due, life.arrival), waits)
