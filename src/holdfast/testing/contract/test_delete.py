"""Delete: removes a finished job with its key and its history. A live job is not removed."""

from holdfast.model.instants import HOUR
from holdfast.model.job import KeyScope
from holdfast.model.operate import OperateResult, OperateStatus
from holdfast.model.produce import EnqueueStatus
from holdfast.model.states import JobState
from holdfast.model.work import SettleStatus
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, confirm_cancel, fail, jobs, new_job, retry, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


@guarantee(Guarantee.OPERATING)
async def test_finished_jobs_are_removed(bench: Bench) -> None:
    await bench.put(*jobs("a", "b", "c"))
    one, two, three = await bench.take(3)
    await bench.engine.settle(succeed(one), fail(two), confirm_cancel(three))

    answer = await bench.engine.delete(QUEUE, "a", "b", "c", "absent")

    assert [job.status for job in answer.jobs] == [
        OperateStatus.DONE,
        OperateStatus.DONE,
        OperateStatus.DONE,
        OperateStatus.NOT_FOUND,
    ]
    assert [await bench.get_or_none(id) for id in "abc"] == [None, None, None]
    stats = await bench.stats()
    assert (stats.counts, stats.totals.finished) == ({}, 3)


# DL1
@guarantee(Guarantee.OPERATING)
async def test_live_jobs_are_not_removed(bench: Bench) -> None:
    await bench.put(*jobs("running", "assigned", "retrying"))
    _, again, _ = await bench.take(2, prefetch=1)
    await bench.settle(retry(again, HOUR))
    states = {id: await bench.state(id) for id in ("running", "assigned", "retrying")}
    await bench.put(new_job("scheduled", delay=HOUR), *jobs("queued", "blocked", lane="lane"))
    states |= {"scheduled": JobState.SCHEDULED, "queued": JobState.QUEUED, "blocked": JobState.BLOCKED}

    answer = await bench.engine.delete(QUEUE, *states)

    assert answer.jobs == tuple(OperateResult(OperateStatus.WRONG_STATE, state) for state in states.values())
    assert await bench.states(*states) == list(states.values())


@guarantee(Guarantee.OPERATING)
async def test_deleting_twice_finds_nothing_the_second_time(bench: Bench) -> None:
    await bench.finish(new_job())

    answer = await bench.engine.delete(QUEUE, "a", "a")

    assert [job.status for job in answer.jobs] == [OperateStatus.DONE, OperateStatus.NOT_FOUND]


@guarantee(Guarantee.ONE_PER_KEY)
async def test_a_deleted_job_frees_its_id_and_key(bench: Bench) -> None:
    await bench.finish(new_job("a", unique_key="key", key_scope=KeyScope.FOREVER))

    await bench.engine.delete(QUEUE, "a")

    again = await bench.put(new_job("a"), new_job("b", unique_key="key"))
    assert [(job.status, job.id) for job in again] == [(EnqueueStatus.CREATED, "a"), (EnqueueStatus.CREATED, "b")]


@guarantee(Guarantee.FENCING)
async def test_a_settlement_of_a_deleted_job_is_answered_gone(bench: Bench) -> None:
    lease = await bench.finish(new_job())
    await bench.engine.delete(QUEUE, "a")

    assert await bench.settle(succeed(lease)) is SettleStatus.GONE
    assert await bench.get_or_none("a") is None


@guarantee(Guarantee.FENCING)
async def test_the_fence_grows_after_a_job_of_the_same_id_was_deleted(bench: Bench) -> None:
    first = await bench.finish(new_job())
    await bench.engine.delete(QUEUE, "a")
    bench.clock.advance(1)

    await bench.put(new_job())

    assert (await bench.take_one()).fence > first.fence


@guarantee(Guarantee.READING)
async def test_a_deleted_job_is_not_found_by_its_state(bench: Bench) -> None:
    await bench.put(*jobs("a", "b"))
    await bench.engine.settle(*(fail(lease) for lease in await bench.take(2)))

    await bench.engine.delete(QUEUE, "a")

    assert (await bench.stats()).counts == {JobState.FAILED: 1}
