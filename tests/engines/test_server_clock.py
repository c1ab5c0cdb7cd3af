"""A process that has seen a wrong time: the clock was set back, or a server whose clock is behind took over."""

import logging

import pytest
from server_stores import ServerStore

from holdfast.engine import Engine
from holdfast.engines.postgres.rules import LONGEST_LEAD_US
from holdfast.model.instants import HOUR, SECOND
from holdfast.model.job import JobKey
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import JobState, Reason
from holdfast.model.work import Claim, Lease, QueueClaim, Renewal, RenewStatus, Settlement, SettleStatus, TaskClaim

LEASE = 60 * SECOND


async def take(engine: Engine, id: str) -> Lease:
    await engine.enqueue(Group((NewJob(queue="q", id=id, task="t"),)))
    queues = (QueueClaim("q", (TaskClaim(task="t", lease_len=LEASE),)),)
    (lease,) = (await engine.exchange(claim=Claim(claim_id=f"c-{id}", worker="w", queues=queues, limit=1))).leases
    return lease


async def see_later_time(engine: Engine, lead_us: int) -> int:
    """An answer gives this process a time that is ahead; then the clock is right again."""
    engine.clock_offset = lead_us
    later = (await engine.now()).wall
    engine.clock_offset = 0
    return later


async def test_a_process_that_has_seen_a_later_time_leaves_the_leases_of_others_alone(
    server_store: ServerStore,
) -> None:
    # PF4
    async with server_store.opened(notify=False) as owner, server_store.opened(notify=False) as misled:
        lease = await take(owner, "a")
        await see_later_time(misled, HOUR)
        assert (await misled.expired("reaper")).leases == ()
        reap = Settlement(
            queue="q",
            id="a",
            token=lease.token,
            target=JobState.RETRYING,
            reason=Reason.WORKER_LOST,
            listed_expiry=lease.lease_expires,
        )
        await see_later_time(misled, HOUR)
        assert (await misled.settle(reap)).settled == (SettleStatus.LOST,)


@pytest.mark.parametrize("lead_us", [HOUR, LONGEST_LEAD_US // 2], ids=["an hour", "seconds"])
async def test_leases_of_a_process_that_has_seen_a_later_time_have_their_own_length(
    server_store: ServerStore, lead_us: int
) -> None:
    # PF4
    async with server_store.opened(notify=False) as engine, server_store.opened(notify=False) as other:
        await see_later_time(engine, lead_us)
        lease = await take(engine, "a")
        await see_later_time(engine, lead_us)
        (renewed,) = (await engine.renew(Renewal("q", "a", lease.token))).jobs
        right = (await other.now()).wall
        assert renewed.status is RenewStatus.HELD
        assert renewed.lease_expires is not None
        assert lease.lease_expires <= renewed.lease_expires <= right + LEASE
        await see_later_time(engine, lead_us)
        await engine.disown("w")
        assert [lost.id for lost in (await other.expired("reaper")).leases] == ["a"]


async def test_a_lead_of_seconds_keeps_the_time_of_answers_from_going_back(server_store: ServerStore) -> None:
    # TM3
    async with server_store.opened(notify=False) as engine:
        later = await see_later_time(engine, LONGEST_LEAD_US // 2)
        assert (await engine.now()).wall >= later


async def test_a_long_lead_is_dropped_and_logged(server_store: ServerStore, caplog: pytest.LogCaptureFixture) -> None:
    # TM3
    async with server_store.opened(notify=False) as engine, server_store.opened(notify=False) as other:
        later = await see_later_time(engine, HOUR)
        logger = f"holdfast.{server_store.kind}"
        with caplog.at_level(logging.WARNING, logger):
            answers = [(await engine.now()).wall for _ in range(3)]
        assert all(wall < later - HOUR // 2 for wall in answers)
        assert [record.name for record in caplog.records] == [logger]  # once
        assert "behind a time that this process has seen" in caplog.text
        job = NewJob(queue="q", id="now", task="t", delay=SECOND)
        await engine.enqueue(Group((job,)))
        (record,) = (await other.get(JobKey("q", "now"))).jobs
        assert record is not None
        assert record.due < later - HOUR // 2
