"""Room and names: limits, keys, positions; and what the store says of itself, while others write and at the end."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from holdfast.model.job import JobKey, JobRecord
from holdfast.model.observe import Audit, Get, QueueStats, Stats
from holdfast.model.produce import Accepted, DepthLimit, Enqueue, EnqueueStatus, Group, GroupAccepted, GroupFull, NewJob
from holdfast.model.states import TERMINAL, JobState
from holdfast.model.work import Exchange, LaneName
from holdfast.testing.histories.generations import Generation, Generations
from holdfast.testing.histories.order import FOR_EVER, most_at_once
from holdfast.testing.histories.record import History, RecordedCall


def problems(history: History, lives: Generations, seen: Counter[str]) -> Iterator[str]:
    yield from _limits(history, lives, seen)
    yield from _keys(lives, seen)
    for call in history.calls:
        if call.answer is None:
            continue
        if isinstance(call.command, Enqueue):
            for group, said in zip(call.command.groups, call.answer.groups, strict=True):
                seen[type(said).__name__] += 1
                if isinstance(said, GroupFull):
                    yield from _full(lives, call, group, said)
                elif isinstance(said, GroupAccepted):
                    for job, one in zip(group.jobs, said.jobs, strict=True):
                        seen[f"EnqueueStatus.{one.status.name}"] += 1
                        yield from _accepted(lives, call, group, job, one)
        elif isinstance(call.command, Stats):
            for stats in call.answer.queues:
                yield from _stats(lives, call, stats)
        elif isinstance(call.command, Exchange):
            for lane in call.answer.emptied:
                yield from _emptied(lives, call, lane)
        elif isinstance(call.command, Audit):
            yield from (f"audit: {problem}" for problem in call.answer.problems)
    if history.drained:
        yield from _the_end(history, lives)


# --- Limits ---


def _limits(history: History, lives: Generations, seen: Counter[str]) -> Iterator[str]:
    """Where everybody brings the same limit, there are never more."""
    brought: dict[str, set[tuple[DepthLimit, ...]]] = defaultdict(set)
    for call in history.calls:
        if isinstance(call.command, Enqueue):
            for group in call.command.groups:
                for job in group.jobs:
                    brought[job.queue].add(tuple(limit for limit in group.limits if limit.queue == job.queue))
    for queue, limits in brought.items():
        if len(limits) == 1:
            for limit in next(iter(limits)):
                seen["limits"] += 1
                yield from _kept(lives, queue, limit)


def _kept(lives: Generations, queue: str, limit: DepthLimit) -> Iterator[str]:
    by_lane: dict[str | None, list[tuple[int, int]]] = defaultdict(list)
    for life in lives.in_queue(queue):
        if not life.vague:
            lane = life.lane if limit.each_lane else None
            if not limit.each_lane or lane is not None:
                by_lane[lane].append((life.began.before, FOR_EVER if life.ended is None else life.ended.after))
    for lane, stretches in by_lane.items():
        most = most_at_once(stretches)
        if most > limit.limit:
            where = queue if lane is None else f"lane {lane} of {queue}"
            yield f"{most} jobs lived at once in {where}; the limit is {limit.limit}"


def _full(lives: Generations, call: RecordedCall, group: Group, said: GroupFull) -> Iterator[str]:
    """There may have been as many, at some moment of the call, as leave no room for the group."""
    there = sum(
        life.may_live(call.moment) and (said.lane is None or life.lane in (None, said.lane))
        for life in lives.in_queue(said.queue)
    )
    coming = sum(job.queue == said.queue for job in group.jobs)
    if there + coming <= said.limit or there < said.depth:
        yield f"{call.caller}: {said} though at most {there} jobs were there, and {coming} came"


# --- Names ---


def _keys(lives: Generations, seen: Counter[str]) -> Iterator[str]:
    """Of the jobs of one key one lives at a time."""
    holders: dict[tuple[str, str, str], list[Generation]] = defaultdict(list)
    for life in lives:
        if life.job.unique_key is not None and not life.vague:
            holders[life.key.queue, life.job.task, life.job.unique_key].append(life)
    for (queue, _, key), found in holders.items():
        seen["key holders"] += len(found)
        stretches = [(life.began.before, FOR_EVER if life.ended is None else life.ended.after) for life in found]
        if most_at_once(stretches) > 1:
            yield f"two jobs of {queue} lived at once with the key {key}"


def _accepted(lives: Generations, call: RecordedCall, group: Group, job: NewJob, one: Accepted) -> Iterator[str]:
    key = JobKey(job.queue, one.id)
    name = f"{call.caller}: {key.queue}/{key.id} was answered {one.status} ({one.state})"
    if one.status is EnqueueStatus.CREATED:
        yield from _placed(lives, call, group, job, one, name)
        return
    life = next((life for life in lives.of(key) if life.generation == one.generation), None)
    if life is None or call.moment.precedes(life.began):
        yield f"{name}, and there was no such job"
    elif one.state not in TERMINAL:
        if not life.may_live(call.moment):
            yield f"{name}, and it had ended"
    elif not (life.may_have_ended(call.moment) and (life.vague or life.ended_as is one.state)):
        yield f"{name}, and it had not ended so"
    elif one.status is EnqueueStatus.COMPLETED and one.result != _result(life):
        yield f"{name} with the result {one.result!r}; it was {_result(life)!r}"


def _placed(
    lives: Generations, call: RecordedCall, group: Group, job: NewJob, one: Accepted, name: str
) -> Iterator[str]:
    for limit in group.limits:
        counts = limit.queue == job.queue and (limit.each_lane or job.lane == limit.lane is None)
        if counts and (one.depth is None or one.depth > limit.limit):
            yield f"{name} with depth {one.depth}; the limit is {limit.limit}"
    if job.lane is not None and one.position is not None:
        lane = [life for life in lives.in_queue(job.queue) if life.lane == job.lane and life.key.id != one.id]
        least = sum(life.surely_lives(call.moment) for life in lane)
        most = sum(life.may_live(call.moment) for life in lane)
        if not least <= one.position <= most:
            yield f"{name} at position {one.position}; between {least} and {most} were there"


def _result(life: Generation) -> bytes | None:
    for grant in life.grants:
        if grant.ended_as is JobState.SUCCEEDED:
            return grant.effects[0].settlement.result
    return None


# --- What the store says of itself ---


def _emptied(lives: Generations, call: RecordedCall, lane: LaneName) -> Iterator[str]:
    for life in lives.in_queue(lane.queue):
        if life.lane == lane.lane and life.surely_lives(call.moment):
            yield f"{call.caller} was told that lane {lane.lane} of {lane.queue} is empty, with {life} in it"


def _stats(lives: Generations, call: RecordedCall, stats: QueueStats) -> Iterator[str]:
    """As of one moment of the call."""
    mine = lives.in_queue(stats.queue)
    least = sum(life.surely_lives(call.moment) for life in mine)
    most = sum(life.may_live(call.moment) for life in mine)
    if not least <= stats.depth <= most:
        yield f"{call.caller}: depth of {stats.queue} was answered {stats.depth}; between {least} and {most} lived"
    for state in TERMINAL:
        ended = [life for life in mine if life.ended_as is state and life.ended is not None]
        least = sum(life.ended.precedes(call.moment) for life in ended if life.ended is not None and not life.vague)
        most = sum(life.may_have_ended(call.moment) for life in ended)
        said = getattr(stats.totals, state.value)
        if not least <= said <= most:
            yield f"{call.caller}: {said} jobs of {stats.queue} {state}, as answered; between {least} and {most} had"


def _the_end(history: History, lives: Generations) -> Iterator[str]:
    """Everything has ended once, and the records say so."""
    records: dict[JobKey, JobRecord | None] = {}
    for call in history.calls:
        if isinstance(call.command, Get) and call.answer is not None:
            records = dict(zip(call.command.jobs, call.answer.jobs, strict=True))
    for key, record in records.items():
        mine = lives.of(key)
        if not mine:
            if record is not None:
                yield f"{key.queue}/{key.id} is there, and nobody created it"
            continue
        last = mine[-1]
        gone = last.job.given.retention == 0 and last.job.given.result_ttl == 0
        if record is None:
            if not gone:
                yield f"{last} is not there any more"
        elif gone:
            yield f"{last} is still there, though it was to be kept for no time"
        elif last.ended_as is not None and (record.state, record.result) != (last.ended_as, _result(last)):
            yield f"{last} is {record.state} with {record.result!r} in the end; it had ended as {last.ended_as}"
        elif record.generation != last.generation:
            yield f"{last} has the generation {record.generation} in the end"
