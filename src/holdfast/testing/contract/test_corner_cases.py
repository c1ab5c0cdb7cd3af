"""Corner cases in which two rules apply to one job. Each of them has failed in an engine at least once."""

import pytest

from holdfast.errors import InvalidOption
from holdfast.model.instants import FOREVER, HOUR
from holdfast.model.job import Given, JobKey
from holdfast.model.operate import OperateStatus
from holdfast.model.produce import EnqueueStatus, Group, PoolPlace
from holdfast.model.states import JobState, Reason
from holdfast.model.work import Settlement, SettleStatus, Start
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, after, claim, confirm_cancel, new_job, succeed
from holdfast.testing.contract.guarantees import Guarantee, guarantee


# L5
@guarantee(Guarantee.LANES)
async def test_a_child_of_higher_priority_than_its_parent_does_not_stop_their_lane(bench: Bench) -> None:
    await bench.put(new_job("head", lane="L"), new_job("parent", lane="L"))
    await bench.put(new_job("child", lane="L", priority=9, parents=after("parent")))

    order = []
    for _ in range(3):
        lease = await bench.take_one()
        order.append(lease.id)
        await bench.settle(succeed(lease))
    assert order == ["head", "parent", "child"]


@guarantee(Guarantee.POOLS)
async def test_a_job_of_a_later_epoch_and_higher_priority_does_not_stop_the_lane(bench: Bench) -> None:
    for name in ("old-1", "old-2"):
        await bench.put(new_job(name, pool=PoolPlace(1, "alice")))
    await bench.engine.resize(QUEUE, 2)
    await bench.put(*(new_job(f"new-{n}", priority=9, pool=PoolPlace(2, f"key-{n}")) for n in range(8)))

    done = []
    while leases := await bench.take(10):
        for lease in leases:
            done.append(lease.id)
            await bench.settle(succeed(lease))
    assert done[:2] == ["old-1", "old-2"]
    assert len(done) == 10


# P9
@guarantee(Guarantee.PARENTS)
async def test_an_edge_of_a_deleted_child_does_not_affect_a_new_job_of_its_id(bench: Bench) -> None:
    await bench.put(new_job("first"), new_job("second"))
    await bench.put(new_job("child", parents=after("first")))
    await bench.engine.cancel(QUEUE, "child")
    assert (await bench.engine.delete(QUEUE, "child")).jobs[0].status is OperateStatus.DONE
    await bench.put(new_job("child", parents=after("second")))

    await bench.engine.cancel(QUEUE, "first")
    child = await bench.get("child")
    assert (child.state, child.parents_left) == (JobState.BLOCKED, 1)


# P3
@guarantee(Guarantee.PARENTS)
async def test_a_parent_created_and_deleted_in_the_same_group_counts_as_failed(bench: Bench) -> None:
    await bench.put(new_job("failed"))
    await bench.engine.cancel(QUEUE, "failed")
    gone = Given(result_ttl=0, retention=0)

    await bench.put(
        new_job("b", parents=after("failed"), given=gone),
        new_job("c", parents=after("b")),
        new_job("d", parents=after("b", any_end=True)),
    )
    assert await bench.get_or_none("b") is None
    assert ((await bench.get("c")).state, (await bench.get("c")).reason) == (JobState.CANCELLED, Reason.PARENT_FAILED)
    assert (await bench.get("d")).state is JobState.QUEUED


@guarantee(Guarantee.ONE_PER_KEY)
async def test_a_longer_result_lifetime_does_not_take_a_lapsed_key_again(bench: Bench) -> None:
    await bench.finish(new_job("a", unique_key="k"))
    await bench.put(new_job("b", unique_key="k"))

    await bench.engine.amend(QUEUE, "a", result_ttl=HOUR * 100)
    answer = await bench.put_one(new_job("c", unique_key="k"))
    assert (answer.status, answer.id) == (EnqueueStatus.DUPLICATE, "b")


@guarantee(Guarantee.HISTORY)
async def test_a_snooze_without_refund_leaves_no_history_entry(bench: Bench) -> None:
    await bench.put(new_job("a"))
    lease = await bench.take_one()
    await bench.engine.settle(
        Settlement(queue=QUEUE, id="a", token=lease.token, target=JobState.SCHEDULED, delay=5, refund=False)
    )
    job = await bench.get("a")
    assert (job.state, job.attempt, job.history) == (JobState.SCHEDULED, 1, ())


# G3
@guarantee(Guarantee.RECOVERY)
async def test_a_job_started_after_it_was_listed_is_not_reaped_as_unstarted(bench: Bench) -> None:
    await bench.put(new_job("a"))
    (lease,) = await bench.take(0, prefetch=1)
    listed = await bench.expire(lease)
    assert listed.state is JobState.ASSIGNED
    await bench.engine.exchange(starts=[Start(QUEUE, "a", lease.token)])

    reap = Settlement(
        queue=QUEUE,
        id="a",
        token=lease.token,
        target=JobState.RETRYING,
        reason=Reason.WORKER_LOST,
        refund=True,
        listed_expiry=listed.lease_expires,
    )
    assert await bench.settle(reap) is SettleStatus.LOST
    assert (await bench.get("a")).attempt == 1


# G6
@guarantee(Guarantee.RECOVERY)
async def test_a_reaper_may_only_retry_fail_or_cancel(bench: Bench) -> None:
    for target in (JobState.SUCCEEDED, JobState.SCHEDULED, JobState.QUEUED):
        with pytest.raises(InvalidOption, match="reaper"):
            await bench.engine.settle(Settlement(queue=QUEUE, id="a", token="t.0", target=target, listed_expiry=1))


# A12
@guarantee(Guarantee.ATTEMPTS)
async def test_only_an_owner_adds_a_loss_and_only_where_the_attempt_ends_without_success(bench: Bench) -> None:
    def with_loss(target: JobState, listed_expiry: int | None = None) -> Settlement:
        return Settlement(queue=QUEUE, id="a", token="t.0", target=target, loss=True, listed_expiry=listed_expiry)

    for target in (JobState.SUCCEEDED, JobState.SCHEDULED, JobState.QUEUED):
        with pytest.raises(InvalidOption, match="loss"):
            await bench.engine.settle(with_loss(target))
    with pytest.raises(InvalidOption, match="loss"):
        await bench.engine.settle(with_loss(JobState.RETRYING, listed_expiry=1))


@guarantee(Guarantee.RECOVERY)
async def test_a_lease_without_end_is_disowned_like_any_other(bench: Bench) -> None:
    await bench.put(new_job("a", given=Given(lease_len=FOREVER)))
    await bench.take_one(worker="dead")

    assert (await bench.engine.disown("dead")).leases == (JobKey(QUEUE, "a"),)
    assert [lease.id for lease in await bench.expired()] == ["a"]


@guarantee(Guarantee.ONE_LEASE)
async def test_claim_ids_that_look_like_tokens_are_not_confused(bench: Bench) -> None:
    await bench.put(new_job("a"), new_job("b"))
    await bench.engine.claim(claim("c.5"))

    answer = await bench.engine.claim(claim("c", limit=5))
    assert [lease.id for lease in answer.leases] == ["b"]


# E9
@guarantee(Guarantee.ONE_PER_ID)
async def test_a_taken_id_marked_as_fresh_is_a_duplicate(bench: Bench) -> None:
    await bench.put(new_job("a", fresh_id=True))

    answer = await bench.put_one(new_job("a", fresh_id=True))
    assert answer.status is EnqueueStatus.DUPLICATE
    both = (
        await bench.engine.enqueue(Group((new_job("b", fresh_id=True),)), Group((new_job("b", fresh_id=True),)))
    ).groups
    assert [group.jobs[0].status for group in both] == [EnqueueStatus.CREATED, EnqueueStatus.DUPLICATE]  # type: ignore[union-attr]


# TX2
@guarantee(Guarantee.READING)
async def test_a_record_does_not_change_when_its_producer_changes_the_metadata(bench: Bench) -> None:
    metadata = {"trace": "1"}
    await bench.put(new_job("a", metadata=metadata))
    metadata["trace"] = "2"
    assert (await bench.get("a")).metadata == {"trace": "1"}


# TX3
@guarantee(Guarantee.BAD_INPUT)
async def test_text_that_cannot_be_stored_is_refused_by_every_verb(bench: Bench) -> None:
    engine = bench.engine
    bad = "\ud800"
    calls = (
        lambda: engine.get(JobKey(QUEUE, bad)),
        lambda: engine.cancel(QUEUE, bad),
        lambda: engine.requeue(QUEUE, bad),
        lambda: engine.trigger(bad, "a"),
        lambda: engine.delete(QUEUE, bad),
        lambda: engine.amend(QUEUE, bad, priority=1),
        lambda: engine.settle(Settlement(queue=QUEUE, id="a", token="t.0", target=JobState.FAILED, note=bad)),
        lambda: engine.enqueue(Group((new_job("a", reply=bad),))),
        lambda: engine.enqueue(Group((new_job("a", codec=bad),))),
    )
    for call in calls:
        with pytest.raises(InvalidOption):
            await call()


# G5
@guarantee(Guarantee.CANCEL)
async def test_the_note_of_a_cancel_request_stays_when_the_handler_stops(bench: Bench) -> None:
    await bench.put(new_job("a"))
    lease = await bench.take_one()
    await bench.engine.cancel(QUEUE, "a", note="order withdrawn")

    await bench.settle(confirm_cancel(lease))
    job = await bench.get("a")
    assert (job.state, job.reason, job.note) == (JobState.CANCELLED, Reason.ASKED, "order withdrawn")
