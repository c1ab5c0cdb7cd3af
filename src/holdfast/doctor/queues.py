"""Checks of the queues, by their counters."""

from collections.abc import Iterator, Mapping, Sequence

from holdfast.model.findings import (
    CLEARING,
    DEAD_LETTERS,
    DEPTH,
    LANES,
    PAUSED,
    QUEUES,
    TASKS,
    WAITING,
    WORKERS,
    Finding,
)
from holdfast.model.instants import MINUTE, Instant, Micros
from holdfast.model.observe import QueueStats
from holdfast.model.states import JobState
from holdfast.operate.overview import StoreOverview
from holdfast.operate.words import age, jobs, names

LONG_WAIT_US: Micros = 10 * MINUTE


def check_queues(queues: Sequence[QueueStats], overview: StoreOverview, now: Instant) -> Iterator[Finding]:
    """All but the limits."""
    yield from (finding for finding in overview.troubles if finding.check != WORKERS.name)
    found = {finding.check for finding in overview.troubles}
    if overview.has_worker and QUEUES.name not in found:
        yield QUEUES.ok("A live worker takes from every queue that has jobs.")
    if overview.has_worker and TASKS.name not in found:
        yield TASKS.ok("No live worker lacks the task of a queued job of its queues.")
    if LANES.name not in found:
        yield LANES.ok("No lane was seen that waits for a retry.")
    yield from _paused([stats for stats in queues if stats.paused], now)
    for stats in queues:
        if stats.clearing:
            yield CLEARING.note(
                f"A clear of queue {stats.queue} is not done yet; none of its jobs is claimed meanwhile.",
                "Wait. The next calls go on with it. If it stays, run the clear again.",
            )
    yield from _waiting(queues, now)
    failed = {stats.queue: stats.counts.get(JobState.FAILED, 0) for stats in queues}
    if any(failed.values()):
        listed = names(f"{queue} ({count:,})" for queue, count in failed.items() if count)
        yield DEAD_LETTERS.note(
            f"{jobs(sum(failed.values()), 'have failed')} for good, in {listed}.",
            "`holdfast dead` lists them. Fix the cause, then requeue or delete them.",
        )
    else:
        yield DEAD_LETTERS.ok("No job has failed for good.")


def _paused(queues: Sequence[QueueStats], now: Instant) -> Iterator[Finding]:
    for stats in queues:
        waited_us = 0 if stats.oldest_due is None else now - stats.oldest_due
        text = f"Queue {stats.queue} is paused"
        advice = f"To let it run: holdfast queues resume {stats.queue}"
        if stats.due and waited_us > LONG_WAIT_US:
            yield PAUSED.warning(
                f"{text}, and {jobs(stats.due, 'are due')} there, the oldest for {age(waited_us)}.", advice
            )
        else:
            yield PAUSED.note(f"{text}; {jobs(stats.due, 'are due')} there.", advice)
    if not queues:
        yield PAUSED.ok("No queue is paused.")


def _waiting(queues: Sequence[QueueStats], now: Instant) -> Iterator[Finding]:
    fine = True
    for stats in queues:
        if stats.paused or not stats.due or stats.oldest_due is None:
            continue
        waited_us = now - stats.oldest_due
        if waited_us > LONG_WAIT_US:
            fine = False
            yield WAITING.warning(
                f"The oldest due job of queue {stats.queue} has waited for {age(waited_us)}; "
                f"{jobs(stats.due, 'are due')}.",
                "If workers are alive for it, they do not keep up: start more, raise their concurrency, or look for a "
                "`concurrency` limit of the task.",
            )
    if fine:
        yield WAITING.ok(f"No due job of a running queue has waited for {age(LONG_WAIT_US)}.")


def check_depths(queues: Sequence[QueueStats], limits: Mapping[str, tuple[int, float]]) -> Iterator[Finding]:
    """`limits`: by queue the most live jobs, and the fraction of them from which on there is a warning."""
    fine = True
    for stats in queues:
        most, warn_at = limits.get(stats.queue, (0, 1.0))
        if not most or stats.depth < warn_at * most:
            continue
        fine = False
        text = f"Queue {stats.queue} has {jobs(stats.depth)}, and its limit is {most:,}"
        if stats.depth >= most:
            yield DEPTH.problem(
                f"{text}: it is full, and enqueue raises QueueFull.", "Start more workers, or raise its max_depth."
            )
        else:
            yield DEPTH.warning(
                f"{text}. When it is full, enqueue raises QueueFull.", "Start more workers, or raise its max_depth."
            )
    if fine:
        yield DEPTH.ok("No queue is near a limit." if limits else "No queue has a limit.")
