"""History: exactly one entry for every counted attempt that did not succeed."""

import pytest

from holdfast.model.job import AttemptOutcome, AttemptRecord
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import (
    BOOM,
    QUEUE,
    confirm_cancel,
    fail,
    new_job,
    release,
    retry,
    settlement,
    snooze,
    succeed,
)
from holdfast.testing.contract.guarantees import Guarantee, guarantee


# H1
@guarantee(Guarantee.HISTORY)
async def test_a_failed_attempt_is_recorded_in_full(bench: Bench) -> None:
    await bench.put(new_job())
    claimed = await bench.engine.claim(bench.claim(worker="w"))
    bench.clock.advance(10)

    settled = await bench.engine.settle(retry(claimed.leases[0]))

    assert (await bench.get()).history == (
        AttemptRecord(
            number=1,
            generation=0,
            worker="w",
            started=claimed.at.wall,
            ended=settled.at.wall,
            outcome=AttemptOutcome.FAILED,
            error=BOOM,
        ),
    )


# H2
@guarantee(Guarantee.HISTORY)
@pytest.mark.parametrize(
    ("target", "reason", "outcome"),
    [
        (JobState.RETRYING, Reason.ERROR, AttemptOutcome.FAILED),
        (JobState.RETRYING, Reason.RETRY_ASKED, AttemptOutcome.FAILED),
        (JobState.RETRYING, Reason.TIMEOUT, AttemptOutcome.TIMED_OUT),
        (JobState.FAILED, Reason.TIMEOUT, AttemptOutcome.TIMED_OUT),
        (JobState.FAILED, Reason.EXHAUSTED, AttemptOutcome.FAILED),
        (JobState.FAILED, Reason.GAVE_UP, AttemptOutcome.FAILED),
        (JobState.CANCELLED, Reason.ASKED, AttemptOutcome.CANCELLED),
    ],
)
async def test_the_outcome_follows_from_target_and_reason(
    bench: Bench, target: JobState, reason: Reason, outcome: AttemptOutcome
) -> None:
    await bench.put(new_job())

    await bench.settle(settlement(await bench.take_one(), target, reason=reason))

    (entry,) = (await bench.get()).history
    assert (entry.number, entry.outcome, entry.error) == (1, outcome, None)


@guarantee(Guarantee.HISTORY)
async def test_success_leaves_no_entry(bench: Bench) -> None:
    await bench.finish(new_job())

    assert (await bench.get()).history == ()


# H1
@guarantee(Guarantee.HISTORY)
@pytest.mark.parametrize("give_back", [release, snooze])
async def test_a_refunded_attempt_leaves_no_entry(bench: Bench, give_back: object) -> None:
    await bench.put(new_job())
    assert callable(give_back)
    for _ in range(3):
        await bench.settle(give_back(await bench.take_one()))

    assert (await bench.get()).history == ()


@guarantee(Guarantee.HISTORY)
async def test_entries_are_in_the_order_of_their_attempts(bench: Bench) -> None:
    """E-S13"""
    await bench.put(new_job())
    for number in range(1, 4):
        lease = await bench.take_one(worker=f"w{number}")
        await bench.settle(retry(lease, error=ErrorInfo("example.Boom", f"number {number}", "")))
    await bench.settle(release(await bench.take_one()))
    await bench.settle(succeed(await bench.take_one()))

    history = (await bench.get()).history

    assert [(entry.number, entry.worker) for entry in history] == [(1, "w1"), (2, "w2"), (3, "w3")]
    assert [entry.error.message for entry in history if entry.error] == ["number 1", "number 2", "number 3"]


# H4
@guarantee(Guarantee.HISTORY)
async def test_a_long_history_keeps_the_first_and_the_last_nineteen(bench: Bench) -> None:
    await bench.put(new_job())
    for _ in range(20):
        await bench.settle(retry(await bench.take_one()))
    assert [entry.number for entry in (await bench.get()).history] == list(range(1, 21))
    for _ in range(5):
        await bench.settle(retry(await bench.take_one()))

    assert [entry.number for entry in (await bench.get()).history] == [1, *range(7, 26)]


# H3
@guarantee(Guarantee.HISTORY)
async def test_a_requeue_keeps_the_history_and_a_new_job_of_the_same_id_starts_without(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.settle(fail(await bench.take_one()))
    await bench.engine.requeue(QUEUE, "a")
    await bench.settle(fail(await bench.take_one()))

    kept = (await bench.get()).history
    await bench.put(new_job())

    assert [(entry.generation, entry.number) for entry in kept] == [(0, 1), (1, 1)]
    assert (await bench.get()).history == ()


@guarantee(Guarantee.HISTORY)
async def test_each_entry_has_the_start_of_its_own_attempt(bench: Bench) -> None:
    await bench.put(new_job())
    starts = []
    for _ in range(2):
        claimed = await bench.engine.claim(bench.claim())
        starts.append(claimed.at.wall)
        await bench.settle(retry(claimed.leases[0]))
        bench.clock.advance(10)

    assert [entry.started for entry in (await bench.get()).history] == starts


@guarantee(Guarantee.HISTORY)
async def test_the_history_of_a_kept_job_is_never_removed(bench: Bench) -> None:
    await bench.put(new_job())
    await bench.settle(retry(await bench.take_one()))
    await bench.settle(confirm_cancel(await bench.take_one(), result_ttl=0))
    bench.clock.advance(hours=20)
    await bench.engine.prune()

    assert [entry.outcome for entry in (await bench.get()).history] == [
        AttemptOutcome.FAILED,
        AttemptOutcome.CANCELLED,
    ]
