"""Redis servers that are killed, blocked, busy or full while engines use them. `make chaos` runs the long forms."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
import redis
from eventually import eventually
from every_verb import ONE_OF_EACH
from load import Load
from opened_engine import opened_engine
from redis_binaries import versions
from redis_server import AOF_ALWAYS, WITHOUT_PERSISTENCE, RedisServer, names, private_server
from redis_stores import Store, fresh_namespace

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.errors import EngineUnavailable, OutcomeUnknown, StorageFull
from holdfast.model.job import JobKey
from holdfast.model.observe import Prune
from holdfast.model.operate import Requeue
from holdfast.model.produce import Enqueue, Group
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState
from holdfast.model.work import RenewStatus, SettleStatus
from holdfast.testing.contract.builders import QUEUE, claim, fail, new_job, renewal, retry, succeed

TIMEOUT_S = 30.0  # a call that waits for nothing takes milliseconds


@pytest.fixture(scope="module")
def synced() -> Iterator[RedisServer]:
    """It syncs each write before it answers."""
    with private_server(AOF_ALWAYS) as server:
        yield server


@pytest.fixture(scope="module")
def unsynced() -> Iterator[RedisServer]:
    with private_server(WITHOUT_PERSISTENCE) as server:
        yield server


def engine_of(store: Store, **options: Any) -> Engine:
    return open_engine(store.url, namespace=store.namespace, **options)


# The server is killed


async def kills(server: RedisServer, times: int, *, producers: int = 3, between_s: float = 0.1) -> Load:
    async with Load(fresh_namespace(server), producers=producers, concurrency=50) as load:
        for _ in range(times):
            await asyncio.sleep(between_s)
            await asyncio.to_thread(server.restart)
            await load.consumes()
    print(f"{server.name}, {times} times kill -9: {load}")
    return load


async def test_nothing_acknowledged_is_lost_when_the_server_is_killed_under_load(synced: RedisServer) -> None:
    load = await kills(synced, 2)
    assert load.refused + load.unknown > 0, "no call failed: the kills were not tested"


@pytest.mark.chaos
@pytest.mark.parametrize("name", names())
async def test_nothing_acknowledged_is_lost_in_ten_kills_of_the_server_under_load(name: str) -> None:
    with private_server(AOF_ALWAYS, name=name) as server:
        await kills(server, 10, producers=6, between_s=1.0)


@pytest.mark.parametrize("loop_sees_it", [True, False], ids=["seen", "unseen"])
async def test_the_first_call_after_a_restart_does_not_fail(synced: RedisServer, loop_sees_it: bool) -> None:
    """Also if the event loop was busy and has not read yet that its connections are closed."""
    async with opened_engine(engine_of(fresh_namespace(synced))) as engine:
        await engine.enqueue(Group((new_job("a"),)))
        if loop_sees_it:
            await asyncio.to_thread(synced.restart)
        else:
            synced.restart()
        await asyncio.gather(*(engine.enqueue(Group((new_job(f"k{number}"),))) for number in range(3)))
        assert (await engine.stats(QUEUE)).queues[0].counts == {JobState.QUEUED: 4}


# The server loads its data after a start

SLOWLY = "key-load-delay 1\n"
"""Microseconds (in fact about 60) for each command that the server loads. It answers after each 1,000 of them."""
FILL = "for n = 1, 300000 do redis.call('SET', 'filler:' .. n, '') end"
"""Commands to load: the server answers 300 times meanwhile, about ten times as often as the test needs."""


@asynccontextmanager
async def loading(server: RedisServer) -> AsyncIterator[None]:
    """Kill the server and start it; it loads its data while the block runs. Then start it at its usual speed."""
    settings = server.folder / "redis.conf"
    usual = settings.read_text()
    await asyncio.to_thread(server.kill)
    settings.write_text(usual + SLOWLY)
    await asyncio.to_thread(server.launch)
    try:
        await eventually(lambda: is_loading(server), "the server to load its data")
        yield
        assert is_loading(server), "it was ready too early: this proved nothing"
    finally:
        settings.write_text(usual)
        await asyncio.to_thread(server.restart)  # Redis 6.2 changes no setting while it loads


def is_loading(server: RedisServer) -> bool:
    with suppress(redis.ConnectionError):
        return bool(server.execute("INFO", "persistence")["loading"])
    return False


@pytest.mark.parametrize("name", versions())
async def test_a_server_that_loads_its_data_gives_no_answer_and_later_the_right_one(name: str) -> None:
    with private_server(AOF_ALWAYS, name=name) as server:
        store = fresh_namespace(server)
        server.execute("EVAL", FILL, 0)
        async with opened_engine(engine_of(store)) as engine:
            await engine.enqueue(Group(tuple(new_job(f"job-{number}") for number in range(100))))
            (lease,) = (await engine.claim(claim("c" * 32, limit=1))).leases
            async with loading(server):
                for call in (
                    lambda: engine.enqueue(Group((new_job("new"),))),
                    lambda: engine.settle(succeed(lease)),
                    lambda: engine.stats(QUEUE),
                    lambda: engine.get(JobKey(QUEUE, "job-1")),
                ):
                    with pytest.raises(EngineUnavailable, match="loads its data"):
                        await call()
                with pytest.raises(EngineUnavailable, match="loads its data"):
                    await engine_of(store).open()
            assert (await engine.get(JobKey(QUEUE, "new"))).jobs == (None,)
            assert (await engine.settle(succeed(lease))).settled == (SettleStatus.APPLIED,)
            counts = (await engine.stats(QUEUE)).queues[0].counts
            assert counts == {JobState.QUEUED: 99, JobState.SUCCEEDED: 1}


# Connections are ended, the script is forgotten


async def disturbed(server: RedisServer, times: int, disturb: Callable[[], object]) -> Load:
    async with Load(fresh_namespace(server), durability="none") as load:
        for _ in range(times):
            await asyncio.to_thread(disturb)
            await load.consumes()
    return load


async def test_nothing_is_lost_when_every_connection_is_ended_under_load(unsynced: RedisServer) -> None:
    await disturbed(unsynced, 5, unsynced.kill_clients)


@pytest.mark.chaos
async def test_nothing_is_lost_when_every_connection_is_ended_two_hundred_times(unsynced: RedisServer) -> None:
    print(await disturbed(unsynced, 200, unsynced.kill_clients))


async def test_no_call_notices_that_the_server_has_forgotten_the_script(unsynced: RedisServer) -> None:
    load = await disturbed(unsynced, 10, lambda: unsynced.execute("SCRIPT", "FLUSH"))
    assert (load.refused, load.unknown) == (0, 0)


# The server does not answer


async def blocked(server: RedisServer, seconds: float) -> Load:
    async with Load(fresh_namespace(server), durability="none") as load:
        server.freeze()
        try:
            await asyncio.sleep(seconds)
        finally:
            server.thaw()
        await load.consumes()
    print(f"{server.name}, blocked for {seconds:g} s: {load}")
    return load


async def test_nothing_is_lost_when_the_server_is_blocked(unsynced: RedisServer) -> None:
    await blocked(unsynced, 1.5)


@pytest.mark.chaos
async def test_nothing_is_lost_when_the_server_is_blocked_for_twenty_seconds(unsynced: RedisServer) -> None:
    await blocked(unsynced, 20)


async def test_every_verb_has_a_limit_when_the_server_does_not_answer(unsynced: RedisServer) -> None:
    limits = {"timeout": 0.5, "connect_timeout": 0.5}
    async with opened_engine(engine_of(fresh_namespace(unsynced), durability="none", **limits)) as engine:

        async def answers_again() -> bool:
            try:
                await engine.enqueue(Group((new_job("a"),)))
            except (EngineUnavailable, OutcomeUnknown):  # the limits are short for a busy machine
                return False
            return True

        await eventually(answers_again)
        unsynced.freeze()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                calls = (engine.perform(command) for command in ONE_OF_EACH)
                answers = await asyncio.gather(*calls, return_exceptions=True)
                async with asyncio.timeout(5):
                    await asyncio.to_thread(engine.renewal_connection().close)
        finally:
            unsynced.thaw()
        for command, answer in zip(ONE_OF_EACH, answers, strict=True):
            assert isinstance(answer, EngineUnavailable | OutcomeUnknown), f"{type(command).__name__}: {answer}"
        await eventually(answers_again)


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """The server runs a script of another client that does not end."""
    before = server.execute("CONFIG", "GET", "lua-time-limit")[b"lua-time-limit"]
    server.configure(lua_time_limit=20)

    def run() -> None:
        with redis.Redis.from_url(server.url()) as client, suppress(redis.RedisError):
            client.eval("while true do end", 0)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while True:
            try:
                server.execute("PING")
            except redis.ResponseError:  # BUSY
                break
        yield
    finally:
        server.execute("SCRIPT", "KILL")
        thread.join()
        server.configure(lua_time_limit=before)


async def test_a_call_to_a_busy_server_says_that_nothing_was_written(unsynced: RedisServer) -> None:
    async with opened_engine(engine_of(fresh_namespace(unsynced), durability="none")) as engine:
        await engine.enqueue(Group((new_job("a"),)))
        with busy(unsynced), pytest.raises(EngineUnavailable, match=r"BUSY.*Nothing was written.*SCRIPT KILL"):
            await engine.enqueue(Group((new_job("b"),)))
        assert (await engine.get(JobKey(QUEUE, "b"))).jobs == (None,)
        await engine.enqueue(Group((new_job("b"),)))


async def test_work_goes_on_after_the_server_was_busy(unsynced: RedisServer) -> None:
    async with Load(fresh_namespace(unsynced), durability="none") as load:
        for _ in range(3):
            with busy(unsynced):
                await asyncio.sleep(0.1)
            await load.consumes()


# The memory of the server is full


@contextmanager
def full(server: RedisServer) -> Iterator[None]:
    server.configure(maxmemory=1)
    try:
        yield
    finally:
        server.configure(maxmemory=0)


def contents(server: RedisServer) -> dict[bytes, bytes]:
    return {key: server.execute("DUMP", key) for key in server.client.scan_iter(count=1_000)}


@pytest.fixture(params=names())
def every_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with private_server(WITHOUT_PERSISTENCE, name=request.param) as server:
        yield server


async def test_a_full_server_refuses_new_jobs_and_nothing_is_written(every_server: RedisServer) -> None:
    async with opened_engine(engine_of(fresh_namespace(every_server), durability="none", notify=False)) as engine:
        await engine.enqueue(Group((new_job("a"), new_job("b"))))
        leases = (await engine.claim(claim("c" * 32, limit=2))).leases
        await engine.settle(fail(leases[0]))
        with full(every_server):
            before = contents(every_server)
            for fields in ({}, {"lane": "l"}, {"unique_key": "k"}, {"fresh_id": True}):
                with pytest.raises(StorageFull, match="Nothing was written"):
                    await engine.enqueue(Group((new_job("new", **fields),)))
            with pytest.raises(StorageFull, match="Nothing was written"):
                await engine.requeue(QUEUE, leases[0].id)
            assert contents(every_server) == before
        assert await engine.audit() == ()
        await engine.enqueue(Group((new_job("new"),)))
        await engine.requeue(QUEUE, leases[0].id)


async def test_jobs_are_worked_off_while_the_server_is_full(every_server: RedisServer) -> None:
    async with opened_engine(engine_of(fresh_namespace(every_server), durability="none", notify=False)) as engine:
        await engine.enqueue(Group(tuple(new_job(id, lane=lane) for id, lane in zip("abcd", "x  x", strict=True))))
        await engine.enqueue(Group((new_job("plain"),)))
        with full(every_server):
            (first, second, third) = (await engine.claim(claim("c" * 32, limit=5))).leases[:3]
            (renewed,) = (await engine.renew(renewal(first))).jobs
            assert renewed.status is RenewStatus.HELD
            answer = await engine.exchange([succeed(first), retry(second)], claim=claim("d" * 32, limit=5))
            assert answer.settled == (SettleStatus.APPLIED, SettleStatus.APPLIED)
            assert answer.leases
            await engine.settle(succeed(third))
            await engine.heartbeat(WorkerRecord(worker="w", host="h", pid=1, interval=1))
        assert await engine.audit() == ()


async def test_every_other_verb_works_while_the_server_is_full(every_server: RedisServer) -> None:
    async with opened_engine(engine_of(fresh_namespace(every_server), durability="none", notify=False)) as engine:
        await engine.perform(ONE_OF_EACH[0])
        with full(every_server):
            for command in ONE_OF_EACH:
                if not isinstance(command, Enqueue | Requeue):
                    await engine.perform(command)
            await engine.perform(Prune())
        assert await engine.audit() == ()


async def test_a_worker_goes_on_when_the_server_is_full_for_a_while(unsynced: RedisServer) -> None:
    async with Load(fresh_namespace(unsynced), durability="none") as load:
        with full(unsynced):
            refused = load.full
            await eventually(lambda: load.full > refused, "an enqueue to be refused")
        await load.consumes()
