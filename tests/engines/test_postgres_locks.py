"""Locks of other sessions: every call is answered, or fails within a limit with an error that names the session."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest
from every_verb import ONE_OF_EACH, claim, group, new
from postgres_stock import Store
from postgres_stories import Stores, opened

from holdfast.engines.ledger.ledger import RULES
from holdfast.engines.postgres.encode_calls import call_of
from holdfast.engines.postgres.engine import PostgresEngine
from holdfast.engines.postgres.rules import EXCHANGE_LOCK_WAIT_S, schema_of
from holdfast.errors import Busy, EngineUnavailable
from holdfast.model.command import Command
from holdfast.model.instants import HOUR, SECOND
from holdfast.model.job import JobKey
from holdfast.model.operate import PutPool
from holdfast.model.produce import Group, NewJob
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState, Reason
from holdfast.model.work import (
    Claim,
    Exchange,
    Heartbeat,
    Lease,
    QueueClaim,
    Renewal,
    RenewStatus,
    Settlement,
    SettleStatus,
    Start,
    StartStatus,
    TaskClaim,
)
from holdfast.testing.histories import AllVerbsCaller, Load, check_roughly, overlap

LIMIT_S = 20.0  # several waits of at most 2 s each, on a busy machine
TABLES = ("job", "lane", "queue", "unique_key", "edge", "worker", "pool", "counter", "tally", "deferred")


@pytest.fixture
def store(postgres_store: Stores) -> Store:
    return postgres_store()


@asynccontextmanager
async def session(store: Store, *statements: str) -> AsyncIterator[int]:
    """Another session with an open transaction that has run these statements; yields its process id."""
    connection: Any = await asyncpg.connect(store.url, server_settings={"application_name": "forgotten"})
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL search_path = {store.namespace}")
            for statement in statements:
                await connection.execute(statement)
            yield await connection.fetchval("SELECT pg_backend_pid()")
    finally:
        await connection.close()


def locked(store: Store, *ids: str) -> Any:
    return session(store, *[f"SELECT FROM job WHERE id = '{id}' FOR UPDATE" for id in ids])


async def fill(engine: PostgresEngine) -> None:
    """The jobs and records that the commands name."""
    commands: tuple[Command[Any], ...] = (
        PutPool(name="p", lanes=2),
        Heartbeat(worker=WorkerRecord(worker="w")),
        group(new("b", priority=1), new("c", priority=1)),
        claim("c1", limit=1, prefetch=1),
        group(new("a", lane="x"), new("d", lane="x"), new("e", unique_key="k")),
    )
    for command in commands:
        await engine.perform(command)


async def take(engine: PostgresEngine, *ids: str, limit: int = 9) -> list[Lease]:
    if ids:
        await engine.enqueue(Group(tuple(new(id) for id in ids)))
    return list((await engine.perform(claim("-".join(ids) or "claim", limit=limit))).leases)


def succeed(lease: Lease, **fields: Any) -> Settlement:
    return Settlement(queue="q", id=lease.id, token=lease.token, target=JobState.SUCCEEDED, **fields)


# Limits


def test_there_is_a_command_of_every_verb() -> None:
    assert {type(command) for command in ONE_OF_EACH} == set(RULES)


@pytest.mark.parametrize("how", ["rows", "tables"])
async def test_every_verb_is_answered_or_names_the_session_it_waited_for(store: Store, how: str) -> None:
    # PF1
    rows = [f"SELECT FROM {table} FOR UPDATE" for table in TABLES]
    tables = [f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE" for table in TABLES]
    async with opened(store, notify=False, pool_size=len(ONE_OF_EACH)) as engine:
        await fill(engine)
        errors: dict[str, str] = {}

        async def call(command: Command[Any]) -> None:
            try:
                await engine.perform(command)
            except (Busy, EngineUnavailable) as error:
                errors[type(command).__name__] = str(error)

        async with session(store, *(rows if how == "rows" else tables)) as pid, asyncio.timeout(LIMIT_S):
            await asyncio.gather(*map(call, ONE_OF_EACH))
        assert len(errors) > (3 if how == "rows" else 20)
        assert [text for text in errors.values() if f"session {pid} of " not in text or "forgotten" not in text] == []
        for command in ONE_OF_EACH:  # nothing is left of the locks
            await engine.perform(command)


async def test_an_error_after_a_lock_timeout_says_who_holds_locks_since_when(store: Store) -> None:
    async with opened(store, notify=False) as engine:
        await take(engine, "a")
        async with locked(store, "a") as pid:
            with pytest.raises(Busy) as busy:
                await engine.cancel("q", "a")
        found = rf"session {pid} of \S+ \(forgotten, idle in transaction, in a transaction since [\d.]+ s\)"
        assert re.search(found, str(busy.value)), busy.value


# Settlements that meet a lock


async def test_a_start_of_a_locked_job_is_busy_and_starts_when_it_is_sent_again(store: Store) -> None:
    # G8
    async with opened(store, notify=False) as engine:
        await engine.enqueue(Group((new("a"), new("b"))))
        one, two = (await engine.perform(claim("c", limit=0, prefetch=2))).leases
        starts = (Start("q", one.id, one.token), Start("q", two.id, two.token))
        async with locked(store, "a"), asyncio.timeout(LIMIT_S):
            answer = await engine.exchange((), starts)
        assert answer.started == (StartStatus.BUSY, StartStatus.STARTED)
        assert (await engine.exchange((), starts)).started == (StartStatus.STARTED, StartStatus.STARTED)


async def test_an_exchange_that_meets_a_lock_still_claims(store: Store) -> None:
    # G8
    async with opened(store, notify=False) as engine:
        leases = await take(engine, *(f"j{number}" for number in range(20)), limit=20)
        await engine.enqueue(Group((new("ready"),)))
        async with locked(store, "j3", "j7"), asyncio.timeout(LIMIT_S):
            answer = await engine.exchange([succeed(lease) for lease in leases], (), claim("next", limit=1).claim)
            assert answer.settled.count(SettleStatus.BUSY) == 2
            assert answer.settled.count(SettleStatus.APPLIED) == 18
            assert [lease.id for lease in answer.leases] == ["ready"]
            assert await engine.audit() == ()
        again = await engine.settle(*[succeed(lease) for lease in leases if lease.id in ("j3", "j7")])
        assert again.settled == (SettleStatus.APPLIED, SettleStatus.APPLIED)
        assert await engine.audit() == ()


# What passes over a locked job


async def test_a_claim_passes_over_a_locked_job(store: Store) -> None:
    # R1
    async with opened(store, notify=False) as engine:
        await engine.enqueue(Group((new("a", priority=1), new("b"))))
        async with locked(store, "a"), asyncio.timeout(LIMIT_S):
            assert [lease.id for lease in await take(engine)] == ["b"]


async def test_a_renewal_passes_over_a_locked_job(store: Store) -> None:
    # T9
    async with opened(store, notify=False) as engine:
        one, two = await take(engine, "a", "b")
        async with locked(store, "a"), asyncio.timeout(LIMIT_S):
            answer = await engine.renew(*[Renewal("q", lease.id, lease.token) for lease in (one, two)])
        assert [job.status for job in answer.jobs] == [RenewStatus.BUSY, RenewStatus.HELD]


async def test_a_reap_passes_over_a_locked_job(store: Store) -> None:
    # G8
    async with opened(store, notify=False) as engine:
        await take(engine, "a", "b")
        engine.clock_offset = HOUR
        lost = (await engine.expired("r")).leases
        reaps = [
            Settlement(
                queue="q",
                id=lease.id,
                token=lease.token,
                target=JobState.RETRYING,
                reason=Reason.WORKER_LOST,
                listed_expiry=lease.lease_expires,
            )
            for lease in sorted(lost, key=lambda lease: lease.id)
        ]
        async with locked(store, "a"), asyncio.timeout(LIMIT_S):
            assert (await engine.settle(*reaps)).settled == (SettleStatus.LOST, SettleStatus.APPLIED)


async def test_disowning_passes_over_a_locked_job(store: Store) -> None:
    # T8
    async with opened(store, notify=False) as engine:
        await take(engine, "a", "b")
        async with locked(store, "a"), asyncio.timeout(LIMIT_S):
            assert [lease.id for lease in (await engine.disown("w")).leases] == ["b"]


async def test_prune_passes_over_locked_jobs(store: Store) -> None:
    # PR1
    async with opened(store, notify=False) as engine:
        leases = await take(engine, "a", "b")
        await engine.settle(*[succeed(lease, retention=SECOND, result_ttl=SECOND) for lease in leases])
        await engine.enqueue(Group((new("c", expires=1), new("d", expires=1))))
        engine.clock_offset = HOUR
        async with locked(store, "a", "c"), asyncio.timeout(LIMIT_S):
            answer = await engine.prune()
        assert ([job.id for job in answer.deleted], [job.id for job in answer.expired]) == (["b"], ["d"])


async def test_a_claim_of_several_tasks_locks_only_what_it_takes(store: Store) -> None:
    # S2
    tasks = tuple(TaskClaim(task=task, lease_len=60 * SECOND) for task in ("t", "u", "v"))

    def claim_one(claim_id: str, limit: int) -> Exchange:
        return Exchange(claim=Claim(claim_id=claim_id, worker="w", queues=(QueueClaim("q", tasks),), limit=limit))

    async with opened(store, notify=False) as engine:
        await engine.enqueue(
            Group(tuple(NewJob(queue="q", id=f"{task.task}{n}", task=task.task) for n in range(2) for task in tasks))
        )
        connection: Any = await asyncpg.connect(store.url)
        async with connection.transaction():  # a claim that is not committed yet
            call = call_of(claim_one("first", 1))
            numbers = ", ".join(f"${number}" for number in range(1, len(call.arguments) + 3))
            statement = f"SELECT * FROM {schema_of(store.namespace)}.exchange({numbers})"
            await connection.fetch(statement, *call.arguments, 0, 0)
            one = (await engine.perform(claim_one("second", 1))).leases
            rest = (await engine.perform(claim_one("third", 9))).leases
        await connection.close()
        assert [lease.id for lease in (*one, *rest)] == ["u0", "v0", "t1", "u1", "v1"]
        assert await engine.audit() == ()


async def test_of_many_claims_at_once_none_is_empty_while_a_job_is_ready(store: Store) -> None:
    # S2
    tasks = tuple(TaskClaim(task=task, lease_len=60 * SECOND) for task in ("t", "u", "v"))
    async with opened(store, notify=False, pool_size=20) as engine:
        jobs = tuple(NewJob(queue="q", id=str(number), task="tuv"[number % 3]) for number in range(100))
        await engine.enqueue(Group(jobs))

        async def take_one(number: int) -> int:
            wanted = Claim(claim_id=f"c{number}", worker="w", queues=(QueueClaim("q", tasks),), limit=1)
            return len((await engine.exchange(claim=wanted)).leases)

        assert sum(await asyncio.gather(*map(take_one, range(100)))) == 100
        assert await engine.audit() == ()


# Work in pieces


async def test_prune_keeps_an_end_that_its_lane_has_not_processed(store: Store) -> None:
    # K6
    async with opened(store, notify=False) as engine:
        await engine.enqueue(Group((new("a", lane="x"), new("b", lane="x"))))
        (lease,) = await take(engine)
        connection: Any = await asyncpg.connect(store.url)
        async with connection.transaction():
            end = succeed(lease, retention=0, result_ttl=0)
            await engine.in_transaction(Exchange(settlements=(end,)), connection)
        await connection.close()
        engine.clock_offset = HOUR
        lock = f"SELECT pg_advisory_xact_lock(hashtextextended('{store.namespace} deferred q', 0))"
        async with session(store, lock):  # another call is about to process the end
            assert (await engine.prune()).deleted == ()
        assert [lease.id for lease in await take(engine)] == ["b"]
        assert (await engine.get(JobKey("q", "a"))).jobs == (None,)
        assert await engine.audit() == ()


async def test_a_claim_takes_nothing_of_a_queue_that_is_being_cleared_in_pieces(store: Store) -> None:
    # CL2
    async with opened(store, notify=False) as engine:
        await engine.enqueue(Group(tuple(new(f"j{number}") for number in range(5))))
        connection: Any = await asyncpg.connect(store.url)
        request = '{"queue": "q", "chunk": 2}'
        await connection.fetchval(f"SELECT {schema_of(store.namespace)}.clear($1, 0, 0)", request)
        await connection.close()
        answer = await engine.exchange((), (), claim("during", limit=9).claim)
        assert (answer.leases, answer.next_due) == ((), None)
        assert (await engine.clear("q")).count == 3
        assert [lease.id for lease in await take(engine, "later")] == ["later"]


# Random calls beside locks


async def lock_some_jobs(store: Store) -> None:
    """Another session locks jobs and lanes for a while, again and again, longer than an exchange waits."""
    connection: Any = await asyncpg.connect(store.url, server_settings={"application_name": "forgotten"})
    try:
        while True:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL search_path = {store.namespace}")
                await connection.execute("SELECT FROM job WHERE random() < 0.3 FOR UPDATE SKIP LOCKED")
                await connection.execute("SELECT FROM lane WHERE random() < 0.3 FOR UPDATE SKIP LOCKED")
                await asyncio.sleep(1.5 * EXCHANGE_LOCK_WAIT_S)
            await asyncio.sleep(0.1)
    finally:
        connection.terminate()


async def calls_beside_locks(store: Store, seed: int, load: Load) -> None:
    ended = []

    class CallerBesideLocks(AllVerbsCaller):
        async def run(self, calls: int) -> None:
            await super().run(calls)
            ended.append(self.name)
            if len(ended) == load.callers:  # what they left is finished without locks
                locks.cancel()
                await asyncio.wait({locks})

    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(opened(store, notify=False)) for _ in range(load.callers)]
        locks = asyncio.create_task(lock_some_jobs(store))
        verdict = check_roughly(await overlap(engines, seed, load, kind=CallerBesideLocks))
        assert verdict.problems == [], f"seed {seed}:\n" + "\n".join(verdict.problems)


async def test_callers_beside_a_session_that_locks_jobs_are_answered_and_leave_a_sound_store(store: Store) -> None:
    # PF1
    await calls_beside_locks(store, 1, Load(callers=6, calls=40))


@pytest.mark.chaos
@pytest.mark.time_limit(600)
@pytest.mark.parametrize("seed", range(10, 20))
async def test_many_callers_beside_a_session_that_locks_jobs_are_answered(store: Store, seed: int) -> None:
    # PF1
    await calls_beside_locks(store, seed, Load(callers=10, calls=150))
