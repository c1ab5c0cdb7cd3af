"""Checks order: one job of a lane at a time and in turn, claims by rank, no claims from paused scopes."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from holdfast.model.operate import Pause, Resume
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Exchange, Lease
from holdfast.testing.histories.generations import Generation, Generations, Grant
from holdfast.testing.histories.record import History, RecordedCall, TickRange

NEVER = 2**62


def problems(history: History, generations: Generations, seen: Counter[str]) -> Iterator[str]:
    for (queue, lane), members in generations.lanes().items():
        yield from _lane(f"lane {lane} of {queue}", members, seen)
    switches = _switches(history)
    claims = [call for call in history.calls if isinstance(call.command, Exchange) and call.command.claim is not None]
    for call in claims:
        if call.answer is not None:
            yield from _claim(call)
            yield from _paused(call, switches, seen)
    yield from _passed_over(history, generations, claims, switches, seen)


# --- Lanes ---


def _lane(name: str, members: list[Generation], seen: Counter[str]) -> Iterator[str]:
    grants = sorted(
        (grant for generation in members for grant in generation.grants), key=lambda grant: grant.lease.fence
    )
    held = [(grant.call.ticks.before, NEVER if grant.end is None else grant.end.after) for grant in grants]
    if max_at_once(held) > 1:
        yield f"{name}: two leases at once"
    heads = [
        (generation.first_grant.before, NEVER if generation.ended is None else generation.ended.after)
        for generation in members
        if generation.first_grant is not None and not generation.vague
    ]
    if max_at_once(heads) > 1:
        yield f"{name}: a job was leased before the head had ended"
    yield from _fences(name, grants)
    for generation in members:
        yield from _turn(name, generation, members, seen)


def _fences(name: str, grants: list[Grant]) -> Iterator[str]:
    for one, following in pairwise(grants):
        if one.lease.fence == following.lease.fence or following.call.ticks.precedes(one.call.ticks):
            yield (
                f"{name}: fence {following.lease.fence} of {following.lease.token} is not above"
                f" {one.lease.fence} of {one.lease.token}, which came first"
            )


def _turn(name: str, generation: Generation, members: list[Generation], seen: Counter[str]) -> Iterator[str]:
    """The job that became the head was the best of those that surely waited then.

    It became the head after its arrival, after every earlier head had ended, and before it was leased. A better job
    that waited during all that time was skipped.
    """
    if generation.first_grant is None or generation.arrival is None:
        return
    chosen = TickRange(generation.began.after, generation.first_grant.before)
    for other in members:
        first = other.first_grant
        if (
            other is not generation
            and first is not None
            and first.precedes(generation.first_grant)
            and other.ended is not None
        ):
            if other.vague:
                return
            chosen = TickRange(max(chosen.after, other.ended.after), chosen.before)
    for other in members:
        if other is generation or other.arrival is None or not other.surely_live(chosen):
            continue
        if other.first_grant is not None and other.first_grant.after < chosen.before:
            continue  # it may have been the head before
        seen["turns in lanes"] += 1
        if (-other.job.priority, other.arrival) < (-generation.job.priority, generation.arrival):
            yield f"{name}: {generation} was leased before {other}, which had waited in front of it"


def max_at_once(stretches: Iterable[tuple[int, int]]) -> int:
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
    """After a pause was answered, and before a resume is sent, nothing is claimed."""
    for lease in call.answer.leases:
        for scope in ((lease.queue, None), (lease.queue, lease.lane)):
            pauses = [one for one in switches.get(scope, ()) if isinstance(one.command, Pause)]
            resumes = [one for one in switches.get(scope, ()) if isinstance(one.command, Resume)]
            seen["claims beside pauses"] += bool(pauses)
            for pause in pauses:
                if pause.ticks.precedes(call.ticks) and not any(
                    one.ticks.after < call.ticks.before and not one.ticks.precedes(pause.ticks) for one in resumes
                ):
                    yield f"{call.caller}: {lease.token} was given of {scope}, which {pause.caller} had paused"
                    return


def _may_be_paused(switches: dict[Scope, list[RecordedCall]], generation: Generation, during: TickRange) -> bool:
    for scope in ((generation.key.queue, None), (generation.key.queue, generation.lane)):
        for pause in switches.get(scope, ()):
            if isinstance(pause.command, Pause) and pause.ticks.after < during.before:
                resumed = any(
                    isinstance(one.command, Resume)
                    and pause.ticks.precedes(one.ticks)
                    and one.ticks.before < during.after
                    for one in switches[scope]
                )
                if not resumed:
                    return True
    return False


# --- Who was passed over ---


@dataclass(slots=True)
class ClaimableRange:
    """A range of ticks in which a job surely could have been claimed, once it is due."""

    generation: Generation
    ticks: TickRange
    rank: tuple[int, int, int]
    waits: bool = False
    """It is not queued yet: the claim promotes it first, unless another call works on its lane."""

    @property
    def due(self) -> int:
        return self.rank[1]


def _passed_over(
    history: History,
    generations: Generations,
    claims: list[RecordedCall],
    switches: dict[Scope, list[RecordedCall]],
    seen: Counter[str],
) -> Iterator[str]:
    """A claim without overlapping claims takes the best jobs, and leaves none while it can take more."""
    ready: dict[str, list[ClaimableRange]] = defaultdict(list)
    for generation in generations:
        for one in _claimable_ranges(generation):
            ready[generation.key.queue].append(one)
    for call in claims:
        if call.answer is None:
            continue
        promoted_until = call.answer.at.wall if history.cross_queue_atomic else _last_time(history, call)
        overlapping = [other for other in claims if other is not call and other.overlaps(call)]
        touched = {wanted.queue for other in overlapping for wanted in _of(other).queues}
        claim = _of(call)
        for place, wanted in enumerate(claim.queues):
            if wanted.queue in touched:
                continue
            seen["claims alone"] += 1
            tasks = {task.task for task in wanted.tasks}
            for one in ready[wanted.queue]:
                if (
                    one.ticks.after < call.ticks.after
                    and call.ticks.before < one.ticks.before
                    and one.due <= (promoted_until if one.waits else call.answer.at.wall)
                    and one.generation.job.task in tasks
                    and not _may_be_paused(switches, one.generation, TickRange(one.ticks.after, call.ticks.before))
                    and not _in_use(history, call, one)
                ):
                    seen["jobs left behind"] += 1
                    yield from _outranked(call, claim, place, one)


def _last_time(history: History, call: RecordedCall) -> int:
    """The engine's time in the caller's last answer before this call, 0 without one. No queue was visited before it.

    Where each queue has its own time, the answer has the latest of them. A job may have fallen due after the claim had
    visited its queue, and before that time.
    """
    before = (
        one.answer.at.wall
        for one in history.calls
        if one.caller == call.caller and one.answer is not None and one.ticks.precedes(call.ticks)
    )
    return max(before, default=0)


def _in_use(history: History, call: RecordedCall, one: ClaimableRange) -> bool:
    """True if another call may have worked on the job, or on the lane in which it waits, during this claim."""
    others = history.naming(one.generation.key)
    if one.waits and one.generation.lane is not None:
        others = others + history.touching(one.generation.key.queue)
    return any(other is not call and other.overlaps(call) for other in others)


def _outranked(call: RecordedCall, claim: Claim, place: int, one: ClaimableRange) -> Iterator[str]:
    leases: tuple[Lease, ...] = call.answer.leases
    if len(leases) < claim.limit + claim.prefetch:
        yield f"{call.caller}: claim {claim.claim_id} had room, and left {one.generation} behind, which was ready"
        return
    later = {wanted.queue for wanted in claim.queues[place + 1 :]}
    for lease in leases:
        if lease.queue in later or (lease.queue == one.generation.key.queue and _rank(lease) > one.rank):
            yield f"{call.caller}: {lease.token} was given, and {one.generation} was ready and better"
            return


def _claimable_ranges(generation: Generation) -> Iterator[ClaimableRange]:
    """From each answer after which the job waits for nothing but its due time, to the next call that takes it."""
    if generation.vague or generation.arrival is None:
        return
    ends = [grant.call.ticks.after for grant in generation.grants]
    ends.append(NEVER if generation.ended is None else generation.ended.after)
    if generation.state is JobState.QUEUED or (generation.state is JobState.SCHEDULED and generation.lane is None):
        due = generation.call.answer.at.wall + generation.job.delay
        waits = generation.state is not JobState.QUEUED
        yield ClaimableRange(
            generation,
            TickRange(generation.began.before, ends[0]),
            (-generation.job.priority, due, generation.arrival),
            waits,
        )
    for number, grant in enumerate(generation.grants):
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
        ticks = TickRange(grant.end.before, ends[number + 1])
        yield ClaimableRange(generation, ticks, (-generation.job.priority, due, generation.arrival), waits)
