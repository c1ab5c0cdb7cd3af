"""A Redis Cluster for tests: three primaries, with replicas if a test asks for them.

`cluster(name)` is shared by all processes of a run, like the servers of `redis_server`. A test that moves slots or
stops nodes uses a `private_cluster`. A new cluster takes about two seconds until it answers: nodes wait so long before
they accept writes.
"""

import secrets
import socket
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Self

from eventually import eventually_now
from kept_folder import started_once
from postgres_cluster import free_port
from redis_binaries import Binary, find
from redis_server import (
    START_LIMIT_S,
    WITHOUT_PERSISTENCE,
    RedisServer,
    Settings,
    new_folder,
    run_folder,
    start_new,
)

SLOTS = 16_384
PRIMARIES = 3
BUS_OFFSET = 10_000
"""The port on which nodes talk to each other is that much higher. Redis 6.2 cannot set it."""
NODE_TIMEOUT_MS = 15_000
"""After that long without an answer, a node counts as failed. All nodes of a busy machine may be late by seconds."""
FAILOVER_TIMEOUT_MS = 1_000
"""The same in a cluster with replicas, whose tests wait for a failover."""
MOVE_LIMIT_S = 60.0
"""Seconds for the migration of a slot."""
CLUSTER: Settings = WITHOUT_PERSISTENCE | {
    "cluster-enabled": "yes",
    "cluster-node-timeout": NODE_TIMEOUT_MS,
    "cluster-replica-validity-factor": 0,
    "repl-diskless-sync-delay": 0,
}


class RedisCluster:
    """Its nodes: the primaries, then their replicas in the same order."""

    def __init__(self, nodes: tuple[RedisServer, ...]) -> None:
        self.nodes = nodes

    @property
    def primaries(self) -> tuple[RedisServer, ...]:
        """Those that hold slots at first. After a failover ask `node_of`."""
        return self.nodes[:PRIMARIES]

    @property
    def replicas(self) -> tuple[RedisServer, ...]:
        return self.nodes[PRIMARIES:]

    def url(self) -> str:
        """The address of one node; clients find the others."""
        return self.nodes[0].url()

    def slot_of(self, key: str) -> int:
        return int(self.nodes[0].execute("CLUSTER", "KEYSLOT", key))

    def node_of(self, slot: int) -> RedisServer:
        """The primary of this slot. LookupError: none that runs, as during a failover."""
        running = {node.port: node for node in self.nodes if node.pid is not None}
        for node in running.values():
            for line in _nodes(node):
                if "master" in line.flags and slot in line.slots and line.port in running:
                    return running[line.port]
        raise LookupError(f"no node holds slot {slot}")

    def migrate_slot(
        self, slot: int, target: RedisServer, *, pause: Callable[[], None] = lambda: None, keys_at_once: int = 10
    ) -> None:
        """Move a slot and its keys to another primary. `pause` is called after each step."""
        source = self.node_of(slot)
        assert source is not target
        self.begin_migration(slot, target)
        pause()
        while keys := source.execute("CLUSTER", "GETKEYSINSLOT", slot, keys_at_once):
            self.move_keys(source, target, keys)
            pause()
        self.end_migration(slot, target)

    def begin_migration(self, slot: int, target: RedisServer) -> None:
        """From now on the old primary answers ASK for keys that it does not have."""
        source = self.node_of(slot)
        target.execute("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.execute("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))

    def move_keys(self, source: RedisServer, target: RedisServer, keys: list[bytes]) -> None:
        login = ("AUTH", target.password)
        source.execute("MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, *login, "KEYS", *keys)

    def end_migration(self, slot: int, target: RedisServer) -> None:
        """From now on the old primary answers MOVED."""
        owner = self.id_of(target)
        for node in (target, *(node for node in self.primaries if node is not target)):
            node.execute("CLUSTER", "SETSLOT", slot, "NODE", owner)
        # Before the next move, or a late message with an older epoch could give the slot back on some nodes.
        eventually_now(lambda: self._has_moved(slot, target), f"slot {slot} to move", MOVE_LIMIT_S)

    def migrate_slot_in_one_step(self, slot: int, target: RedisServer) -> None:
        """Let the servers move a slot themselves, and wait for its end: Valkey 9 and newer."""
        source = self.node_of(slot)
        source.execute("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.id_of(target))
        eventually_now(lambda: self._has_moved(slot, target), f"slot {slot} to move", MOVE_LIMIT_S)

    def _has_moved(self, slot: int, target: RedisServer) -> bool:
        """Every node says so, and knows the epoch of the new primary."""
        name = self.id_of(target)
        found = [line for node in self.primaries for line in _nodes(node) if line.id == name and slot in line.slots]
        return len(found) == len(self.primaries) and len({line.epoch for line in found}) == 1

    def id_of(self, node: RedisServer) -> str:
        return str(node.execute("CLUSTER", "MYID").decode())

    def wait_until_ready(self) -> None:
        """Wait until all nodes that run know each other and accept commands."""
        running = [node for node in self.nodes if node.pid is not None]
        eventually_now(lambda: all(map(self._is_ready, running)), "the nodes of the cluster", START_LIMIT_S)

    def _is_ready(self, node: RedisServer) -> bool:
        lines = _nodes(node)
        return (
            b"cluster_state:ok" in node.execute("CLUSTER", "INFO")
            and len(lines) == len(self.nodes)
            and sum("slave" in line.flags for line in lines) >= len(self.replicas)
        )

    def disconnect(self) -> None:
        for node in self.nodes:
            node.disconnect()

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NodeLine:
    """A line of CLUSTER NODES."""

    def __init__(self, line: str) -> None:
        self.id, place, flags = line.split()[:3]
        self.port = int(place.partition("@")[0].rpartition(":")[2])
        self.flags = frozenset(flags.split(","))
        self.epoch = int(line.split()[6])
        spans = [span.split("-") for span in line.split()[8:] if not span.startswith("[")]
        self.slots = frozenset(slot for span in spans for slot in range(int(span[0]), int(span[-1]) + 1))


def _nodes(node: RedisServer) -> list[NodeLine]:
    return [NodeLine(line) for line in node.execute("CLUSTER", "NODES").decode().splitlines()]


def _knows(node: RedisServer, other: str) -> bool:
    return any(line.id == other for line in _nodes(node))


def private_cluster(name: str | None = None, *, replicas: int = 0, settings: Settings | None = None) -> RedisCluster:
    """A new cluster, with so many replicas of each primary. The caller closes it."""
    binary = find(name)
    folders = [new_folder(binary) for _ in range(PRIMARIES * (1 + replicas))]
    timeout: Settings = {"cluster-node-timeout": FAILOVER_TIMEOUT_MS} if replicas else {}
    return _start(binary, folders, timeout | (settings or {}))


@cache
def cluster(name: str | None = None) -> RedisCluster:
    """The run's cluster of this version, without replicas: not to be stopped or changed."""
    binary = find(name)
    base = run_folder().path / f"{binary.name}-cluster"
    base.mkdir(exist_ok=True)
    folders = [run_folder().path / f"{binary.name}-node{number}" for number in range(PRIMARIES)]
    with started_once(base) as (addresses, note):
        if addresses is None:
            for folder in folders:
                folder.mkdir()
            made = _start(binary, folders, {})
            for node in made.nodes:
                node.outlive_this_process()
            note([node.url() for node in made.nodes])
        else:
            places = zip(addresses, folders, strict=True)
            made = RedisCluster(tuple(RedisServer(url, binary=binary, folder=folder) for url, folder in places))
    return made


def _start(binary: Binary, folders: list[Path], settings: Settings) -> RedisCluster:
    password = secrets.token_hex(16)
    nodes = tuple(
        start_new(binary, folder, CLUSTER | settings, password=password, port=_node_port) for folder in folders
    )
    made = RedisCluster(nodes)
    try:
        _join(made)
    except BaseException:
        made.close()
        raise
    return made


def _join(made: RedisCluster) -> None:
    bounds = [SLOTS * number // PRIMARIES for number in range(PRIMARIES + 1)]
    for number, node in enumerate(made.nodes):
        node.execute("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        if number < PRIMARIES:
            node.execute("CLUSTER", "ADDSLOTS", *range(bounds[number], bounds[number + 1]))
        # Each meets all before it, because news by way of others take seconds.
        for other in made.nodes[:number]:
            node.execute("CLUSTER", "MEET", "127.0.0.1", other.port)
    for number, replica in enumerate(made.replicas):
        primary = made.id_of(made.primaries[number % PRIMARIES])
        eventually_now(partial(_knows, replica, primary), "the nodes of the cluster to find each other", START_LIMIT_S)
        replica.execute("CLUSTER", "REPLICATE", primary)
    made.wait_until_ready()


def _node_port() -> int:
    """A free port whose bus port is free too, and below those that the kernel gives to outgoing connections."""
    while True:
        port = free_port()
        if port + BUS_OFFSET >= 32_768:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port + BUS_OFFSET))
            except OSError:
                continue
            return port
