"""Empty stores for single tests on a Redis server: a namespace that no test has used, removed after the test."""

import os
import secrets
from typing import NamedTuple

from redis_cluster import RedisCluster
from redis_server import RedisServer


class Store(NamedTuple):
    url: str
    namespace: str


_lent: list[tuple[RedisServer, str]] = []
_users: list[tuple[RedisServer, str]] = []


def fresh_namespace(server: RedisServer) -> Store:
    """An empty store for one test: address and namespace. Its keys are removed when the test has ended.

    A shared server keeps nothing, so an engine on it must be given `durability="none"`.
    """
    return _lend(server)


def fresh_cluster_namespace(cluster: RedisCluster) -> Store:
    """The same on a cluster."""
    return _lend(*cluster.primaries)


def _lend(*servers: RedisServer) -> Store:
    name = f"t{os.getpid()}_{secrets.token_hex(4)}"
    _lent.extend((server, name) for server in servers)
    return Store(servers[0].url(), name)


def keys_of(server: RedisServer, namespace: str) -> list[bytes]:
    """Every key of a namespace, with and without a hash tag around the name."""
    return list(server.client.scan_iter(match=f"*{namespace}*", count=10_000))


def forget_user(server: RedisServer, user: str) -> None:
    """Delete this user when the test has ended."""
    _users.append((server, user))


def remove_all() -> None:
    """Remove what the test has left in its namespaces, on servers that still run."""
    while _lent:
        server, namespace = _lent.pop()
        if server.own and server.pid is None:
            continue
        pipeline = server.client.pipeline(transaction=False)
        for key in keys_of(server, namespace):
            pipeline.unlink(key)  # one by one: in a cluster they are in several slots
        pipeline.execute()
    while _users:
        server, user = _users.pop()
        if server.pid is not None:
            server.execute("ACL", "DELUSER", user)
