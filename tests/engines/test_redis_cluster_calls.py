"""Calls to a cluster, without the engine's rules: a small script that has two keys under its root, as rules have many.

`add` writes a number into both keys, so that a call that sees only one of them is noticed.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from eventually import eventually
from redis_binaries import versions
from redis_cluster import RedisCluster, private_cluster

from holdfast.engines.redis.cluster import ClusterPrimaries
from holdfast.engines.redis.connect import RedisConnector, parse
from holdfast.engines.redis.failures import ReplyError
from holdfast.engines.redis.primary import Primary
from holdfast.engines.redis.queue_names import TRIM_FROM, QueueNames
from holdfast.engines.redis.roots import root_of_queue
from holdfast.engines.redis.scripts import ServerScript
from holdfast.engines.redis.slots import Node, SlotMap, SlotRange, Topology, slot_of
from holdfast.errors import EngineUnavailable, OutcomeUnknown
from holdfast.model.instants import MINUTE, SECOND
from holdfast.runtime import Runtime, SystemRuntime

SCRIPT = ServerScript("""
local root = KEYS[1]
if ARGV[1] == "add" then
    redis.call("HINCRBY", root .. "a", "count", 1)
    redis.call("SADD", root .. "b", ARGV[3])
end
return {redis.call("HGET", root .. "a", "count") or "0", redis.call("SCARD", root .. "b")}
""")
ROOT = root_of_queue("routed", "mail")
SLOT = slot_of(ROOT)


@pytest.fixture(scope="module", params=versions())
def nodes(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    with private_cluster(request.param) as made:
        yield made


@pytest.fixture
def cluster(nodes: RedisCluster) -> RedisCluster:
    """Without keys under ROOT, and every slot where it was at first."""
    for node in nodes.primaries:
        node.execute("FLUSHALL", "SYNC")
    home = nodes.primaries[SLOT * 3 // 16_384]
    for node in nodes.primaries:
        node.execute("CLUSTER", "SETSLOT", SLOT, "STABLE")
    if nodes.node_of(SLOT) is not home:
        nodes.begin_migration(SLOT, home)  # else the others would go on believing the one that has it now
        nodes.end_migration(SLOT, home)
    return nodes


class NotedPauses(SystemRuntime):
    """Says when a call waits before it is tried again."""

    def __init__(self) -> None:
        super().__init__()
        self._pauses: asyncio.Queue[float] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        self._pauses.put_nowait(seconds)
        await super().sleep(seconds)

    async def next_pauses(self, count: int) -> None:
        """Wait until there have been so many pauses more."""
        async with asyncio.timeout(30):
            for _ in range(count):
                await self._pauses.get()


@asynccontextmanager
async def calling(
    cluster: RedisCluster, wait_s: float = 30.0, timeout_s: float = 60.0, runtime: Runtime | None = None
) -> AsyncIterator[ClusterPrimaries]:
    runtime = runtime or SystemRuntime()
    address, _ = parse(cluster.url())
    connect = RedisConnector(address, timeout_s=timeout_s, connect_timeout_s=10)

    def primary_at(node: Node) -> Primary:
        return Primary(connect.at(*node), str(node), SCRIPT, runtime, lambda *about_the_call: b"")

    topology = Topology([Node(address.host, address.port)])
    primaries = ClusterPrimaries(topology, primary_at, runtime, "the tests", wait_s)
    try:
        yield primaries
    finally:
        await primaries.close()


async def add(primaries: ClusterPrimaries, value: str, root: str = ROOT) -> tuple[int, int]:
    count, members = (await primaries.call(root, [b"add", value.encode()])).values
    return int(count), members


async def add_until_asked(primaries: ClusterPrimaries, stop: asyncio.Event, name: str) -> int:
    """Add one value after the other. Every answer must have seen both keys."""
    number = 0
    while not stop.is_set():
        number += 1
        count, members = await add(primaries, f"{name}-{number}")
        assert count == members, "a call saw a part of the keys"
    return number


async def test_a_root_is_called_at_the_primary_of_its_slot(cluster: RedisCluster) -> None:
    async with calling(cluster) as primaries:
        for number in range(30):
            queue_root = root_of_queue("routed", f"queue-{number}")
            assert await add(primaries, "x", queue_root) == (1, 1)
            assert cluster.node_of(slot_of(queue_root)).execute("EXISTS", f"{queue_root}a") == 1
        assert len(await primaries.nodes()) == 3


async def test_a_moved_slot_is_followed_and_remembered(cluster: RedisCluster) -> None:
    async with calling(cluster) as primaries:
        await add(primaries, "x")
        target = next(node for node in cluster.primaries if node is not cluster.node_of(SLOT))
        await asyncio.to_thread(cluster.migrate_slot, SLOT, target)

        assert await add(primaries, "y") == (2, 2)
        assert primaries.topology.slots.primary_of(SLOT) == Node("127.0.0.1", target.port)


async def test_a_call_waits_while_keys_move_and_goes_on_with_all_of_them(cluster: RedisCluster) -> None:
    runtime = NotedPauses()
    async with calling(cluster, runtime=runtime) as primaries:
        await add(primaries, "x")
        source = cluster.node_of(SLOT)
        target = next(node for node in cluster.primaries if node is not source)
        cluster.begin_migration(SLOT, target)
        cluster.move_keys(source, target, [f"{ROOT}a".encode()])

        waiting = asyncio.ensure_future(add(primaries, "y"))
        await runtime.next_pauses(3)
        assert not waiting.done()
        cluster.move_keys(source, target, [f"{ROOT}b".encode()])

        assert await waiting == (2, 2)  # by ASKING: the slot still belongs to the source
        assert cluster.node_of(SLOT) is source
        cluster.end_migration(SLOT, target)
        assert await add(primaries, "z") == (3, 3)


async def test_a_slot_that_moves_under_load_loses_and_doubles_nothing(cluster: RedisCluster) -> None:
    async with calling(cluster) as one, calling(cluster) as two:
        stop = asyncio.Event()
        adding = [
            asyncio.ensure_future(add_until_asked(primaries, stop, f"caller-{number}"))
            for number, primaries in enumerate([one, one, two, two])
        ]
        for _ in range(3):
            target = next(node for node in cluster.primaries if node is not cluster.node_of(SLOT))
            await asyncio.to_thread(cluster.migrate_slot, SLOT, target, keys_at_once=1)
            await asyncio.sleep(0.05)
        stop.set()
        added = sum(await asyncio.gather(*adding))

        assert await add(one, "last") == (added + 1, added + 1)


async def test_a_command_with_some_of_its_keys_elsewhere_is_tried_again(cluster: RedisCluster) -> None:
    one, two = f"{ROOT}one", f"{ROOT}two"
    runtime = NotedPauses()
    async with calling(cluster, runtime=runtime) as primaries:
        source = cluster.node_of(SLOT)
        source.execute("MSET", one, 1, two, 2)
        target = next(node for node in cluster.primaries if node is not source)
        cluster.begin_migration(SLOT, target)
        cluster.move_keys(source, target, [one.encode()])

        reading = asyncio.ensure_future(primaries.command("MGET", one, two))
        await runtime.next_pauses(3)
        assert not reading.done()
        cluster.move_keys(source, target, [two.encode()])
        cluster.end_migration(SLOT, target)

        assert await reading == [b"1", b"2"]


async def test_a_migration_that_does_not_end_is_an_error_after_the_longest_wait(cluster: RedisCluster) -> None:
    async with calling(cluster, wait_s=0.2) as primaries:
        await add(primaries, "x")
        target = next(node for node in cluster.primaries if node is not cluster.node_of(SLOT))
        cluster.begin_migration(SLOT, target)

        with pytest.raises(EngineUnavailable, match=rf"slot {SLOT} moves .* Waited 0.2 s. Nothing was written"):
            await add(primaries, "y")

        cluster.end_migration(SLOT, cluster.primaries[SLOT * 3 // 16_384])
        for node in cluster.primaries:
            node.execute("CLUSTER", "SETSLOT", SLOT, "STABLE")
        assert await add(primaries, "z") == (2, 2)


async def test_a_slot_without_a_node_is_an_error_after_the_longest_wait(cluster: RedisCluster) -> None:
    async with calling(cluster, wait_s=0.2) as primaries:
        await primaries.nodes()
        home = cluster.node_of(SLOT)
        for node in cluster.primaries:
            node.configure(cluster_require_full_coverage="no")
            node.execute("CLUSTER", "DELSLOTS", SLOT)

        with pytest.raises(EngineUnavailable, match=r"CLUSTERDOWN|no node has slot"):
            await add(primaries, "x")

        home.execute("CLUSTER", "ADDSLOTS", SLOT)
        for node in cluster.primaries:
            node.configure(cluster_require_full_coverage="yes")
        await eventually(lambda: _answers(primaries), "the slot to be served again")


async def _answers(primaries: ClusterPrimaries) -> bool:
    try:
        await add(primaries, "again")
    except EngineUnavailable:
        return False
    return True


@pytest.fixture(params=versions())
def replicated(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    """Each primary has a replica."""
    with private_cluster(request.param, replicas=1) as made:
        yield made


async def add_once_known(primaries: ClusterPrimaries, value: str) -> None:
    """Add a value. The members are a set, so a call whose outcome is unknown can be made again."""
    while True:
        try:
            await add(primaries, value)
        except (OutcomeUnknown, EngineUnavailable):
            continue
        return


@pytest.mark.chaos
async def test_a_replica_takes_over_from_a_killed_and_from_a_frozen_primary(replicated: RedisCluster) -> None:
    async with calling(replicated) as primaries:
        await add_once_known(primaries, "x")
        for stop, goes_on in (("kill", "start"), ("freeze", "thaw")):
            await eventually(partial(_has_replica_in_step, replicated), "the replica to be in step")
            old = replicated.node_of(SLOT)
            await asyncio.to_thread(getattr(old, stop))
            try:
                await asyncio.wait_for(add_once_known(primaries, stop), 30)  # the time limit of a call is 60 s
                assert primaries.topology.slots.primary_of(SLOT) != Node("127.0.0.1", old.port)
            finally:
                await asyncio.to_thread(getattr(old, goes_on))
        members = await primaries.command("SMEMBERS", f"{ROOT}b")
        assert {"kill", "freeze"} <= {member.decode() for member in members}


def _has_replica_in_step(nodes: RedisCluster) -> bool:
    """Of the primary of the slot: on a busy machine a replica may have taken over although no node was stopped."""
    try:
        replication = nodes.node_of(SLOT).execute("INFO", "replication")
    except LookupError:
        return False
    replica = replication.get("slave0", {"state": "none"})
    return bool(replica["state"] == "online" and replica["offset"] == replication["master_repl_offset"])


def test_a_map_of_slots_can_be_changed_slot_by_slot() -> None:
    one, two = Node("127.0.0.1", 1), Node("::1", 2)
    slots = SlotMap()
    assert slots.primary_of(0) is None
    slots = slots.moved(5, one).moved(6, one).moved(5, two)
    assert [slots.primary_of(slot) for slot in (4, 5, 6, 7)] == [None, two, one, None]
    assert [str(node) for node in slots.primaries] == ["[::1]:2", "127.0.0.1:1"]


async def test_a_map_is_read_although_a_node_hangs(cluster: RedisCluster) -> None:
    """Each node has a second to answer, whatever the time limit of calls is."""
    async with calling(cluster, timeout_s=60) as primaries:
        await primaries.nodes()
        first = next(node for node in cluster.primaries if node.port == primaries.topology.slots.primaries[0].port)
        first.freeze()
        try:
            primaries.topology.slots = SlotMap([SlotRange(0, 16_383, Node("127.0.0.1", first.port))])
            primaries.topology.seeds = tuple(Node("127.0.0.1", node.port) for node in cluster.primaries)
            await asyncio.wait_for(primaries.read_map(), 30)
            assert len(primaries.topology.slots.primaries) == 3
        finally:
            first.thaw()


async def test_nodes_that_have_left_are_forgotten_when_their_connections_have_ended(cluster: RedisCluster) -> None:
    async with calling(cluster) as primaries:
        await primaries.nodes()
        left = Node("127.0.0.1", 1)
        with pytest.raises(EngineUnavailable):
            await primaries._primary(left).command("PING")
        await primaries.read_map()
        assert left not in primaries._primaries


async def test_the_names_of_queues_that_a_process_used_long_ago_are_forgotten() -> None:
    class Clock(SystemRuntime):
        now_us = 0

        def monotonic(self) -> int:
            return self.now_us

    async def command(*args: object) -> None:
        """As the server would answer."""

    runtime = Clock()
    names = QueueNames("n", runtime, command)
    for number in range(3 * TRIM_FROM):
        runtime.now_us += MINUTE
        await names.write([f"queue-{number}"])
    assert len(names._written) <= TRIM_FROM


async def test_a_failed_write_of_the_names_of_queues_is_logged_and_made_again_after_30_s(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Clock(SystemRuntime):
        now_us = 0

        def monotonic(self) -> int:
            return self.now_us

    failures: list[Exception] = [EngineUnavailable("No server."), ReplyError("OOM no memory")]

    async def command(*args: object) -> None:
        if failures:
            raise failures.pop()

    runtime = Clock()
    names = QueueNames("n", runtime, command)
    await asyncio.gather(names.write(["mail"]), names.write(["sms"]))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert names.due(["mail", "sms"]) == []
    runtime.now_us += 30 * SECOND
    assert names.due(["mail", "sms"]) == ["mail", "sms"]
    await names.write(["mail"])
    assert names.due(["mail", "sms"]) == ["sms"]
