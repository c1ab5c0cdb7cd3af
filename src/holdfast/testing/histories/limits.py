"""Checks limits, keys and positions, and what the store reports about itself, during the run and at its end."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from holdfast.model.job import JobKey, JobRecord
from holdfast.model.observe import Audit, Get, QueueStats, Stats
from holdfast.model.produce import Accepted, DepthLimit, Enqueue, EnqueueStatus, Group, GroupAccepted, GroupFull, NewJob
from holdfast.model.states import TERMINAL, JobState
from holdfast.model.work import Exchange, LaneName
from holdfast.testing.histories.generations import Generation, Generations
from holdfast.testing.histories.order import NEVER, max_at_once
from holdfast.testing.histories.record import History, RecordedCall


def problems(history: History, generations: Generations, seen: Counter[str]) -> Iterator[str]:
    yield from _limits(history, generations, seen)
    yield from _keys(generations, seen)
    for call in history.calls:
        if call.answer is None:
            continue
        if isinstance(call.command, Enqueue):
            for group, answer in zip(call.command.groups, call.answer.groups, strict=True):
                seen[type(answer).__name__] += 1
                if isinstance(answer, GroupFull):
                    yield from _full(generations, call, group, answer)
                elif isinstance(answer, GroupAccepted):
                    for job, one in zip(group.jobs, answer.jobs, strict=True):
                        seen[f"EnqueueStatus.{one.status.name}"] += 1
                        yield from _accepted(generations, call, group, job, one)
        elif isinstance(call.command, Stats):
            for stats in call.answer.queues:
                yield from _stats(generations, call, stats)
        elif isinstance(call.command, Exchange):
            for lane in call.answer.emptied:
                yield from _emptied(generations, call, lane)
        elif isinstance(call.command, Audit):
            yield from (f"audit: {problem}" for problem in call.answer.problems)
    if history.drained:
        yield from _the_end(history, generations)


# --- Limits ---


def _limits(history: History, generations: Generations, seen: Counter[str]) -> Iterator[str]:
    """If all callers send the same limit, there are never more live jobs than that."""
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
                yield from _kept(generations, queue, limit)


def _kept(generations: Generations, queue: str, limit: DepthLimit) -> Iterator[str]:
    by_lane: dict[str | None, list[tuple[int, int]]] = defaultdict(list)
    for generation in generations.in_queue(queue):
        if not generation.vague:
            lane = generation.lane if limit.each_lane else None
            if not limit.each_lane or lane is not None:
                by_lane[lane].append(
                    (generation.began.before, NEVER if generation.ended is None else generation.ended.after)
                )
    for lane, stretches in by_lane.items():
        most = max_at_once(stretches)
        if most > limit.limit:
            where = queue if lane is None else f"lane {lane} of {queue}"
            yield f"{most} jobs lived at once in {where}; the limit is {limit.limit}"


def _full(generations: Generations, call: RecordedCall, group: Group, answer: GroupFull) -> Iterator[str]:
    """True if, at some point during the call, the live jobs and the group may have exceeded the limit."""
    there = sum(
        generation.may_live(call.ticks) and (answer.lane is None or generation.lane in (None, answer.lane))
        for generation in generations.in_queue(answer.queue)
    )
    coming = sum(job.queue == answer.queue for job in group.jobs)
    if there + coming <= answer.limit or there < answer.depth:
        yield f"{call.caller}: {answer} though at most {there} jobs were there, and {coming} came"


# --- Names ---


def _keys(generations: Generations, seen: Counter[str]) -> Iterator[str]:
    """Only one job of a key is live at a time."""
    holders: dict[tuple[str, str, str], list[Generation]] = defaultdict(list)
    for generation in generations:
        if generation.job.unique_key is not None and not generation.vague:
            holders[generation.key.queue, generation.job.task, generation.job.unique_key].append(generation)
    for (queue, _, key), found in holders.items():
        seen["key holders"] += len(found)
        stretches = [
            (generation.began.before, NEVER if generation.ended is None else generation.ended.after)
            for generation in found
        ]
        if max_at_once(stretches) > 1:
            yield f"two jobs of {queue} lived at once with the key {key}"


def _accepted(generations: Generations, call: RecordedCall, group: Group, job: NewJob, one: Accepted) -> Iterator[str]:
    key = JobKey(job.queue, one.id)
    name = f"{call.caller}: {key.queue}/{key.id} was answered {one.status} ({one.state})"
    if one.status is EnqueueStatus.CREATED:
        yield from _placed(generations, call, group, job, one, name)
        return
    generation = next((generation for generation in generations.of(key) if generation.number == one.generation), None)
    if generation is None or call.ticks.precedes(generation.began):
        yield f"{name}, and there was no such job"
    elif one.state not in TERMINAL:
        if not generation.may_live(call.ticks):
            yield f"{name}, and it had ended"
    elif not (generation.may_have_ended(call.ticks) and (generation.vague or generation.ended_as is one.state)):
        yield f"{name}, and it had not ended so"
    elif one.status is EnqueueStatus.COMPLETED and one.result != _result(generation):
        yield f"{name} with the result {one.result!r}; it was {_result(generation)!r}"


def _placed(
    generations: Generations, call: RecordedCall, group: Group, job: NewJob, one: Accepted, name: str
) -> Iterator[str]:
    for limit in group.limits:
        counts = limit.queue == job.queue and (limit.each_lane or job.lane == limit.lane is None)
        if counts and (one.depth is None or one.depth > limit.limit):
            yield f"{name} with depth {one.depth}; the limit is {limit.limit}"
    if job.lane is not None and one.position is not None:
        lane = [
            generation
            for generation in generations.in_queue(job.queue)
            if generation.lane == job.lane and generation.key.id != one.id
        ]
        least = sum(generation.surely_live(call.ticks) for generation in lane)
        most = sum(generation.may_live(call.ticks) for generation in lane)
        if not least <= one.position <= most:
            yield f"{name} at position {one.position}; between {least} and {most} were there"


def _result(generation: Generation) -> bytes | None:
    for grant in generation.grants:
        if grant.ended_as is JobState.SUCCEEDED:
            return grant.effects[0].settlement.result
    return None


# --- What the store says of itself ---


def _emptied(generations: Generations, call: RecordedCall, lane: LaneName) -> Iterator[str]:
    for generation in generations.in_queue(lane.queue):
        if generation.lane == lane.lane and generation.surely_live(call.ticks):
            yield f"{call.caller} was answered that lane {lane.lane} of {lane.queue} is empty, with {generation} in it"


def _stats(generations: Generations, call: RecordedCall, stats: QueueStats) -> Iterator[str]:
    """The numbers are those of one point during the call."""
    mine = generations.in_queue(stats.queue)
    least = sum(generation.surely_live(call.ticks) for generation in mine)
    most = sum(generation.may_live(call.ticks) for generation in mine)
    if not least <= stats.depth <= most:
        yield f"{call.caller}: depth of {stats.queue} was answered {stats.depth}; between {least} and {most} lived"
    for state in TERMINAL:
        ended = [generation for generation in mine if generation.ended_as is state and generation.ended is not None]
        least = sum(
            generation.ended.precedes(call.ticks)
            for generation in ended
            if generation.ended is not None and not generation.vague
        )
        most = sum(generation.may_have_ended(call.ticks) for generation in ended)
        answer = getattr(stats.totals, state.value)
        if not least <= answer <= most:
            yield f"{call.caller}: {answer} jobs of {stats.queue} {state}, as answered; between {least} and {most} had"


def _the_end(history: History, generations: Generations) -> Iterator[str]:
    """Every job has ended once, and the records say so."""
    records: dict[JobKey, JobRecord | None] = {}
    for call in history.calls:
        if isinstance(call.command, Get) and call.answer is not None:
            records = dict(zip(call.command.jobs, call.answer.jobs, strict=True))
    for key, record in records.items():
        mine = generations.of(key)
        if not mine:
            if record is not None:
                yield f"{key.queue}/{key.id} is stored, and no caller created it"
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
        elif record.generation != last.number:
            yield f"{last} has the generation {record.generation} in the end"
