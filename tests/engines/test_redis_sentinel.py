"""Servers that Sentinels watch: the primary is found, and found again after a failover."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
from eventually import eventually
from redis_binaries import versions
from redis_replicas import cut_off, has_everything
from redis_sentinel import SERVICE, SentinelGroup, private_sentinels
from redis_server import RedisServer, server

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.engines.redis.connect import RedisConnector
from holdfast.engines.redis.primary import Primary
from holdfast.engines.redis.scripts import ServerScript
from holdfast.engines.redis.sentinel import SentinelPrimaries, parse_sentinels
from holdfast.engines.redis.slots import Node, Topology
from holdfast.errors import ConfigError, EngineError, EngineUnavailable, HistoryLost, OutcomeUnknown
from holdfast.model.job import JobKey
from holdfast.model.produce import Group
from holdfast.model.states import JobState
from holdfast.model.work import ExchangeAnswer, SettleStatus
from holdfast.runtime import SystemRuntime
from holdfast.telemetry import events
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import QUEUE, jobs, new_job, succeed

ADD = ServerScript('redis.call("SADD", KEYS[1] .. "set", ARGV[3]); return {redis.call("SCARD", KEYS[1] .. "set")}')
SENTINEL_PASSWORD = "of-the-sentinels"


@pytest.fixture(scope="module", params=versions())
def group(request: pytest.FixtureRequest) -> Iterator[SentinelGroup]:
    with private_sentinels(request.param, sentinel_password=SENTINEL_PASSWORD) as made:
        yield made


def address_of(group: SentinelGroup, service: str = SERVICE) -> str:
    return f"redis+sentinel://:{group.password}@{group.places}/{service}?sentinel_password={SENTINEL_PASSWORD}"


@asynccontextmanager
async def calling(url: str, wait_s: float = 30.0) -> AsyncIterator[SentinelPrimaries]:
    runtime = SystemRuntime()
    sentinels, address, _ = parse_sentinels(url)
    connect = RedisConnector(address, timeout_s=60, connect_timeout_s=10)

    def primary_at(node: Node) -> Primary:
        connected = partial(sentinels.connect, node, connect.at(*node))
        return Primary(connected, str(node), ADD, runtime, lambda *about_the_call: b"")

    primaries = SentinelPrimaries(sentinels, Topology(), primary_at, runtime, wait_s)
    try:
        yield primaries
    finally:
        await primaries.close()


async def add(primaries: SentinelPrimaries, value: str) -> int:
    """Add a value to a set; a call whose outcome is unknown is made again."""
    while True:
        try:
            return int((await primaries.call("root:", [b"add", value.encode()])).values[0])
        except OutcomeUnknown:
            continue


@pytest.mark.chaos
async def test_the_primary_is_found_again_after_each_kind_of_failover(group: SentinelGroup) -> None:
    await asyncio.to_thread(group.wait_until_ready)
    async with calling(address_of(group)) as primaries:
        await add(primaries, "first")
        for value, fail in (("asked", SentinelGroup.fail_over), ("killed", kill_primary), ("frozen", freeze_primary)):
            old = group.primary
            failing = asyncio.ensure_future(asyncio.to_thread(fail, group))
            while not failing.done():  # calls go on meanwhile
                await add(primaries, value)
            await failing
            await asyncio.to_thread(bring_back, group, old)
            await add(primaries, value)
            assert await primaries.nodes() == (Node("127.0.0.1", group.primary.port),)
            assert group.primary is not old


def kill_primary(group: SentinelGroup) -> None:
    old = group.primary
    old.kill()
    group.wait_for_other_primary(old)


def freeze_primary(group: SentinelGroup) -> None:
    """It answers nothing, and its connections stay open."""
    old = group.primary
    old.freeze()
    group.wait_for_other_primary(old)


def bring_back(group: SentinelGroup, old: Any) -> None:
    """The old primary becomes a replica."""
    if old.pid is None:
        old.start()
    old.thaw()
    group.wait_until_ready()


# One Sentinel that is cut off


async def test_a_sentinel_that_missed_the_failover_does_not_mislead_for_good(group: SentinelGroup) -> None:
    """While no other one answers, it names the old primary. As soon as another one does, the new one is found."""
    await asyncio.to_thread(group.wait_until_ready)
    *informed, cut_off_sentinel = group.sentinels
    old = group.primary
    async with calling(address_of(group), wait_s=0.5) as primaries:
        cut_off_sentinel.kill()  # it keeps what it knows in a file
        try:
            old.kill()
            await eventually(lambda: all(names_other(one, old) for one in informed), "the failover")
            for one in informed:
                one.freeze()
        finally:
            await asyncio.to_thread(cut_off_sentinel.start)
        try:
            assert not names_other(cut_off_sentinel, old)
            with pytest.raises(EngineUnavailable, match="Nothing was written"):
                await add(primaries, "x")
            assert primaries.topology.slots.primaries == (Node("127.0.0.1", old.port),)
        finally:
            for one in informed:
                one.thaw()
            await asyncio.to_thread(old.start)
        await eventually(lambda: is_added(primaries), "the new primary")
        assert primaries.topology.slots.primaries == (Node("127.0.0.1", group.primary.port),)
        assert group.primary is not old


async def is_added(primaries: SentinelPrimaries) -> bool:
    try:
        return await add(primaries, "y") > 0
    except EngineUnavailable:
        return False


def names_other(sentinel: RedisServer, old: RedisServer) -> bool:
    """True if this Sentinel says that another server is the primary, which has taken over."""
    port = int(sentinel.execute("SENTINEL", "get-master-addr-by-name", SERVICE)[1])
    return port != old.port


# The engine


@asynccontextmanager
async def opened(group: SentinelGroup, **options: Any) -> AsyncIterator[Bench]:
    url = f"redis+sentinel://:{group.password}@{group.places}/{SERVICE}"
    engine = open_engine(url, namespace="watched", durability="none", **options)
    await engine.open()
    try:
        yield Bench(engine)
    finally:
        await engine.close()


@pytest.mark.parametrize("version", versions())
async def test_a_failover_under_load_loses_nothing_that_a_replica_has_confirmed(version: str) -> None:
    with private_sentinels(version, replicas=2) as group:
        async with opened(group, replicas=1) as bench, opened(group, replicas=1) as working:
            acknowledged: list[str] = []
            succeeded: list[str] = []
            stop = asyncio.Event()
            tasks = [
                asyncio.ensure_future(produce(bench.engine, acknowledged, stop)),
                asyncio.ensure_future(work(working, succeeded, stop)),
            ]
            await eventually(lambda: len(succeeded) > 20, "some jobs")
            await asyncio.to_thread(kill_primary, group)
            before = len(succeeded)
            await eventually(lambda: len(succeeded) > before + 20, "jobs after the failover")
            stop.set()
            await asyncio.gather(*tasks)

            found = await bench.engine.get(*(JobKey(QUEUE, id) for id in acknowledged))
            states = {id: None if job is None else job.state for id, job in zip(acknowledged, found.jobs, strict=True)}
            assert None not in states.values()
            assert {states.get(id) for id in succeeded} == {JobState.SUCCEEDED}
            assert await bench.engine.audit() == ()


async def produce(engine: Engine, acknowledged: list[str], stop: asyncio.Event) -> None:
    """Enqueue one job after the other. A call that fails is repeated with the same id."""
    while not stop.is_set():
        id = f"job-{len(acknowledged)}"
        with suppress(EngineError):
            await engine.enqueue(Group((new_job(id),)))
            acknowledged.append(id)


async def work(bench: Bench, succeeded: list[str], stop: asyncio.Event) -> None:
    """Claim and settle. A call that fails is repeated as it is."""
    while not stop.is_set():
        leases = (await repeated(partial(bench.engine.claim, bench.claim(limit=5)))).leases
        if not leases:
            await asyncio.sleep(0.01)
            continue
        answer = await repeated(partial(bench.engine.settle, *map(succeed, leases)))
        for lease, status in zip(leases, answer.settled, strict=True):
            if status is SettleStatus.APPLIED:
                succeeded.append(lease.id)


async def repeated(call: Callable[[], Awaitable[ExchangeAnswer]]) -> ExchangeAnswer:
    while True:
        with suppress(EngineError):
            return await call()


@pytest.mark.parametrize("version", versions())
async def test_a_failover_to_a_replica_that_was_behind_is_told_and_old_leases_are_refused(version: str) -> None:
    with private_sentinels(version) as group:
        async with opened(group) as bench:
            lost: list[object] = []
            bench.engine.report_to(lost.append)
            await bench.put(*jobs("a", "b"))
            await bench.take_one()
            (replica,) = group.replicas
            await eventually(lambda: has_everything(replica, group.primary), "the replica to be in step")

            cut_off(replica)
            lease = await bench.take_one()
            await bench.put(new_job("c"))
            old = group.primary
            await asyncio.to_thread(old.kill)
            await asyncio.to_thread(group.wait_for_other_primary, old)

            with pytest.raises(HistoryLost, match="lost acknowledged jobs"):
                await eventually(lambda: bench.engine.stats(QUEUE), "the new primary")
            assert [type(event) for event in lost] == [events.HistoryLost]
            assert await bench.get_or_none("c") is None
            assert await bench.state("b") is JobState.QUEUED
            assert await bench.settle(succeed(lease)) is SettleStatus.LOST
            assert await bench.take_ids() == ["b"]


# Addresses and logins


async def test_a_call_without_any_sentinel_fails_after_the_longest_wait() -> None:
    async with calling("redis+sentinel://127.0.0.1:1,127.0.0.1:2/service", wait_s=0.2) as primaries:
        with pytest.raises(EngineUnavailable, match=r"127.0.0.1:1,127.0.0.1:2/service.*Nothing was written"):
            await add(primaries, "x")


async def test_opening_without_any_sentinel_claims_no_wait() -> None:
    engine = open_engine("redis+sentinel://127.0.0.1:1/service")
    with pytest.raises(EngineUnavailable, match=r"no Sentinel answers\. Nothing was written") as refused:
        await engine.open()
    assert "Waited" not in str(refused.value)


async def test_a_server_that_is_no_sentinel_is_a_wrong_setting() -> None:
    plain = server()
    url = f"redis+sentinel://127.0.0.1:{plain.port}/service?sentinel_password={plain.password}"
    async with calling(url) as primaries:
        with pytest.raises(ConfigError, match=r"unknown command.* Write the ports of the Sentinels"):
            await add(primaries, "x")


async def test_sentinels_that_ask_for_a_login_are_a_wrong_setting(group: SentinelGroup) -> None:
    async with calling(address_of(group).partition("?")[0]) as primaries:
        with pytest.raises(ConfigError, match=r"(?i)authentication required"):
            await add(primaries, "x")


async def test_an_unknown_service_is_a_wrong_setting(group: SentinelGroup) -> None:
    async with calling(address_of(group, "unknown")) as primaries:
        with pytest.raises(ConfigError, match="no service of that name"):
            await add(primaries, "x")


async def test_a_wrong_password_of_the_sentinels_is_a_wrong_setting(group: SentinelGroup) -> None:
    async with calling(address_of(group).replace(SENTINEL_PASSWORD, "wrong")) as primaries:
        with pytest.raises(ConfigError, match="login") as refused:
            await add(primaries, "x")
    assert "wrong" not in str(refused.value)


def test_an_address_names_sentinels_service_and_database() -> None:
    sentinels, address, settings = parse_sentinels(
        "rediss+sentinel://ada:se%2Fcret@one,two:5000,[::1]:6000/mail/3?timeout=5&sentinel_password=x&ssl_ca_certs=/ca"
    )
    assert sentinels.place == "one:26379,two:5000,::1:6000/mail"
    assert (address.username, address.password, address.database) == ("ada", "se/cret", 3)
    assert address.tls == {"ssl_ca_certs": "/ca"}
    assert settings == {"timeout": "5"}


@pytest.mark.parametrize("rest", ["one:1,two:2", "one:1/", "/mail", ":x@/mail"])
def test_an_address_without_sentinels_or_service_is_refused(rest: str) -> None:
    with pytest.raises(ConfigError, match=r"redis\+sentinel://host"):
        parse_sentinels(f"redis+sentinel://{rest}")


@pytest.mark.parametrize("rest", ["ada:se/cret@one/mail", "ada:se#cret@one/mail", "[::1/mail"])
def test_an_address_that_cannot_be_split_is_refused_without_its_password(rest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_sentinels(f"redis+sentinel://{rest}")
    assert "se" not in str(caught.value).replace("sentinel", "")
