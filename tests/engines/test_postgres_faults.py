"""Faults of a PostgreSQL server and its connections: no acknowledged job is lost, none is carried out twice.

These are the short forms; `make chaos` runs the long ones.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest
from load import Load
from postgres import PostgresServer, private_server
from postgres_stock import Store, fresh_namespace
from postgres_stories import Stores, opened, until_one_waits

from holdfast import App
from holdfast.errors import Busy
from holdfast.model.instants import DAY, SECOND
from holdfast.model.job import Given, JobKey
from holdfast.model.produce import EnqueueAnswer, Group, GroupAccepted
from holdfast.model.states import JobState
from holdfast.model.work import SettleStatus
from holdfast.testing.contract.builders import QUEUE, claim, new_job, succeed


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """It has the default settings, so it syncs at every commit."""
    with private_server() as server:
        yield server


# The server


async def restarts(server: PostgresServer, times: int, *, immediate: bool) -> Load:
    longest_s = 0.0
    async with Load(fresh_namespace(server)) as load:
        for _ in range(times):
            await asyncio.to_thread(server.restart, immediate=immediate)
            restarted_s = time.monotonic()
            await load.consumes()
            longest_s = max(longest_s, time.monotonic() - restarted_s)
    print(f"{times} restarts: {load}, consuming again after at most {longest_s:.2f} s")
    return load


@pytest.mark.parametrize("immediate", [True, False], ids=["immediate", "fast"])
async def test_nothing_is_lost_when_the_server_is_restarted_under_load(
    own_server: PostgresServer, immediate: bool
) -> None:
    load = await restarts(own_server, 2, immediate=immediate)
    assert load.refused + load.unknown > 0, "no call failed: the restarts were not tested"


@pytest.mark.chaos
@pytest.mark.parametrize("immediate", [True, False], ids=["immediate", "fast"])
async def test_nothing_is_lost_in_twenty_restarts_under_load(own_server: PostgresServer, immediate: bool) -> None:
    await restarts(own_server, 20, immediate=immediate)


@pytest.mark.parametrize("loop_sees_it", [True, False], ids=["seen", "unseen"])
@pytest.mark.parametrize("immediate", [True, False], ids=["immediate", "fast"])
async def test_the_first_call_after_a_restart_does_not_fail(
    own_server: PostgresServer, immediate: bool, loop_sees_it: bool
) -> None:
    """Also if the event loop was busy and has not read yet that its connections are closed."""
    async with opened(fresh_namespace(own_server), pool_size=3) as engine:
        await asyncio.gather(*(engine.enqueue(Group((new_job(f"j{number}"),))) for number in range(3)))
        if loop_sees_it:
            await asyncio.to_thread(own_server.restart, immediate=immediate)
        else:
            own_server.restart(immediate=immediate)
        await asyncio.gather(*(engine.enqueue(Group((new_job(f"k{number}"),))) for number in range(3)))
        assert (await engine.stats(QUEUE)).queues[0].counts == {JobState.QUEUED: 6}


async def terminations(server: PostgresServer, store: Store, times: int) -> Load:
    ended = 0
    async with Load(store) as load:
        for _ in range(times):
            ended += await asyncio.to_thread(server.terminate_backends)
            await load.consumes()
    print(f"{ended} backends terminated: {load}")
    return load


async def test_nothing_is_lost_when_every_backend_is_terminated_under_load(
    postgres_server: PostgresServer, postgres_store: Stores
) -> None:
    load = await terminations(postgres_server, postgres_store(), 5)
    assert load.refused == 0  # the server ran all the time, so every call was repeated with success


@pytest.mark.chaos
async def test_nothing_is_lost_when_every_backend_is_terminated_two_hundred_times(
    postgres_server: PostgresServer, postgres_store: Stores
) -> None:
    await terminations(postgres_server, postgres_store(), 200)


async def test_the_load_check_notices_a_lost_job(postgres_server: PostgresServer, postgres_store: Stores) -> None:
    store = postgres_store()
    jobs = f"{store.namespace}.job"

    async def lose_one() -> None:
        async with Load(store) as load:
            one = f"SELECT id FROM {jobs} WHERE state = 'succeeded' LIMIT 1"
            while not postgres_server.execute(f"DELETE FROM {jobs} WHERE id = ({one}) RETURNING id"):
                await load.consumes()

    with pytest.raises(AssertionError, match="an acknowledged job is lost"):
        await lose_one()


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "deleted at once"])
async def test_a_settlement_that_waited_for_a_change_of_its_job_sees_the_change(
    postgres_server: PostgresServer, postgres_store: Stores, kept: bool
) -> None:
    store = postgres_store()
    keep = DAY if kept else 0

    async with opened(store) as engine:
        await engine.enqueue(Group(tuple(new_job(name) for name in "abc")))
        leases = (await engine.claim(claim("c" * 32, limit=3))).leases
        other = await asyncpg.connect(store.url)
        async with other.transaction():
            await other.execute(f"UPDATE {store.namespace}.job SET token = 'another' WHERE id = 'b'")
            ends = [succeed(lease, result_ttl=keep, retention=keep) for lease in leases]
            settling = asyncio.ensure_future(engine.settle(*ends))
            await until_one_waits(postgres_server)
        assert (await settling).settled == (SettleStatus.APPLIED, SettleStatus.LOST, SettleStatus.APPLIED)
        (found,) = (await engine.get(JobKey(QUEUE, "b"))).jobs
        assert found is not None
        assert found.state is JobState.RUNNING
        await other.close()


async def test_a_call_is_repeated_after_a_deadlock(postgres_server: PostgresServer, postgres_store: Stores) -> None:
    store = postgres_store()
    lanes = f"SELECT FROM {store.namespace}.lane WHERE lane = $1 FOR UPDATE"
    # The server looks for a deadlock once, this long after a call began to wait. A call waits for two seconds at most.
    async with opened(store._replace(url=f"{store.url}?deadlock_timeout=1500ms")) as engine:

        async def meet_in_a_deadlock(number: int) -> EnqueueAnswer:
            other = await asyncpg.connect(store.url, server_settings={"deadlock_timeout": "60s"})  # not the victim
            try:
                async with other.transaction():
                    await other.execute(lanes, "b")
                    jobs = new_job(f"a{number}", lane="a"), new_job(f"b{number}", lane="b")
                    call = asyncio.ensure_future(engine.enqueue(Group(jobs)))
                    await until_one_waits(postgres_server)
                    await other.execute(lanes, "a")
                return await call
            finally:
                await other.close()

        await engine.enqueue(Group((new_job("a", lane="a"), new_job("b", lane="b"))))
        for number in range(10):
            with suppress(Busy):  # the machine was too busy: the two did not wait for each other in time
                (group,) = (await meet_in_a_deadlock(number)).groups
                assert isinstance(group, GroupAccepted)
                return
        pytest.fail("the two never waited for each other in time")


# Order, query plans, lost notifications


@asynccontextmanager
async def job_write_blocked(store: Store, name: str, event: str) -> AsyncIterator[None]:
    """The INSERT or UPDATE of this job waits, inside its transaction, until the block ends."""
    schema = store.namespace
    connection = await asyncpg.connect(store.url)
    await connection.execute(
        f"CREATE FUNCTION {schema}.wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.id = '{name}' THEN PERFORM pg_advisory_xact_lock(hashtext('{schema}')); END IF;"
        " RETURN NULL; END $$;"
        f"CREATE TRIGGER wait AFTER {event} ON {schema}.job FOR EACH ROW EXECUTE FUNCTION {schema}.wait()"
    )
    await connection.execute(f"SELECT pg_advisory_lock(hashtext('{schema}'))")
    try:
        yield
        await connection.execute("SELECT pg_advisory_unlock_all()")
    finally:
        await connection.execute(f"DROP FUNCTION {schema}.wait CASCADE")
        await connection.close()


async def test_a_lane_keeps_the_order_of_arrival_when_commits_have_another_order(
    postgres_server: PostgresServer, postgres_store: Stores
) -> None:
    store = postgres_store()
    async with opened(store) as engine:
        await engine.enqueue(Group((new_job("queue", task="other", lane="n"),)))
        async with job_write_blocked(
            store, "first", "UPDATE"
        ):  # the job has its place in the lane and is not committed
            first = asyncio.ensure_future(engine.enqueue(Group((new_job("first", lane="l"),))))
            await until_one_waits(postgres_server)
            second = asyncio.ensure_future(engine.enqueue(Group((new_job("second", lane="l"),))))
            await engine.enqueue(Group((new_job("elsewhere", lane="m"),)))
            assert (await engine.get(JobKey(QUEUE, "second"))).jobs == (None,)  # it waits for the lock of the lane
        await asyncio.gather(first, second)
        order = []
        for number in range(3):
            (lease,) = (await engine.claim(claim(f"{number:032}", limit=1))).leases
            await engine.settle(succeed(lease))
            order.append(lease.id)
        assert [name for name in order if name != "elsewhere"] == ["first", "second"]


async def test_a_job_that_arrived_first_and_is_committed_last_is_claimed(
    postgres_server: PostgresServer, postgres_store: Stores
) -> None:
    store = postgres_store()
    async with opened(store) as engine:
        async with job_write_blocked(store, "first", "INSERT"):
            first = asyncio.ensure_future(engine.enqueue(Group((new_job("first", fresh_id=True),))))
            await until_one_waits(postgres_server)
            await engine.enqueue(Group((new_job("second", fresh_id=True),)))
            (lease,) = (await engine.claim(claim("a" * 32, limit=5))).leases
            assert lease.id == "second"
        await first
        (lease,) = (await engine.claim(claim("b" * 32, limit=5))).leases
        assert lease.id == "first"


PLANS = {
    "nested loops": ("enable_hashjoin", "enable_mergejoin", "enable_material", "enable_memoize"),
    "no indexes": ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan"),
    "no nested loops": ("enable_nestloop",),
}


@pytest.mark.parametrize("plan", PLANS)
async def test_a_claim_keeps_its_limit_under_every_query_plan(
    postgres_server: PostgresServer, postgres_store: Stores, plan: str
) -> None:
    store = postgres_store()
    settings = PLANS[plan]
    for setting in settings:
        postgres_server.execute(f"ALTER DATABASE {postgres_server.database} SET {setting} = off")
    try:
        async with opened(store) as engine:
            jobs = [new_job(f"j{number:03}", task=f"t{number % 3}") for number in range(120)]
            await engine.enqueue(Group(tuple(jobs)))

            async def drain(worker: int) -> list[str]:
                taken: list[str] = []
                for number in range(100):
                    wanted = claim(f"{worker}{number:031}", limit=4, prefetch=1, tasks=("t0", "t1", "t2"))
                    leases = (await engine.claim(wanted)).leases
                    assert len(leases) <= 5
                    taken += [lease.id for lease in leases]
                    if not leases:
                        break
                return taken

            taken = [name for names in await asyncio.gather(*map(drain, range(4))) for name in names]
            assert sorted(taken) == [job.id for job in jobs]
    finally:
        for setting in settings:
            postgres_server.execute(f"ALTER DATABASE {postgres_server.database} RESET {setting}")


async def test_a_job_whose_notification_is_lost_is_found_by_polling(postgres_store: Stores) -> None:
    store = postgres_store()
    ran = asyncio.Event()
    app: App[Any] = App(store.url, namespace=store.namespace)

    @app.task(name="work", queue=QUEUE)
    async def work() -> None:
        ran.set()

    async with opened(store, notify=False) as without_notify, app, app.worker(concurrency=1):
        await without_notify.enqueue(
            Group((new_job("a", task="work", payload=b"[[],{}]", given=Given(lease_len=30 * SECOND)),))
        )
        async with asyncio.timeout(30):
            await ran.wait()
