"""The engine on a cluster: slots that move under its jobs, nodes that fail, and the two modes beside each other.

The contract suite runs on a cluster in both modes, too (tests/contract).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from eventually import eventually
from every_verb import every_verb
from load import QUEUE, Load
from redis_binaries import find_all, versions
from redis_cluster import RedisCluster, cluster, private_cluster
from redis_server import RedisServer
from redis_stores import Store, fresh_cluster_namespace

from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.engines.redis import presence
from holdfast.engines.redis.roots import root_in_one_slot, root_of_no_queue, root_of_queue
from holdfast.engines.redis.slots import slot_of
from holdfast.errors import ConfigError, EngineUnavailable, HistoryLost, OutcomeUnknown, Unsupported
from holdfast.model.instants import DAY, SECOND
from holdfast.model.job import JobKey
from holdfast.model.operate import RemoveStatus
from holdfast.model.produce import Group
from holdfast.model.records import WorkerRecord
from holdfast.model.states import JobState
from holdfast.model.work import QueueClaim, Renewal, RenewStatus, SettleStatus
from holdfast.runtime import SystemRuntime
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.builders import LEASE, after, jobs, new_job, succeed, task_claim
from holdfast.testing.oracle import Oracle

MODES = ("queues", "namespace")


@pytest.fixture(scope="module", params=versions())
def private(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    """A cluster whose slots may be moved."""
    with private_cluster(request.param) as made:
        yield made


def store_on(nodes: RedisCluster, mode: str) -> Store:
    store = fresh_cluster_namespace(nodes)
    return Store(f"{store.url}?cluster={mode}", store.namespace)


@asynccontextmanager
async def opened(store: Store, **options: Any) -> AsyncIterator[Bench]:
    engine = open_engine(store.url, namespace=store.namespace, durability="none", **options)
    await engine.open()
    try:
        yield Bench(engine)
    finally:
        await engine.close()


def roots_of(store: Store, mode: str, *queues: str) -> list[str]:
    if mode == "namespace":
        return [root_in_one_slot(store.namespace)]
    return [root_of_no_queue(store.namespace), *(root_of_queue(store.namespace, queue) for queue in queues)]


def queues_on_every_node(nodes: RedisCluster, store: Store, *, skip: RedisServer | None = None) -> list[str]:
    """One queue for each primary, but `skip`, in the order of the primaries."""
    found: dict[int, str] = {}
    for number in range(100):
        name = f"queue-{number}"
        found.setdefault(nodes.node_of(slot_of(root_of_queue(store.namespace, name))).port, name)
    return [found[node.port] for node in nodes.primaries if node is not skip]


def claims_of(*queues: str) -> tuple[QueueClaim, ...]:
    return tuple(QueueClaim(queue, (task_claim(),)) for queue in queues)


# Every verb


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("moves", [False, True], ids=["", "while slots move"])
async def test_every_verb_answers_as_the_ledger(private: RedisCluster, mode: str, moves: bool) -> None:
    """While slots move: their keys are at the new node, but they still belong to the old one, so calls are ASKED."""
    store = store_on(private, mode)
    slots = [slot_of(root) for root in roots_of(store, mode, "q", "p")]
    targets = {slot: other_primary(private, slot) for slot in slots}
    async with opened(store) as bench:
        for slot in slots if moves else ():
            await asyncio.to_thread(move_all_keys, private, slot, targets[slot])
        await use_every_verb(bench.engine)
        for slot in slots if moves else ():
            private.end_migration(slot, targets[slot])
        assert await bench.engine.audit() == ()


def other_primary(nodes: RedisCluster, slot: int) -> RedisServer:
    return next(node for node in nodes.primaries if node is not nodes.node_of(slot))


def move_all_keys(nodes: RedisCluster, slot: int, target: RedisServer) -> None:
    source = nodes.node_of(slot)
    nodes.begin_migration(slot, target)
    while keys := source.execute("CLUSTER", "GETKEYSINSLOT", slot, 100):
        nodes.move_keys(source, target, keys)


async def use_every_verb(engine: Engine) -> None:
    oracle = Oracle()
    commands = every_verb(engine)
    command = next(commands)
    while True:
        answer = await engine.perform(command)
        problem = oracle.accept(command, answer)
        assert problem is None, problem
        try:
            command = commands.send(answer)
        except StopIteration:
            return


# Slots that move


@pytest.mark.parametrize("mode", MODES)
async def test_no_job_is_lost_or_doubled_while_its_slot_moves(private: RedisCluster, mode: str) -> None:
    await move_under_load(private, mode, times=2)


@pytest.mark.chaos
@pytest.mark.parametrize("mode", MODES)
async def test_no_job_is_lost_or_doubled_while_all_slots_move_often(private: RedisCluster, mode: str) -> None:
    await move_under_load(private, mode, times=30)


@pytest.mark.parametrize(
    ("mode", "times"),
    [("queues", 2), *(pytest.param(mode, 30, marks=pytest.mark.chaos) for mode in MODES)],
)
async def test_no_job_is_lost_or_doubled_while_its_slot_moves_in_one_step(mode: str, times: int) -> None:
    """CLUSTER MIGRATESLOTS: the servers copy the keys, and the slot changes hands when the target has all of them."""
    binary = find_all()[-1]
    if not binary.moves_slots_in_one_step:
        pytest.skip(f"not offered: {binary.name} moves keys one by one")
    with private_cluster(binary.name) as nodes:
        await move_under_load(nodes, mode, times, RedisCluster.migrate_slot_in_one_step)


def migrate_key_by_key(nodes: RedisCluster, slot: int, target: RedisServer) -> None:
    nodes.migrate_slot(slot, target, keys_at_once=1)


async def move_under_load(
    nodes: RedisCluster,
    mode: str,
    times: int,
    migrate: Callable[[RedisCluster, int, RedisServer], None] = migrate_key_by_key,
) -> None:
    store = store_on(nodes, mode)
    slots = [slot_of(root) for root in roots_of(store, mode, QUEUE)]
    async with Load(store, durability="none") as load:
        for _ in range(times):
            for slot in slots:
                target = await asyncio.to_thread(other_primary, nodes, slot)
                await asyncio.to_thread(migrate, nodes, slot, target)
            await load.consumes()
    print(load)
    assert (load.refused, load.unknown) == (0, 0)
    assert sum(load.runs.values()) == len(load.acknowledged)


# Nodes that fail


@pytest.mark.parametrize("version", versions())
async def test_queues_of_other_primaries_go_on_while_one_is_down(version: str) -> None:
    with private_cluster(version, settings={"cluster-require-full-coverage": "no"}) as nodes:
        store = store_on(nodes, "queues")
        home = nodes.node_of(slot_of(root_of_no_queue(store.namespace)))
        down = next(node for node in nodes.primaries if node is not home)
        gone, *others = sorted(
            queues_on_every_node(nodes, store),
            key=lambda queue: nodes.node_of(slot_of(root_of_queue(store.namespace, queue))) is not down,
        )
        async with opened(store) as bench:
            engine: Any = bench.engine
            engine._primary._wait_s = 0.3
            for queue in (gone, *others):
                await bench.put(*jobs("a", "b", queue=queue))
            leases = await bench.take(3, queues=tuple(QueueClaim(q, (task_claim(),), 1) for q in (gone, *others)))
            await asyncio.to_thread(down.kill)

            renewed = await engine.renew(*(Renewal(lease.queue, lease.id, lease.token) for lease in leases))
            assert [one.status for one in renewed.jobs] == [RenewStatus.BUSY, RenewStatus.HELD, RenewStatus.HELD]
            answer = await engine.exchange(
                [succeed(lease) for lease in leases], claim=bench.claim(limit=9, queues=claims_of(gone, *others))
            )
            assert answer.settled == (SettleStatus.BUSY, SettleStatus.APPLIED, SettleStatus.APPLIED)
            assert [(lease.queue, lease.id) for lease in answer.leases] == [(queue, "b") for queue in others]
            assert (await engine.expired("reaper")).leases == ()
            assert (await engine.prune()).more is True
            with pytest.raises(EngineUnavailable, match="Nothing was written"):
                await engine.enqueue(Group((new_job("c", queue=gone),)))
            with pytest.raises(OutcomeUnknown, match="carried out for some queues, but not for"):
                await engine.enqueue(*(Group((new_job("d", queue=queue),)) for queue in (gone, *others)))


@pytest.mark.parametrize("version", versions())
async def test_all_queues_go_on_while_the_primary_with_their_names_is_down(version: str) -> None:
    with private_cluster(version, settings={"cluster-require-full-coverage": "no"}) as nodes:
        store = store_on(nodes, "queues")
        home = nodes.node_of(slot_of(root_of_no_queue(store.namespace)))
        one, other = queues_on_every_node(nodes, store, skip=home)
        async with opened(store) as bench:
            engine: Any = bench.engine
            engine._primary._wait_s = 0.3
            for queue in (one, other):
                await bench.finish(new_job("ended", queue=queue))
                await bench.put(new_job("lost", queue=queue))
            await bench.take(2, queues=claims_of(one, other))
            assert (await engine.expired("reaper")).leases == ()
            await asyncio.to_thread(home.kill)
            engine._apart._names.forget()  # as if ten minutes had passed

            await bench.put(new_job("a", queue=one))
            assert [lease.id for lease in await bench.take(queues=claims_of(one, other))] == ["a"]
            await engine.pause(other)
            await engine.resume(other)
            bench.clock.advance(8 * DAY / SECOND)
            lost = {(lease.queue, lease.id) for lease in await bench.expired()}
            assert lost == {(one, "a"), (one, "lost"), (other, "lost")}
            pruned = await engine.prune()
            assert (set(pruned.deleted), pruned.more) == ({JobKey(one, "ended"), JobKey(other, "ended")}, True)


async def test_a_worker_keeps_its_leases_while_its_record_cannot_be_written() -> None:
    with private_cluster(versions()[0], settings={"cluster-require-full-coverage": "no"}) as nodes:
        store = store_on(nodes, "queues")
        home = nodes.node_of(slot_of(root_of_no_queue(store.namespace)))
        queue, other = queues_on_every_node(nodes, store, skip=home)
        async with opened(store) as bench:
            engine: Any = bench.engine
            engine._primary._wait_s = 0.3
            record = WorkerRecord(worker="w", queues=(queue, other), interval=SECOND)
            await engine.heartbeat(record)
            await asyncio.to_thread(home.kill)
            assert (await engine.heartbeat(record)).stop is False
            await asyncio.to_thread(nodes.node_of(slot_of(root_of_queue(store.namespace, queue))).kill)
            assert (await engine.heartbeat(record)).stop is False
            await asyncio.to_thread(nodes.node_of(slot_of(root_of_queue(store.namespace, other))).kill)
            with pytest.raises(EngineUnavailable):
                await engine.heartbeat(record)


@pytest.mark.parametrize("version", versions())
@pytest.mark.parametrize("mode", ["namespace", pytest.param("queues", marks=pytest.mark.chaos)])
async def test_a_failover_loses_nothing_that_a_replica_has_confirmed(version: str, mode: str) -> None:
    """With `replicas=1` an acknowledged job is on the replica, which takes over."""
    with private_cluster(version, replicas=1) as nodes:
        store = store_on(nodes, mode)
        slot = slot_of(roots_of(store, mode, QUEUE)[-1])
        async with opened(store, replicas=1) as bench:
            acknowledged: list[str] = []
            stop = asyncio.Event()
            producing = asyncio.ensure_future(produce(bench.engine, acknowledged, stop))
            await eventually(lambda: len(acknowledged) > 20, "some jobs")
            old = nodes.node_of(slot)
            await asyncio.to_thread(old.kill)
            await eventually(lambda: has_other_primary(nodes, slot, old), "the failover")
            await asyncio.to_thread(old.start)  # as the replica of the new primary, which confirms nothing without it
            before = len(acknowledged)
            await eventually(lambda: len(acknowledged) > before + 20, "jobs after the failover")
            stop.set()
            await producing

            found = await bench.engine.get(*(JobKey(QUEUE, id) for id in acknowledged))
            assert all(job is not None and job.state is JobState.QUEUED for job in found.jobs)
            assert nodes.node_of(slot) is not old


def has_other_primary(nodes: RedisCluster, slot: int, old: RedisServer) -> bool:
    try:
        return nodes.node_of(slot) is not old
    except LookupError:
        return False


async def produce(engine: Engine, acknowledged: list[str], stop: asyncio.Event) -> None:
    """Enqueue one job after the other. A call that fails is repeated with the same id."""
    number = 0
    while not stop.is_set():
        number += 1
        while True:
            try:
                await engine.enqueue(Group((new_job(f"job-{number}", queue=QUEUE),)))
            except (EngineUnavailable, OutcomeUnknown, HistoryLost):
                continue
            break
        acknowledged.append(f"job-{number}")


# Queues apart


async def test_a_claim_over_several_queues_that_was_sent_before_takes_nothing_new() -> None:
    store = store_on(cluster(), "queues")
    async with opened(store) as bench:
        await bench.put(*jobs("b1", "b2", queue="blue"))
        claim = bench.claim(limit=2, queues=claims_of("red", "blue", "green"))
        first = await bench.engine.claim(claim)
        await bench.put(*jobs("r1", "r2", queue="red"))

        again = await bench.engine.claim(claim)

        assert [lease.id for lease in again.leases] == ["b1", "b2"]
        assert again.leases == first.leases
        await bench.engine.settle(*map(succeed, first.leases))
        assert [lease.id for lease in (await bench.engine.claim(claim)).leases] == ["r1", "r2"]


async def test_what_crosses_queues_is_refused_by_name() -> None:
    # S4
    async with opened(store_on(cluster(), "queues")) as bench:
        await bench.put(new_job("parent", queue="red"))
        with pytest.raises(Unsupported, match="queues 'red' and 'blue'") as refused:
            await bench.offer(new_job("a", queue="red"), new_job("b", queue="blue"))
        assert refused.value.capability == "cross_queue_atomic"
        with pytest.raises(Unsupported, match="waits for job 'parent' of queue 'red'"):
            await bench.offer(new_job("child", queue="blue", parents=after("parent", queue="red")))
        assert [queue.queue for queue in (await bench.engine.stats()).queues] == ["red"]


async def test_a_queue_that_a_worker_takes_from_is_not_removed() -> None:
    # RM1: its record is under another root than the queue.
    async with opened(store_on(cluster(), "queues")) as bench:
        await bench.put(new_job("a"))
        await bench.engine.heartbeat(WorkerRecord(worker="w", queues=("work",), interval=SECOND))
        assert (await bench.engine.remove_queue("unknown")).status is RemoveStatus.NOT_FOUND
        assert (await bench.engine.remove_queue("work")).status is RemoveStatus.HAS_JOBS
        await bench.engine.cancel("work", "a")
        await bench.engine.delete("work", "a")
        answer = await bench.engine.remove_queue("work")
        assert (answer.status, answer.workers) == (RemoveStatus.SERVED, ("w",))
        await bench.engine.pause("work", "lane")
        assert (await bench.engine.remove_queue("work")).status is RemoveStatus.PAUSED
        await bench.engine.resume("work", "lane")
        await bench.engine.forget_worker("w")
        assert (await bench.engine.remove_queue("work")).status is RemoveStatus.REMOVED


async def test_a_claim_fills_its_limit_from_its_queues_in_order() -> None:
    store = store_on(cluster(), "queues")
    queues = queues_on_every_node(cluster(), store)
    async with opened(store) as bench:
        for queue in queues:
            await bench.put(*jobs(*(f"{queue}/{number}" for number in range(3)), queue=queue))

        leases = await bench.take(4, prefetch=3, queues=claims_of(*queues))

        assert [lease.id for lease in leases] == [f"{queue}/{number}" for queue in queues for number in range(3)][:7]
        assert [lease.token.rpartition(".")[2] for lease in leases] == [str(rank) for rank in range(7)]
        assert [lease.state for lease in leases] == [JobState.RUNNING] * 4 + [JobState.ASSIGNED] * 3
        assert len({lease.token for lease in leases}) == 7


async def test_a_queue_that_another_process_has_removed_is_found_again_after_its_next_job() -> None:
    store = store_on(cluster(), "queues")
    async with opened(store) as bench, opened(store) as other:
        await bench.finish(new_job("a"))
        await other.engine.delete("work", "a")
        await other.engine.remove_queue("work")
        assert (await other.engine.stats()).queues == ()

        await bench.put(new_job("b"))
        assert [queue.queue for queue in (await other.engine.stats()).queues] == ["work"]
        await bench.take_one()
        other.clock.advance(LEASE / 1_000_000 + 1)
        assert [lease.id for lease in await other.expired()] == ["b"]


async def test_the_name_of_a_queue_is_dropped_when_nothing_has_used_it_for_an_hour() -> None:
    nodes = cluster()
    store = store_on(nodes, "queues")
    key = f"{root_of_no_queue(store.namespace)}names"
    node = nodes.node_of(slot_of(key))
    async with opened(store) as bench:
        await bench.put(new_job("a", queue="used"))
        await bench.take(queue="empty")
        await bench.take(queue="recent")
        for queue in ("used", "empty"):
            node.execute("ZADD", key, 1, queue)

        await bench.engine.prune()

        assert node.execute("ZRANGE", key, 0, -1) == [b"used", b"recent"]


# WK3
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("version", versions())
async def test_a_worker_whose_subscription_has_ended_is_disowned_in_every_queue(
    mode: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "MIN_UPTIME_S", -1)  # the cluster may have just been started
    store = store_on(cluster(version), mode)
    runtime = MovedRuntime()
    async with opened(store, runtime=runtime) as watching, opened(store) as ending:
        queues = queues_on_every_node(cluster(version), store)
        for queue in queues:
            await ending.put(new_job("a", queue=queue))
        await ending.take(3, worker="w", queues=claims_of(*queues))
        keeper = ending.engine.renewal_connection()
        record = WorkerRecord(worker="w", queues=tuple(queues), interval=5 * SECOND)
        await asyncio.to_thread(keeper.heartbeat, record)
        assert await watching.engine.disown_silent(60 * SECOND) == {}
        await asyncio.to_thread(keeper.close)

        found: dict[str, int] = {}
        deadline = asyncio.get_running_loop().time() + 30
        while not found and asyncio.get_running_loop().time() < deadline:
            runtime.pass_time(1.5)
            found = await watching.engine.disown_silent(60 * SECOND) or {}

        assert found == {"w": 3}
        assert (await watching.engine.workers()).workers == ()
        assert {lease.queue for lease in await watching.expired()} == set(queues)


class MovedRuntime(SystemRuntime):
    """Its clock for durations can be moved forward."""

    moved_us = 0

    def monotonic(self) -> int:
        return super().monotonic() + self.moved_us

    def pass_time(self, seconds: float) -> None:
        self.moved_us += round(seconds * SECOND)


# Opening


async def test_a_namespace_is_not_opened_in_another_mode_than_its_jobs_are_stored() -> None:
    store = fresh_cluster_namespace(cluster())
    async with opened(store) as bench:
        assert bench.engine.capabilities.cross_queue_atomic is False  # `queues` is the mode of a cluster
    with pytest.raises(ConfigError, match='Set `cluster = "queues"`'):
        async with opened(store, cluster="namespace"):
            pass
    async with opened(store, cluster="queues"):
        pass


async def test_a_single_server_can_store_jobs_as_a_cluster_does(redis_store: Any) -> None:
    store = redis_store()
    async with opened(store, cluster="queues") as bench:
        assert bench.engine.capabilities.cross_queue_atomic is False
        await bench.put(new_job("a", queue="red"), new_job("b", queue="blue"))
        assert [lease.id for lease in await bench.take(5, queues=claims_of("red", "blue"))] == ["a", "b"]
    with pytest.raises(ConfigError, match='Set `cluster = "queues"`'):
        async with opened(store):
            pass


async def test_a_cluster_has_no_other_database_than_0() -> None:
    store = fresh_cluster_namespace(cluster())
    with pytest.raises(ConfigError, match=r"database|DB index"):
        async with opened(Store(store.url.removesuffix("/0") + "/1", store.namespace)):
            pass


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="queues"):
        open_engine("redis://localhost/0?cluster=lanes")
    with pytest.raises(ConfigError, match="queues"):
        open_engine("redis://localhost/0", cluster="lanes")
