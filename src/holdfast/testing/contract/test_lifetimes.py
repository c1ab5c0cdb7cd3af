"""The three lifetimes of an ended job: how long its record is kept, its result is returned, and its key is taken."""

from typing import Any

import pytest

from holdfast.model.instants import DAY, FOREVER, HOUR, MINUTE
from holdfast.model.job import Given, KeyScope
from holdfast.model.produce import EnqueueStatus
from holdfast.model.states import JobState
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, confirm_cancel, fail, new_job, settlement, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


# K1, K2
@guarantee(Guarantee.RETENTION)
@pytest.mark.parametrize(
    ("end", "kept"), [(JobState.SUCCEEDED, DAY), (JobState.FAILED, 30 * DAY), (JobState.CANCELLED, DAY)]
)
async def test_the_defaults_count_from_the_end(bench: Bench, end: JobState, kept: int) -> None:
    await bench.put(new_job())
    lease = await bench.take_one()
    bench.clock.advance(hours=5)

    now = (await bench.engine.settle(settlement(lease, end))).at.wall

    job = await bench.get()
    assert (job.visible_until, job.result_until) == (now + kept, now + HOUR)
    assert job.key_until == (now + HOUR if end is JobState.SUCCEEDED else now)


@guarantee(Guarantee.RETENTION)
async def test_the_settling_worker_may_set_the_lifetimes(bench: Bench) -> None:
    await bench.put(new_job())

    answer = await bench.engine.settle(succeed(await bench.take_one(), result_ttl=2 * HOUR, retention=MINUTE))

    job, now = await bench.get(), answer.at.wall
    assert (job.visible_until, job.result_until, job.key_until) == (now + MINUTE, now + 2 * HOUR, now + 2 * HOUR)


# K5
@guarantee(Guarantee.RETENTION)
async def test_lifetimes_set_at_enqueue_override_those_of_the_settlement(bench: Bench) -> None:
    await bench.put(new_job(given=Given(result_ttl=3 * HOUR, retention=0)))

    answer = await bench.engine.settle(succeed(await bench.take_one(), result_ttl=MINUTE, retention=MINUTE))

    job, now = await bench.get(), answer.at.wall
    assert (job.visible_until, job.result_until) == (now, now + 3 * HOUR)


@guarantee(Guarantee.RETENTION)
async def test_a_job_cancelled_while_it_waits_has_the_lifetimes_set_at_enqueue(bench: Bench) -> None:
    await bench.put(new_job("given", given=Given(result_ttl=2 * HOUR, retention=3 * HOUR)), new_job("not"))

    now = (await bench.engine.cancel(QUEUE, "given", "not")).at.wall

    given, other = await bench.get("given"), await bench.get("not")
    assert (given.visible_until, given.result_until, given.key_until) == (now + 3 * HOUR, now + 2 * HOUR, now)
    assert (other.visible_until, other.result_until, other.key_until) == (now + DAY, now + HOUR, now)


# K3, K4
@guarantee(Guarantee.RETENTION)
@pytest.mark.parametrize(
    ("scope", "window", "key"),
    [
        (KeyScope.INCOMPLETE, 0, "finished"),
        (KeyScope.RESULT, 0, "result"),
        (KeyScope.WINDOW, 10 * HOUR, "created"),
        (KeyScope.WINDOW, MINUTE, "finished"),
        (KeyScope.FOREVER, 0, "forever"),
    ],
)
@pytest.mark.parametrize("unique_key", [None, "key"])
async def test_the_scope_decides_how_long_the_key_is_taken(
    bench: Bench, scope: KeyScope, window: int, key: str, unique_key: str | None
) -> None:
    await bench.put(new_job(unique_key=unique_key, key_scope=scope, key_window=window))
    created = (await bench.get()).created
    bench.clock.advance(hours=1)

    now = (await bench.engine.settle(succeed(await bench.take_one(), result_ttl=2 * HOUR))).at.wall

    expected = {
        "finished": now,
        "result": now + 2 * HOUR,
        "created": created + 10 * HOUR,
        "forever": FOREVER,
    }[key]
    assert (await bench.get()).key_until == expected


@guarantee(Guarantee.RETENTION)
async def test_without_a_scope_a_key_is_taken_while_its_job_lives_and_an_id_while_its_result_is_kept(
    bench: Bench,
) -> None:
    await bench.put(new_job("id"), new_job("key", unique_key="key"))

    assert (await bench.get("id")).key_scope is KeyScope.RESULT
    assert (await bench.get("key")).key_scope is KeyScope.INCOMPLETE


# K6
@guarantee(Guarantee.RETENTION)
@pytest.mark.parametrize("end", [succeed, fail, confirm_cancel])
async def test_a_job_without_lifetimes_is_deleted_when_it_ends(bench: Bench, end: object) -> None:
    await bench.put(new_job())
    assert callable(end)

    await bench.settle(end(await bench.take_one(), retention=0, result_ttl=0))

    assert await bench.get_or_none("a") is None
    assert (await bench.engine.prune()).deleted == ()
    stats = await bench.stats()
    assert (stats.counts, stats.totals.finished) == ({}, 1)
    assert (await bench.put_one(new_job())).status is EnqueueStatus.CREATED


# K6
@guarantee(Guarantee.RETENTION)
@pytest.mark.parametrize(
    "fields",
    [
        {"given": Given(retention=MINUTE, result_ttl=0)},
        {"given": Given(retention=0, result_ttl=MINUTE)},
        {"given": Given(retention=0, result_ttl=0), "key_scope": KeyScope.WINDOW, "key_window": MINUTE},
    ],
    ids=["retention", "result", "key"],
)
async def test_a_record_is_kept_until_the_last_of_its_lifetimes_has_passed(
    bench: Bench, fields: dict[str, Any]
) -> None:
    await bench.finish(new_job(**fields))

    assert (await bench.engine.prune()).deleted == ()
    assert await bench.state() is JobState.SUCCEEDED
    bench.clock.advance(minutes=2)

    assert [key.id for key in (await bench.engine.prune()).deleted] == ["a"]
    assert await bench.get_or_none("a") is None


@guarantee(Guarantee.RETENTION)
async def test_without_retention_a_result_is_still_kept_for_its_lifetime(bench: Bench) -> None:
    """E-P23; case 12 of the contract"""
    await bench.finish(new_job(given=Given(retention=0, result_ttl=HOUR)), result=b"42")
    bench.clock.advance(minutes=50)
    await bench.engine.prune()

    waiting_call = await bench.get()
    duplicate = await bench.put_one(new_job())

    assert (waiting_call.state, waiting_call.result) == (JobState.SUCCEEDED, b"42")
    assert (duplicate.status, duplicate.result) == (EnqueueStatus.COMPLETED, b"42")
    bench.clock.advance(minutes=11)
    assert len((await bench.engine.prune()).deleted) == 1
    assert await bench.get_or_none("a") is None


@guarantee(Guarantee.RETENTION)
async def test_a_key_taken_for_ever_keeps_its_record_for_ever(bench: Bench) -> None:
    await bench.finish(new_job(key_scope=KeyScope.FOREVER, given=Given(retention=0, result_ttl=0)))
    bench.clock.advance(days=10_000)

    assert (await bench.engine.prune()).deleted == ()
    assert await bench.state() is JobState.SUCCEEDED


@guarantee(Guarantee.RETENTION)
async def test_a_lifetime_has_passed_at_its_exact_instant(bench: Bench) -> None:
    bench.freeze()
    await bench.finish(new_job("id"), result_ttl=0)
    await bench.finish(new_job("key", unique_key="key", key_scope=KeyScope.RESULT), result_ttl=0)
    await bench.finish(new_job("kept"))

    again = await bench.put(new_job("id"), new_job("other", unique_key="key"))
    await bench.engine.amend(QUEUE, "kept", result_ttl=0, retention=0)

    assert [job.status for job in again] == [EnqueueStatus.CREATED, EnqueueStatus.CREATED]
    assert [key.id for key in (await bench.engine.prune()).deleted] == ["kept"]


@guarantee(Guarantee.RETENTION)
async def test_a_job_with_unlimited_retention_is_never_pruned(bench: Bench) -> None:
    await bench.finish(new_job(given=Given(retention=FOREVER)))
    bench.clock.advance(days=10_000)

    assert (await bench.engine.prune()).deleted == ()
    assert (await bench.get()).visible_until == FOREVER


@guarantee(Guarantee.RETENTION)
async def test_a_kept_record_does_not_keep_its_id_taken(bench: Bench) -> None:
    await bench.finish(new_job(given=Given(retention=30 * DAY, result_ttl=MINUTE)))
    bench.clock.advance(minutes=2)

    again = await bench.put_one(new_job())

    assert (again.status, again.generation) == (EnqueueStatus.CREATED, 1)


# TM3
@guarantee(Guarantee.DUE_TIMES)
async def test_every_answer_contains_the_engines_time_which_never_goes_back(bench: Bench) -> None:
    first = await bench.engine.now()
    bench.clock.advance(hours=1)
    second = await bench.engine.now()
    third = (await bench.engine.stats()).at

    assert second.wall >= first.wall + HOUR
    assert second.lease >= first.lease + HOUR
    assert (third.wall >= second.wall, third.lease >= second.lease) == (True, True)
    bench.clock.set_back(seconds=3)
    fourth = await bench.engine.now()
    assert fourth.wall >= third.wall
