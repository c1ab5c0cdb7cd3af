"""Checks a history: the rules that overlapping calls must keep in every order.

Two facts carry most of the checks. First, a call takes effect between its two ticks: if it was answered before another
was sent, it took effect first. Second, what lasts from one call to another (a generation, a lease, a place in a lane)
surely lasted from the answer of the first call to the sending of the second. So the number of such ranges that cover
one tick must not exceed what may exist at once.

This file checks generations, leases and settlements; `order.py` checks lanes, claims and pauses; `limits.py` checks
limits, keys, and what the store reports about itself. Overlapping calls have two freedoms: a claim may skip a job while
another call works on it or on its lane, and a reap of such a job may be answered `lost`. There are no others.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast.model.job import JobKey
from holdfast.model.observe import Audit, Stats
from holdfast.model.operate import Cancel, CancelStatus
from holdfast.model.states import TERMINAL, JobState
from holdfast.model.work import Exchange, Expired, Renew, RenewStatus, SettleStatus, StartStatus
from holdfast.testing.histories import limits, order
from holdfast.testing.histories.generations import Generation, Generations, Grant, SettlementAnswer, read
from holdfast.testing.histories.record import History, RecordedCall, TickRange


@dataclass(slots=True)
class Verdict:
    """The problems, one line each; and counts of what was seen: a history without leases proves nothing about them."""

    problems: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)


def check(history: History) -> Verdict:
    generations = read(history)
    verdict = Verdict([*_errors(history), *generations.problems])
    for generation in generations:
        verdict.problems += _generation(generations, generation, drained=history.drained)
    for grant in generations.grants.values():
        verdict.problems += _grant(history, grant)
    for call in history.calls:
        if call.answer is not None:
            verdict.problems += _answer(generations, call)
            verdict.seen[type(call.command).__name__] += 1
    verdict.problems += _time(history)
    verdict.problems += order.problems(history, generations, verdict.seen)
    verdict.problems += limits.problems(history, generations, verdict.seen)
    verdict.seen["busy"] += history.busy
    verdict.seen["generations"] += sum(1 for _ in generations)
    verdict.seen["grants"] += len(generations.grants)
    verdict.seen["losses"] += sum(answer.reap for grant in generations.grants.values() for answer in grant.effects)
    verdict.seen["lost"] += sum(
        answer.status is SettleStatus.LOST for grant in generations.grants.values() for answer in grant.answers
    )
    return verdict


def check_roughly(history: History) -> Verdict:
    """Check a history whose ends are not all in the answers: no errors, a sound structure, no jobs left at the end."""
    verdict = Verdict([*_errors(history), *_time(history)])
    for call in history.calls:
        if isinstance(call.command, Audit) and call.answer is not None:
            verdict.problems += [f"audit, asked by {call.caller}: {problem}" for problem in call.answer.problems]
        verdict.seen[type(call.command).__name__] += 1
        if isinstance(call.command, Exchange) and call.answer is not None:
            verdict.seen["grants"] += len(call.answer.leases)
            verdict.seen.update(call.answer.settled)
    left = [call.answer for call in history.calls if isinstance(call.command, Stats) and call.caller == "last"]
    if not left or not history.drained:
        verdict.problems.append("it was not drained")
    else:
        verdict.problems += [f"{one.depth} jobs of {one.queue} never ended" for one in left[-1].queues if one.depth]
    verdict.seen["busy"] += history.busy
    return verdict


def _errors(history: History) -> list[str]:
    return [f"{call.caller}: {type(call.command).__name__} raised {call.error}" for call in history.calls if call.error]


# --- Generations ---


def _generation(generations: Generations, generation: Generation, *, drained: bool) -> list[str]:
    problems = []
    before = next((one for one in generations.of(generation.key) if one.number == generation.number - 1), None)
    if before is not None:
        if before.ended is None or (not before.vague and generation.began.precedes(before.ended)):
            problems.append(f"{generation} began while the generation before had not ended")
        elif before.ended_as is JobState.SUCCEEDED:
            problems.append(f"{generation} began, though the generation before had succeeded and is remembered")
    if generation.ended is None:
        if drained:
            problems.append(f"{generation} has never ended, though everything was drained")
    elif not generation.vague and generation.ended.precedes(generation.began):
        problems.append(f"{generation} ended before it began")
    for one, following in pairwise(generation.grants):
        problems += _next_grant(generation, one, following)
    if generation.ended is not None and not generation.vague:
        problems += [
            f"{generation} was leased as {grant.lease.token} after it had ended"
            for grant in generation.grants
            if generation.ended.precedes(grant.call.ticks)
        ]
    fences = [grant.lease.fence for one in generations.of(generation.key) for grant in one.grants]
    if generation.number == 0 and not _grows(fences):
        problems.append(f"{generation.key.queue}/{generation.key.id}: fences do not grow: {fences}")
    return problems


def _next_grant(generation: Generation, one: Grant, following: Grant) -> list[str]:
    """Between two leases of a generation there is one settlement, and it counts once."""
    if one.end is None:
        return [f"{generation} was leased as {following.lease.token} while {one.lease.token} held it"]
    problems = []
    if following.call.ticks.precedes(one.end):
        problems.append(f"{generation} was leased as {following.lease.token} before {one.lease.token} was settled")
    effect = one.effects[0]
    attempt = one.lease.attempt + 1 - effect.settlement.refund
    losses = one.lease.losses + (effect.reap or effect.settlement.loss)
    if (following.lease.attempt, following.lease.losses) != (attempt, losses):
        problems.append(
            f"{generation}: attempt {following.lease.attempt}, losses {following.lease.losses}"
            f" in {following.lease.token}; after {one.lease.token} they were to be {attempt} and {losses}"
        )
    return problems


def _grows(numbers: list[int]) -> bool:
    return all(one < following for one, following in pairwise(numbers))


# --- Leases ---


def _grant(history: History, grant: Grant) -> list[str]:
    problems = []
    name = f"{grant.key.queue}/{grant.key.id}, {grant.lease.token}"
    owners = [answer for answer in grant.effects if not answer.reap]
    reaps = [answer for answer in grant.effects if answer.reap]
    if len(reaps) + bool(owners) > 1:
        who = ", ".join(answer.call.caller for answer in grant.effects)
        problems.append(f"{name}: settled more than once, by {who}")
    if sum(answer.status is SettleStatus.CANCELLED_INSTEAD for answer in grant.effects) > 1:
        problems.append(f"{name}: cancelled instead more than once")
    for answer in grant.answers:
        if answer.status in (SettleStatus.LOST, SettleStatus.GONE) and not _may_be_lost(history, grant, answer):
            problems.append(
                f"{name}: {answer.call.caller} was answered {answer.status}, and no caller had taken the lease"
            )
    for answer in reaps:
        problems += _renewed(history, grant, answer, name)
    problems += _cancelled_instead(history, grant, name)
    return problems


def _may_be_lost(history: History, grant: Grant, answer: SettlementAnswer) -> bool:
    """True if the lease had ended. A reap may also be lost to a renewal or start, or to a call on the job."""
    if grant.end is not None and grant.end.after < answer.call.ticks.before:
        return True
    if not answer.reap:
        return False
    return any(
        call is not answer.call
        and (call.overlaps(answer.call) or (_moves_on(call, grant) and call.ticks.after < answer.call.ticks.before))
        for call in history.naming(grant.key)
    ) or any(_came_too_late(call, grant) and call.overlaps(answer.call) for call in history.calls)


def _came_too_late(call: RecordedCall, grant: Grant) -> bool:
    """A claim that found the job ready and lost it to another claim; it may lock the job until it is answered."""
    claims = isinstance(call.command, Exchange) and call.command.claim is not None
    return claims and call is not grant.call and call.ticks.after < grant.call.ticks.before


def _moves_on(call: RecordedCall, grant: Grant) -> bool:
    """True if this call changes the lease, so that it is not the one that a reaper listed."""
    if isinstance(call.command, Renew):
        return True
    return isinstance(call.command, Exchange) and any(start.token == grant.lease.token for start in call.command.starts)


def _renewed(history: History, grant: Grant, reap: SettlementAnswer, name: str) -> list[str]:
    """A reap applies only to the lease as it was listed: not if it was renewed before."""
    listed = reap.settlement.listed_expiry
    assert listed is not None
    for call in history.naming(grant.key):
        if isinstance(call.command, Renew) and call.answer is not None and call.ticks.precedes(reap.call.ticks):
            for renewal, renewed in zip(call.command.jobs, call.answer.jobs, strict=True):
                if renewal.token == grant.lease.token and (renewed.lease_expires or 0) > listed:
                    return [f"{name}: {reap.call.caller} reaped it, and {call.caller} had renewed it before"]
    return []


def _cancelled_instead(history: History, grant: Grant, name: str) -> list[str]:
    """If a cancel was requested while the lease was held, the job does not run again."""
    if grant.end is None or grant.ended_as in TERMINAL:
        return []
    held = TickRange(grant.call.ticks.before, grant.end.after)
    requests = [
        call
        for call in history.naming(grant.key)
        if isinstance(call.command, Cancel)
        and held.after < call.ticks.after
        and call.ticks.before < held.before
        and _cancel_status(call, grant.key) is CancelStatus.REQUESTED
    ]
    return [f"{name}: {call.caller} asked to cancel it, and it was let run again" for call in requests[:1]]


def _cancel_status(call: RecordedCall, key: JobKey) -> CancelStatus | None:
    command = call.command
    assert isinstance(command, Cancel)
    if call.answer is None:
        return None
    result = (one.status for id, one in zip(command.ids, call.answer.jobs, strict=True) if id == key.id)
    return next(result, None)


# --- Answers, one by one ---


def _answer(generations: Generations, call: RecordedCall) -> list[str]:
    command, answer, ticks = call.command, call.answer, call.ticks
    problems: list[str] = []
    if isinstance(command, Renew):
        for renewal, renewed in zip(command.jobs, answer.jobs, strict=True):
            held = renewed.status is not RenewStatus.LOST
            problems += _token(generations, call, renewal.token, held=held, verb="renewed")
    elif isinstance(command, Exchange):
        for start, started in zip(command.starts, answer.started, strict=True):
            problems += _token(generations, call, start.token, held=started is not StartStatus.LOST, verb="started")
    elif isinstance(command, Expired):
        for lost in answer.leases:
            problems += _token(generations, call, lost.token, held=True, verb="listed as expired")
            if lost.lease_expires > answer.at.lease:
                problems.append(f"{call.caller} was listed {lost.token} as expired, before its time")
    elif isinstance(command, Cancel):
        for id, result in zip(command.ids, answer.jobs, strict=True):
            problems += _cancel(generations.of(JobKey(command.queue, id)), call, result.status, result.state)
    return [f"{problem} (asked at {ticks.after}, answered at {ticks.before})" for problem in problems]


def _token(generations: Generations, call: RecordedCall, token: str, *, held: bool, verb: str) -> list[str]:
    """Check that a lease was held (or not) at some point during the call."""
    grant = generations.grants.get(token)
    if grant is None:
        return [f"{call.caller}: {token} was {verb}, and no caller got it"]
    if held and grant.end is not None and grant.end.precedes(call.ticks):
        return [f"{call.caller}: {token} was {verb} after it had ended"]
    if not held and (grant.end is None or call.ticks.precedes(grant.end)):
        return [f"{call.caller}: {token} was not {verb}, and no caller had taken it"]
    return []


def _cancel(
    generations: list[Generation], call: RecordedCall, status: CancelStatus, state: JobState | None
) -> list[str]:
    name = f"{call.caller}: cancel of {', '.join(getattr(call.command, 'ids', ()))} answered {status}"
    ticks = call.ticks
    if status is CancelStatus.REQUESTED:
        held = any(
            grant.call.ticks.after < ticks.before and (grant.end is None or grant.end.before > ticks.after)
            for generation in generations
            for grant in generation.grants
        )
        return [] if held else [f"{name}, and no caller held it"]
    if status is CancelStatus.FINISHED:
        ended = any(
            generation.may_have_ended(ticks) and (generation.vague or generation.ended_as is state)
            for generation in generations
        )
        return [] if ended else [f"{name} as {state}, and it had not ended so"]
    if status is CancelStatus.NOT_FOUND:
        there = [generation for generation in generations if generation.surely_live(ticks)]
        return [f"{name}, though {there[0]} lived"] if there else []
    return []


def _time(history: History) -> list[str]:
    """The engine's time never goes back for a caller."""
    problems = []
    last: dict[str, int] = {}
    for call in history.calls:
        if call.answer is not None:
            at = call.answer.at.wall
            if at < last.get(call.caller, at):
                problems.append(f"{call.caller}: time went back, from {last[call.caller]} to {at}")
            last[call.caller] = at
    return problems
