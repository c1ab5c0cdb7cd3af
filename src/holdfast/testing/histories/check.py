"""The judge of a history: what must be true of overlapping calls, whatever their order was.

Two facts carry most of it. A call has its effect between its two ticks, so one that was answered before another was
asked came first. And what stands from one call to another (a life, a lease, a place in a lane) surely stood between the
answer of the first and the question of the second: of such stretches never more may cover one tick than there may be at
once.

Here: lives, leases and settlements. `order.py`: lanes, claims, pauses. `room.py`: limits, keys, and what the store says
of itself. A claim may pass over a job while another call has it or its lane in hand, and a reap may hear `lost` of it;
those are the freedoms of overlapping calls, and there are no others.
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
    """What is wrong, in a line each; and how much was seen of what: a history without leases proves nothing of them."""

    problems: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)


def check(history: History) -> Verdict:
    lives = read(history)
    verdict = Verdict([*_errors(history), *lives.problems])
    for life in lives:
        verdict.problems += _life(lives, life, drained=history.drained)
    for grant in lives.grants.values():
        verdict.problems += _grant(history, grant)
    for call in history.calls:
        if call.answer is not None:
            verdict.problems += _answer(lives, call)
            verdict.seen[type(call.command).__name__] += 1
    verdict.problems += _time(history)
    verdict.problems += order.problems(history, lives, verdict.seen)
    verdict.problems += limits.problems(history, lives, verdict.seen)
    verdict.seen["busy"] += history.busy
    verdict.seen["lives"] += sum(1 for _ in lives)
    verdict.seen["grants"] += len(lives.grants)
    verdict.seen["losses"] += sum(told.reap for grant in lives.grants.values() for told in grant.effects)
    verdict.seen["lost"] += sum(
        told.status is SettleStatus.LOST for grant in lives.grants.values() for told in grant.told
    )
    return verdict


def check_roughly(history: History) -> Verdict:
    """Of a history whose ends nobody was told of: no errors, a sound structure, nothing left in the end."""
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
        verdict.problems.append("nobody drained it")
    else:
        verdict.problems += [f"{one.depth} jobs of {one.queue} never ended" for one in left[-1].queues if one.depth]
    verdict.seen["busy"] += history.busy
    return verdict


def _errors(history: History) -> list[str]:
    return [f"{call.caller}: {type(call.command).__name__} raised {call.error}" for call in history.calls if call.error]


# --- Generations ---


def _life(lives: Generations, life: Generation, *, drained: bool) -> list[str]:
    problems = []
    before = next((one for one in lives.of(life.key) if one.generation == life.generation - 1), None)
    if before is not None:
        if before.ended is None or (not before.vague and life.began.precedes(before.ended)):
            problems.append(f"{life} began while the life before had not ended")
        elif before.ended_as is JobState.SUCCEEDED:
            problems.append(f"{life} began, though the life before had succeeded and is remembered")
    if life.ended is None:
        if drained:
            problems.append(f"{life} has never ended, though everything was drained")
    elif not life.vague and life.ended.precedes(life.began):
        problems.append(f"{life} ended before it began")
    for one, following in pairwise(life.grants):
        problems += _next_grant(life, one, following)
    if life.ended is not None and not life.vague:
        problems += [
            f"{life} was leased as {grant.lease.token} after it had ended"
            for grant in life.grants
            if life.ended.precedes(grant.call.moment)
        ]
    fences = [grant.lease.fence for one in lives.of(life.key) for grant in one.grants]
    if life.generation == 0 and not _grows(fences):
        problems.append(f"{life.key.queue}/{life.key.id}: fences do not grow: {fences}")
    return problems


def _next_grant(life: Generation, one: Grant, following: Grant) -> list[str]:
    """Between two leases of a life stands one settlement, and it counts once."""
    if one.end is None:
        return [f"{life} was leased as {following.lease.token} while {one.lease.token} held it"]
    problems = []
    if following.call.moment.precedes(one.end):
        problems.append(f"{life} was leased as {following.lease.token} before {one.lease.token} was settled")
    effect = one.effects[0]
    attempt = one.lease.attempt + 1 - effect.settlement.refund
    losses = one.lease.losses + effect.reap
    if (following.lease.attempt, following.lease.losses) != (attempt, losses):
        problems.append(
            f"{life}: attempt {following.lease.attempt}, losses {following.lease.losses} in {following.lease.token};"
            f" after {one.lease.token} they were to be {attempt} and {losses}"
        )
    return problems


def _grows(numbers: list[int]) -> bool:
    return all(one < following for one, following in pairwise(numbers))


# --- Leases ---


def _grant(history: History, grant: Grant) -> list[str]:
    problems = []
    name = f"{grant.key.queue}/{grant.key.id}, {grant.lease.token}"
    owners = [told for told in grant.effects if not told.reap]
    reaps = [told for told in grant.effects if told.reap]
    if len(reaps) + bool(owners) > 1:
        who = ", ".join(told.call.caller for told in grant.effects)
        problems.append(f"{name}: settled more than once, by {who}")
    if sum(told.status is SettleStatus.CANCELLED_INSTEAD for told in grant.effects) > 1:
        problems.append(f"{name}: cancelled instead more than once")
    for told in grant.told:
        if told.status in (SettleStatus.LOST, SettleStatus.GONE) and not _may_be_lost(history, grant, told):
            problems.append(f"{name}: {told.call.caller} heard {told.status}, and nobody had taken the lease")
    for told in reaps:
        problems += _renewed(history, grant, told, name)
    problems += _cancelled_instead(history, grant, name)
    return problems


def _may_be_lost(history: History, grant: Grant, told: SettlementAnswer) -> bool:
    """The lease had ended. A reap may also come after a renewal or a start, or while somebody has the job in hand."""
    if grant.end is not None and grant.end.after < told.call.moment.before:
        return True
    if not told.reap:
        return False
    return any(
        call is not told.call
        and (call.overlaps(told.call) or (_moves_on(call, grant) and call.moment.after < told.call.moment.before))
        for call in history.naming(grant.key)
    ) or any(_came_too_late(call, grant) and call.overlaps(told.call) for call in history.calls)


def _came_too_late(call: RecordedCall, grant: Grant) -> bool:
    """A claim that found the job ready, and then another had it: it may keep it in hand until it is answered."""
    claims = isinstance(call.command, Exchange) and call.command.claim is not None
    return claims and call is not grant.call and call.moment.after < grant.call.moment.before


def _moves_on(call: RecordedCall, grant: Grant) -> bool:
    """After this call the lease is not any more what a reaper may have listed."""
    if isinstance(call.command, Renew):
        return True
    return isinstance(call.command, Exchange) and any(start.token == grant.lease.token for start in call.command.starts)


def _renewed(history: History, grant: Grant, reap: SettlementAnswer, name: str) -> list[str]:
    """A reap is of the lease that was listed: not if that was renewed before."""
    listed = reap.settlement.listed_expiry
    assert listed is not None
    for call in history.naming(grant.key):
        if isinstance(call.command, Renew) and call.answer is not None and call.moment.precedes(reap.call.moment):
            for renewal, renewed in zip(call.command.jobs, call.answer.jobs, strict=True):
                if renewal.token == grant.lease.token and (renewed.lease_expires or 0) > listed:
                    return [f"{name}: {reap.call.caller} reaped it, and {call.caller} had renewed it before"]
    return []


def _cancelled_instead(history: History, grant: Grant, name: str) -> list[str]:
    """Whoever was asked to cancel, while the lease was held, does not let the job run again."""
    if grant.end is None or grant.ended_as in TERMINAL:
        return []
    held = TickRange(grant.call.moment.before, grant.end.after)
    asked = [
        call
        for call in history.naming(grant.key)
        if isinstance(call.command, Cancel)
        and held.after < call.moment.after
        and call.moment.before < held.before
        and _said_of(call, grant.key) is CancelStatus.REQUESTED
    ]
    return [f"{name}: {call.caller} asked to cancel it, and it was let run again" for call in asked[:1]]


def _said_of(call: RecordedCall, key: JobKey) -> CancelStatus | None:
    command = call.command
    assert isinstance(command, Cancel)
    if call.answer is None:
        return None
    said = (one.status for id, one in zip(command.ids, call.answer.jobs, strict=True) if id == key.id)
    return next(said, None)


# --- Answers, one by one ---


def _answer(lives: Generations, call: RecordedCall) -> list[str]:
    command, answer, moment = call.command, call.answer, call.moment
    problems: list[str] = []
    if isinstance(command, Renew):
        for renewal, renewed in zip(command.jobs, answer.jobs, strict=True):
            held = renewed.status is not RenewStatus.LOST
            problems += _token(lives, call, renewal.token, held=held, verb="renewed")
    elif isinstance(command, Exchange):
        for start, started in zip(command.starts, answer.started, strict=True):
            problems += _token(lives, call, start.token, held=started is not StartStatus.LOST, verb="started")
    elif isinstance(command, Expired):
        for lost in answer.leases:
            problems += _token(lives, call, lost.token, held=True, verb="listed as expired")
            if lost.lease_expires > answer.at.lease:
                problems.append(f"{call.caller} was listed {lost.token} as expired, before its time")
    elif isinstance(command, Cancel):
        for id, said in zip(command.ids, answer.jobs, strict=True):
            problems += _cancel(lives.of(JobKey(command.queue, id)), call, said.status, said.state)
    return [f"{problem} (asked at {moment.after}, answered at {moment.before})" for problem in problems]


def _token(lives: Generations, call: RecordedCall, token: str, *, held: bool, verb: str) -> list[str]:
    """A lease that was held at some moment of the call, or one that was not."""
    grant = lives.grants.get(token)
    if grant is None:
        return [f"{call.caller}: {token} was {verb}, and nobody was given it"]
    if held and grant.end is not None and grant.end.precedes(call.moment):
        return [f"{call.caller}: {token} was {verb} after it had ended"]
    if not held and (grant.end is None or call.moment.precedes(grant.end)):
        return [f"{call.caller}: {token} was not {verb}, and nobody had taken it"]
    return []


def _cancel(lives: list[Generation], call: RecordedCall, status: CancelStatus, state: JobState | None) -> list[str]:
    name = f"{call.caller}: cancel of {', '.join(getattr(call.command, 'ids', ()))} answered {status}"
    moment = call.moment
    if status is CancelStatus.REQUESTED:
        held = any(
            grant.call.moment.after < moment.before and (grant.end is None or grant.end.before > moment.after)
            for life in lives
            for grant in life.grants
        )
        return [] if held else [f"{name}, and nobody held it"]
    if status is CancelStatus.FINISHED:
        ended = any(life.may_have_ended(moment) and (life.vague or life.ended_as is state) for life in lives)
        return [] if ended else [f"{name} as {state}, and it had not ended so"]
    if status is CancelStatus.NOT_FOUND:
        there = [life for life in lives if life.surely_lives(moment)]
        return [f"{name}, though {there[0]} lived"] if there else []
    return []


def _time(history: History) -> list[str]:
    """For no caller does time go back."""
    problems = []
    last: dict[str, int] = {}
    for call in history.calls:
        if call.answer is not None:
            at = call.answer.at.wall
            if at < last.get(call.caller, at):
                problems.append(f"{call.caller}: time went back, from {last[call.caller]} to {at}")
            last[call.caller] = at
    return problems
